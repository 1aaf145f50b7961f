"""Encodes values of state dicts that are no tensors of the model: plain data, with exact types.

Extra states of rank 0 reach other ranks this way. Decoding cannot run code: each kind of value
is built by its own line below.
"""

import base64
import io
import math
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Tuple

import torch

from ..._errors import Unimplemented
from ..compat import _torch_internals

_DEEPEST = 100  # nested lists
_MOST = 64 << 20  # bytes of one value
_LONGEST = 10_000  # bits of an int; Python limits the conversion of longer ones

# Lists, and values that JSON does not know, are encoded as [tag, content].


def encode(name: str, value: Any) -> Any:
    """`value` for JSON. Raises Unimplemented (VALUE_UNSUPPORTED) if it is no plain data."""
    return _Writer(name).write(value, _DEEPEST)


def decode(data: Any) -> Any:
    """The inverse of encode(). Raises ValueError for other data."""
    if data is None or type(data) in (bool, int, str):
        return data
    if type(data) is not list or len(data) != 2 or type(data[0]) is not str:
        raise ValueError(f"reading a value of a state dict: it is a bare {type(data).__name__}")
    tag, of = data
    if tag not in _MAKE:
        raise ValueError(f"reading a value of a state dict: there is no kind {tag!r:.40}")
    return _MAKE[tag](of)


class _Writer:
    def __init__(self, name: str):
        self._name, self._left = name, _MOST

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if depth == 0:
            raise self._refused("one that holds itself, or lists in lists a hundred deep")
        self._count(16)
        if value is None or kind in (bool, int):
            if kind is int and value.bit_length() > _LONGEST:
                raise self._refused(f"an int of {value.bit_length()} bits")
            return value
        if kind is str:
            self._count(len(value))
            return value
        if kind in (list, tuple, torch.Size, set, frozenset):
            return [kind.__name__, [self.write(item, depth - 1) for item in value]]
        if kind in (dict, OrderedDict):
            pairs = [[self.write(k, depth - 1), self.write(v, depth - 1)] for k, v in value.items()]
            return [kind.__name__, pairs]
        if kind in _PLAIN:
            return [kind.__name__, _PLAIN[kind](value)]
        if kind in (bytes, bytearray):
            return [kind.__name__, self._bytes(value)]
        if kind is io.BytesIO:
            return ["BytesIO", [self._bytes(value.getvalue()), value.tell()]]
        if kind in (torch.Tensor, torch.nn.Parameter) and _is_plain_host(value):
            return [kind.__name__, self._tensor(value)]
        raise self._refused(f"{kind.__module__}.{kind.__qualname__}{_where(value)}")

    def _tensor(self, value: torch.Tensor) -> list:
        whole = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        shape = [list(value.shape), value.requires_grad]
        return [str(value.dtype)[6:], *shape, self._bytes(whole.tobytes())]

    def _bytes(self, value: bytes) -> str:
        self._count(len(value) * 4 // 3)
        return base64.b64encode(value).decode()

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise self._refused(f"more than {_MOST >> 20} MiB")

    def _refused(self, what: str) -> Unimplemented:
        return Unimplemented(
            f"spreading {self._name}: its value in the state dict holds {what}; only None, bool, int, "
            "float, complex, str, bytes, io.BytesIO, lists, tuples, sets and dicts of these, torch.Size, "
            "torch.dtype, torch.device, and tensors in host memory can be sent to other ranks, together "
            f"up to {_MOST >> 20} MiB; have get_extra_state give such values, or load that module's state "
            "on each rank",
            "VALUE_UNSUPPORTED",
            {"tensor": self._name},
        )


def _is_plain_host(value: torch.Tensor) -> bool:
    if value.layout is not torch.strided or value.is_quantized or torch.nn.parameter.is_lazy(value):
        return False
    return value.device.type == "cpu" and not value.is_nested and _torch_internals.has_memory(value)


def _where(value: Any) -> str:
    return f" on {value.device}" if isinstance(value, torch.Tensor) else ""


def _float(value: float) -> str:
    return value.hex() if math.isfinite(value) else str(value)


_PLAIN: Dict[type, Callable[[Any], Any]] = {
    float: _float,
    complex: lambda value: [_float(value.real), _float(value.imag)],
    torch.dtype: lambda value: str(value)[6:],
    torch.device: str,
}


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"reading a value of a state dict: torch has no type {name!r:.40}")
    return found


def _make_tensor(of: list) -> torch.Tensor:
    dtype, shape, grad, data = of
    whole = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=torch.uint8) if data else None
    if whole is None:
        made = torch.empty(shape, dtype=_dtype(dtype))
    else:
        made = whole.view(_dtype(dtype)).reshape(shape)
    return made.requires_grad_(grad)


def _items(of: list) -> List[Any]:
    return [decode(item) for item in of]


def _pairs(of: list) -> List[Tuple[Any, Any]]:
    return [(decode(key), decode(value)) for key, value in of]


def _bytes_io(of: list) -> io.BytesIO:
    made = io.BytesIO(base64.b64decode(of[0]))
    made.seek(of[1])
    return made


_MAKE: Dict[str, Callable[[Any], Any]] = {
    "list": _items,
    "tuple": lambda of: tuple(_items(of)),
    "Size": lambda of: torch.Size(_items(of)),
    "set": lambda of: set(_items(of)),
    "frozenset": lambda of: frozenset(_items(of)),
    "dict": lambda of: dict(_pairs(of)),
    "OrderedDict": lambda of: OrderedDict(_pairs(of)),
    "float": lambda of: float.fromhex(of),
    "complex": lambda of: complex(*map(float.fromhex, of)),
    "dtype": _dtype,
    "device": torch.device,
    "bytes": base64.b64decode,
    "bytearray": lambda of: bytearray(base64.b64decode(of)),
    "BytesIO": _bytes_io,
    "Tensor": _make_tensor,
    "Parameter": lambda of: torch.nn.Parameter(_make_tensor([*of[:2], False, of[3]]), of[2]),
}
