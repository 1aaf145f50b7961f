"""Puts shard memory into a model. Everything is checked before the model is changed."""

import functools
import math
from typing import Dict, Iterable, List, NamedTuple, Optional

import torch
from torch import nn

from ..._errors import DataLoss, FailedPrecondition, Internal, Unimplemented
from ..._shard import Shard
from ..compat import _torch_internals
from . import _memory
from ._result import LoadResult
from ._targets import Target, one_per_arrangement


class Entry(NamedTuple):
    """A target and its place in the shard."""

    target: Target
    offset: int
    count: int  # elements, padding included
    local_shape: tuple
    public_path_reason: Optional[str] = None  # why torch's public path is taken; None: filled in place
    copied: Optional[str] = None  # why the tensor keeps its memory and is copied into; None: it does not

    def tensors(self, shard: Shard):
        """(flat storage with padding, view of the local shape), over the shard's memory or cast."""
        target, offset, count, shape, *_ = self
        flat = _memory.flat(shard, target.dtype, count, offset)
        if target.cast is not None:
            flat = flat.to(target.cast)
        if len(shape) == 1 and shape[0] == count:
            return flat, flat
        return flat, flat.as_strided(shape, _memory.contiguous_strides(shape))


def prepare(targets: List[Target], shard: Shard) -> List[Entry]:
    """Checks every target against the shard's table. The model is not changed.

    Raises DataLoss if the shard differs from the request, FailedPrecondition if the model cannot
    be filled now.
    """
    _check_devices(targets, shard)
    table, refusals = shard.table, _arrangement_reasons(targets)
    with _torch_internals.without_torch_function():
        entries = [
            _entry(target, table, refusals) if target.flat is None else _flat_entry(target, table)
            for target in targets
        ]
    for dtype, target in {target.dtype: target for target in targets}.items():
        _memory.check_dtype(target.name, dtype, shard)
    return entries


def _check_devices(targets: List[Target], shard: Shard) -> None:
    have = _memory.device_of(shard)
    for target in one_per_arrangement(targets):
        if target.device is not None:
            _memory.check_device(target.name, target.device, have, shard.device)


def _arrangement_reasons(targets: List[Target]) -> Dict[int, Optional[str]]:
    """id of an arrangement -> why its parameters take torch's public path, or None."""
    parameters = (target for target in targets if not target.is_buffer)
    return {id(target.arrangement): _arrangement_reason(target) for target in one_per_arrangement(parameters)}


def _arrangement_reason(target: Target) -> Optional[str]:
    if not _torch_internals.can_swap_implementation():
        return f"PyTorch {torch.__version__} cannot exchange a parameter's memory"
    if target.fsdp is not None and target.fsdp.pin_memory:
        return "CPUOffloadPolicy pins memory; CPUOffloadPolicy(pin_memory=False) keeps the daemon's"
    if target.spec is not None and not _torch_internals.in_place_works(target.tensor, target.spec):
        return f"PyTorch {torch.__version__} does not let a DTensor's memory be exchanged"
    return None


def _flat_entry(target: Target, table) -> Entry:
    if target.name not in table.flats:
        raise lacks(target.name)
    row, offset, elements = table.flats[target.name]
    if row.number != _memory.number_of(target.dtype):
        _raise_mismatch(target, f"{row.name} instead of {target.dtype}")
    if elements != target.tensor.numel():
        _raise_mismatch(target, f"{elements} elements instead of {target.tensor.numel()}")
    if target.final_dtype != target.tensor.dtype:
        _check_dtype_change(target)
    return Entry(target, offset, elements, (elements,))


def _entry(target: Target, table, refusals: Dict[int, Optional[str]]) -> Entry:
    index, fsdp = table.index[target.requested_names[0]], target.fsdp
    if fsdp is not None:  # this rank's shape, without and with padding
        local, padded = fsdp.sharded_size, fsdp.padded_sharded_param_size
    else:
        local = padded = _torch_internals.local_of(target.tensor).shape
    row, shape, room = table.dtypes[index], table.shapes[index], table.padded_nbytes[index]
    count = math.prod(padded)
    if row.number != _memory.number_of(target.dtype):
        _raise_mismatch(target, f"{row.name} instead of {target.dtype}")
    # Without elements any shape is right: torch makes [0, 0] of a part of [2, 0]. A scalar may be
    # saved in shape [1].
    is_same = shape == local or (shape, local) == ((1,), ()) or not (math.prod(shape) or math.prod(local))
    if not is_same:
        _raise_mismatch(target, f"shape {list(shape)} instead of {list(local)}")
    if room < count * row.bits // 8:
        _raise_mismatch(target, f"{room} bytes with padding, fewer than {count} elements need")
    if target.shares_storage_with is not None:
        _check_copy(target)
    # An empty tensor gets storage as well: FSDP2 gathers its padding.
    if target.is_buffer:
        _refuse_unknown_buffer(target)
    copied = _copy_reason(target)
    kept = target.is_buffer or copied is not None
    public_path_reason = None if kept else _public_path_reason(target, refusals)
    return Entry(target, table.offsets[index], count, local, public_path_reason, copied)


