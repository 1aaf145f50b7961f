"""The tensors of a checkpoint's files, as accelerate's own loading code takes them."""

import os
from typing import Any, Dict, List, Optional

import torch

from .. import _client, _cuda_driver, _dtypes
from .._rpc import Deadline
from .._shard import Shard
from .._types import Source, SourceTensor
from ..torch import _lazy, _load, _memory, _private
from ._files import Files
from ._wishes import Device, Wishes

Entries = Dict[str, Any]  # name -> tensor, or InFile


def names_in(found: Source) -> Entries:
    """Tensors of the files under their own names, in the order of the files."""
    tensors = sorted(found.tensors.values(), key=lambda tensor: (tensor.file, tensor.offset))
    return {tensor.name: _in_file(found, tensor) for tensor in tensors}


def _in_file(found: Source, tensor: SourceTensor) -> _lazy.InFile:
    number = _dtypes.BY_NAME[tensor.dtype].number
    return _lazy.InFile(found.source, tensor.name, number, tensor.shape, tensor.nbytes)


def entries(
    own: _client.Client,
    found: Source,
    files: Files,
    wishes: Wishes,
    digest: bool,
    deadline: Deadline,
) -> Dict[str, Entries]:
    """file -> what it holds, in the order of the file.

    Tensors that belong where the daemon keeps its memory come over that memory, cast, by
    one load of this rank's daemon. What goes elsewhere ("disk", another device) is left
    in the file, for a LazyStateDict to load in groups and let go. Those that nobody looks
    at are on meta.
    """
    by_file: Dict[str, Entries] = {os.path.abspath(path): {} for path in files.files}
    have = _device(own)
    stay: List[SourceTensor] = []
    for name, entry in names_in(found).items():
        tensor = found.tensors[name]
        place = have if wishes.device_map is None else wishes.place(name)
        if place is None:
            dtype = _memory.dtype_of(entry.dtype, name)
            by_file[tensor.file][name] = torch.empty(tensor.shape, dtype=dtype, device="meta")
            continue
        by_file[tensor.file][name] = entry
        if _same(place, have):
            stay.append(tensor)
    if stay:
        asked = {t.name: _number(t, wishes) for t in stay}
        shard = _attach(own, found, asked, have, digest, deadline)
        for tensor in stay:
            _put(by_file[tensor.file], tensor.name, asked[tensor.name], shard)
    return by_file


def _put(file: Entries, name: str, asked: int, shard: Shard) -> None:
    index = shard.table.index[name]
    # A name that another one describes as a pattern may have been cast as that one.
    if shard.table.dtypes[index].number == asked:
        with _private.quick_dispatch():
            file[name] = _memory.whole(shard, index)


def _device(own: _client.Client) -> torch.device:
    """Where the daemon's memory is in this process."""
    uuid = own.device()
    if uuid is None:
        return torch.device("cpu")
    return torch.device("cuda", _cuda_driver.find_device(uuid).ordinal)


def _same(place: Device, have: torch.device) -> bool:
    if place == "disk":
        return False
    wanted = torch.device("cuda", place) if isinstance(place, int) else torch.device(place)
    if wanted.type != have.type:
        return False
    if wanted.type == "cuda" and wanted.index is None:
        return torch.cuda.current_device() == have.index
    return wanted.type == "cpu" or wanted.index == have.index


def _number(tensor: SourceTensor, wishes: Wishes) -> int:
    """ckptd.v1.Dtype that the daemon is to give: the file's where it does not cast."""
    in_file = _dtypes.BY_NAME[tensor.dtype].number
    if in_file not in _dtypes.CASTABLE:
        return in_file
    wanted = wishes.dtype_of(tensor.name, _memory.dtype_of(in_file, tensor.name))
    return _memory.number_of(wanted) if _memory.is_castable(wanted) else in_file


def _attach(
    own: _client.Client,
    found: Source,
    asked: Dict[str, int],
    have: torch.device,
    digest: bool,
    deadline: Deadline,
) -> Shard:
    # Models may be trained: memory of the host is private, that of a GPU is taken.
    mode = "private" if have.type == "cpu" else "exclusive"
    layout = _layout(found, asked, _load.rank_and_size()[1])
    left = max(deadline.left(), 1e-3)
    loaded = own.load(found.source, layout=layout, mode=mode, timeout=left, digest=digest)
    return own.acquire(loaded, mode, timeout=max(deadline.left(), 1e-3))


def _layout(found: Source, asked: Dict[str, int], world_size: int) -> Optional[dict]:
    """By rule, so that no rank waits for another; None finds what was loaded whole before."""
    kinds: Dict[int, List[str]] = {}
    for name, number in sorted(asked.items()):
        cast = number != _dtypes.BY_NAME[found.tensors[name].dtype].number
        kinds.setdefault(number if cast else 0, []).append(name)
    if len(asked) == len(found.tensors) and set(kinds) == {0}:
        return None
    rules: List[dict] = []
    for number, names in sorted(kinds.items()):
        cast_to = {"dtype": _dtypes.BY_NUMBER[number].name} if number else {}
        rules.append({"match": names, **cast_to})
    return {"world_size": world_size, "rules": rules, "default": {"drop": True}}
