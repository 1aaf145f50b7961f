"""Zip files whose records and directory may lie."""

import binascii
import struct

LOCAL, CENTRAL = "<4s5H3I2H", "<4s6H3I5H2I"


class Record:
    """Stored as it is; what is given by name is written in place of the truth."""

    def __init__(self, name, data=b"", method=0, flags=0, local_name=None, **lies):
        self.name, self.data, self.method, self.flags = name.encode(), data, method, flags
        self.local_name = self.name if local_name is None else local_name.encode()
        self.lies = lies  # crc, packed, plain, offset; extra: bytes

    def told(self, what, truth):
        return self.lies.get(what, truth)


def archive(records, directory_at=None, count=None, zip64=None, tail=b""):
    """`zip64` are the values of its end record: (count, bytes, offset) of the directory."""
    body, directory = b"", b""
    for record in records:
        at = len(body)
        crc = record.told("crc", binascii.crc32(record.data))
        packed, plain = record.told("packed", len(record.data)), record.told("plain", len(record.data))
        fields = (record.flags, record.method, 0, 0, crc, packed & 0xFFFFFFFF, plain & 0xFFFFFFFF)
        body += struct.pack(LOCAL, b"PK\3\4", 20, *fields, len(record.local_name), 0)
        body += record.local_name + record.data
        extra = record.told("extra", b"")
        directory += struct.pack(CENTRAL, b"PK\1\2", 20, 20, *fields, len(record.name), len(extra), 0, 0, 0, 0,
                                 record.told("offset", at))
        directory += record.name + extra
    begin = len(body) if directory_at is None else directory_at
    end = b""
    if zip64 is not None:
        end += struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, zip64[0], *zip64)
        end += struct.pack("<4sIQI", b"PK\6\7", 0, len(body) + len(directory), 1)
    number = len(records) if count is None else count
    end += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, number & 0xFFFF, number & 0xFFFF, len(directory),
                       0xFFFFFFFF if zip64 is not None else begin, len(tail))
    return body + directory + end + tail


def torch_file(pickle, storages=None, more=()):
    """As torch.save lays it out."""
    storages = {"0": bytes(24)} if storages is None else storages
    return archive([Record("m/data.pkl", pickle), *(Record(f"m/data/{key}", data) for key, data in storages.items()),
                    Record("m/version", b"3\n"), *more])
