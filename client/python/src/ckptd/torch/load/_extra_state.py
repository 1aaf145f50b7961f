"""Extra states: values from modules' get_extra_state. Checkpoints hold those that are tensors."""

from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import nn

from ..._shard import Shard
from ..compat._checkpoint_names import clean
from . import _memory

_NAME = "_extra_state"

Extras = List[Tuple[str, nn.Module]]  # (name in state dicts, module), each module once


def of(modules: Sequence[Tuple[str, nn.Module]]) -> Extras:
    """Extra states of `modules`, (path, module)."""
    kinds = {type(module) for _, module in modules}  # far fewer than modules, and mostly without extra state
    kinds = {kind for kind in kinds if kind.get_extra_state is not nn.Module.get_extra_state}
    found: Dict[int, Tuple[str, nn.Module]] = {}
    for path, module in modules if kinds else ():
        if type(module) in kinds:
            found.setdefault(id(module), (clean(f"{path}.{_NAME}" if path else _NAME), module))
    return list(found.values())


def read(extras: Extras, shard: Shard) -> Dict[str, torch.Tensor]:
    """name -> the shard's value: copies on the host, which the modules may keep."""
    index = shard.table.index
    held = [name for name, _ in extras if name in index]
    return {name: torch.clone(_memory.whole(shard, index[name]).cpu()) for name in held}


def give(extras: Extras, values: Dict[str, Any]) -> None:
    """Gives each module its value, if there is one."""
    for name, module in extras:
        if name in values:
            module.set_extra_state(values[name])
