"""Files for compare_safetensors.py: seeded mutations of safetensors files, and their names."""

import json
import re
import struct

DTYPES = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}

TOKENS = [
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"false", b"0", b"-0", b"-1",
    b"1.0", b"1e3", b"1e400", b"1e-400", b"0.0", b"0e400", b"00", b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808", b'"dtype":"F32"', b'"shape":[1]', b'"data_offsets":[0,4]', b'"x":{}',
    b'"x":[[{"a":[]}]]', b'"__metadata__":null', b'"__metadata__":{}', b'"__metadata__":{"a":"b"}',
    b'"\\u0000"', b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\ude00"', b'"\\q"', b"\\", b"\xff",
    b"\x00", b"\xc3\xa9", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xf4\x90\x80\x80", b"\x7f",
    b"\x01", b" ", b"\t",
    b"\r\n", b"\x0c", b"\xc2\xa0", b"//", b"/**/", b"NaN", b"Infinity", b"+1", b".5", b"5.", b"0x1",
    b'"F4"', b'"F6_E2M3"', b'"f32"', b'"F32 "', b"[" * 130, b"]" * 130, b"[" * 100 + b"]" * 100,
]


def valid_header(rng):
    """A valid header as a Python object, and the bytes of data it describes."""
    header = {}
    if rng.random() < 0.4:
        header["__metadata__"] = {"format": "pt", "na\u00efve": "caf\u00e9"}
    at = 0
    for i in range(rng.choice([0, 1, 1, 2, 2, 3, 3, 5, 5])):
        dtype = rng.choice(list(DTYPES))
        shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.randrange(4))]
        if DTYPES[dtype] % 8:
            shape.append(4)
        count = 1
        for extent in shape:
            count *= extent
        end = at + count * DTYPES[dtype] // 8
        name = rng.choice(["a", "layer.%d.weight" % i, "\u5c64%d" % i, "b c", ""]) + str(i)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    return header, at


def is_list(entry, key, least):
    return isinstance(entry.get(key), list) and len(entry[key]) >= least


def mutate_structure(rng, header):
    """Changes one field of one tensor, or the set of tensors."""
    names = [n for n in header if n != "__metadata__"]
    if not names:
        return
    name = rng.choice(names)
    entry = header[name]
    kind = rng.randrange(9)
    odd = [-1, 0, 1, 3, 5, 2**32, 2**63, 2**64 - 1, 2**64, 1.0, 1.5, None, "1", True, [], {}]
    if kind == 0 and is_list(entry, "shape", 1):
        entry["shape"][rng.randrange(len(entry["shape"]))] = rng.choice(odd)
    elif kind == 1:
        entry["shape"] = rng.choice(
            [[], [1], [2, 2**63], [0, 2**64 - 1], [2**64 - 1, 2, 0], None, {}, 3])
    elif kind == 2 and is_list(entry, "data_offsets", 2):
        entry["data_offsets"][rng.randrange(2)] = rng.choice(odd)
    elif kind == 3:
        entry["data_offsets"] = rng.choice([[], [0], [0, 4, 8], [4, 0], None, {}, "04", 4])
    elif kind == 4:
        entry["dtype"] = rng.choice(list(DTYPES) + ["F33", "", None, 3, ["F32"], {}, "f32"])
    elif kind == 5 and entry:
        del entry[rng.choice(list(entry))]
    elif kind == 6:
        entry[rng.choice(["extra", "Dtype", ""])] = rng.choice(odd)
    elif kind == 7:
        del header[name]
    else:
        header["__metadata__"] = rng.choice(
            [None, {}, [], "x", {"a": 1}, {"a": None}, {"a": {}}, 3])


def misstate(rng, header):
    """Faults of several tensors in what can be told only from all that the header says."""
    names = [n for n in header if n != "__metadata__"]
    for _ in range(rng.randrange(1, 4) if names else 0):
        entry = header[rng.choice(names)]
        other = header[rng.choice(names)]
        kind = rng.randrange(5)
        if kind == 0:
            at = rng.randrange(2)
            entry["data_offsets"][at] = max(0, entry["data_offsets"][at] + rng.choice([-1, 1, 4]))
        elif kind == 1:
            entry["data_offsets"] = rng.choice([entry["data_offsets"][::-1],
                                                list(other["data_offsets"])])
        elif kind == 2:
            entry["shape"] = rng.choice([[3], [2**63, 2], [2**61], [2**64 - 1, 3], [0, 2**63, 4]])
        elif kind == 3:
            entry["shape"] = entry["shape"] + [rng.choice([0, 1, 3])]
        else:
            entry["dtype"] = rng.choice(["F4", "F6_E2M3", "U8", "F32"])


