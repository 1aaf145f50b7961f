"""Tensors over a shard's memory: one storage each, bounds checked beforehand."""

import functools

import torch

from .. import _dtypes
from .._errors import FailedPrecondition

_FROM_NUMBER = {
    row.number: getattr(torch, row.torch)
    for row in _dtypes.BY_NUMBER.values()
    if row.torch and hasattr(torch, row.torch)
}
_TO_NUMBER = {dtype: number for number, dtype in _FROM_NUMBER.items()}


def number_of(dtype: torch.dtype) -> int:
    """ckptd.v1.Dtype of a torch dtype; 0 when the contract has none."""
    return _TO_NUMBER.get(dtype, 0)


def is_castable(dtype: torch.dtype) -> bool:
    return number_of(dtype) in _dtypes.CASTABLE


def torch_dtype(row: _dtypes.Dtype, name: str) -> torch.dtype:
    dtype = _FROM_NUMBER.get(row.number)
    if dtype is None:
        raise FailedPrecondition(
            f"making a tensor of {name}: this PyTorch has no type for {row.name}; update "
            "PyTorch, or "
            "use the bytes by client.acquire(...).tensors[name].buffer",
            "DTYPE_UNSUPPORTED",
        )
    return dtype


def flat(array, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
    """One dimension over `count` elements at byte `offset`; holds the memory.

    The array itself is passed and not a read-only view of it: torch cannot mark a
    tensor read-only and would only warn.
    """
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(array, dtype=dtype, count=count, offset=offset)


@functools.lru_cache(maxsize=1024)
def contiguous_strides(shape) -> tuple:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def storage_of(array, table, index: int):
    """Flat tensor over a table entry's bytes with padding, and the entry's dtype."""
    row = table.dtypes[index]
    dtype = torch_dtype(row, table.names[index])
    return flat(array, dtype, table.padded_nbytes[index] * 8 // row.bits, table.offsets[index])
