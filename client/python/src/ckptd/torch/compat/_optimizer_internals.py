"""Private names of torch's optimizers."""

import collections
import copy
from typing import Any, Dict, List

import torch


def twin(optimizer: torch.optim.Optimizer, param_groups: List[Dict[str, Any]]) -> torch.optim.Optimizer:
    """An optimizer of the same kind over other parameters, without states and without hooks."""
    made = copy.copy(optimizer)
    made.param_groups = param_groups
    made.state = collections.defaultdict(dict)
    made._optimizer_step_pre_hooks = collections.OrderedDict()
    made._optimizer_step_post_hooks = collections.OrderedDict()
    return made