def _copy_reason(target: Target) -> Optional[str]:
    """Why a tensor keeps its memory and is copied into, or None. Holders of it are then not affected."""
    if target.shares_storage_with is not None:
        return f"it shares its storage with {target.shares_storage_with}"
    tensor = target.tensor
    recast = target.final_dtype != tensor.dtype
    if tensor.is_meta or target.spec is not None or (recast and not target.is_buffer):
        return None
    if _torch_internals.tensor_in_slot(target.slots[0]) is None:
        return None  # it only describes a wanted tensor
    if not recast and target.is_buffer and (type(tensor) is not torch.Tensor or tensor.requires_grad):
        return f"it is a buffer of type {type(tensor).__name__}, which may behave differently"
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_contiguous() or _torch_internals.has_repeated_elements(tensor):
        return None
    return "its memory order is not row-major"


def _public_path_reason(target: Target, refusals: Dict[int, Optional[str]]) -> Optional[str]:
    """Why this parameter takes torch's public path, or None. Refuses parameters that no path can fill."""
    _refuse_subclass(target)
    tensor = target.tensor
    if target.final_dtype != tensor.dtype:
        _check_dtype_change(target)
    if tensor.is_meta or target.final_dtype != tensor.dtype:
        _check_not_held(target)
    if target.spec is None and not tensor.is_contiguous():
        return "its memory order is not row-major"
    return refusals[id(target.arrangement)]


def lacks(name: str) -> DataLoss:
    """The error for a tensor that the daemon left out although it was required."""
    return DataLoss(
        f"filling {name}: the shard lacks it although it was asked for; update the daemon and "
        "this client",
        "INVALID_REPLY",
        {"tensor": name},
    )


def _raise_mismatch(target: Target, what: str) -> None:
    raise DataLoss(
        f"filling {target.name}: the daemon's shard has {what}; the placements were understood "
        "differently, so nothing was loaded; update the daemon and this client",
        "LAYOUT_MISMATCH",
        {"tensor": target.name},
    )


def _check_dtype_change(target: Target) -> None:
    learns = target.final_dtype.is_floating_point or target.final_dtype.is_complex
    if target.tensor.requires_grad and not learns:
        raise RuntimeError(  # torch's type and sentence
            f"filling {target.name}: it requires gradients and would become {target.final_dtype}, and "
            "only Tensors of floating point and complex dtype can require gradients; nothing was "
            "loaded"
        )
    used = target.tensor.grad is not None or (
        target.fsdp is not None and _torch_internals.was_used(target.fsdp)
    )
    used = used or (target.flat is not None and target.flat.was_used)
    if used:
        raise FailedPrecondition(
            f"filling {target.name}: it was already trained with as {target.tensor.dtype} and "
            "cannot become "
            f"{target.final_dtype} in place; load before the first forward, or without dtype=",
            "MODEL_IN_USE",
            {"tensor": target.name},
        )


def _check_not_held(target: Target) -> None:
    if _torch_internals.is_referenced(target.tensor):
        now = "on meta" if target.tensor.is_meta else str(target.tensor.dtype)
        raise FailedPrecondition(
            f"filling {target.name}: it is {now}, becomes {target.final_dtype} in memory, and a wrapper such "
            "as DistributedDataParallel, or a graph, holds it as it is and would not see the new one's "
            "gradients; load before wrapping it and between two steps, or a real model in its own dtype",
            "MODEL_IN_USE",
            {"tensor": target.name},
        )


def _check_copy(target: Target) -> None:
    if target.final_dtype != target.tensor.dtype:
        raise Unimplemented(
            f"filling {target.name}: it shares its storage with {target.shares_storage_with}, so it cannot become "
            f"{target.final_dtype}; load without dtype=, or make them one parameter",
            "MODEL_UNSUPPORTED",
            {"tensor": target.name},
        )


def _refuse_unknown_buffer(target: Target) -> None:
    kind = type(target.tensor)
    if target.spec is None and target.tensor.is_meta and kind not in (torch.Tensor, nn.Parameter):
        _refuse_kind(target, kind.__name__)


def _refuse_subclass(target: Target) -> None:
    if target.spec is not None:
        _refuse_kind(target, _torch_internals.subclass_of(target.tensor, target.fsdp))
    elif type(target.tensor) is not nn.Parameter:
        _refuse_kind(target, type(target.tensor).__name__)


def _refuse_kind(target: Target, kind: Optional[str]) -> None:
    if kind is not None:
        raise FailedPrecondition(
            f"filling {target.name}: it is a {kind}, whose bytes only its own code knows; load "
            "before it is "
            "converted, or read the tensors with ckptd.torch.load_file",
            "TENSOR_SUBCLASS",
            {"tensor": target.name},
        )


