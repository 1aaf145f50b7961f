"""Layouts describe the tensors that each rank must receive.

A string gives rules: a short form such as "fsdp:8", or the JSON text of a layout file. A
dict is such JSON. A RankLayout is the request of one rank. No placement is computed here:
the daemon does that.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _address, _dtypes
from ._errors import InvalidArgument

REPLICATE, SHARD, STRIDED_SHARD = 1, 2, 3


@dataclass(frozen=True)
class Mesh:
    """Global ranks, row-major."""

    shape: Tuple[int, ...]
    ranks: Tuple[int, ...]
    dim_names: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Sharding:
    """How tensors lie over a mesh; mesh None is a plain tensor, whole on the rank.

    placements: one (kind, dim, split_factor) per mesh dimension. padded_dim: pad with zeros to
    the shape of chunk 0 along that dimension, as FSDP2 does. boxes: replaces a mesh by
    (offsets, extents) of parts of the tensor that lie one after another along dimension 0. All
    have the same extents in other dimensions.
    """

    mesh: Optional[int] = None
    placements: Tuple[Tuple[int, int, int], ...] = ()
    padded_dim: Optional[int] = None
    boxes: Tuple[Tuple[Tuple[int, ...], Tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class FlatParameter:
    """A flat parameter of FSDP1: tensors in row-major order, one after another, sharded as one.

    sharding: index into RankLayout.shardings, for the flat tensor of `elements`. members: (index
    into RankLayout.names, first element). Members have a plain sharding. Elements outside of
    members are zero.
    """

    name: str
    sharding: int
    elements: int
    members: Tuple[Tuple[int, int], ...]


@dataclass
class RankLayout:
    """The request of one rank, tensor by tensor. `add` in any order.

    skip_missing: leave out tensors that the source lacks; else they are TENSOR_NOT_FOUND.
    refuse_unexpected: fail with UNEXPECTED_TENSORS if the source has tensors that no rank adds.
    """

    rank: int
    world_size: int
    meshes: List[Mesh] = field(default_factory=list)
    shardings: List[Sharding] = field(default_factory=list)
    names: List[str] = field(default_factory=list)
    sharding_of: List[int] = field(default_factory=list)
    dtypes: List[int] = field(default_factory=list)
    shapes: List[Sequence[int]] = field(default_factory=list)
    aliases: Dict[str, int] = field(default_factory=dict)
    optional: List[int] = field(default_factory=list)
    flats: List[FlatParameter] = field(default_factory=list)
    skip_missing: bool = False
    refuse_unexpected: bool = False
    # The source, if rules were requested in place of this layout: see _outside.
    source_for_rules: Any = field(default=None, compare=False)

    def add(
        self,
        name: str,
        shape: Sequence[int],
        sharding: int,
        dtype: int = 0,
        aliases: Sequence[str] = (),
        optional: bool = False,
    ) -> None:
        """Adds a tensor: global shape, index into `shardings`, Dtype number (0: the file's).

        The source may hold it under its name or any alias. optional: leave it out if the source
        lacks it or has it in another shape.
        """
        for alias in aliases:
            self.aliases[alias] = len(self.names)
        if optional:
            self.optional.append(len(self.names))
        self.names.append(name)
        self.sharding_of.append(sharding)
        self.dtypes.append(dtype)
        self.shapes.append(shape)

    def fill(self, message: Any) -> None:
        """Writes this into a ckptd.v1.RankLayout."""
        message.rank, message.world_size = self.rank, self.world_size
        for mesh in self.meshes:
            message.meshes.add(shape=mesh.shape, ranks=mesh.ranks, dim_names=mesh.dim_names)
        for sharding in self.shardings:
            entry = message.shardings.add()
            if sharding.mesh is not None:
                entry.mesh = sharding.mesh
            for kind, dim, split_factor in sharding.placements:
                entry.placements.add(kind=kind, dim=dim, split_factor=split_factor)
            if sharding.padded_dim is not None:
                entry.padded_dim = sharding.padded_dim
            for offsets, extents in sharding.boxes:
                entry.boxes.add(offsets=offsets, extents=extents)
        message.names.extend(self.names)
        message.sharding_of.extend(self.sharding_of)
        message.dtypes.extend(self.dtypes)
        message.ranks_of_shape.extend([len(shape) for shape in self.shapes])
        message.dims.extend([size for shape in self.shapes for size in shape])
        message.alias_names.extend(self.aliases)
        message.alias_tensors.extend(self.aliases.values())
        message.optional_tensors.extend(self.optional)
        for flat in self.flats:
            entry = message.flat_parameters.add(
                name=flat.name, sharding=flat.sharding, elements=flat.elements
            )
            entry.tensors.extend(index for index, _ in flat.members)
            entry.begins.extend(begin for _, begin in flat.members)
        message.skip_missing, message.refuse_unexpected = self.skip_missing, self.refuse_unexpected


def fill_layout(message, layout) -> None:
    """Writes any accepted layout into a ckptd.v1.Layout. None is a full copy on every rank."""
    if layout is None:
        message.rules = f"replicate:{_address.world_size()}"
    elif isinstance(layout, str):
        message.rules = layout
    elif isinstance(layout, dict):
        message.rules = json.dumps(layout)
    elif isinstance(layout, RankLayout):
        layout.fill(message.rank_layout)
    else:
        raise InvalidArgument(
            f"reading layout=: {type(layout).__name__} is no layout; use a string such as "
            "'fsdp:8', "
            "a dict of layout rules, or a ckptd.RankLayout",
            "LAYOUT_INVALID",
        )


def fill_policy(message, dtype, keep_fp32: Sequence[str]) -> None:
    """Writes dtype= and keep_fp32= into a ckptd.v1.DtypePolicy."""
    if dtype is not None:
        try:
            message.cast_to = _dtypes.parse(dtype).number
        except ValueError as error:
            raise InvalidArgument(f"reading dtype=: {error}", "INVALID_REQUEST") from None
    message.keep_f32.extend([keep_fp32] if isinstance(keep_fp32, str) else keep_fp32)
