"""Makes a checkpoint's states of optimizers those of optimizers here."""

import functools
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import nn

from ... import _client
from ..._errors import InvalidArgument
from ..._rpc import Deadline
from ..._types import Source
from .._daemon import rank_and_size
from ..compat import _checkpoint_names, _torch_internals
from ..load import _load_into, _place_tensors, _targets
from ..load._gc_pause import gc_paused
from ..load._result import LoadResult
from . import _optimizer_match, _saved_optimizer, _state_targets, _value_tree
from ._optimizer_match import Group, ParamNames
from ._saved_optimizer import SavedOptimizer


@dataclass
class Matched:
    """An optimizer, its groups with the keys of the file, and the file's optimizer."""

    optimizer: torch.optim.Optimizer
    groups: List[Group]
    saved: SavedOptimizer
    missing: List[str]


def match(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    found: Source,
    param_names: Optional[ParamNames],
    strict: bool,
) -> List[Matched]:
    """Finds the parameters of `optimizers` in a source that was inspected with its values.

    Raises InvalidArgument and FailedPrecondition (OPTIMIZER_MISMATCH, OPTIMIZER_MISSING), and if
    strict NotFound (OPTIMIZER_STATE_MISSING).
    """
    modules = _checkpoint_names.modules_of(_checkpoint_names.without_ddp(model))
    with gc_paused():
        targets = _load_into.list_targets(modules)
    known = [names[0] for target in targets for names, _ in _targets.checkpoint_tensors(target)]
    saved = _saved_optimizer.read(found, known)
    if len(saved) > 1 and len(saved) != len(optimizers):
        raise InvalidArgument(
            f"filling {len(optimizers)} optimizers from {found.source}: it holds {len(saved)}; pass as many, "
            "in the order of the file",
            "OPTIMIZER_MISMATCH",
        )
    matched = []
    for number, optimizer in enumerate(optimizers):
        of_file = saved[number] if len(saved) > 1 else saved[0]
        groups = _optimizer_match.groups_of(optimizer, targets)
        missing = _optimizer_match.match(groups, of_file, param_names, strict)
        matched.append(Matched(optimizer, groups, of_file, missing))
    return matched


@torch.inference_mode(False)
def fill(
    own: _client.Client,
    source,
    found: Source,
    matched: List[Matched],
    how: _load_into.LoadOptions,
    deadline: Deadline,
) -> LoadResult:
    """Loads the states, in one load of all ranks, and gives them to the optimizers."""
    clock = _load_into.StageTimer()
    wanted = [
        _state_targets.list_states(each.optimizer, each.groups, each.saved, found) for each in matched
    ]
    targets = [state.target for states in wanted for state in states]
    clock.lap("optimizer")
    how = _writable(how, targets, own, deadline)
    layout_of = functools.partial(_layout, targets)
    shard, result = _load_into.attach(own, source, targets, layout_of, how, deadline, clock)
    with gc_paused(), _load_into.closed_if_refused(shard):
        entries = iter(_place_tensors.prepare(targets, shard))
        how.participant.raise_failure()
        for each, states in zip(matched, wanted):
            _give(each, states, [next(entries) for _ in states], shard)
    clock.lap("place")
    result.missing = sorted(name for each in matched for name in each.missing)
    result.unexpected = _unexpected(matched)
    return result


def _unexpected(matched: List[Matched]) -> List[str]:
    """Tensors of parameters that no optimizer here has."""
    keys = {part.key for each in matched for group in each.groups for param in group.params for part in param.parts}
    found = set()
    for saved in {id(each.saved): each.saved for each in matched}.values():
        found.update(saved.unknown)
        for key, states in saved.tensors.items():
            found.update(states.values() if key not in keys else ())
    return sorted(found)


def _layout(targets):
    layout = _targets.rank_layout(targets, *rank_and_size(), True)
    layout.refuse_unexpected = False
    return layout


def _writable(how, targets, own, deadline: Deadline):
    """`how` with a mode in which optimizers may write."""
    if how.mode != "auto":
        return how
    on_gpu = own.device(deadline.for_call()) is not None
    return replace(how, mode="exclusive" if on_gpu else "private")


def _give(matched: Matched, states, entries, shard) -> None:
    """Makes the tensors the states of an optimizer, by its own load_state_dict."""
    given: Dict[int, Dict[str, Any]] = {}
    for group in matched.groups:
        for param in group.params:
            keys = [part.key for part in param.parts if part.key is not None]
            values = matched.saved.states_of(keys[0])[1] if keys else {}
            if values:
                given[param.number] = {name: _value_tree.with_lists(value) for name, value in values.items()}
    for state, entry in zip(states, entries):
        flat, view = entry.tensors(shard)
        if state.option is not None:
            group, option = state.option
            group.tensors[option] = view
        for param, name, place in state.given_to:
            given.setdefault(param.number, {})[name] = _tensor(state.target, param, name, flat, view, place)
    options = [_options(group) for group in matched.groups]
    matched.optimizer.load_state_dict({"state": given, "param_groups": options})


def _tensor(target, param, name: str, flat, view, place) -> torch.Tensor:
    if place is not None:
        first, count = place
        part = flat[first : first + count]
        return part.view(param.tensor.shape) if part.numel() == param.tensor.numel() else part
    if target.spec is not None:
        return _torch_internals.dtensor_over(view, target.spec, False)
    keeps_step_on_host = not (param.options.get("capturable") or param.options.get("fused"))
    return view.cpu() if name == "step" and keeps_step_on_host else view


def _options(group: Group) -> Dict[str, Any]:
    """A group for load_state_dict: the file's hyperparameters, else its own."""
    options = {name: value for name, value in group.live.items() if name != "params"}
    for name, value in (group.saved.options if group.saved is not None else {}).items():
        if name == "param_names":
            continue
        is_tuple = isinstance(options.get(name), tuple) and isinstance(value, list)
        options[name] = tuple(value) if is_tuple else value
    for name, tensor in group.tensors.items():
        own = options.get(name)
        options[name] = tensor.to(own.device) if isinstance(own, torch.Tensor) else tensor
    options["params"] = [param.number for param in group.params]
    return options
