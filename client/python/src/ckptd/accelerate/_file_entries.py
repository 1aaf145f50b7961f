"""Tensors of a checkpoint's files, in the form that accelerate's own loading code takes."""

from typing import Any, Dict

import torch

from .. import _client, _cuda_driver, _dtypes
from .._rpc import Deadline
from .._shard import Shard
from .._source import absolute
from .._types import Source, SourceTensor
from ..torch import _daemon
from ..torch.compat import _torch_internals
from ..torch.load import _devices, _file_tensor, _memory
from ._dtype_rules import DtypeRules
from ._files import Files

_F32 = _dtypes.BY_NAME["F32"].number

Entries = Dict[str, Any]  # name -> tensor, or FileTensor


def names_in(found: Source) -> Entries:
    """Tensors of the files under the files' names, in the order of the files.

    safetensors has each tensor once. In other files, further names of a tensor are names as others.
    """
    if found.format not in ("", "safetensors"):
        return dict(_file_tensor.entries_in(found))
    return {name: _file_tensor.in_file(found, tensor) for name, tensor in _file_tensor.in_order(found)}


def entries(
    own: _client.Client,
    found: Source,
    files: Files,
    dtype_rules: DtypeRules,
    digest: bool,
    deadline: Deadline,
) -> Dict[str, Entries]:
    """file -> its entries, in the order of the file.

    Tensors for the device of the daemon's memory are made over that memory, cast, by one load of
    this rank's daemon. Tensors for other places ("disk", another device) stay in the file: a
    LazyStateDict loads them in groups and releases them. Unused tensors are on meta.
    """
    by_file: Dict[str, Entries] = {absolute(path): {} for path in files.files}
    have = _device(own, deadline)
    stay: Dict[str, SourceTensor] = {}
    for name, entry in names_in(found).items():
        tensor = found.find(name)
        place = have if dtype_rules.device_map is None else dtype_rules.place(name)
        if place is None:
            dtype = _memory.dtype_of(entry.dtype, name)
            by_file[tensor.file][name] = torch.empty(tensor.shape, dtype=dtype, device="meta")
            continue
        by_file[tensor.file][name] = entry
        if _devices.device_of(place) == have:
            stay[name] = tensor
    if stay:
        numbers = {name: _number(name, tensor, dtype_rules) for name, tensor in stay.items()}
        # The first of several names of a tensor says what it is asked for as.
        asked: Dict[str, int] = {}
        for name, tensor in stay.items():
            asked.setdefault(tensor.name, numbers[name])
        shard = _attach(own, found, asked, have, digest, deadline)
        for name, tensor in stay.items():
            _put(by_file[tensor.file], name, tensor, numbers[name], shard)
    return by_file


def _put(file: Entries, name: str, tensor: SourceTensor, asked: int, shard: Shard) -> None:
    index = shard.table.index[tensor.name]
    # A name that matches another name as a pattern may have been cast like that one.
    if shard.table.dtypes[index].number == asked:
        with _torch_internals.low_overhead_dispatch():
            file[name] = _memory.whole(shard, index)


def _device(own: _client.Client, deadline: Deadline) -> torch.device:
    """The torch device of the daemon's memory in this process."""
    uuid = own.device(deadline.for_call())
    if uuid is None:
        return torch.device("cpu")
    return torch.device("cuda", _cuda_driver.find_device(uuid).ordinal)


def _number(name: str, tensor: SourceTensor, dtype_rules: DtypeRules) -> int:
    """ckptd.v1.Dtype to request: the file's if the daemon does not cast it."""
    in_file = _dtypes.BY_NAME[tensor.dtype].number
    if in_file not in _dtypes.CASTABLE:
        return in_file
    wanted = dtype_rules.dtype_of(name, _memory.dtype_of(in_file, name))
    return _memory.number_of(wanted) if _memory.is_castable(wanted) else in_file


def _attach(
    own: _client.Client,
    found: Source,
    asked: Dict[str, int],
    have: torch.device,
    digest: bool,
    deadline: Deadline,
) -> Shard:
    # The model may be trained: host memory is private, GPU memory is taken over.
    mode = "private" if have.type == "cpu" else "exclusive"
    options = _options(found, asked, _daemon.rank_and_size()[1])
    left = deadline.for_call()
    loaded = own.load(found.source, mode=mode, timeout=left, digest=digest, **options)
    _file_tensor.check_unchanged(loaded, found.source, found.identity)
    return own.acquire(loaded, mode, timeout=deadline.for_call())


def _options(found: Source, asked: Dict[str, int], world_size: int) -> Dict[str, Any]:
    """layout=, dtype= and keep_fp32= of Client.load.

    Rules are used, so that no rank waits for another. The request equals that of a client that
    loads everything beforehand; tensors are listed only if a shorter request does not suffice.
    """
    in_file = {name: _dtypes.BY_NAME[found.tensors[name].dtype].number for name in asked}
    floats = {name: asked[name] for name in asked if in_file[name] in _dtypes.CASTABLE}
    others = set(floats.values()) - {_F32}
    options: Dict[str, Any] = {}
    rules = []
    if len(others) > 1:
        for number in sorted(set(floats.values())):
            names = sorted(name for name in floats if floats[name] == number)
            rules.append({"match": names, "dtype": _dtypes.BY_NUMBER[number].name})
    elif any(floats[name] != in_file[name] for name in floats):
        number = others.pop() if others else _F32
        kept = sorted(name for name in floats if floats[name] != number)
        options = {"dtype": _dtypes.BY_NUMBER[number], "keep_fp32": kept}
    dropped = sorted(set(found.tensors) - set(asked))
    if dropped:
        rules.append({"match": dropped, "drop": True})
    if rules:
        options["layout"] = {"world_size": world_size, "rules": rules, "default": {}}
    return options
