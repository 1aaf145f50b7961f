"""Tied weights: names of one tensor of a model, of which a state dict has several.

All functions follow one rule: the values must be equal, or the caller passes tied="first", which
takes the value of the first of the model's names. Torch takes the last one, accelerate the first.
"""

import copy
from dataclasses import replace
from typing import Any, Callable, Container, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ..._errors import InvalidArgument
from ..compat import _checkpoint_names, _torch_internals
from ._file_tensor import FileTensor
from ._targets import Target, checkpoint_tensors

Read = Callable[[FileTensor], torch.Tensor]  # its value


def check(tied: Optional[str]) -> None:
    if tied not in (None, "first"):
        raise InvalidArgument(
            f"reading tied={tied!r}: it is None, which refuses different values under names of one "
            "tensor, or 'first' to take that of the model's first name",
            "INVALID_REQUEST",
        )


def describe(tied: Optional[str]) -> str:
    """Text that must be equal on all ranks."""
    return f"tied={tied!r}" if tied else ""


def names_of(
    doing: str, names: Sequence[str], entries: Mapping[str, Any], tied: Optional[str], read: Read
) -> List[str]:
    """Names under which to load a tensor: one, and others for the daemons to compare with it.

    Empty if `entries` has none of `names`. Raises InvalidArgument LAYOUT_MISMATCH for different
    values.
    """
    found = [name for name in names if name in entries]
    if tied == "first" or len(found) < 2:
        return found[:1]
    first = entries[found[0]]
    for_daemons = [found[0]]
    for name in found[1:]:
        other = entries[name]
        if _is_same(first, other):
            continue
        if isinstance(first, FileTensor) and isinstance(other, FileTensor) and first.source == other.source:
            for_daemons.append(name)
        elif not _have_equal_bytes(*(read(e) if isinstance(e, FileTensor) else e for e in (first, other))):
            raise _values_differ(doing, found[0], name)
    return for_daemons


def only_first(targets: List[Target], held: Container[str]) -> Tuple[List[Target], List[str]]:
    """(targets with the first of their names that `held` has, other names that `held` has)."""
    found, left_out = [], []
    for target in targets:
        lists = [[name for name in names if name in held] or names for names, _ in checkpoint_tensors(target)]
        kept = [names[:1] if names[0] in held else names for names in lists]
        left_out += [n for names, keep in zip(lists, kept) for n in names if n not in keep]
        flat = target.flat
        if flat is not None:
            found.append(replace(target, flat=flat.with_names(kept)))
        else:
            found.append(replace(target, names=kept[0]))
    return found, left_out


def resolve_conflicts(
    doing: str, model: nn.Module, entries: Mapping[str, Dict[str, Any]], tied: Optional[str], read: Read
) -> Dict[str, str]:
    """Applies the rule to `entries`, file -> its entries, for a library that takes names one by one.

    Changes `entries`. Returns name -> the name whose value it was given.
    """
    chosen = {}
    home = {_checkpoint_names.clean(name): (held, name) for held in entries.values() for name in held}
    values = {clean: held[name] for clean, (held, name) in home.items()}
    for names in shared_names(model):
        found = [name for name in names if name in values]
        for name in found[1:]:
            one, other = values[found[0]], values[name]
            if tied == "first":
                held, own = home[name]
                held[own] = one
                chosen[own] = home[found[0]][1]
            elif not _is_same(one, other) and not _have_equal_bytes(
                *(read(e) if isinstance(e, FileTensor) else e for e in (one, other))
            ):
                raise _values_differ(doing, found[0], name)
    return chosen


def in_dict(doing: str, model: nn.Module, whole: Any, tied: Optional[str]) -> Any:
    """Applies the rule to a state dict for torch or accelerate. Returns `whole`, or a changed copy."""
    if not isinstance(whole, Mapping):
        return whole
    held = dict(whole)
    resolve_conflicts(doing, model, {"": held}, tied, lambda entry: entry)
    changed = {name: value for name, value in held.items() if value is not whole[name]}
    if not changed:
        return whole
    made = copy.copy(whole)  # with torch's _metadata
    made.update(changed)
    return made


def shared_names(model: nn.Module) -> List[List[str]]:
    """Checkpoint names of each tensor that has several, in the model's order."""
    named: Dict[int, List[str]] = {}
    for each in (model.named_parameters, model.named_buffers):
        for name, tensor in each(remove_duplicate=False):
            named.setdefault(id(tensor), []).append(_checkpoint_names.clean(name))
    return [names for names in named.values() if len(names) > 1]


def _is_same(one: Any, other: Any) -> bool:
    """Whether no comparison is needed: one tensor, one place in a file, or one view of one memory."""
    if isinstance(one, FileTensor) and isinstance(other, FileTensor):
        return one.location == other.location
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return one is other
    if one is other or one.is_meta or other.is_meta or one.layout != other.layout != torch.strided:
        return one is other
    return one.dtype == other.dtype and _view(one) == _view(other)


def _view(tensor: torch.Tensor) -> Any:
    local = _torch_internals.local_of(tensor)
    return local.device, local.data_ptr(), tuple(local.shape), local.stride(), tuple(tensor.shape)


def _have_equal_bytes(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    one, other = _torch_internals.local_of(one).detach(), _torch_internals.local_of(other).detach()
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_meta or other.is_meta:
        return True  # there are no bytes; placing them raises the error
    flat = [t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*flat)


def _values_differ(doing: str, one: str, other: str) -> InvalidArgument:
    return InvalidArgument(
        f"{doing}: tensors {one!r} and {other!r} are to share memory, and have different values; untie "
        f"them in the model, leave one of them out, or pass tied='first' to take that of {one!r}",
        "LAYOUT_MISMATCH",
        {"tensor": one},
    )