def mutate_bytes(rng, text):
    """One random edit of the JSON text."""
    at = rng.randrange(len(text) + 1)
    to = min(len(text), at + rng.choice([1, 1, 2, 5, 20]))
    kind = rng.randrange(6)
    if kind == 0:
        return text[:at] + rng.choice(TOKENS) + text[at:]
    if kind == 1:
        return text[:at] + rng.choice(TOKENS) + text[to:]
    if kind == 2:
        return text[:at] + text[to:]
    if kind == 3:
        return text[:to] + text[at:]
    if kind == 4:
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1:]
    spots = [m.start() for m in re.finditer(rb"[{\[,]", text)] or [0]
    at = rng.choice(spots) + 1
    return text[:at] + rng.choice(TOKENS) + b"," + text[at:]


def restate(rng, header, text):
    """States one tensor a first time, as another one is: the last time counts."""
    names = [n for n in header if n != "__metadata__"]
    if not names or text[:1] != b"{":
        return text
    first = "%s: %s," % (json.dumps(rng.choice(names)), json.dumps(header[rng.choice(names)]))
    return b"{" + first.encode() + text[1:]


def surround(rng, text):
    """White space before and after the object, sometimes of a kind that JSON does not have."""
    def white():
        if rng.random() < 0.05:
            return rng.choice([b"\x0b", b"\x0c", b"\x00", b"\xc2\xa0", b"\xef\xbb\xbf"])
        if rng.random() < 0.5:
            return b" " * rng.choice([1, 2, 3, 7, 8, 64])
        return bytes(rng.choices(b" \t\r\n", k=rng.randrange(1, 9)))

    if rng.random() < 0.3:
        text = white() + text
    return text + white() if rng.random() < 0.3 else text


def make_header(rng):
    """The JSON of one file, and the bytes of data that it began with."""
    header, data_bytes = valid_header(rng)
    style = rng.random()
    if style > 0.85:
        misstate(rng, header)
    if style < 0.35:
        for _ in range(rng.choice([1, 1, 1, 2])):
            mutate_structure(rng, header)
    if rng.random() < 0.3:
        header = dict(rng.sample(list(header.items()), len(header)))
    text = json.dumps(header, ensure_ascii=rng.random() < 0.3,
                      separators=rng.choice([(",", ":"), (", ", ": ")])).encode()
    if rng.random() < 0.05:
        text = restate(rng, header, text)
    text = surround(rng, text)
    if 0.3 < style < 0.65:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            text = mutate_bytes(rng, text)
    return text, data_bytes


def make_file(rng):
    """The bytes of one test file."""
    text, data_bytes = make_header(rng)
    length = len(text)
    blob = text + rng.randbytes(data_bytes)
    edit = rng.random()
    if edit < 0.05:
        blob = blob[:rng.randrange(len(blob) + 1)]
    elif edit < 0.1:
        blob += bytes(rng.choice([1, 2, 8]))
    elif edit < 0.15:
        length = rng.choice([length + 1, max(0, length - 1), 0, 10**8, 10**8 + 1, 2**63,
                             2**64 - 1, 2**64 - 8])
    blob = struct.pack("<Q", length) + blob
    return blob[:rng.randrange(12)] if edit > 0.98 else blob


# Of other formats by their names; safetensors all the same.
FOREIGN = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".distcp")
ODD_NAMES = [
    "{} and spaces .safetensors", " {}", "{} ", "two\nlines{}.safetensors", "{}\r\n",
    "\t{}\x01\x7f", "-{}.safetensors", "--help{}", "\u5c64{}.safetensors", "cafe\u0301 {}", "\U0001f916{}",
    "\udcff\udcfe{}.safetensors", "'{}' \"q\".safetensors", "`{}` $HOME;&|<>", "*?[{}]!#", "~{}",
    "%s%n{}%41.safetensors", "{{}}{{0}}{}.safetensors", "back\\slash{}\\", "file:{}", "C:{}",
    "{}", "{}.SAFETENSORS", "{}.safetensors.", "{}.safetensors.bak", ".{}.safetensors", ".hidden{}",
    "{}-00001-of-00009.safetensors", "{}-00002-of-00009.safetensors", "{}" + "n" * 200,
    "{}.json.safetensors", "\u202e{}.safetensors", *("{}" + suffix for suffix in FOREIGN),
]


def make_name(rng, number):
    """A name for that file: every second one is odd. None ends in .json, which is an index here."""
    if rng.random() < 0.5:
        return "%d.safetensors" % number
    return rng.choice(ODD_NAMES).format(number)


TRAITS = {
    "white space first": lambda name, length, blob: blob[8:9] in (b" ", b"\t", b"\r", b"\n"),
    "an odd name": lambda name, length, blob: not re.fullmatch(r"[0-9]+\.safetensors", name),
    "unaligned data": lambda name, length, blob: length % 8 and len(blob) > 8 + length,
}


def traits_of(name, blob):
    """In what an accepted file differs from those that everybody writes."""
    length = int.from_bytes(blob[:8], "little")
    return [trait for trait, has in TRAITS.items() if has(name, length, blob)]
