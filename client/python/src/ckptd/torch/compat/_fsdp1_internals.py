"""Private names of FSDP1."""

import copy
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import nn

from ..._errors import FailedPrecondition, Unimplemented
from . import _torch_internals

try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import _flat_param, _runtime_utils
except ImportError:  # a torch built without distributed, or one without FSDP1
    FSDP = _flat_param = _runtime_utils = None

_HANDLE_NAMES = (
    "flat_param",
    "uses_sharded_strategy",
    "process_group",
    "device",
    "_offload_params",
    "_training_state",
    "_use_orig_params",
    "_use_sharded_views",
)
_FLAT_NAMES = (
    "_numels_with_padding",
    "_is_padding_mask",
    "_fqns",
    "_shapes",
    "_contiguities",
    "_param_extensions",
    "_shared_param_infos",
    "_shard_param_infos",
    "_shard_numel_padded",
    "_params",
    "_shared_params",
)


def is_unit(module: nn.Module) -> bool:
    return FSDP is not None and isinstance(module, FSDP)


class Member(NamedTuple):
    """A parameter inside a flat parameter."""

    names: List[str]
    shape: torch.Size
    begin: int  # element of the unsharded flat parameter


class Flat:
    """One flat parameter of FSDP1 and its handle.

    unit: the FullyShardedDataParallel module that owns it. prefix: its path in the model, in
    names of checkpoints. Raises FailedPrecondition (TORCH_UNSUPPORTED), and Unimplemented for
    members that FSDP1 does not keep in row-major order.
    """

    def __init__(self, unit: nn.Module, prefix: str, clean: Callable[[str], str]):
        self._unit, self._handle = unit, unit._handle
        _torch_internals.require(_flat_param, ("_FLAT_PARAM_PADDING_VALUE",), "FSDP1")
        _torch_internals.require(_runtime_utils, ("_reshard",), "FSDP1")
        _torch_internals.require(self._handle, _HANDLE_NAMES, "FSDP1")
        self.parameter: nn.Parameter = self._handle.flat_param
        _torch_internals.require(self.parameter, _FLAT_NAMES, "FSDP1")
        self.name = f"{prefix}_flat_param"
        self.members = self._list_members(prefix, clean)
        self.elements = sum(self.parameter._numels_with_padding)

    def _list_members(self, prefix: str, clean: Callable[[str], str]) -> List[Member]:
        flat, begins, at = self.parameter, [], 0
        for numel, is_padding in zip(flat._numels_with_padding, flat._is_padding_mask):
            if not is_padding:
                begins.append(at)
            at += numel
        further: Dict[str, List[str]] = {}
        for name, _, path, first_name, _, first_path in flat._shared_param_infos:
            first = ".".join(part for part in (first_path, first_name) if part)
            shared = ".".join(part for part in (path, name) if part)
            further.setdefault(first, []).append(prefix + clean(shared))
        rows = zip(flat._fqns, flat._shapes, begins, flat._contiguities, flat._param_extensions)
        for name, _, _, contiguous, extension in rows:
            if not contiguous or extension is not None:
                what = "kept in another than row-major order" if extension is None else "a DTensor"
                raise Unimplemented(
                    f"filling {prefix + clean(name)}: FSDP1 flattened it as a tensor that is "
                    f"{what}; make it contiguous, and shard with fully_shard (FSDP2) where a "
                    "mesh has more dimensions",
                    "MODEL_UNSUPPORTED",
                    {"tensor": prefix + clean(name)},
                )
        return [
            Member([prefix + clean(name), *further.get(name, ())], shape, begin)
            for name, shape, begin in zip(flat._fqns, flat._shapes, begins)
        ]

    def with_names(self, names: List[List[str]]) -> "Flat":
        """A copy with other names for each member."""
        other = copy.copy(self)
        other.members = [m._replace(names=each) for m, each in zip(self.members, names)]
        return other

    def with_members(self, members: List[Member]) -> "Flat":
        """A copy with other members at the same places. Elements of no member are zero."""
        other = copy.copy(self)
        other.members = members
        return other

    def places(self) -> Dict[str, Tuple[int, int]]:
        """First name of a member -> (first element, count) in this rank's memory, if it has any."""
        infos = zip(self.members, self.parameter._shard_param_infos)
        return {
            member.names[0]: (info.offset_in_shard, info.numel_in_shard)
            for member, info in infos
            if info.in_shard
        }

    def original_parameters(self) -> List[Tuple[torch.Tensor, Member]]:
        """(parameter, member) of those that stay the model's own, as use_orig_params has them."""
        if not self._handle._use_orig_params:
            return []
        return list(zip(self.parameter._params, self.members))

    @property
    def held(self) -> List[int]:
        """Ids of the parameters in it, and its own."""
        flat = self.parameter
        return [id(p) for p in (flat, *(flat._params or ()), *(flat._shared_params or ()))]

    @property
    def ranks(self) -> Optional[Tuple[int, ...]]:
        """Global ranks over which it is split into ceil chunks; None if each rank has all of it."""
        if not self._handle.uses_sharded_strategy:
            return None
        return tuple(torch.distributed.get_process_group_ranks(self._handle.process_group))

    @property
    def device(self) -> torch.device:
        """Device on which its memory must be."""
        if self._handle._offload_params:
            return torch.device("cpu")
        return self._handle.device if self.parameter.is_meta else self.parameter.device

    @property
    def was_used(self) -> bool:
        """Whether a forward has already allocated buffers of its present dtype."""
        return hasattr(self.parameter, "_local_shard")

    @property
    def is_pinned(self) -> bool:
        """Whether FSDP1 will copy it into pinned memory at the first forward."""
        return self._handle._offload_params and not self.was_used

    def reshard(self) -> None:
        """Frees gathered, old weights. Raises FailedPrecondition if they are in use."""
        for holder in (self._unit.training_state, self._handle._training_state):
            if holder.name != "IDLE":
                raise FailedPrecondition(
                    f"filling an FSDP1 model: it is in state {holder.name}, inside a forward, a "
                    "backward or summon_full_params; load between two steps",
                    "MODEL_BUSY",
                )
        if self.was_used:
            frees = self._handle.uses_sharded_strategy
            _runtime_utils._reshard(self._unit, self._handle, frees)

    def put(self, view: torch.Tensor, writable: bool) -> List[torch.Tensor]:
        """Makes `view` this rank's memory. Returns the tensors whose values this changed."""
        flat = self.parameter
        if writable:
            self._write_padding(view)
        if flat.device != view.device:
            made = torch.Tensor._make_subclass(nn.Parameter, view, flat.requires_grad)
            _torch_internals.swap_implementation(flat, made)
        else:
            flat.data = view
        if self.was_used:
            flat._local_shard = view
        if not self._handle._use_orig_params:
            return [flat]
        self._handle._use_sharded_views()
        return [flat, *flat._params]

    def _write_padding(self, view: torch.Tensor) -> None:
        """Writes FSDP1's padding value between members: no checkpoint holds it."""
        flat, at = self.parameter, 0
        if not any(flat._is_padding_mask):
            return
        infos = (info for info in flat._shard_param_infos if info.in_shard)
        places = [(info.offset_in_shard, info.numel_in_shard) for info in infos]
        for begin, numel in (*places, (view.numel() - flat._shard_numel_padded, 0)):
            if begin > at:
                view[at:begin] = _flat_param._FLAT_PARAM_PADDING_VALUE
            at = begin + numel


