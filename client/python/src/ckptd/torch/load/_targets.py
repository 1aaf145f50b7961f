"""Lists a model's tensors, and describes them as a rank's layout.

The layout repeats mesh and placements of the model. The daemon computes where bytes go.
"""

import sys
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ..._errors import FailedPrecondition, InvalidArgument, Unimplemented
from ..._layout import REPLICATE, SHARD, STRIDED_SHARD, FlatParameter, Mesh, RankLayout, Sharding
from ..compat import _fsdp1_internals, _torch_internals
from ..compat._checkpoint_names import as_saved, clean
from . import _memory

# Some classes have an object per tensor: without dictionaries they take less memory.
SLOTS = {"slots": True} if sys.version_info >= (3, 10) else {}
_CPU = torch.device("cpu")


class Arrangement:
    """Facts that targets with the same mesh, placements and FSDP2 group share, found out once.

    spec (a DTensorSpec) and fsdp (an FSDPParam) are the first target's, or None. All targets of
    the arrangement have the same padded dimension and offloading as the first.
    """

    __slots__ = ("spec", "fsdp", "device")

    def __init__(self, spec, fsdp, device: Optional[torch.device]):
        self.spec, self.fsdp = spec, fsdp
        self.device = device  # device on which their memory must be; None: any


class Arrangements:
    """All arrangements of a model, each once."""

    def __init__(self):
        self._found: Dict[object, Arrangement] = {}
        # Keyed by identity, to avoid hashing placements. They live as long as the arrangement.
        self._known: Dict[Tuple[int, int, int], Tuple[Arrangement, object]] = {}

    def plain(self, tensor: torch.Tensor) -> Arrangement:
        """The arrangement of a tensor that is whole on this rank. On meta it has no device yet."""
        device = None if tensor.is_meta else tensor.device
        found = self._found.get(device)
        if found is None:
            found = self._found[device] = Arrangement(None, None, device)
        return found

    def over_mesh(self, spec, fsdp=None, group=None) -> Arrangement:
        same = (id(spec.mesh), id(spec.placements), id(group))
        if same not in self._known:
            self._known[same] = self._over_mesh(spec, fsdp, group), spec.placements
        return self._known[same][0]

    def _over_mesh(self, spec, fsdp, group) -> Arrangement:
        key = (id(spec.mesh), spec.placements, id(group))
        found = self._found.get(key)
        if found is None:
            offloaded = fsdp is not None and fsdp.offload_to_cpu
            device = _CPU if offloaded else _torch_internals.device_of_mesh(spec.mesh)
            found = self._found[key] = Arrangement(spec, fsdp, device)
        return found


@dataclass(**SLOTS)
class Target:
    """One tensor of the model, under all its names. Tied tensors are one target.

    A flat parameter of FSDP1 is one target under a name of its own. Its members have the names
    of checkpoints.
    """

    names: List[str]
    tensor: torch.Tensor
    # (module, name) of each place that holds it. Places as a parameter come first, because a
    # parameter may be registered as a buffer as well.
    slots: List[Tuple[nn.Module, str]]
    is_buffer: bool  # and no parameter anywhere
    persistent: bool
    arrangement: Arrangement
    fsdp: Optional[object] = None  # its FSDPParam
    spec: Optional[object] = None  # its DTensorSpec
    dtype: Optional[torch.dtype] = None  # the wanted one
    flat: Optional[_fsdp1_internals.Flat] = None
    # The checkpoint may lack it: it then starts at zero.
    optional: bool = False
    cast: Optional[torch.dtype] = None  # dtype to which it is cast, by a copy, when it is placed
    # Name of another tensor in the same storage: this one keeps its memory and is copied into.
    shares_storage_with: Optional[str] = None
    stored_names: Optional[List[str]] = None  # the checkpoint's names for it, if they were looked up

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def requested_names(self) -> List[str]:
        """Names under which it is requested; empty if the checkpoint is known to lack it."""
        return self.names if self.stored_names is None else self.stored_names

    @property
    def final_dtype(self) -> Optional[torch.dtype]:
        """Its dtype after loading."""
        return self.cast or self.dtype

    @property
    def device(self) -> Optional[torch.device]:
        """Device on which its memory must be; None for a plain tensor on meta, which may be on any."""
        return self.arrangement.device


def one_per_arrangement(targets: Iterable[Target]) -> Iterable[Target]:
    """One of `targets` per arrangement."""
    return {id(target.arrangement): target for target in targets}.values()


def checkpoint_tensors(target: Target) -> List[Tuple[List[str], torch.Size]]:
    """(names, global shape) of a target's tensors in checkpoints. A flat parameter has its members."""
    if target.flat is None:
        return [(target.names, target.tensor.shape)]
    return [(member.names, member.shape) for member in target.flat.members]


