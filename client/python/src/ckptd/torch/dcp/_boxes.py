"""Boxes of tensors that a plan reads, and their places in a shard."""

import math
from typing import Dict, List, Sequence, Tuple

import torch
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from ..._errors import DataLoss
from ..._types import Source
from ._metadata import stored_name

Box = Tuple[Tuple[int, ...], Tuple[int, ...]]  # offsets and extents
# Name of a tensor -> its boxes. In a shard they lie one after another along dimension 0.
Wanted = Dict[str, Tuple[Box, ...]]


def whole(shape: Sequence[int]) -> Box:
    return (0,) * len(shape), tuple(shape)


def box_of(item: ReadItem, found: Source) -> Box:
    """The box of its tensor that an item reads. The bytes of an object are read whole."""
    if item.type == LoadItemType.BYTE_IO:
        return whole(found.tensors[stored_name(found, item.storage_index.fqn)].shape)
    lengths = tuple(item.lengths)
    chunk = tuple(item.storage_index.offset or (0,) * len(lengths))
    return tuple(map(sum, zip(chunk, item.storage_offsets))), lengths


def wanted(items: Sequence[ReadItem], found: Source) -> Wanted:
    """What `items` read. Those without elements are left out."""
    boxes: Dict[str, List[Box]] = {}
    for item in items:
        box = box_of(item, found)
        if math.prod(box[1]):
            boxes.setdefault(stored_name(found, item.storage_index.fqn), []).append(box)
    return {name: _joined(boxes[name]) for name in sorted(boxes)}


def _joined(boxes: List[Box]) -> Tuple[Box, ...]:
    """Disjoint boxes that can lie one after another; the box around all where they cannot."""
    kept = sorted(set(boxes))
    if len({extents[1:] for _, extents in kept}) == 1 and not _overlap(kept):
        return tuple(kept)
    begin = tuple(map(min, zip(*(offsets for offsets, _ in kept))))
    ends = (tuple(map(sum, zip(*box))) for box in kept)
    return ((begin, tuple(end - at for end, at in zip(map(max, zip(*ends)), begin))),)


def _overlap(boxes: List[Box]) -> bool:
    return any(
        all(a < b + m and b < a + n for a, n, b, m in zip(*one, *other))
        for i, one in enumerate(boxes)
        for other in boxes[:i]
    )


def _shape_of(boxes: Sequence[Box]) -> Tuple[int, ...]:
    """The shape of boxes that lie one after another."""
    first = boxes[0][1]
    return (sum(extents[0] for _, extents in boxes), *first[1:]) if first else ()


def placed(name: str, boxes: Tuple[Box, ...], have: Tuple[int, ...], found: Source) -> Tuple[Box, ...]:
    """The boxes that a shard has of a tensor: `boxes`, or all of it, by the shape `have`."""
    shape = found.tensors[name].shape
    if have == _shape_of(boxes):
        return boxes
    if have == tuple(shape):
        return (whole(shape),)
    raise DataLoss(
        f"reading {name}: the daemon's shard has shape {list(have)} of it, and {list(_shape_of(boxes))} of "
        f"{list(shape)} was asked for; update the daemon and this client",
        "LAYOUT_MISMATCH",
        {"tensor": name},
    )


def part(memory: torch.Tensor, boxes: Tuple[Box, ...], box: Box) -> torch.Tensor:
    """The view of one box in `memory`, which has `boxes`; one of these holds it."""
    offsets, extents = box
    row = 0
    for begin, sizes in boxes:
        if all(b <= at and at + n <= b + s for at, n, b, s in zip(offsets, extents, begin, sizes)):
            starts = [at - b for at, b in zip(offsets, begin)]
            starts[:1] = [starts[0] + row] if starts else []
            return memory[tuple(slice(at, at + n) for at, n in zip(starts, extents))]
        row += sizes[0]
    raise AssertionError(f"{box} is in none of {boxes}")  # `boxes` were made of it
