"""What a rank needs of an optimizer's state: tensors like their parameters, and whole ones."""

import math
from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple

import torch

from ... import _dtypes
from ..._errors import InvalidArgument, Unimplemented
from ..._types import Source, SourceTensor
from ..compat import _torch_internals
from ..load import _memory
from ..load._targets import Arrangement, Arrangements, Target
from . import _optimizer_probe
from ._optimizer_match import Group, Parameter
from ._saved_optimizer import SavedOptimizer

_STEP = "step"  # the state that torch keeps in its own type, whatever its parameter's


@dataclass
class StateTarget:
    """A tensor to load, and who gets it.

    given_to: (parameter, name of the state, its part of a flat tensor as (first element, count), or
    None for all of it). option: (group, hyperparameter) that it is instead.
    """

    target: Target
    given_to: List[Tuple[Parameter, str, Optional[Tuple[int, int]]]]
    option: Optional[Tuple[Group, str]] = None


def list_states(
    optimizer: torch.optim.Optimizer, groups: List[Group], saved: SavedOptimizer, found: Source
) -> List[StateTarget]:
    """The tensors of all states that the saved optimizer has for parameters of `groups`.

    Raises InvalidArgument (OPTIMIZER_MISMATCH) for states of a shape that the optimizer has not,
    Unimplemented for a state of which nobody can tell how it is sharded.
    """
    params = [param for group in groups for param in group.params]
    makers = _Makers(optimizer, saved, found)
    flat = [param for param in params if param.target.flat is not None]
    states = [each for param in params if param.target.flat is None for each in makers.of(param)]
    return states + makers.of_flats(flat) + list(makers.of_options(groups))


