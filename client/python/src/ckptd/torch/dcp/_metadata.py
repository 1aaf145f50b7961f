"""The Metadata that torch's planners work with, made of what a daemon says about a checkpoint.

No file is opened here, and no pickle is run: the daemon has parsed them.
"""

import json
from typing import Dict, Tuple, Union

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ... import _dtypes
from ..._client import Client
from ..._errors import Error, InvalidArgument
from ..._rpc import Deadline
from ..._source import Path, of_part, path_of, source_text, split_part
from ..._types import Source, SourceTensor
from ..load import _memory

# Among the values of a DCP folder: a key's path in the nested state dict, as JSON.
_PATHS = ".metadata.planner_data."
# The format of a folder whose parts are checkpoints of their own.
_SIDE_BY_SIDE = "parts"


def inspect(client: Client, source: Path, deadline: Deadline) -> Tuple[Source, str]:
    """(contents of `source` under its own keys, the text by which these keys are loaded).

    Where it names no part, all keys of a file or of a DCP folder count, because parts have shorter
    names; of other folders the model. Raises ckptd.Error.
    """
    text = source_text(source)
    if split_part(path_of(text))[1]:
        return client.inspect(source, deadline.for_call(), values=True), text
    whole = of_part(source, "all")
    try:
        found = client.inspect(whole, deadline.for_call(), values=True)
        if found.format != _SIDE_BY_SIDE:
            return found, source_text(whole)
    except InvalidArgument as error:
        if error.reason != "SOURCE_INVALID":
            raise
        found = client.inspect(source, deadline.for_call())
        if found.format == "dcp":
            raise
        return found, text  # of a format without parts
    return client.inspect(source, deadline.for_call()), text


def stored_name(found: Source, key: str) -> str:
    """The name of the tensor that has the bytes of `key`, which may be a further name of it."""
    return found.aliases.get(key, key)


def metadata_of(found: Source, load_id: str) -> Metadata:
    """Metadata of `found`: each tensor is one chunk, so that a plan asks for it box by box."""
    names = {**{name: name for name in found.tensors}, **found.aliases}
    made = Metadata(
        state_dict_metadata={key: _description(found.tensors[name]) for key, name in names.items()},
        planner_data={key: _path(found, key) for key in names},
        storage_meta=StorageMeta(checkpoint_id=found.source, load_id=load_id),
    )
    if "dcp_version" in found.metadata and hasattr(made, "version"):
        made.version = found.metadata["dcp_version"]
    return made


def _description(tensor: SourceTensor) -> Union[TensorStorageMetadata, BytesStorageMetadata]:
    if tensor.kind == "object":
        return BytesStorageMetadata()
    row, size = _dtypes.BY_NAME.get(tensor.dtype), torch.Size(tensor.shape)
    # A type that this PyTorch lacks is an error for who reads such a tensor, not for all others.
    known = row is not None and _memory.has_type(row.number)
    properties = TensorProperties(dtype=_memory.torch_dtype(row, tensor.name) if known else None)
    chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
    return TensorStorageMetadata(properties=properties, size=size, chunks=[chunk])


def _path(found: Source, key: str) -> Tuple[Union[str, int], ...]:
    """The path of `key` in the state dict that was flattened; a key of the first level has one part."""
    text = found.values.get(_PATHS + key)
    path = json.loads(text) if text else None
    fits = isinstance(path, list) and all(type(part) in (str, int) for part in path)
    return tuple(path) if fits and ".".join(map(str, path)) == key else (key,)


class RefusedMetadata(Metadata):
    """Metadata that could not be read. Raises the reason where anything of it is used.

    dcp.load replaces errors of read_metadata by an AssertionError, and looks for metadata of
    single ranks first. It passes on what is raised a moment later.
    """

    def __init__(self, error: Error) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<metadata that could not be read: {self.error}>"

    @property
    def state_dict_metadata(self) -> Dict[str, object]:  # type: ignore[override]
        """Raises the error."""
        raise self.error