def fill(entries: List[Entry], shard: Shard, result: LoadResult) -> None:
    """Gives every entry its memory. Does not fail for entries that `prepare` accepted."""
    changed = []
    with _torch_internals.low_overhead_dispatch():
        for entry in entries:
            target = entry.target
            flat, view = entry.tensors(shard)
            if entry.copied is not None:
                changed.append(_copy_into(target, view))
            elif target.is_buffer:
                if not target.tensor.is_meta:
                    changed.append(target.tensor)
                _fill_buffer(target, view)
            elif target.flat is not None:
                changed += target.flat.put(view, result.mode != "shared")
            elif entry.public_path_reason is None:
                param = target.tensor
                if not param.is_meta:
                    changed.append(param)
                if target.spec is None:
                    _torch_internals.set_parameter_memory(param, view)
                    continue
                _torch_internals.set_local_tensor(param, view, target.spec)
                if target.fsdp is not None:
                    _torch_internals.set_padded_storage(target.fsdp, param, flat)
    # A graph recorded before then refuses to run backward over exchanged weights.
    torch.autograd.graph.increment_version([one for one in changed if not one.is_inference()])
    for entry in entries:
        if entry.public_path_reason is not None:
            _fill_publicly(entry, shard, result)
    with _torch_internals.without_torch_function():
        check_filled(entry.target for entry in entries)
    _note_copies(entries, shard, result)


def check_filled(targets: Iterable[Target]) -> None:
    """Raises Internal (LEFT_ON_META) if a target that was loaded is still on meta."""
    for target in targets:
        held = [_torch_internals.tensor_in_slot(slot) for slot in target.slots] or [target.tensor]
        if any(tensor is not None and tensor.is_meta for tensor in held):
            raise Internal(
                f"filling {target.name}: it was loaded and is still on meta, so the model is not "
                "whole; build the model anew, on the host instead of on meta, and report this",
                "LEFT_ON_META",
                {"tensor": target.name},
            )


def _copy_into(target: Target, view: torch.Tensor) -> torch.Tensor:
    """Gives the target the value of `view` in its own memory order. Returns its tensor."""
    tensor = target.tensor
    if target.final_dtype != tensor.dtype:
        _fill_buffer(target, torch.empty_like(tensor, dtype=target.final_dtype, device=view.device).copy_(view))
    else:
        # PyTorch allows writes to tensors of inference mode in that mode only.
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            tensor.copy_(view)
    return target.tensor


def _fill_buffer(target: Target, view: torch.Tensor) -> None:
    if target.spec is not None:
        view = _torch_internals.dtensor_over(view, target.spec, False)
    elif _torch_internals.tensor_in_slot(target.slots[0]) is not None:  # else it only describes a wanted tensor
        view = _torch_internals.set_buffer_memory(target.tensor, view)
    for slot in target.slots:
        _torch_internals.set_in_slot(slot, view)
    target.tensor = view


def _fill_publicly(entry: Entry, shard: Shard, result: LoadResult) -> None:
    """Fills one parameter by load_state_dict(assign=True) of its own module."""
    target = entry.target
    flat, value = entry.tensors(shard)
    if target.fsdp is not None:
        _torch_internals.announce_storage(target.fsdp, flat)
    if target.spec is not None:
        tensor = target.tensor
        value = _torch_internals.DTensor.from_local(
            value,
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    module, name = target.slots[0]
    before = target.tensor
    module.load_state_dict({name: value}, strict=False, assign=True)
    param = _torch_internals.tensor_in_slot(target.slots[0])
    for slot in target.slots[1:]:
        _torch_internals.set_in_slot(slot, param)
    if param is not before:
        result.replaced[target.name] = entry.public_path_reason
    target.tensor = param


def _note_copies(entries: List[Entry], shard: Shard, result: LoadResult) -> None:
    low = shard.mapping.address
    high = low + shard.mapping.nbytes
    for entry in entries:
        target = entry.target
        if entry.public_path_reason is not None:
            local = _torch_internals.local_of(target.tensor)
            if local.numel() and not low <= local.data_ptr() < high:
                result.copied[target.name] = entry.public_path_reason
        elif entry.copied is not None:
            result.copied[target.name] = entry.copied
        elif target.cast is not None:
            result.copied[target.name] = f"it is cast from {target.dtype} to {target.cast} here"
        elif target.flat is not None and target.flat.is_pinned:
            result.copied[target.name] = "FSDP1's CPUOffload copies it into pinned memory"
        elif target.fsdp is not None and not _keeps_short_shards():
            if entry.count != math.prod(entry.local_shape):
                result.copied[target.name] = (
                    f"FSDP2 of PyTorch {torch.__version__} copies short shards out at the first "
                    "forward"
                )


@functools.cache
def _keeps_short_shards() -> bool:
    return _torch_internals.keeps_short_shards()