class _Makers:
    def __init__(self, optimizer: torch.optim.Optimizer, saved: SavedOptimizer, found: Source) -> None:
        self._saved, self._found = saved, found
        self._probe = _optimizer_probe.Probe(optimizer)
        self._known = Arrangements()
        self._over_mesh: Dict[Tuple[int, tuple, torch.device], Arrangement] = {}
        # (number of a parameter, dtype) -> what its states of its own shape are like. Most have several.
        self._alike: Dict[Tuple[int, torch.dtype], torch.Tensor] = {}

    def of_options(self, groups: List[Group]) -> Iterable[StateTarget]:
        """Hyperparameters that are tensors, such as the rate of a captured graph, in host memory."""
        for group in groups:
            for option, name in (group.saved.option_tensors if group.saved is not None else {}).items():
                entry = self._entry(name)
                like = torch.empty(entry.shape, dtype=_stored_dtype(entry), device="meta")
                yield StateTarget(_target(name, like, self._known.plain(like), None), [], (group, option))

    def _entry(self, name: str) -> SourceTensor:
        entry = self._found.find(name)
        assert entry is not None
        return entry

    def of(self, param: Parameter) -> Iterable[StateTarget]:
        for state, name in self._tensors_of(param, 0).items():
            entry = self._entry(name)
            like = self._like(param, state, entry)
            spec = _torch_internals.spec_of(like) if _torch_internals.is_dtensor(like) else None
            yield StateTarget(_target(name, like, self._arrangement(param, spec), spec), [(param, state, None)])

    def _arrangement(self, param: Parameter, spec) -> Arrangement:
        """On the device of the parameter, which FSDP2 may offload."""
        device = _device_of(param)
        if spec is None:
            return self._known.plain(torch.empty(0, device=device))
        key = (id(spec.mesh), spec.placements, device)
        return self._over_mesh.setdefault(key, Arrangement(spec, None, device))

    def _tensors_of(self, param: Parameter, part: int) -> Dict[str, str]:
        key = param.parts[part].key
        return {} if key is None else self._saved.states_of(key)[0]

    def _like(self, param: Parameter, state: str, entry: SourceTensor) -> torch.Tensor:
        """A tensor on meta with this rank's shape, the dtype and the placement of a state."""
        dtype = _dtype_of(param, state, entry)
        if state == _STEP or math.prod(entry.shape) == 1 != param.tensor.numel():
            return torch.empty(entry.shape, dtype=dtype, device="meta")
        like = param.tensor
        if tuple(like.shape) != entry.shape:
            like = self._probed(param, state, entry)
            if tuple(like.shape) != entry.shape:
                raise InvalidArgument(
                    f"filling an optimizer from {self._found.source}: {entry.name} has shape "
                    f"{list(entry.shape)}, and the state of {param.name}, of shape "
                    f"{list(param.tensor.shape)}, has shape {list(like.shape)}; load into the optimizer "
                    "of the model that was saved",
                    "OPTIMIZER_MISMATCH",
                    {"tensor": entry.name},
                )
            return _on_meta(like, dtype)
        key = param.number, dtype
        if key not in self._alike:
            self._alike[key] = _on_meta(like, dtype)
        return self._alike[key]

    def _probed(self, param: Parameter, state: str, entry: SourceTensor) -> torch.Tensor:
        """Like the state that the optimizer makes. Where nothing is sharded, nobody need know it."""
        try:
            return self._probe.state_of(param, state)
        except Unimplemented:
            if _torch_internals.is_dtensor(param.tensor):
                raise
            return torch.empty(entry.shape, device="meta")

    def of_flats(self, params: List[Parameter]) -> List[StateTarget]:
        """States of FSDP1's flat parameters, each loaded as one flat tensor."""
        found: List[StateTarget] = []
        by_flat: Dict[int, List[Parameter]] = {}
        for param in params:
            by_flat.setdefault(id(param.target), []).append(param)
        for same in by_flat.values():
            names = {state for param in same for i in range(len(param.parts)) for state in self._tensors_of(param, i)}
            for state in sorted(names):
                found += self._of_flat(same, state)
        return found

    def _of_flat(self, params: List[Parameter], state: str) -> List[StateTarget]:
        owner = params[0].target
        flat = owner.flat
        names: Dict[str, str] = {}  # first name of a member -> its state's tensor
        for param in params:
            for i, part in enumerate(param.parts):
                if state in self._tensors_of(param, i):
                    names[part.names[0]] = self._tensors_of(param, i)[state]
        held = {member.names[0]: member for member in flat.members}
        whole = [name for name in names if self._entry(names[name]).shape != tuple(held[name].shape)]
        if whole or state == _STEP:
            return self._whole(params, state)
        members = [member._replace(names=[names[name]]) for name, member in held.items() if name in names]
        dtype = _dtype_of(params[0], state, self._entry(members[0].names[0]))
        meta = torch.empty(owner.tensor.numel(), dtype=dtype, device="meta")
        target = Target(
            [f"{owner.name}.{state}"], meta, [], False, True, owner.arrangement, dtype=dtype,
            flat=flat.with_members(members),
        )
        if params[0].tensor is owner.tensor:
            return [StateTarget(target, [(params[0], state, None)])]
        places = flat.places()
        given = [(p, state, places[p.name]) for p in params if p.name in places and p.name in names]
        return [StateTarget(target, given)]

    def _whole(self, params: List[Parameter], state: str) -> List[StateTarget]:
        """A state that is not flat, such as the step: whole for each parameter."""
        found = []
        for param in params:
            tensors = self._tensors_of(param, 0)
            if state not in tensors:
                continue
            entry = self._entry(tensors[state])
            if math.prod(entry.shape) != 1:
                raise InvalidArgument(
                    f"filling an optimizer from {self._found.source}: {entry.name} has shape "
                    f"{list(entry.shape)}, which is not that of {param.name}; FSDP1 shards only states "
                    "that are like their parameters",
                    "OPTIMIZER_MISMATCH",
                    {"tensor": entry.name},
                )
            if not param.tensor.numel():
                continue  # nothing of it is on this rank
            like = torch.empty(entry.shape, dtype=_dtype_of(param, state, entry), device="meta")
            place = self._known.plain(torch.empty(0, device=_device_of(param)))
            found.append(StateTarget(_target(entry.name, like, place, None), [(param, state, None)]))
        return found


def _on_meta(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not _torch_internals.is_dtensor(like):
        return torch.empty(like.shape, dtype=dtype, device="meta")
    spec = _torch_internals.spec_with_dtype(_torch_internals.spec_of(like), dtype)
    local = torch.empty(_torch_internals.local_of(like).shape, dtype=dtype, device="meta")
    return _torch_internals.dtensor_over(local, spec, False)


def _device_of(param: Parameter) -> torch.device:
    return param.target.device or param.tensor.device


def _target(name: str, like: torch.Tensor, arrangement: Arrangement, spec) -> Target:
    slots = [(_torch_internals.BufferSink(), name)]
    return Target([name], like, slots, True, True, arrangement, None, spec, like.dtype)


def _dtype_of(param: Parameter, state: str, entry: SourceTensor) -> torch.dtype:
    """The dtype that Optimizer.load_state_dict would give it: then torch makes no copy of it."""
    stored, own = _stored_dtype(entry), param.tensor.dtype
    casts = state != _STEP and _memory.is_castable(own) and _memory.is_castable(stored)
    return own if casts else stored


def _stored_dtype(entry: SourceTensor) -> torch.dtype:
    return _memory.dtype_of(_dtypes.BY_NAME[entry.dtype].number, entry.name)
