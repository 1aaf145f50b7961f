"""Matches the parameters of an optimizer with those of a model and of a saved optimizer."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

import torch

from ..._errors import FailedPrecondition, InvalidArgument, NotFound
from ..load._targets import Target
from ._saved_optimizer import SavedGroup, SavedOptimizer

# Numbers of parameters in a file -> names in the model: a list by number, or a dict.
ParamNames = Union[Sequence[str], Mapping[int, str]]


@dataclass
class Part:
    """What a checkpoint calls a parameter. key: that of the saved optimizer; None: it has none."""

    names: List[str]
    key: Optional[str] = None


@dataclass
class Parameter:
    """A parameter of an optimizer. number: its position among those of all groups.

    parts: one, but of a flat parameter of FSDP1 without use_orig_params, which holds several.
    """

    number: int
    parts: List[Part]
    tensor: torch.Tensor
    target: Target
    options: Dict[str, Any]  # hyperparameters of its group

    @property
    def name(self) -> str:
        return self.parts[0].names[0]


@dataclass
class Group:
    """A param group of an optimizer.

    saved: the group of the file that gives it hyperparameters. tensors: those that are tensors, once
    they were loaded.
    """

    live: Dict[str, Any]
    params: List[Parameter]
    saved: Optional[SavedGroup] = None
    tensors: Dict[str, torch.Tensor] = field(default_factory=dict)


def groups_of(optimizer: torch.optim.Optimizer, targets: Sequence[Target]) -> List[Group]:
    """The param groups of an optimizer. Raises FailedPrecondition for a parameter of another model."""
    found = {}
    for target in targets:
        if target.flat is not None:
            found[id(target.tensor)] = target, [member.names for member in target.flat.members]
            for tensor, member in target.flat.original_parameters():
                found[id(tensor)] = target, [member.names]
        elif not target.is_buffer:
            found[id(target.tensor)] = target, [target.names]
    groups, numbers = [], itertools.count()
    for live in optimizer.param_groups:
        params = []
        for tensor in live["params"]:
            if id(tensor) not in found:
                raise FailedPrecondition(
                    f"filling an optimizer: parameter {len(params)} of its group {len(groups)}, of shape "
                    f"{list(tensor.shape)}, is no parameter of the model; make the optimizer from the "
                    "parameters of the sharded model",
                    "OPTIMIZER_MISMATCH",
                )
            target, names = found[id(tensor)]
            params.append(Parameter(next(numbers), [Part(each) for each in names], tensor, target, live))
        groups.append(Group(live, params))
    return groups


def _parts(groups: List[Group]) -> Iterable[Part]:
    return (part for group in groups for param in group.params for part in param.parts)


def match(groups: List[Group], saved: SavedOptimizer, param_names: Optional[ParamNames], strict: bool) -> List[str]:
    """Gives parameters their keys and groups their saved ones. Returns names without a state.

    Raises InvalidArgument if numbers cannot be matched, and NotFound if strict and a parameter
    that is trained has no state, though others have.
    """
    if saved.by_position:
        _match_by_number(groups, saved, param_names)
    else:
        for part in _parts(groups):
            part.key = next((name for name in part.names if saved.group_of(name)), None)
    for group in groups:
        keys = [part.key for part in _parts([group]) if part.key is not None]
        group.saved = saved.group_of(keys[-1]) if keys else _empty_group(group, saved)
    return _check_complete(groups, saved, strict)


def _empty_group(group: Group, saved: SavedOptimizer) -> Optional[SavedGroup]:
    """torch matches a group without parameters with the only such group of the file."""
    empty = [each for each in saved.groups if not each.params]
    return empty[0] if not group.params and len(empty) == 1 else None


def _match_by_number(groups: List[Group], saved: SavedOptimizer, param_names: Optional[ParamNames]) -> None:
    names = _names_by_number(saved, param_names)
    if names is not None:
        keys = {name: key for key, name in names.items()}
        for part in _parts(groups):
            part.key = next((keys[name] for name in part.names if name in keys), None)
        return
    have, want = [len(g.params) for g in saved.groups], [len(g.params) for g in groups]
    if have != want or any(len(param.parts) > 1 for group in groups for param in group.params):
        raise InvalidArgument(
            f"filling an optimizer from {saved.source}: the file numbers its parameters, in groups of "
            f"{have}, and the optimizer has groups of {want}; build the same groups, or give "
            "param_names, the parameters' names in the order of the file",
            "OPTIMIZER_MISMATCH",
            {"source": saved.source},
        )
    for group, of_file in zip(groups, saved.groups):
        for param, key in zip(group.params, of_file.params):
            param.parts[0].key = key


def _names_by_number(saved: SavedOptimizer, given: Optional[ParamNames]) -> Optional[Dict[str, str]]:
    """Key -> name, as given, or as an optimizer made of named parameters has saved it."""
    if given is not None:
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        return {str(number): name for number, name in pairs}
    listed = [group.options.get("param_names") for group in saved.groups]
    if not listed or not all(isinstance(names, list) for names in listed):
        return None
    return {key: name for group, names in zip(saved.groups, listed) for key, name in zip(group.params, names)}


def _check_complete(groups: List[Group], saved: SavedOptimizer, strict: bool) -> List[str]:
    lacking = []
    for param in (param for group in groups for param in group.params if param.tensor.requires_grad):
        for part in param.parts:
            if part.key is None or not any(saved.states_of(part.key)):
                lacking.append(part.names[0])
    # An optimizer that was saved before its first step, or one without a state, has none at all.
    if strict and lacking and (saved.tensors or saved.values):
        raise NotFound(
            f"filling an optimizer from {saved.source}: it has no state for {len(lacking)} parameters that "
            f"are trained, the first is {lacking[0]}; freeze them, or pass strict=False to start them anew",
            "OPTIMIZER_STATE_MISSING",
            {"tensor": lacking[0], "missing": str(len(lacking))},
        )
    return lacking
