"""Files that mean harm. Each has to be refused within a second, in little memory, with nothing run."""

import json
import struct
import zlib

from pickle_writer import (call, dict_of, list_of, made, none, number, pickled, storage, symbol, tensor, text,
                           tuple_of)
from zip_writer import Record, archive, torch_file

UNSAFE, INVALID, UNSUPPORTED, MISSING = ("SOURCE_UNSAFE", "SOURCE_INVALID", "SOURCE_UNSUPPORTED",
                                         "SOURCE_NOT_FOUND")
# name -> (writes a source into a folder and returns its path there, the reason of its error)
HOSTILE = {}


def of_bytes(name, reason, data, file="m.pt"):
    def write(folder):
        (folder / file).write_bytes(data() if callable(data) else data)
        return folder / file

    HOSTILE[name] = (write, reason)


def of_value(name, reason, value, protocol=2, storages=None):
    """A file of torch.save: a good tensor, and beside it this value."""
    of_bytes(name, reason, lambda: torch_file(
        pickled(dict_of([("w", tensor()), ("x", value() if callable(value) else value)]), protocol), storages))


# -- pickles that would run something ----------------------------------------------------------

of_value("calls_os_system", UNSAFE, call("os.system", text("id")))
of_value("calls_posix_system_by_name_on_the_stack", UNSAFE,
         text("posix") + text("system") + b"\x93" + tuple_of(text("id")) + b"R", protocol=4)
of_value("calls_eval", UNSAFE, call("__builtin__.eval", text("1")))
of_value("makes_a_process", UNSAFE, symbol("subprocess.Popen") + tuple_of(list_of(text("id"))) + b"\x81")
of_value("makes_a_process_by_keywords", UNSAFE,
         symbol("subprocess.Popen") + b")" + dict_of([("args", text("id"))]) + b"\x92")
of_value("calls_by_inst", UNSAFE, b"(" + text("id") + b"ios\nsystem\n")
of_value("calls_by_obj", UNSAFE, b"(" + symbol("os.system") + text("id") + b"o")
of_value("calls_what_getattr_finds", UNSAFE,
         call("__builtin__.getattr", symbol("os.path"), text("os.system")) + tuple_of(text("id")) + b"R")
of_value("calls_a_module_of_a_module", UNSAFE, call("torch.serialization.os.system", text("id")))
of_value("calls_a_partial", UNSAFE, call("functools.partial", symbol("os.system"), text("id")) + b")R")
of_value("maps_a_call", UNSAFE, call("__builtin__.map", symbol("os.system"), list_of(text("id"))))
of_value("loads_another_file", UNSAFE, call("torch.load", text("/etc/passwd")))
of_value("builds_by_copyreg", UNSAFE, call("copyreg.__newobj__", symbol("subprocess.Popen"), text("id")))
of_bytes("calls_os_system_in_a_plain_pickle", UNSAFE, pickled(call("os.system", text("id"))), "m.pkl")
of_bytes("calls_os_system_in_protocol_0", UNSAFE, b"cos\nsystem\n(S'id'\ntR.", "m.pkl")

# -- bombs of pickles --------------------------------------------------------------------------

of_value("objects_within_objects", INVALID,
         lambda: symbol("a.C") + b"q\1" + b"0" + b"h\1)\x81" * 60_000 + tensor() + b"b" * 60_000)
of_value("lists_within_lists", INVALID, lambda: b"]" * 200_000 + tensor() + b"a" * 200_000)
of_value("marks_without_end", INVALID, lambda: b"(" * 1_000_000)
of_value("tuples_of_twice_the_one_below", INVALID, tensor() + b"2\x86" * 300)
of_value("lists_of_twice_the_one_below", INVALID, lambda: tensor() + b"q\1" + b"0h\1" + b"".join(
    b"q\2]h\2ah\2a" for _ in range(60)))
