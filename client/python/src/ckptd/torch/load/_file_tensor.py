"""Tensors that are still in the files of a checkpoint, and lists of them."""

import logging
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import torch

from ... import _client
from ..._errors import Aborted, NotFound, source_changed
from ..._rpc import Deadline
from ..._types import Checkpoint, Source, SourceTensor
from ..compat import _torch_internals
from ._targets import SLOTS

_LOG = logging.getLogger("ckptd")


@dataclass(eq=False, **SLOTS)
class FileTensor:
    """A tensor of a checkpoint: its place, its type, and its value once that has been read.

    All dicts that hold it share its value, as they would share a tensor.
    """

    source: str
    name: str
    dtype: int  # ckptd.v1.Dtype
    shape: Tuple[int, ...]
    nbytes: int
    identity: str = ""  # Source.identity at the time when its name was read
    device: Optional[torch.device] = None  # device of its value; None: the daemon's
    tied: Optional["FileTensor"] = None  # the tensor for which this is a further name
    value: Optional[torch.Tensor] = None
    version: int = 0  # torch's count of writes when the value was read

    @property
    def owner(self) -> "FileTensor":
        """The entry that keeps the value: itself, or the tensor for which this is a further name."""
        return self if self.tied is None else self.tied

    def set_value(self, value: torch.Tensor) -> None:
        """Sets its value, moved to its device."""
        owner = self.owner
        owner.value = value if self.device is None else value.to(self.device)
        owner.version = _torch_internals.version_of(owner.value)

    @property
    def untouched(self) -> bool:
        """Whether torch saw no change of the value since it was read."""
        owner = self.owner
        return owner.value is None or _torch_internals.version_of(owner.value) == owner.version

    @property
    def location(self) -> Tuple[str, str, str]:
        """Equal for the same bytes of the same files."""
        return self.source, self.identity, self.owner.name


def current_value(entry: Any) -> Any:
    """The value of a FileTensor if it has one, else the FileTensor. Other values are returned as they are."""
    if isinstance(entry, FileTensor) and entry.owner.value is not None:
        return entry.owner.value
    return entry


def entries_of(
    client: _client.Client, source: Union[str, os.PathLike], deadline: Deadline
) -> Dict[str, FileTensor]:
    """name -> tensor of `source`, further names of tied tensors included, in the order of the files."""
    return entries_in(client.inspect(source, timeout=deadline.for_call()))


def entries_in(found: Source, devices: Mapping[str, Any] = {}) -> Dict[str, FileTensor]:
    """The same for a Source that is known. devices: name -> device of its value."""
    entries = {name: in_file(found, t, devices.get(name)) for name, t in in_order(found)}
    for alias, name in found.aliases.items():
        entries[alias] = made = in_file(found, found.tensors[name], devices.get(alias), alias)
        if made.device == entries[name].device:
            made.tied = entries[name]
    return entries


def in_order(found: Source) -> List[Tuple[str, SourceTensor]]:
    """(name, tensor) in the order of the files, as in safetensors."""
    return sorted(found.tensors.items(), key=lambda item: (item[1].file, item[1].offset, item[0]))


def in_file(
    found: Source, tensor: SourceTensor, device: Any = None, name: Optional[str] = None
) -> FileTensor:
    from ..._dtypes import BY_NAME

    row = BY_NAME.get(tensor.dtype)
    number = row.number if row else 0
    where = found.source, name or tensor.name
    return FileTensor(*where, number, tensor.shape, tensor.nbytes, found.identity, device)


def check_unchanged(loaded: Checkpoint, source: str, identity: str) -> None:
    """Raises Aborted SOURCE_CHANGED if the files changed since `identity` was read. "" accepts any files."""
    if identity and loaded.source_identity != identity:
        raise changed(source)


def changed(source: str) -> Aborted:
    when = "since the names of its tensors were read"
    return source_changed(source, when, "read its names again, by another load_state_dict")


def inspect(own: _client.Client, path: str, deadline: Deadline) -> Source:
    """The contents of `path`, by the names that its file has for them.

    Raises accelerate's errors for files that accelerate refuses.
    """
    try:
        found = own.inspect(path, timeout=deadline.for_call())
        if found.format == "torch" and found.remarks and os.path.isfile(path):
            # torch.load keeps the parts of names that the format leaves off by default.
            found = own.inspect(path, timeout=deadline.for_call(), part="all")
    except NotFound as error:
        if error.reason != "SOURCE_NOT_FOUND":
            raise
        raise FileNotFoundError(error.message) from error
    if found.format in ("", "safetensors"):
        _check_format(path, found.metadata)
    return found


def _check_format(path: str, metadata: Mapping[str, str]) -> None:
    if not metadata:
        _LOG.warning("%s has no metadata; its tensors are taken for PyTorch's", path)
        return
    kind = metadata.get("format")
    if kind not in ("pt", "tf", "flax"):
        raise OSError(
            f"reading {path}: its metadata names no valid format ({kind!r}); save it with "
            "save_pretrained, or with metadata={'format': 'pt'}"
        )
    if kind != "pt":
        raise ValueError(f"reading {path}: it was saved for {kind}; convert it to the 'pt' format")
