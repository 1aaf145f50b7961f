"""Message classes of ckptd.v1, built from descriptors at import.

No generated modules: those only work with a window of protobuf runtimes, and
trainers bring whichever runtime their framework pins. The pool is private, so
another package that carries the same messages cannot collide with these.
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "ckptd.v1"
_PATH = Path(__file__).with_name("descriptors.pb")


def _load():
    try:
        data = _PATH.read_bytes()
    except FileNotFoundError:
        raise ImportError(
            f"importing ckptd: {_PATH} is missing, because this checkout has not been built; "
            "run `python client/python/generate.py`"
        ) from None
    files = descriptor_pb2.FileDescriptorSet.FromString(data)
    pool = descriptor_pool.DescriptorPool()
    # protoc writes imports before the files that need them.
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return files, pool


_files, _pool = _load()


def _classes_of(descriptors) -> dict:
    classes = {}
    for descriptor in descriptors:
        classes[descriptor.full_name] = message_factory.GetMessageClass(descriptor)
        classes.update(_classes_of(descriptor.nested_types))
    return classes


# All of them, also those that are only parts of others: protobuf finds classes by a weak table, so
# those that nobody holds end and are made again while other threads ask for them; that crashed once.
_classes = {}
for _file in _files.file:
    _classes.update(_classes_of(_pool.FindFileByName(_file.name).message_types_by_name.values()))


def message(name: str):
    """The class of message `name` of ckptd.v1."""
    return _classes[f"{_PACKAGE}.{name}"]


def enum_names(name: str, prefix: str) -> dict:
    """Number -> value name without its prefix, of an enum of ckptd.v1."""
    enum = _pool.FindEnumTypeByName(f"{_PACKAGE}.{name}")
    return {value.number: value.name[len(prefix) :] for value in enum.values}


def _methods() -> dict:
    methods = {}
    for file in _files.file:
        for service in file.service:
            for method in service.method:
                methods[f"{service.name}.{method.name}"] = (
                    f"/{file.package}.{service.name}/{method.name}",
                    method.input_type.rpartition(".")[2],
                    method.output_type.rpartition(".")[2],
                    method.server_streaming,
                )
    return methods


# "CheckpointService.LoadCheckpoint" -> (path, request, response, streams).
METHODS = _methods()
