"""Tensors that are in a checkpoint and nowhere else yet, and what a checkpoint has of them."""

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
    """A tensor of a checkpoint: where it is, what it is, and its value once that has been read.

    All dicts that hold it have the same value, as they would have the same tensor.
    """

    source: str
    name: str
    dtype: int  # ckptd.v1.Dtype
    shape: Tuple[int, ...]
    nbytes: int
    identity: str = ""  # Source.identity when its name was read
    device: Optional[torch.device] = None  # where its value goes; None: where the daemon has it
    tied: Optional["FileTensor"] = None  # the tensor that this is a further name of
    value: Optional[torch.Tensor] = None
    version: int = 0  # torch's count of changes, when the value was read

    @property
    def owner(self) -> "FileTensor":
        """Who keeps the value: itself, or the tensor that this is another name of."""
        return self if self.tied is None else self.tied

    def put(self, value: torch.Tensor) -> None:
        """Makes what was read its value, on its device."""
        owner = self.owner
        owner.value = value if self.device is None else value.to(self.device)
        owner.version = _torch_internals.version_of(owner.value)

    @property
    def untouched(self) -> bool:
        """Whether torch knows of no change of the value since it was read."""
        owner = self.owner
        return owner.value is None or _torch_internals.version_of(owner.value) == owner.version

    @property
    def place(self) -> Tuple[str, str, str]:
        """Equal for the same bytes of the same files."""
        return self.source, self.identity, self.owner.name


def now(entry: Any) -> Any:
    """What a dict has under a name: the value if there is one, else where it is."""
    if isinstance(entry, FileTensor) and entry.owner.value is not None:
        return entry.owner.value
    return entry


def entries_of(
    client: _client.Client, source: Union[str, os.PathLike], deadline: Deadline
) -> Dict[str, FileTensor]:
    """What `source` holds, by name, further names of tied tensors included; in file order."""
    return entries_in(client.inspect(source, timeout=deadline.for_call()))


def entries_in(found: Source, devices: Mapping[str, Any] = {}) -> Dict[str, FileTensor]:
    """The same of a source that is known. devices: name -> where its value goes."""
    entries = {name: in_file(found, t, devices.get(name)) for name, t in in_order(found)}
    for alias, name in found.aliases.items():
        entries[alias] = made = in_file(found, found.tensors[name], devices.get(alias), alias)
        if made.device == entries[name].device:
            made.tied = entries[name]
    return entries


def in_order(found: Source) -> List[Tuple[str, SourceTensor]]:
    """(name, tensor) in the order of the files, as safetensors gives them."""
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
    """Raises Aborted SOURCE_CHANGED when the files are not those whose names were read. "": any are."""
    if identity and loaded.source_identity != identity:
        raise changed(source)


def changed(source: str) -> Aborted:
    when = "since the names of its tensors were read"
    return source_changed(source, when, "read its names again, by another load_state_dict")


def inspect(own: _client.Client, path: str, deadline: Deadline) -> Source:
    """What `path` holds. Raises as accelerate does for files that it refuses."""
    try:
        found = own.inspect(path, timeout=deadline.for_call())
    except NotFound as error:
        if error.reason != "SOURCE_NOT_FOUND":
            raise
        raise FileNotFoundError(error.message) from error
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