of_value("a_set_of_a_list_again_and_again", INVALID,
         lambda: list_of(*[none()] * 100_000) + b"q\1" + (symbol("__builtin__.set") + b"h\1\x85R") * 20_000)
of_value("a_key_again_and_again", INVALID, lambda: text("x" * 200_000) + b"q\1" + text("x" * 200_000) + b"q\2}(" + (
    b"h\1Nh\2N" * 50_000) + b"u")
of_value("a_text_longer_than_the_file", INVALID, b"\x8d" + struct.pack("<Q", 1 << 62) + b"x", protocol=4)
of_value("a_number_longer_than_the_file", INVALID, b"\x8b" + struct.pack("<i", 1 << 30) + b"x")
of_value("a_number_of_megabytes", INVALID, lambda: b"\x8b" + struct.pack("<i", 2_000_000) + b"\x7f" * 2_000_000)
of_value("a_frame_longer_than_the_file", INVALID, b"\x95" + struct.pack("<Q", 1 << 62), protocol=4)
of_value("extensions", UNSUPPORTED, b"\x84" + struct.pack("<i", 1))
of_value("buffers_outside", UNSUPPORTED, b"\x97", protocol=5)

# -- tensors that are not there ----------------------------------------------------------------


def of_tensor(name, reason, written, storages=None):
    of_bytes(name, reason, torch_file(pickled(dict_of([("w", written)])), storages))


of_tensor("a_storage_that_is_longer_than_its_record", INVALID,
          tensor(of=storage(numel=1 << 40), size=(1 << 40,), stride=(1,)))
of_tensor("a_view_past_the_end", INVALID, tensor(size=(2, 4), stride=(3, 1)))
of_tensor("a_view_before_the_beginning", INVALID, tensor(offset=-1))
of_tensor("a_view_with_a_stride_that_wraps", INVALID, tensor(stride=(1 << 62, 1)))
of_tensor("a_view_whose_size_wraps", INVALID, tensor(size=(1 << 32, 1 << 32), stride=(0, 0)))
of_tensor("a_view_of_negative_size", INVALID, tensor(size=(-2, 3)))
of_tensor("a_storage_without_record", INVALID, tensor(of=storage(key="../0")))
of_tensor("a_storage_of_no_known_type", UNSUPPORTED, tensor(of=storage(kind="a.Storage")))

# -- zip files that lie ------------------------------------------------------------------------

GOOD = pickled(dict_of([("w", tensor())]))
PICKLE = Record("m/data.pkl", GOOD)
DATA = Record("m/data/0", bytes(24))
VERSION = Record("m/version", b"3\n")


def deflated(data):
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(data) + packer.flush()


def of_records(name, reason, *records, **options):
    of_bytes(name, reason, lambda: archive([one() if callable(one) else one for one in records], **options))


def bomb():
    return Record("m/data.pkl", deflated(bytes(80_000_000)), method=8, plain=80_000_000)


of_records("a_pickle_of_zeros_that_were_packed", INVALID, bomb, DATA, VERSION)
of_records("a_packed_pickle_that_is_longer_than_it_says", INVALID,
           lambda: Record("m/data.pkl", deflated(GOOD + bytes(80_000_000)), method=8, plain=len(GOOD)), DATA, VERSION)
of_records("a_packed_storage", UNSUPPORTED, PICKLE,
           Record("m/data/0", deflated(bytes(24)), method=8, plain=24, crc=0), VERSION)
of_records("two_pickles_of_one_name", INVALID, PICKLE, DATA, PICKLE, VERSION)
of_records("records_that_overlap", INVALID, PICKLE, DATA,
           Record("m/data/1", bytes(24), offset=30), VERSION)
of_records("a_record_that_begins_in_another_one", INVALID, PICKLE,
           Record("m/data/0", bytes(24), plain=1000, packed=1000), VERSION)
of_records("another_name_in_the_record_itself", INVALID,
           Record("m/data.pkl", GOOD, local_name="m/evil.pkl"), DATA, VERSION)
