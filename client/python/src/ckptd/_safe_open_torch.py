"""PyTorch tensors over a shard, for safe_open(framework="pt")."""

import torch

from ._safe_open_source import SafetensorError
from ._shard import Shard
from .torch.compat import _torch_internals
from .torch.load import _memory


def tensor(shard: Shard, name: str, file: str, device: torch.device) -> torch.Tensor:
    """The whole tensor over the shard's memory, in its own storage.

    Raises FailedPrecondition (DEVICE_MISMATCH) if the daemon keeps its memory on another device
    than `device`: nothing is moved.
    """
    _memory.check_device(file, device, _memory.device_of(shard), shard.device)
    index = shard.table.index[name]
    row, shape = shard.table.dtypes[index], shard.table.shapes[index]
    if row.name == "F4":
        return _packed(shard, index, shape)
    if row.torch is None:
        raise SafetensorError(f"Dtype not understood: {row.name}")
    with _torch_internals.low_overhead_dispatch():
        flat = _memory.storage_of(shard, index)
        return flat.as_strided(shape, _memory.contiguous_strides(shape))


def _packed(shard: Shard, index: int, shape) -> torch.Tensor:
    """A tensor with two elements per byte, which PyTorch counts as one element."""
    if not shape or shape[-1] % 2:
        raise SafetensorError(
            "f4_x2 dtype requires that the last dim be divisible by 2 in torch: got "
            f"{list(shape)}"
        )
    table = shard.table
    flat = _memory.flat(shard, torch.uint8, table.nbytes[index], table.offsets[index])
    return flat.view(torch.float4_e2m1fn_x2).reshape([*shape[:-1], shape[-1] // 2])