def collect(
    modules: List[Tuple[str, nn.Module]], groups: _torch_internals.Groups, flats: List[_fsdp1_internals.Flat]
) -> List[Target]:
    """All parameters and buffers of `modules`, (path, module), each object once."""
    found: Dict[int, Target] = {}
    in_flats = {key for flat in flats for key in flat.held}
    arrangements = Arrangements()

    def note(tensor, names: List[str], slot, is_buffer: bool, persistent: bool) -> None:
        target, full_name = found.get(id(tensor)), names[0]
        if target is None:
            fsdp, spec, arrangement = _arrangement_of(full_name, tensor, slot, groups, arrangements)
            found[id(tensor)] = Target(
                names, tensor, [slot], is_buffer, persistent, arrangement, fsdp, spec
            )
            return
        if target.spec is not None and target.fsdp is None:
            _check_managed_here(full_name, slot)
        target.names += [name for name in names if name not in target.names]
        parameter_at_last = target.is_buffer and not is_buffer
        target.slots.insert(0 if parameter_at_last else len(target.slots), slot)
        target.is_buffer = target.is_buffer and is_buffer
        target.persistent = target.persistent or persistent

    for path, module in modules:
        parameters, buffers = _torch_internals.tensors_of(module)
        if not parameters and not buffers:
            continue
        path = f"{path}." if path else ""
        # A model's own state dict has prefixes of compiled modules, which other checkpoints lack.
        prefixes = list(dict.fromkeys((clean(path), as_saved(path))))
        for name, param in parameters.items():
            if param is not None and id(param) not in in_flats:
                note(param, [prefix + name for prefix in prefixes], (module, name), False, True)
        for name, buffer in buffers.items():
            if buffer is not None:
                persistent = _torch_internals.is_persistent(module, name)
                names = [prefix + name for prefix in prefixes[: None if persistent else 1]]
                note(buffer, names, (module, name), True, persistent)
                target, counts = found[id(buffer)], _torch_internals.counts_batches(module, name)
                target.optional = counts and (target.optional or len(target.slots) == 1)
    _check_all_managed(found, groups)
    _note_shared_storage(found)
    return list(found.values()) + [_flat_target(flat) for flat in flats]


def _note_shared_storage(found: Dict[int, Target]) -> None:
    real = (t.tensor for t in found.values() if t.spec is None and not t.tensor.is_meta)
    for key, other in _torch_internals.shares_storage(real).items():
        names = found[id(other)].names
        found[key].shares_storage_with = names[0] if key != id(other) else "others"


def _flat_target(flat: _fsdp1_internals.Flat) -> Target:
    arrangement = Arrangement(None, None, flat.device)
    return Target([flat.name], flat.parameter, [], False, True, arrangement, flat=flat)


def _arrangement_of(full_name: str, tensor, slot, groups: _torch_internals.Groups, arrangements: Arrangements):
    """(its FSDPParam or None, its DTensorSpec or None, its arrangement)."""
    if not _torch_internals.is_dtensor(tensor):
        _check_not_flattened(full_name, tensor)
        return None, None, arrangements.plain(tensor)
    fsdp, group = groups.params.get(id(tensor), (None, None))
    if fsdp is None:
        _check_managed_here(full_name, slot)
    spec = _torch_internals.spec_of(tensor)
    return fsdp, spec, arrangements.over_mesh(spec, fsdp, group)


def _check_managed_here(full_name: str, slot) -> None:
    if _torch_internals.managed_elsewhere(*slot):
        raise FailedPrecondition(
            f"filling {full_name}: FSDP2 manages it from a module outside of the one given; "
            "pass the "
            "whole model to load_into",
            "MODEL_PART",
        )


def _check_not_flattened(name: str, param: nn.Parameter) -> None:
    if _fsdp1_internals.is_flattened(param):
        raise FailedPrecondition(
            f"filling {name}: it lies in a flat parameter of FSDP1 outside of the module given; "
            "pass the whole model to load_into",
            "MODEL_PART",
            {"tensor": name},
        )


def _check_all_managed(reached: Dict[int, Target], groups: _torch_internals.Groups) -> None:
    for key, (param, _) in groups.params.items():
        if key not in reached:
            raise FailedPrecondition(
                f"filling an FSDP2 model: its parameter {param} is no longer the one in the "
                "module; "
                "load before parameters are replaced",
                "MODEL_CHANGED",
            )


def choose_dtypes(
    targets: List[Target], dtype: Optional[torch.dtype], before: Dict[int, torch.dtype]
) -> None:
    """Sets the model's own dtypes, or `dtype` for persistent tensors that can be cast.

    before: original dtypes of buffers that FSDP1 has cast. They are requested with these, so
    that a second load makes the same request, and cast again when they are placed.
    """
    for target in targets:
        held = target.tensor.dtype
        own = before.get(id(target.tensor), held) if before else held
        if dtype is not None and target.persistent and _memory.is_castable(own):
            target.dtype = dtype
        else:
            target.dtype = own
            target.cast = held if own != held else None
        if not _memory.number_of(own) and target.persistent:
            raise Unimplemented(
                f"filling {target.name}: it is {own}, which is filled from no checkpoint; load before "
                "it becomes that, or with a model that has another type there",
                "DTYPE_UNSUPPORTED",
                {"tensor": target.name},
            )