of_records("a_record_past_the_end", INVALID, PICKLE,
           Record("m/data/0", bytes(24), offset=1 << 31), VERSION)
of_records("a_checksum_of_something_else", INVALID, Record("m/data.pkl", GOOD, crc=1), DATA, VERSION)
of_records("an_encrypted_pickle", UNSUPPORTED, Record("m/data.pkl", GOOD, flags=1), DATA, VERSION)
of_records("a_zip64_record_of_half_of_all_bytes", INVALID, PICKLE, Record(
    "m/data/0", bytes(24), packed=0xFFFFFFFF, plain=0xFFFFFFFF,
    extra=struct.pack("<2H2Q", 1, 16, 1 << 63, 1 << 63)), VERSION)
of_records("a_zip64_directory_of_all_numbers", INVALID, PICKLE, DATA, VERSION,
           zip64=((1 << 64) - 1, (1 << 64) - 1, 1))
of_records("a_zip64_directory_behind_the_end", INVALID, PICKLE, DATA, VERSION, zip64=(3, 200, 1 << 62))
of_records("a_directory_behind_the_end", INVALID, PICKLE, DATA, VERSION, directory_at=1 << 30)
of_records("a_directory_of_more_records_than_there_are", INVALID, PICKLE, DATA, VERSION, count=60_000)

# -- the form before it ------------------------------------------------------------------------

MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."


def legacy(value, keys=("0",), tail=struct.pack("<q", 6) + bytes(24)):
    info = dict_of([("protocol_version", number(1001)), ("little_endian", b"\x88")])
    return MAGIC + b"".join(pickled(one) for one in (number(1001), info, value, list_of(*map(text, keys)))) + tail


def old_tensor(numel=6):
    of = tuple_of(text("storage"), symbol("torch.FloatStorage"), text("0"), text("cpu"), number(numel), none()) + b"Q"
    return dict_of([("w", tensor(of=of))])


of_bytes("old_form_that_calls_os_system", UNSAFE, legacy(call("os.system", text("id"))))
of_bytes("old_form_of_more_elements_than_bytes", INVALID, legacy(old_tensor(), tail=struct.pack("<q", 1 << 61)))
of_bytes("old_form_of_fewer_than_no_elements", INVALID, legacy(old_tensor(), tail=struct.pack("<q", -1)))
of_bytes("old_form_without_its_storage", INVALID, legacy(old_tensor(), keys=(), tail=b""))

# -- indices that lead elsewhere ---------------------------------------------------------------


def of_index(name, leads_to, file, reason=INVALID):
    of_bytes(name, reason, json.dumps({"weight_map": {"w": leads_to}}).encode(), file)


of_index("an_index_that_leads_up", "../../../etc/passwd.bin", "pytorch_model.bin.index.json")
of_index("an_index_that_leads_to_the_root", "/etc/passwd.bin", "pytorch_model.bin.index.json")
of_index("an_index_of_safetensors_that_leads_up", "a/../../m.safetensors", "model.safetensors.index.json")
of_bytes("an_index_that_is_deep", INVALID, b'{"weight_map":' + b"[" * 1_000_000, "model.safetensors.index.json")
of_bytes("a_header_of_all_bytes", INVALID, struct.pack("<Q", (1 << 64) - 1) + b"{}", "m.safetensors")
of_bytes("a_deep_header", INVALID, struct.pack("<Q", 1_000_000) + b'{"w":' + b"[" * 999_995, "m.safetensors")

# -- distributed checkpoints -------------------------------------------------------------------

DCP = "torch.distributed.checkpoint.metadata."
SIZE = 24


def size_of(*sizes):
    return call("torch.Size", tuple_of(*map(number, sizes)))


def chunk(offsets, sizes):
    return made(DCP + "ChunkStorageMetadata", dict_of([("offsets", size_of(*offsets)), ("sizes", size_of(*sizes))]))


