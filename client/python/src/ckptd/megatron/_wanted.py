"""Boxes that a rank's ShardedTensors ask for, and their places in what is loaded.

The rules are those of megatron-core's `dist_checkpointing` (mapping.py, and strategies/torch.py of
0.12 and 0.16): prepended axes are axes of the stored tensor; a `flattened_range` is a run of the
flattened local tensor; with `allow_shape_mismatch` only what both have is loaded, and the rest is 0.
Nothing here needs torch.
"""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..transformers._boxes import Box
from . import _objects


@dataclass(frozen=True)
class Stored:
    """A tensor or an object of the checkpoint. dtype: ckptd.v1.Dtype."""

    dtype: int
    shape: Tuple[int, ...]
    is_object: bool = False


@dataclass(frozen=True)
class WantedBox:
    """What a ShardedTensor asks for of the stored tensor `name`.

    box: may reach beyond the stored tensor. held: its part that is stored; None: nothing is. run:
    which elements of the box, in row-major order, are the local tensor; None: all.
    """

    name: str
    box: Box
    held: Optional[Box]
    run: Optional[slice] = None


def mismatch(entry: Any, why: str) -> Exception:
    """megatron-core's exception for an entry that the checkpoint does not fit."""
    kind = _objects.of_megatron("CheckpointingException", _objects.CheckpointingException)
    return kind(f"loading {entry.key}: {why}")


def box_of(entry: Any, contents: Dict[str, Stored]) -> WantedBox:
    """What a ShardedTensor asks for. Raises CheckpointingException if the checkpoint does not fit it."""
    stored = contents.get(entry.key)
    if stored is None or stored.is_object:
        raise missing(entry, entry.key, contents)
    lead, flattened = (1,) * entry.prepend_axis_num, getattr(entry, "flattened_range", None)
    box, run = (tuple(entry.global_offset), lead + tuple(entry.local_shape)), None
    if flattened is not None:
        if _is_flat(entry, stored):
            return _flat_box(entry, flattened)
        inner, run = _around(entry.local_shape, flattened.start, flattened.stop)
        begin = (0,) * len(lead) + inner[0]
        box = tuple(map(sum, zip(box[0], begin))), lead + inner[1]
    is_same = tuple(stored.shape) == tuple(entry.global_shape)
    may_differ = entry.allow_shape_mismatch and len(stored.shape) == len(entry.global_shape)
    if not (is_same or may_differ):
        raise mismatch(
            entry,
            f"its global shape is {tuple(entry.global_shape)} here and {tuple(stored.shape)} in the "
            "checkpoint; the checkpoint belongs to another model or configuration",
        )
    return WantedBox(entry.key, box, _within(box, stored.shape), run)


def missing(entry: Any, name: str, contents: Dict[str, Stored]) -> Exception:
    """The exception for an entry that the checkpoint lacks."""
    like = [other for other in contents if other.rpartition(".")[2] == name.rpartition(".")[2]][:3]
    hint = f", but {', '.join(map(repr, like))}" if like else ""
    return mismatch(
        entry,
        f"the checkpoint has no {name!r}{hint}; check the model's configuration and its key prefix, or "
        "leave out what it lacks by strict='log_unexpected'",
    )


def _within(box: Box, shape: Sequence[int]) -> Optional[Box]:
    offsets, extents = box
    ends = [min(at + size, limit) for at, size, limit in zip(offsets, extents, shape)]
    sizes = tuple(end - at for at, end in zip(offsets, ends))
    return None if any(size <= 0 for size in sizes) else (offsets, sizes)


def _around(shape: Sequence[int], start: int, stop: int) -> Tuple[Box, slice]:
    """The smallest box of whole rows around a run of a flattened tensor, and the run within it."""
    offsets, extents = [0] * len(shape), list(shape)
    for dim in range(len(shape)):
        row = max(1, math.prod(shape[dim + 1 :]))
        first, end = start // row, -(-stop // row)
        offsets[dim], extents[dim] = first, max(0, end - first)
        start, stop = start - first * row, stop - first * row
        if extents[dim] != 1:
            break
    return (tuple(offsets), tuple(extents)), slice(start, stop)


def _is_flat(entry: Any, stored: Stored) -> bool:
    """Whether the tensor is stored as flat runs, and the checkpoint does not say of which shape.

    megatron-core up to 0.15 stores the shards of [X, Y], of [x, y] each, as [X/x, Y/y, x*y].
    """
    if len(stored.shape) != len(entry.global_shape) + 1:
        return False
    shard = math.prod(entry.local_shape)
    if tuple(stored.shape) == (*(entry.axis_fragmentations or ()), shard):
        return True
    raise mismatch(
        entry,
        f"it is stored as flat runs of shards, {tuple(stored.shape)}, without its shape (mcore_data); load it "
        "at the tensor- and pipeline-parallel sizes at which it was saved",
    )


def _flat_box(entry: Any, run: slice) -> WantedBox:
    lead = entry.prepend_axis_num
    sizes = (1,) * lead + tuple(entry.local_shape)
    place = tuple(at // max(1, size) for at, size in zip(entry.global_offset, sizes))
    box = (*place, run.start), (1,) * len(place) + (run.stop - run.start,)
    return WantedBox(entry.key, box, box if run.stop > run.start else None, slice(0, run.stop - run.start))


def by_name(wanted: Sequence[WantedBox]) -> Dict[str, List[Box]]:
    """Name -> boxes to load of it."""
    found: Dict[str, List[Box]] = {}
    for one in wanted:
        if one.held is not None:
            found.setdefault(one.name, []).append(one.held)
    return found
