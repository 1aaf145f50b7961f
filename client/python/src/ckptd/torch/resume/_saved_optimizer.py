"""The state of optimizers as a checkpoint has it, read from the names of its tensors and values.

torch names a state "state.PARAMETER.NAME". PARAMETER is a number in Optimizer.state_dict() and a
name in get_optimizer_state_dict(). Its param_groups list the parameters. With
flatten_optimizer_state_dict there are no such lists, but a hyperparameter of every parameter:
"param_groups.PARAMETER.lr".
"""

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Tuple

from ..._errors import FailedPrecondition
from ..._types import Source
from . import _value_tree

_STATE, _GROUPS, _PARAMS = "state", "param_groups", "params"
# What may stand before "state." where a file has several optimizers: Lightning's and accelerate's.
_ROOT = re.compile(r"((?:optimizer_states\.|optimizers?\.|optim\.)?(?:\d+\.)?)(?:state|param_groups)\.")


@dataclass
class SavedGroup:
    """A param group. params: keys of its parameters, in order. options: its hyperparameters."""

    params: List[str]
    options: Dict[str, Any]
    option_tensors: Dict[str, str] = field(default_factory=dict)  # hyperparameter -> tensor


@dataclass
class SavedOptimizer:
    """One optimizer. by_position: keys of parameters are numbers, else the parameters' names.

    tensors, values: key of a parameter -> name of a state -> name of the tensor in the checkpoint,
    or a plain value.
    """

    source: str
    by_position: bool
    groups: List[SavedGroup]
    tensors: Dict[str, Dict[str, str]] = field(default_factory=dict)
    values: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    unknown: List[str] = field(default_factory=list)  # tensors of no parameter that is known

    def states_of(self, key: str) -> Tuple[Dict[str, str], Dict[str, Any]]:
        """(tensors, values) of the states of a parameter."""
        return self.tensors.get(key, {}), self.values.get(key, {})

    def group_of(self, key: str) -> Optional[SavedGroup]:
        return next((group for group in self.groups if key in group.params), None)


def read(found: Source, known: Iterable[str]) -> List[SavedOptimizer]:
    """The optimizers of a source that was inspected with its values, in their order.

    known: names of the model's parameters. Raises FailedPrecondition (OPTIMIZER_MISSING) for a
    source without one, Unimplemented for values that are too long.
    """
    names = [*found.tensors, *found.aliases]
    roots = {match[1] for match in map(_ROOT.match, (*names, *found.values)) if match}
    if not roots:
        raise FailedPrecondition(
            f"reading optimizers of {found.source}: it holds no state of an optimizer; name the "
            "part or the file that does",
            "OPTIMIZER_MISSING",
            {"source": found.source},
        )
    if "" in roots:
        roots = {""}
    return [_one(found, root, names, known) for root in sorted(roots, key=_in_order)]


def _in_order(root: str) -> Tuple[str, int]:
    text, _, number = root.rstrip(".").rpartition(".")
    return (text, int(number)) if number.isdigit() else (root, 0)


def _one(found: Source, root: str, names: List[str], known: Iterable[str]) -> SavedOptimizer:
    values = _value_tree.of(found, f"{root}{_GROUPS}.")
    nested = all(_PARAMS in group for group in values.values() if isinstance(group, dict))
    groups = _nested_groups(values) if nested else _flat_groups(values, known)
    keys = {key for group in groups for key in group.params}
    by_position = nested and all(key.isdigit() for key in keys)
    saved = SavedOptimizer(found.source, by_position, groups)
    state, of_group = f"{root}{_STATE}.", f"{root}{_GROUPS}."
    for name in names:
        if name.startswith(of_group):
            _add_option(saved, name[len(of_group):], name, found)
        elif name.startswith(state):
            key, state_name = _split(name[len(state):], keys)
            if key is None:
                saved.unknown.append(name)
            else:
                saved.tensors.setdefault(key, {})[state_name] = name
    for name, text in found.values.items():
        key, state_name = _split(name[len(state):], keys) if name.startswith(state) else (None, "")
        if key is not None:
            _value_tree.put(saved.values.setdefault(key, {}), state_name, _value_tree.parsed(found, name, text))
    return saved


def _nested_groups(values: Dict[str, Any]) -> List[SavedGroup]:
    groups = []
    for number in sorted(values, key=int):
        options = dict(values[number])
        params = [str(each) for each in _as_list(options.pop(_PARAMS))]
        groups.append(SavedGroup(params, {name: _value_tree.with_lists(each) for name, each in options.items()}))
    return groups


def _flat_groups(values: Dict[str, Any], known: Iterable[str]) -> List[SavedGroup]:
    """A group for each parameter."""
    groups = []
    for name in known:
        at: Any = values
        for part in name.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        if isinstance(at, dict):
            groups.append(SavedGroup([name], {option: _value_tree.with_lists(each) for option, each in at.items()}))
    return groups


def _add_option(saved: SavedOptimizer, rest: str, name: str, found: Source) -> None:
    """Notes a hyperparameter that is a tensor, such as the learning rate of a captured graph."""
    if found.find(name).kind == "object":
        return  # its value was read
    of, _, option = rest.rpartition(".")
    if of.isdigit() and int(of) < len(saved.groups) and not saved.group_of(of):
        saved.groups[int(of)].option_tensors[option] = name
        return
    group = saved.group_of(of)
    if group is not None:
        group.option_tensors[option] = name
    else:
        saved.unknown.append(name)


def _split(rest: str, keys: Iterable[str]) -> Tuple[Optional[str], str]:
    """(key of the parameter, name of the state): the longest key that `rest` begins with."""
    key = rest
    while "." in key:
        key = key.rpartition(".")[0]
        if key in keys:
            return key, rest[len(key) + 1:]
    return None, rest


def _as_list(value: Any) -> List[Any]:
    listed = _value_tree.with_lists(value)
    return listed if isinstance(listed, list) else [listed]
