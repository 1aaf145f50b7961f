"""Element types: numbers of the contract, and names in other libraries."""

from typing import NamedTuple, Optional


class Dtype(NamedTuple):
    number: int  # ckptd.v1.Dtype
    name: str  # as in a safetensors header, which has none of the last four
    bits: int  # per element
    numpy: Optional[str]  # typestr of the same bytes; None for sub-byte types
    exact: bool  # numpy means the same values, not just the same bytes
    torch: Optional[str]  # attribute of torch; newer ones may be absent there
    dlpack: Optional[int]  # DLPack type code


_ROWS = (
    Dtype(1, "BOOL", 8, "|b1", True, "bool", 6),
    Dtype(2, "F4", 4, None, False, None, None),
    Dtype(3, "F6_E2M3", 6, None, False, None, None),
    Dtype(4, "F6_E3M2", 6, None, False, None, None),
    Dtype(5, "U8", 8, "|u1", True, "uint8", 1),
    Dtype(6, "I8", 8, "|i1", True, "int8", 0),
    Dtype(7, "F8_E5M2", 8, "|u1", False, "float8_e5m2", 12),
    Dtype(8, "F8_E4M3", 8, "|u1", False, "float8_e4m3fn", 10),
    Dtype(9, "F8_E8M0", 8, "|u1", False, "float8_e8m0fnu", 14),
    Dtype(10, "F8_E4M3FNUZ", 8, "|u1", False, "float8_e4m3fnuz", 11),
    Dtype(11, "F8_E5M2FNUZ", 8, "|u1", False, "float8_e5m2fnuz", 13),
    Dtype(12, "I16", 16, "<i2", True, "int16", 0),
    Dtype(13, "U16", 16, "<u2", True, "uint16", 1),
    Dtype(14, "F16", 16, "<f2", True, "float16", 2),
    Dtype(15, "BF16", 16, "<u2", False, "bfloat16", 4),
    Dtype(16, "I32", 32, "<i4", True, "int32", 0),
    Dtype(17, "U32", 32, "<u4", True, "uint32", 1),
    Dtype(18, "F32", 32, "<f4", True, "float32", 2),
    Dtype(19, "C64", 64, "<c8", True, "complex64", 5),
    Dtype(20, "F64", 64, "<f8", True, "float64", 2),
    Dtype(21, "I64", 64, "<i8", True, "int64", 0),
    Dtype(22, "U64", 64, "<u8", True, "uint64", 1),
    Dtype(23, "C32", 32, "<u4", False, "complex32", 5),
    Dtype(24, "C128", 128, "<c16", True, "complex128", 5),
    Dtype(25, "BITS8", 8, "|u1", False, "bits8", None),
    Dtype(26, "BITS16", 16, "<u2", False, "bits16", None),
)

BY_NUMBER = {row.number: row for row in _ROWS}
BY_NAME = {row.name: row for row in _ROWS}
BY_TORCH = {row.torch: row for row in _ROWS if row.torch}
# The types that a safetensors header can name.
OF_SAFETENSORS = frozenset(row.number for row in _ROWS if row.number <= 22)
# The types a load can cast between.
CASTABLE = frozenset(BY_NAME[name].number for name in ("F16", "BF16", "F32", "F64"))


def parse(dtype) -> Dtype:
    """A Dtype from its header name ("BF16"), a torch dtype, or "bfloat16".

    Raises ValueError when there is no such type.
    """
    if isinstance(dtype, Dtype):
        return dtype
    text = str(dtype).strip()
    if text.startswith("torch."):
        text = text[len("torch.") :]
    row = BY_NAME.get(text.upper()) or BY_TORCH.get(text.lower())
    if row is None:
        raise ValueError(f"{dtype!r} is no element type; use one of {', '.join(BY_NAME)}")
    return row