def _units(modules: List[Tuple[str, nn.Module]]) -> List[Tuple[str, nn.Module]]:
    """Modules that are FSDP1 wrappers."""
    if FSDP is None or not any(issubclass(kind, FSDP) for kind in {type(m) for _, m in modules}):
        return []
    return [each for each in modules if isinstance(each[1], FSDP)]


def flats_of(modules: List[Tuple[str, nn.Module]], clean: Callable[[str], str]) -> List[Flat]:
    """The flat parameters of FSDP1 in `modules`, (path, module), each once.

    clean: makes a module path's name one of checkpoints.
    """
    found: Dict[int, Flat] = {}
    for path, module in _units(modules):
        _torch_internals.require(module, ("_handle", "training_state"), "FSDP1")
        if module._handle is not None and id(module._handle) not in found:
            found[id(module._handle)] = Flat(module, clean(f"{path}.") if path else "", clean)
    return list(found.values())


def buffer_dtypes(
    modules: List[Tuple[str, nn.Module]], clean: Callable[[str], str]
) -> Dict[int, torch.dtype]:
    """id of a buffer -> its dtype before FSDP1's mixed precision cast it at the first forward."""
    found: Dict[int, torch.dtype] = {}
    for _, module in _units(modules):
        before = getattr(module, "_buffer_name_to_orig_dtype", {})
        for name, buffer in module.named_buffers() if before else ():
            if clean(name) in before:
                found.setdefault(id(buffer), before[clean(name)])
    return found


def is_flattened(param) -> bool:
    """Whether it is part of a flat parameter of FSDP1."""
    return getattr(param, "_fsdp_flattened", False)