def index_of(offset):
    return made(DCP + "MetadataIndex", dict_of(
        [("fqn", text("w")), ("offset", size_of(*offset)), ("index", number(0))]))


def stored(path="__0_0.distcp", offset=0, length=SIZE):
    return made("torch.distributed.checkpoint.filesystem._StorageInfo", dict_of(
        [("relative_path", text(path)), ("offset", number(offset)), ("length", number(length))]))


def metadata(shape, chunks, items=None, root=DCP + "Metadata"):
    """`chunks` are pairs of offsets and sizes; `items` what is stored of each."""
    items = [stored() for _ in chunks] if items is None else items
    layout = call("torch.serialization._get_layout", text("torch.strided"))
    memory = call(DCP + "_MEM_FORMAT_ENCODING", number(0))
    properties = made(DCP + "TensorProperties", tuple_of(symbol("torch.float32"), layout, b"\x89", memory, b"\x89"))
    of_tensor = made(DCP + "TensorStorageMetadata", dict_of(
        [("properties", properties), ("size", size_of(*shape)), ("chunks", list_of(*(chunk(*one) for one in chunks)))]))
    data = b"}(" + b"".join(index_of(one[0]) + item for one, item in zip(chunks, items)) + b"u"
    return pickled(made(root, dict_of([("state_dict_metadata", dict_of([("w", of_tensor)])), ("planner_data", none()),
                                       ("storage_data", data), ("storage_meta", none())])))


def of_dcp(name, reason, *arguments, **options):
    def write(folder):
        whole = arguments[0] if isinstance(arguments[0], bytes) else metadata(*arguments, **options)
        (folder / ".metadata").write_bytes(whole)
        (folder / "__0_0.distcp").write_bytes(bytes(4096))
        return folder

    HOSTILE[name] = (write, reason)


HALVES = [((0,), (3,)), ((3,), (3,))]
of_dcp("dcp_that_calls_os_system", UNSAFE, pickled(call("os.system", text("id"))))
of_dcp("dcp_of_a_foreign_class", INVALID, (6,), HALVES, root="a.Metadata")
of_dcp("dcp_of_chunks_that_overlap", INVALID, (6,), [((0,), (4,)), ((2,), (4,))])
of_dcp("dcp_of_chunks_that_leave_a_hole", INVALID, (6,), [((0,), (2,)), ((4,), (2,))])
of_dcp("dcp_of_chunks_outside_of_the_tensor", INVALID, (6,), [((0,), (3,)), ((3,), (1 << 40,))])
of_dcp("dcp_of_more_elements_than_there_are_bytes", INVALID, (1 << 40, 1 << 40), [((0, 0), (1 << 40, 1 << 40))])
of_dcp("dcp_that_leads_up", INVALID, (6,), HALVES, items=[stored("../m.pt"), stored("../m.pt")])
of_dcp("dcp_that_leads_to_the_root", INVALID, (6,), HALVES, items=[stored("/etc/passwd"), stored("/etc/passwd")])
of_dcp("dcp_of_items_past_the_end", INVALID, (6,), HALVES, items=[stored(offset=1 << 40), stored(length=1 << 62)])
of_dcp("dcp_that_does_not_say_where", INVALID, (6,), HALVES, items=[])

# -- GGUF --------------------------------------------------------------------------------------

of_bytes("gguf_of_all_tensors", INVALID, b"GGUF" + struct.pack("<IQQ", 3, (1 << 64) - 1, 0), "m.gguf")
of_bytes("gguf_with_a_long_name", INVALID, b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + b"x", "m.gguf")
of_bytes("gguf_with_a_long_array", INVALID, b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack(
    "<IIQ", 9, 8, 1 << 61), "m.gguf")


def write_all(folder):
    """Writes each into a folder of its own; name -> (path, reason)."""
    out = {}
    for name, (make, reason) in HOSTILE.items():
        (folder / name).mkdir()
        out[name] = (make(folder / name), reason)
    return out
