"""The tensor table of a shard, checked against the slab before memory is mapped."""

import math
import operator
from typing import Dict, List, Tuple

from . import _dtypes, _types
from ._errors import DataLoss

_ALIGNMENT = 512
# Dtype number -> bytes of which offsets must be multiples.
_WIDTHS = {number: max(row.bits // 8, 1) for number, row in _dtypes.BY_NUMBER.items()}


class Table:
    """Columns. Entry i of each belongs to tensor i. `index` also has the aliases."""

    def __init__(self, what: str, slab_bytes: int):
        self._what = what
        self._slab_bytes = slab_bytes
        self.names: List[str] = []
        self.dtypes: List[_dtypes.Dtype] = []
        self.shapes: List[Tuple[int, ...]] = []
        self.offsets: List[int] = []
        self.nbytes: List[int] = []
        self.padded_nbytes: List[int] = []
        self.digests: List[int] = []
        self.aliases: Dict[str, int] = {}
        self.index: Dict[str, int] = {}
        self.flats: Dict[str, Tuple[_dtypes.Dtype, int, int]] = {}  # (type, offset, elements)
        self.unexpected: List[str] = []  # tensors of the source that this rank did not request

    def _refuse(self, why: str):
        raise DataLoss(
            f"reading {self._what}: {why}; the daemon's answer cannot be trusted, update the "
            "daemon and this client",
            "INVALID_REPLY",
        )

    def add_page(self, page) -> None:
        names, ranks = list(page.names), list(page.ranks_of_shape)
        dtypes, offsets = list(page.dtypes), list(page.offsets)
        sizes, padded, digests = list(page.bytes), list(page.padded_bytes), list(page.digests)
        count = len(names)
        if any(len(column) != count for column in (ranks, dtypes, offsets, sizes, padded)) or len(
            digests
        ) not in (0, count):
            self._refuse("its columns have different lengths")
        shapes = _types.shapes_of(ranks, list(page.dims), self._what)
        if not self._columns_are_valid(dtypes, shapes, offsets, sizes, padded):
            for entry in zip(names, dtypes, shapes, offsets, sizes, padded):
                self._check(*entry)
        self.names += names
        self.dtypes += map(_dtypes.BY_NUMBER.__getitem__, dtypes)
        self.shapes += shapes
        self.offsets += offsets
        self.nbytes += sizes
        self.padded_nbytes += padded
        self.digests += digests
        # Indices of a page count from its first tensor.
        if any(target >= count for target in page.alias_tensors):
            self._refuse("a further name refers to no tensor")
        first = len(self.names) - count
        self.aliases.update(zip(page.alias_names, (first + i for i in page.alias_tensors)))
        self._add_flats(page)
        self.unexpected += page.unexpected_names

    def _add_flats(self, page) -> None:
        names, places = list(page.flat_names), (page.flat_dtypes, page.flat_offsets)
        if any(len(column) != len(names) for column in (*places, page.flat_elements)):
            self._refuse("its columns have different lengths")
        for name, dtype, offset, elements in zip(names, *places, page.flat_elements):
            row = _dtypes.BY_NUMBER.get(dtype)
            if row is None or name in self.flats:
                self._refuse(f"flat parameter {name!r} comes twice, or has no known element type")
            if offset % _ALIGNMENT or offset * 8 + elements * row.bits > self._slab_bytes * 8:
                self._refuse(f"flat parameter {name!r} lies outside of the slab")
            self.flats[name] = (row, offset, elements)

    def _columns_are_valid(self, dtypes, shapes, offsets, sizes, padded) -> bool:
        """Whether `_check` accepts every row. Checks columns, which is faster for many equal rows."""
        for dtype, shape, size, all_of_it in set(zip(dtypes, shapes, sizes, padded)):
            row = _dtypes.BY_NUMBER.get(dtype)
            if row is None or math.prod(shape) * row.bits != size * 8 or all_of_it < size:
                return False
        if any(map(operator.mod, offsets, map(_WIDTHS.__getitem__, dtypes))):
            return False
        return max(map(operator.add, offsets, padded), default=0) <= self._slab_bytes

    def _check(self, name, dtype, shape, offset, size, padded) -> None:
        row = _dtypes.BY_NUMBER.get(dtype)
        if row is None:
            self._refuse(f"tensor {name!r} has the unknown element type {dtype}")
        if math.prod(shape) * row.bits != size * 8:
            self._refuse(
                f"tensor {name!r} of shape {list(shape)} in {row.name} cannot have {size} bytes"
            )
        # Members of flat parameters follow each other element by element.
        if offset % _WIDTHS[dtype] or padded < size or offset + padded > self._slab_bytes:
            self._refuse(
                f"tensor {name!r} lies at bytes {offset} to {offset + max(size, padded)} of a "
                f"slab of {self._slab_bytes}"
            )

    def finish(self, tensor_count: int) -> None:
        """Checks the whole table. Call it after the last page."""
        count = len(self.names)
        if count != tensor_count:
            self._refuse(f"{count} tensors arrived, {tensor_count} were announced")
        if self.digests and len(self.digests) != count:
            self._refuse("only some pages carry digests")
        self.index = dict(zip(self.names, range(count)))
        if len(self.index) != count:
            self._refuse("a tensor is listed twice")
        for alias, target in self.aliases.items():
            if alias in self.index:
                self._refuse(f"the further name {alias!r} is a tensor itself")
            self.index[alias] = target
