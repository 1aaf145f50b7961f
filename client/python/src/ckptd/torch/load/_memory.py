"""Tensors over a shard's memory. Each has its own storage; bounds were checked before."""

import functools
from typing import List, Optional, Union

import torch
import torch.utils.dlpack

from ... import _dlpack, _dtypes
from ..._errors import FailedPrecondition, InvalidArgument
from ..._shard import Shard

_FROM_NUMBER = {
    row.number: getattr(torch, row.torch)
    for row in _dtypes.BY_NUMBER.values()
    if row.torch and hasattr(torch, row.torch)
}
_TO_NUMBER = {dtype: number for number, dtype in _FROM_NUMBER.items()}


def number_of(dtype: torch.dtype) -> int:
    """ckptd.v1.Dtype of a torch dtype; 0 if the contract has none."""
    return _TO_NUMBER.get(dtype, 0)


def has_type(number: int) -> bool:
    """Whether this PyTorch has a type for a ckptd.v1.Dtype."""
    return number in _FROM_NUMBER


def dtype_of(number: int, name: str) -> torch.dtype:
    """The torch dtype of a ckptd.v1.Dtype. Raises FailedPrecondition when this PyTorch has none."""
    row = _dtypes.BY_NUMBER.get(number)
    if row is None:
        raise FailedPrecondition(
            f"making a tensor of {name}: its element type is unknown here; update this package",
            "DTYPE_UNSUPPORTED",
        )
    return torch_dtype(row, name)


def parse_dtype(dtype: Union[torch.dtype, str]) -> torch.dtype:
    """A torch dtype from itself or a name of torch or safetensors. Raises InvalidArgument if none can be cast to it."""
    try:
        number = _dtypes.parse(dtype).number
    except ValueError:
        number = 0
    if number not in _dtypes.CASTABLE:
        raise InvalidArgument(
            f"reading dtype={dtype!r}: weights can be cast to torch.float16, torch.bfloat16, "
            "torch.float32 and torch.float64",
            "INVALID_REQUEST",
        )
    return _FROM_NUMBER[number]


def is_castable(dtype: torch.dtype) -> bool:
    return number_of(dtype) in _dtypes.CASTABLE


def torch_dtype(row: _dtypes.Dtype, name: str) -> torch.dtype:
    dtype = _FROM_NUMBER.get(row.number)
    if dtype is None:
        advice = "update PyTorch" if row.torch else "read it by safe_open of this package"
        raise FailedPrecondition(
            f"making a tensor of {name}: this PyTorch has no type for single elements of {row.name}; "
            f"{advice}, or use the bytes by client.acquire(...).tensors[name].buffer",
            "DTYPE_UNSUPPORTED",
        )
    return dtype


def over_device(memory, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
    """One dimension over `count` elements at byte `offset` of a DeviceMemory; holds it.

    Writable whatever the memory is, for the reason given at `flat`.
    """
    if not torch.backends.cuda.is_built():
        raise FailedPrecondition(
            f"making tensors over the memory of {memory.device}: this PyTorch is built without CUDA; "
            "install one that is, or use a daemon with --memory host",
            "DEVICE_MISMATCH",
            {"daemon": memory.device},
        )
    row = _dtypes.BY_NUMBER[number_of(dtype)]
    # The DLPack import of PyTorch 2.6 to 2.9 refuses 8-bit floats, which are passed as bytes.
    has_code = row.dlpack is not None and (row.exact or row.bits > 8)
    sent = row if has_code else _dtypes.BY_NAME[f"U{row.bits}"]
    made = torch.utils.dlpack.from_dlpack(
        _dlpack.device_capsule(memory, offset, sent, (count,), read_only=False)
    )
    return made if has_code else made.view(dtype)


def flat(shard: Shard, dtype: torch.dtype, count: int, offset: int) -> torch.Tensor:
    """One dimension over `count` elements at byte `offset`; holds the memory.

    The memory itself is passed and not a read-only view of it: torch cannot mark a
    tensor read-only and would only warn.
    """
    if shard.device is not None:
        return over_device(shard.mapping, dtype, count, offset)
    if count == 0:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(shard.array, dtype=dtype, count=count, offset=offset)


def device_of(shard: Shard) -> torch.device:
    """The torch device of the shard's memory."""
    return flat(shard, torch.uint8, 0, 0).device


def check_dtype(what: str, dtype: torch.dtype, shard: Shard) -> None:
    """Refuses a dtype of which this PyTorch makes no tensors over the shard's memory."""
    try:
        flat(shard, dtype, 0, 0)
    except (RuntimeError, BufferError) as error:  # torch's and NumPy's
        raise FailedPrecondition(
            f"filling {what}: PyTorch {torch.__version__} makes no tensor of {dtype} over the memory of "
            f"{shard.device or 'the host'}: {error}; update PyTorch, or use a model with another type there",
            "DTYPE_UNSUPPORTED",
            {"tensor": what},
        ) from error


def check_device(
    what: str, wanted: torch.device, have: torch.device, daemon: Optional[str]
) -> None:
    """Refuses memory on `have`, of a daemon on the GPU `daemon` (None: host), for `wanted`."""
    if wanted.type == have.type and (
        None in (wanted.index, have.index) or wanted.index == have.index
    ):
        return
    place = f"the memory of {daemon}, here {have}" if daemon else "host memory"
    raise FailedPrecondition(
        f"filling {what}: it belongs on {wanted}, and the daemon keeps shards in {place}; ask for "
        f"{have.type!r} (in the mesh, too), or use a daemon whose --memory and --device fit",
        "DEVICE_MISMATCH",
        {"wanted": str(wanted), "daemon": daemon or "host"},
    )


@functools.lru_cache(maxsize=1024)
def contiguous_strides(shape) -> tuple:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def storage_of(shard: Shard, index: int) -> torch.Tensor:
    """A flat tensor over a table entry's bytes, padding included."""
    table = shard.table
    row = table.dtypes[index]
    dtype = torch_dtype(row, table.names[index])
    return flat(shard, dtype, table.padded_nbytes[index] * 8 // row.bits, table.offsets[index])


def whole_tensors(shard: Shard) -> List[torch.Tensor]:
    """`whole` of every row of the table."""
    table, made = shard.table, []
    columns = (table.names, table.dtypes, table.shapes, table.offsets, table.padded_nbytes)
    for name, row, shape, offset, padded in zip(*columns):
        memory = flat(shard, torch_dtype(row, name), padded * 8 // row.bits, offset)
        made.append(memory.as_strided(shape, contiguous_strides(shape)))
    return made


def whole(shard: Shard, index: int) -> torch.Tensor:
    """The tensor in row `index` of the table, over the shard's memory."""
    shape = shard.table.shapes[index]
    return storage_of(shard, index).as_strided(shape, contiguous_strides(shape))
