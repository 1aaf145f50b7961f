"""Converts an index into a tensor to a box that a daemon can load.

Boxes are (offsets, extents). Indices follow PyTorch. Placements are not computed here: the
trainer's library has done so before it indexes.
"""

import itertools
from typing import List, NamedTuple, Optional, Sequence, Tuple

Box = Tuple[Tuple[int, ...], Tuple[int, ...]]


class Part(NamedTuple):
    """A box, and the index that selects from it what the original index selects from the tensor."""

    box: Box
    key: tuple


def part_of(key, shape: Sequence[int]) -> Part:
    """The smallest box that contains the selection of `key`; the whole tensor for unusual keys."""
    if key is Ellipsis:
        return Part(whole(shape), (key,))
    found = _expanded_key(key, len(shape))
    parts = None if found is None else [_range_of(item, size) for item, size in zip(found, shape)]
    if parts is None or None in parts:
        return Part(whole(shape), key if isinstance(key, tuple) else (key,))
    offsets, extents, keys = zip(*parts) if parts else ((), (), ())
    return Part((offsets, extents), keys)


def whole(shape: Sequence[int]) -> Box:
    return (0,) * len(shape), tuple(shape)


def _expanded_key(key, dims: int) -> Optional[list]:
    """One item per dimension; None if `key` is more than integers, slices and one list."""
    items = list(key) if isinstance(key, tuple) else [key]
    if any(not isinstance(item, (int, slice, list, type(...))) for item in items):
        return None
    if any(isinstance(item, bool) for item in items):
        return None
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    # PyTorch pairs two lists, and an integer with a list may move dimensions.
    lists = sum(isinstance(item, list) for item in items)
    if len(dots) > 1 or len(items) - len(dots) > dims or lists > 1:
        return None
    if lists and any(isinstance(item, int) for item in items):
        return None
    at = dots[0] if dots else len(items)
    filling = [slice(None)] * (dims - len(items) + len(dots))
    return items[:at] + filling + items[at + 1 :]


def _range_of(item, size: int) -> Optional[Tuple[int, int, object]]:
    """(offset, extent, index within) along one dimension; None if the item is no range."""
    if isinstance(item, slice):
        if any(end is not None and not isinstance(end, int) for end in (item.start, item.stop)):
            return None
        if item.step not in (None, 1):
            return None
        start, stop, _ = item.indices(size)
        return start, max(0, stop - start), slice(None)
    if isinstance(item, int):
        at = item + size if item < 0 else item
        return (at, 1, 0) if 0 <= at < size else None
    if not item or any(type(at) is not int or not 0 <= at < size for at in item):
        return None
    low = min(item)
    return low, max(item) + 1 - low, [at - low for at in item]


class BoxRequest:
    """Boxes of one tensor that one rank requests. Immutable.

    `boxes` has the wanted boxes if they can lie one after another along dimension 0, else the
    smallest box around them.
    """

    def __init__(self, wanted: Sequence[Box], shape: Sequence[int]):
        unique = list(dict.fromkeys(wanted))
        self.shape = tuple(shape)
        self.boxes: List[Box] = unique if _can_be_joined(unique) else [_hull(unique)]
        self.is_whole = self.boxes == [whole(shape)]
        rows = itertools.accumulate((sum(extents[:1]) for _, extents in self.boxes), initial=0)
        self._rows = dict(zip(self.boxes, rows))

    def index_of(self, box: Box) -> tuple:
        """The index of `box` in the local tensor that consists of `boxes`."""
        if box in self._rows:
            starts = [self._rows[box], *(0 for _ in box[1][1:])][: len(box[1])]
            return tuple(slice(at, at + size) for at, size in zip(starts, box[1]))
        row = 0
        for stated in self.boxes:
            if _holds(stated, box):
                starts = [b - s for b, s in zip(box[0], stated[0])]
                if starts:
                    starts[0] += row
                return tuple(slice(at, at + size) for at, size in zip(starts, box[1]))
            row += stated[1][0]
        raise LookupError(f"{box} is no part of {self.boxes}")


def _holds(outer: Box, inner: Box) -> bool:
    return all(
        o <= i and i + size <= o + room
        for o, room, i, size in zip(outer[0], outer[1], inner[0], inner[1])
    )


def _overlap(a: Box, b: Box) -> bool:
    return all(
        p < q + room and q < p + size for p, size, q, room in zip(a[0], a[1], b[0], b[1])
    )


def _can_be_joined(boxes: List[Box]) -> bool:
    if len(boxes) == 1:
        return True
    if len({extents[1:] for _, extents in boxes}) > 1:
        return False
    if len({extents for _, extents in boxes}) == 1 and all(map(_is_on_grid, boxes)):
        return True  # thousands of experts
    return not any(_overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def _is_on_grid(box: Box) -> bool:
    """Whether a box lies on the grid of boxes of its extents, where different ones are disjoint."""
    return all(size > 0 and at % size == 0 for at, size in zip(*box))


def _hull(boxes: List[Box]) -> Box:
    low = tuple(map(min, zip(*(offsets for offsets, _ in boxes))))
    high = map(max, zip(*(map(sum, zip(*box)) for box in boxes)))
    return low, tuple(top - at for top, at in zip(high, low))
