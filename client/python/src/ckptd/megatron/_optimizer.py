"""Sharded state dicts of optimizers, made from those of models.

These functions have the names, arguments and results of megatron-core's
`megatron.core.dist_checkpointing.optimizer` (0.12 to 0.19), which is the source of all rules here.
An optimizer's state of a parameter lies as the parameter does: the same boxes under another key.
Parameters are known by identity, so the model's state dict must hold the parameters themselves.
"""

import copy
import logging
from typing import Any, Collection, Dict, Iterable

import torch
import torch.distributed as dist

from ..torch.compat import _torch_internals
from . import _objects

KEEP_VARS_HINT = (
    " Build the model's state dict of the parameters themselves, by `state_dict(keep_vars=True)`: "
    "other tensors are not recognised. For a parameter that is saved in another form, put a "
    "ShardedTensorFactory there."
)

logger = logging.getLogger("ckptd.megatron")


@torch.no_grad()  # then a DTensor gives its local tensor itself, whose identity counts
def _local(tensor: Any) -> Any:
    return tensor.to_local() if _torch_internals.is_dtensor(tensor) else tensor


def get_optim_param_to_id_map(optim_params_iter: Iterable[torch.nn.Parameter]) -> Dict[int, int]:
    """id() of each parameter -> its number among the optimizer's parameters.

    optim_params_iter: the parameters in the optimizer's order. Of a DTensor the local tensor
    counts. A parameter that comes again keeps its first number.
    """
    numbers: Dict[int, int] = {}
    for number, param in enumerate(optim_params_iter):
        numbers.setdefault(id(_local(param)), number)
    return numbers


def get_param_id_to_sharded_param_map(
    model_sharded_state_dict: Dict[str, Any], optim_params_iter: Iterable[torch.nn.Parameter]
) -> Dict[int, Any]:
    """Number of each parameter of the optimizer -> its entry in the model's sharded state dict.

    model_sharded_state_dict: dicts and lists in any nesting. ShardedTensors and
    ShardedTensorFactories in it count, the last one of a parameter. optim_params_iter: the
    parameters in the optimizer's order. An entry whose `data` is no such parameter is left out.
    Without any that is one, rank 0 warns. Raises ValueError if the state dict is no dict or list.
    """
    if not isinstance(model_sharded_state_dict, (dict, list)):
        kind = type(model_sharded_state_dict).__name__
        raise ValueError(f"looking for sharded parameters: the model's state dict is a {kind}, no dict or list")
    params = [_local(param) for param in optim_params_iter]  # alive: ids of tensors that went are given again
    numbers = get_optim_param_to_id_map(params)
    found: Dict[int, Any] = {}
    for entry in _objects.leaves(model_sharded_state_dict):
        if not (_objects.is_sharded_tensor(entry) or _objects.is_factory(entry)):
            continue
        if id(entry.data) in numbers:
            found[numbers[id(entry.data)]] = entry
        else:
            logger.debug("%s is no parameter of the optimizer", entry.key)
    if not found and not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
        logger.warning("The optimizer has no parameter of the model's state dict.%s", KEEP_VARS_HINT)
    return found


def make_sharded_optimizer_tensor(model_param: Any, optim_param: torch.Tensor, prefix: str) -> Any:
    """The entry for an optimizer's tensor: that of its parameter, under the key "{prefix}.{key}".

    model_param: the parameter's ShardedTensor or ShardedTensorFactory, which stays as it is.
    optim_param: the optimizer's tensor. It becomes the new entry's `data`, and gives a ShardedTensor
    its dtype; of a DTensor, the local one. All else is the parameter's: place, grid, replica.
    Raises AssertionError for a tensor of another shape than a ShardedTensor's local one, and what
    the new entry's own check raises (CheckpointingException).
    """
    optim_param = _local(optim_param)
    named = {"key": f"{prefix}.{model_param.key}", "data": optim_param}
    if _objects.is_factory(model_param):
        return _objects.replaced(model_param, **named)
    if tuple(optim_param.shape) != model_param.local_shape:
        raise AssertionError(
            f"{named['key']}: the optimizer's tensor has shape {tuple(optim_param.shape)}, and the "
            f"parameter has {model_param.local_shape} on this rank"
        )
    made = _objects.replaced(model_param, **named, dtype=optim_param.dtype)
    made.validate_metadata_integrity()
    return made


def optim_state_to_sharding_state(
    optim_state_dict: Dict[str, Any],
    id_to_sharded_param_map: Dict[int, Any],
    exclude_keys: Collection[str] = (),
) -> None:
    """Changes an optimizer's state dict into a sharded one, in place.

    optim_state_dict: as torch's `optimizer.state_dict()`. Its "state" becomes a new dict, with
    make_sharded_optimizer_tensor(..., prefix="optimizer.state.NAME") for each entry NAME of a
    parameter. Its "param_groups" become copies, with each group's "params" as a
    LocalNonpersistentObject: a load leaves them as they are here. Other keys stay.
    id_to_sharded_param_map: as get_param_id_to_sharded_param_map gives it. exclude_keys: names that
    are left out, such as ("step",), which is no tensor. A str counts as all names that are part of it.

    Raises ValueError for a parameter that the map lacks, unless all its names are left out, and what
    make_sharded_optimizer_tensor raises. The state dict is then as it was.
    """
    state: Dict[Any, Dict[str, Any]] = {}
    for number, held in optim_state_dict["state"].items():
        made = state[number] = {}
        for name, tensor in held.items():
            if name in exclude_keys:
                continue
            if number not in id_to_sharded_param_map:
                raise ValueError(
                    f"Param id {number} does not match any sharded parameter of the model.{KEEP_VARS_HINT}"
                )
            param = id_to_sharded_param_map[number]
            made[name] = make_sharded_optimizer_tensor(param, tensor, f"optimizer.state.{name}")
    groups = copy.deepcopy(optim_state_dict["param_groups"])
    local = _objects.of_megatron("LocalNonpersistentObject", _objects.LocalNonpersistentObject)
    for group in groups:
        group["params"] = local(group["params"])
    optim_state_dict["param_groups"], optim_state_dict["state"] = groups, state
