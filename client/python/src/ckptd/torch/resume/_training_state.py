"""load_training_state: a model, its optimizers and the values beside them, from one checkpoint."""

import functools
import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from ... import _client, _source
from ..._errors import Error, InvalidArgument, NotFound
from ..._rpc import Deadline
from ..._types import Source
from .._daemon import connected, rank_and_size
from ..compat import _checkpoint_names, _torch_internals
from ..load import _load_into, _place_tensors, _targets
from ..load._gc_pause import gc_paused
from ..load._result import LoadResult
from . import _optimizer_match, _plain_values, _saved_optimizer, _state_targets, _value_tree
from ._optimizer_match import Group, ParamNames
from ._saved_optimizer import SavedOptimizer

Optimizers = Union[torch.optim.Optimizer, Iterable[torch.optim.Optimizer]]
_OPTIMIZER, _EXTRA = "optimizer", "extra"


@dataclass
class TrainingState:
    """Outcome of load_training_state.

    model, optimizer: as load_into has it, for the parameters and for the states of all optimizers;
    optimizer.missing: parameters without a state; optimizer.unexpected: tensors of the file that
    belong to no parameter here. extra: what the checkpoint holds besides, as plain values and
    tensors by name. opaque: path of an object that was not built -> its class.
    """

    model: LoadResult
    optimizer: Optional[LoadResult] = None
    extra: Dict[str, Any] = field(default_factory=dict)
    opaque: Dict[str, str] = field(default_factory=dict)


def load_training_state(
    model: nn.Module,
    optimizers: Optimizers,
    source: Union[str, os.PathLike],
    *,
    extra: Optional[Mapping[str, Any]] = None,
    optimizer_source: Union[str, os.PathLike, None] = None,
    param_names: Optional[ParamNames] = None,
    strict: bool = True,
    mode: str = "auto",
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    **for_model: Any,
) -> TrainingState:
    """Fills a model and its optimizers from a checkpoint of a training.

    Parameters become the daemon's memory, as by load_into, and so do the states of the optimizers:
    each rank gets the states of its shards, however many ranks saved them. Call it on every rank,
    after fully_shard or another wrapper; the optimizers may be new or used. The next step is that
    of a training that was never stopped.

    source: a file or a folder with both: a torch file ("model", "optimizer"), a folder of torch's
    distributed checkpoints, of accelerate, or of the Trainer. optimizer_source: where the optimizers
    are, if elsewhere.
    optimizers: one or several, in the order of the file. Their parameters are found by name, where
    the file has names; else by position, as Optimizer.load_state_dict does. param_names: the names
    for the file's numbers, a list or a dict, to match such a file by name.
    Hyperparameters, such as lr, become the file's. Those that the file lacks stay.
    extra: name -> object with load_state_dict, such as a scheduler: it gets the file's value of that
    name. All such values are in the result as well.
    strict: it is an error if a trained parameter has no state while others have, or if `extra` has a
    name that the checkpoint lacks; for the model, see load_into.
    mode, timeout, digest, address, client: see load_into. mode "shared" is refused, because
    optimizers write. for_model: further arguments of load_into, such as init_buffers.

    Raises ckptd.Error, on all ranks where one fails before the states are placed. The optimizers are
    then as they were; the model may be loaded.
    """
    optimizers = _listed(optimizers)
    if mode == "shared":
        raise InvalidArgument(
            "filling optimizers with mode='shared': that memory is read-only, and optimizers write "
            "their states; use mode='private'",
            "INVALID_REQUEST",
        )
    deadline = Deadline(timeout)
    where = _source.of_part(source, _OPTIMIZER) if optimizer_source is None else optimizer_source
    with connected(address, client, deadline, rank_and_size()[0]) as own:
        with _load_into._participation(source, False, deadline, address, own):
            found = own.inspect(where, timeout=deadline.for_call(), values=True)
            match = functools.partial(_match, model, optimizers, found, param_names, strict)
            match()
            rest = _plain_values.read(own, source, deadline)
            takers = _takers(extra, rest, strict)
        filled = _load_into.load_into(
            model, source, strict=strict, mode=mode, digest=digest, client=own, timeout=deadline.for_call(), **for_model
        )
        with _load_into._participation(where, False, deadline, address, own) as (_, participant):
            how = _load_into.LoadOptions(mode, None, digest, participant=participant, identity=found.identity)
            result = _fill(own, where, found, match(), how, deadline)
    for taker, value in takers:
        taker.load_state_dict(value)
    return TrainingState(filled, result, rest.values, rest.opaque)


def _listed(optimizers: Optimizers) -> List[torch.optim.Optimizer]:
    listed = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    for each in listed:
        if not isinstance(each, torch.optim.Optimizer):
            raise TypeError(
                f"filling optimizers: one is of type {type(each).__name__}, no torch.optim.Optimizer; pass "
                "load_training_state(model, optimizer, path)"
            )
    return listed


def _takers(extra: Optional[Mapping[str, Any]], rest: "_plain_values.Rest", strict: bool) -> List[Tuple[Any, Any]]:
    """(object, its value) for each name of `extra` that the checkpoint has."""
    takers = []
    for name, taker in (extra or {}).items():
        if name in rest.values:
            takers.append((taker, rest.values[name]))
        elif strict:
            raise NotFound(
                f"resuming {name}: the checkpoint has no value of that name, only "
                f"{', '.join(sorted(rest.values)) or 'none'}; leave it out, or pass strict=False",
                "VALUE_NOT_FOUND",
                {"name": name},
            )
    return takers


@dataclass
class _Matched:
    """An optimizer, its groups with the keys of the file, and the file's optimizer."""

    optimizer: torch.optim.Optimizer
    groups: List[Group]
    saved: SavedOptimizer
    missing: List[str]


def _match(model, optimizers, found: Source, param_names, strict: bool) -> List[_Matched]:
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
        matched.append(_Matched(optimizer, groups, of_file, missing))
    return matched


@torch.inference_mode(False)
def _fill(own, where, found: Source, matched: List[_Matched], how, deadline: Deadline) -> LoadResult:
    clock = _load_into.StageTimer()
    wanted = [
        _state_targets.list_states(each.optimizer, each.groups, each.saved, found) for each in matched
    ]
    targets = [state.target for states in wanted for state in states]
    clock.lap("optimizer")
    how = _writable(how, targets, own, deadline)
    layout_of = functools.partial(_layout, targets)
    shard, result = _load_into.attach(own, where, targets, layout_of, how, deadline, clock)
    with gc_paused(), _load_into._closed_if_refused(shard):
        entries = iter(_place_tensors.prepare(targets, shard))
        how.participant.raise_failure()
        for each, states in zip(matched, wanted):
            _give(each, states, [next(entries) for _ in states], shard)
    clock.lap("place")
    result.missing = sorted(name for each in matched for name in each.missing)
    result.unexpected = _unexpected(matched)
    return result


def _unexpected(matched: List[_Matched]) -> List[str]:
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


def _give(matched: _Matched, states, entries, shard) -> None:
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