def _check_order(mesh, name: str) -> None:
    """Refuses meshes with ranks in another order than their process groups, which torch sorts.

    FSDP2 shards by rank in the group, layouts by place in the mesh. If these differed, each rank
    would get the rows of another one.
    """
    for dim, place in enumerate(mesh.get_coordinate() or ()):
        if place != torch.distributed.get_rank(mesh.get_group(dim)):
            raise Unimplemented(
                f"filling {name}: its mesh {mesh.mesh.tolist()} lists ranks in another order than "
                "theirs, and FSDP2 shards by theirs; build the mesh with ascending ranks, or fill a "
                "real model before fully_shard",
                "MODEL_UNSUPPORTED",
                {"tensor": name},
            )


@dataclass
class _LayoutBuilder:
    """Adds targets to a layout, meshes and shardings each once."""

    layout: RankLayout
    meshes: Dict[int, int] = field(default_factory=dict)
    shardings: Dict[int, int] = field(default_factory=dict)

    def sharding(self, target: Target) -> int:
        key = id(target.arrangement)  # its targets keep it alive
        index = self.shardings.get(key)
        if index is None:
            index = self.shardings[key] = self._add(self._sharding(target))
        return index

    def plain(self) -> int:
        """The sharding of a tensor that is whole on every rank."""
        return self._add(Sharding())

    def _sharding(self, target: Target) -> Sharding:
        spec, fsdp = target.arrangement.spec, target.arrangement.fsdp
        if spec is None:
            return Sharding()
        if fsdp is not None:
            _check_order(spec.mesh, target.name)
        placements = tuple(_placement(p, target) for p in spec.placements)
        return Sharding(self._mesh(spec.mesh), placements, _torch_internals.padded_dim(fsdp))

    def flat_sharding(self, flat: _fsdp1_internals.Flat) -> int:
        if flat.ranks is None:
            return self._add(Sharding())
        mesh = Mesh((len(flat.ranks),), flat.ranks)
        if mesh not in self.layout.meshes:
            self.layout.meshes.append(mesh)
        return self._add(Sharding(self.layout.meshes.index(mesh), ((SHARD, 0, 1),), 0))

    def add_flat(self, target: Target) -> None:
        """Adds a flat parameter, with its members at the places where FSDP1 has them."""
        flat, plain, members = target.flat, self.plain(), []
        for member in flat.members:
            members.append((len(self.layout.names), member.begin))
            self.layout.add(
                member.names[0],
                member.shape,
                plain,
                _memory.number_of(target.dtype),
                member.names[1:],
            )
        sharding = self.flat_sharding(flat)
        self.layout.flats.append(
            FlatParameter(target.name, sharding, flat.elements, tuple(members))
        )

    def _add(self, sharding: Sharding) -> int:
        # Equal shardings are merged: the daemon's digest of the layout must not depend on the
        # identity of objects.
        if sharding in self.layout.shardings:
            return self.layout.shardings.index(sharding)
        self.layout.shardings.append(sharding)
        return len(self.layout.shardings) - 1

    def _mesh(self, mesh) -> int:
        index = self.meshes.get(id(mesh))
        if index is None:
            ranks = mesh.mesh
            found = Mesh(
                tuple(ranks.shape),
                tuple(ranks.flatten().tolist()),
                tuple(mesh.mesh_dim_names or ()),
            )
            if found not in self.layout.meshes:
                self.layout.meshes.append(found)
            index = self.meshes[id(mesh)] = self.layout.meshes.index(found)
        return index


def _placement(placement, target: Target) -> Tuple[int, int, int]:
    kind = type(placement).__name__
    if kind == "Replicate":
        return (REPLICATE, 0, 1)
    if kind == "Shard":
        return (SHARD, placement.dim, 1)
    if _torch_internals.is_strided_shard(placement):
        return (STRIDED_SHARD, placement.dim, placement.split_factor)
    raise InvalidArgument(
        f"filling {target.name}: it is placed as {placement}, which no checkpoint can fill; only "
        "Replicate, Shard and _StridedShard can be loaded",
        "LAYOUT_INVALID",
        {"tensor": target.name},
    )


def rank_layout(
    targets: List[Target],
    rank: int,
    world_size: int,
    strict: bool,
    extras: Iterable[Tuple[str, Sequence[int]]] = (),
) -> RankLayout:
    """The layout of this rank: every target, sorted by name, and `extras`, (name, shape).

    It is equal for a model on meta and a filled one, so that a restarted trainer finds the
    checkpoint that it loaded before.
    """
    layout = RankLayout(rank, world_size, skip_missing=not strict, refuse_unexpected=strict)
    builder = _LayoutBuilder(layout)
    requested_names = [target for target in targets if target.requested_names]
    for target in sorted(requested_names, key=lambda each: each.requested_names[0]):
        names, persistent = target.requested_names, target.persistent
        if target.flat is not None:
            builder.add_flat(target)
            continue
        layout.add(
            names[0],
            target.tensor.shape,
            builder.sharding(target),
            _memory.number_of(target.dtype) if persistent else 0,
            names[1:] if len(names) > 1 else (),
            not persistent or target.optional,
        )
    for name, shape in extras:
        layout.add(name, shape, builder.plain())
    return layout
