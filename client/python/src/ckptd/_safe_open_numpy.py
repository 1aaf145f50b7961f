"""NumPy arrays over a shard, and the slices that safetensors takes for frameworks of arrays.

Grammar and error messages are those of safetensors 0.8 (parse_indexers in its Python
binding, slice_byte_ranges in its core): integers, slices with a positive step, one
ellipsis, an empty list. An index outside of a dimension is an error and not clipped.
"""

import operator
from typing import List, Sequence, Tuple, Union

import numpy

from . import _dtypes
from ._safe_open_source import SafetensorError, require_host_memory
from ._shard import Shard

_INT32 = range(-(1 << 31), 1 << 31)
_USIZE = (1 << 64) - 1
_ISIZE = (1 << 63) - 1

Indexer = Union[int, slice]


def tensor(shard: Shard, name: str, file: str) -> numpy.ndarray:
    """The whole tensor over the shard's memory. BF16 needs ml_dtypes, as in safetensors."""
    require_host_memory(shard, file)
    view = shard.tensors[name]
    dtype = _dtype(view.dtype)
    if not view.nbytes:
        return numpy.zeros(view.shape, dtype)
    return numpy.frombuffer(view.buffer, dtype).reshape(view.shape)


def part(shard: Shard, name: str, file: str, key) -> numpy.ndarray:
    """A new array of the selection of `key`. Raises SafetensorError for a refused key."""
    whole = tensor(shard, name, file)
    chosen = indexers(key, whole.shape)
    _check(chosen, whole.shape)
    return numpy.array(whole[tuple(chosen)])


def _dtype(name: str):
    if name == "BOOL":
        return numpy.dtype(bool)
    if name == "BF16":
        return numpy.dtype("bfloat16")
    torch_name = _dtypes.BY_NAME[name].torch
    if (torch_name is None and name != "F4") or name in ("C32", "BITS8", "BITS16"):
        raise SafetensorError(f"Dtype not understood: {name}")
    return getattr(numpy, torch_name or "float4_e2m1fn_x2")


def indexers(key, shape: Sequence[int]) -> List[Indexer]:
    """One index per dimension named by `key`, an ellipsis spelled out."""
    if isinstance(key, list):
        if key:
            raise SafetensorError("Non empty lists are not implemented")
        return [slice(0, 0, 1)]
    items = list(key) if isinstance(key, tuple) else [key]
    dots = sum(item is Ellipsis for item in items)
    if dots > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    found: List[Indexer] = []
    for item in items:
        if item is Ellipsis:
            found += [slice(None)] * max(0, len(shape) - len(items) + 1)
        elif isinstance(item, slice):
            found.append(_narrow(item))
        else:
            found.append(_select(item, len(found), shape))
    return found


def _narrow(item: slice) -> slice:
    start, stop = _bound(item.start), _bound(item.stop)
    step = 1 if item.step is None else operator.index(item.step)
    if abs(step) > _ISIZE:
        raise OverflowError("Python int too large to convert to C long")
    if step <= 0:
        raise SafetensorError(f"Slice step must be a positive integer, got {step}")
    return slice(start, stop, step)


def _bound(value):
    if value is None:
        return None
    number = operator.index(value)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number > _USIZE:
        raise OverflowError("int too big to convert")
    return number


def _select(item, dim: int, shape: Sequence[int]) -> int:
    try:
        number = operator.index(item)
    except TypeError:
        number = None
    if number is None or number not in _INT32:
        raise SafetensorError(
            f"Unsupported slice index at position {dim}: expected slice, int, or ellipsis"
        )
    size = shape[dim] if dim < len(shape) else 0
    if number < -size:
        raise SafetensorError(f"Invalid index {number} for dimension {dim} of size {size}")
    return number + size if number < 0 else number


def _range(item: Indexer, size: int) -> Tuple[int, int]:
    if not isinstance(item, slice):
        return item, item + 1
    return item.start or 0, size if item.stop is None else item.stop


def _check(chosen: List[Indexer], shape: Sequence[int]) -> None:
    """Refuses an index outside of `shape`, the last such dimension first."""
    why = ""
    if len(chosen) > len(shape):
        why = "more slicing indexes than dimensions in tensor"
    for dim in reversed(range(len(chosen) if not why else 0)):
        start, stop = _range(chosen[dim], shape[dim])
        size = shape[dim]
        if start >= size or stop > size:
            asked = start if start >= size else stop - 1
            why = f"index {asked} out of bounds for tensor dimension #{dim} of size {size}"
            break
        if stop < start:  # safetensors itself fails with an internal error here
            why = f"dimension #{dim} would end at {stop}, before it starts at {start}"
            break
    if why:
        text = ", ".join(map(_text, chosen))
        raise SafetensorError(f"Error during slicing [{text}] with shape {list(shape)}: {why}")


def _text(item: Indexer) -> str:
    if not isinstance(item, slice):
        return str(item)
    ends = ["" if end is None else str(end) for end in (item.start, item.stop)]
    return ":".join(ends + ([] if item.step in (None, 1) else [str(item.step)]))
