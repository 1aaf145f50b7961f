"""Finds out which states an optimizer makes for a parameter, without memory for them."""

from typing import Any, Dict

import torch

from ..._errors import Unimplemented
from ..compat import _optimizer_internals, _torch_internals
from ._optimizer_match import Parameter

# Ways to step that need tensors of a device.
_PLAIN = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}


class Probe:
    """Asks an optimizer for the states of single parameters. Its own states are not changed."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._found: Dict[int, Dict[str, Any]] = {}

    def state_of(self, param: Parameter, state: str) -> torch.Tensor:
        """A tensor of the shape and placement that the optimizer gives to a state.

        The optimizer has it already, or makes it in a step over tensors on meta. Raises
        Unimplemented (OPTIMIZER_UNSUPPORTED) if that fails.
        """
        own = self._optimizer.state.get(param.tensor, {}).get(state)
        if isinstance(own, torch.Tensor):
            return own
        if param.number not in self._found:
            self._found[param.number] = self._step_on_meta(param)
        found = self._found[param.number].get(state)
        if isinstance(found, torch.Tensor):
            return found
        raise _unknown(self._optimizer, param, state, "a step makes no such tensor")

    def _step_on_meta(self, param: Parameter) -> Dict[str, Any]:
        optimizer = self._optimizer
        like = _on_meta(param.tensor.detach()).requires_grad_()
        like.grad = _on_meta(param.tensor.detach())
        options = {name: value for name, value in param.options.items() if name not in ("params", "param_names")}
        plain = {name: value for name, value in _PLAIN.items() if name in options}
        twin = _optimizer_internals.twin(optimizer, [{**options, **plain, "params": [like]}])
        try:
            type(optimizer).step(twin)
        except Exception as error:
            # Most make their states first, and then need the values of a tensor.
            if not twin.state[like]:
                raise _unknown(optimizer, param, "a state", str(error)) from error
        return twin.state[like]


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    if not _torch_internals.is_dtensor(tensor):
        return torch.empty_like(tensor, device="meta")
    local = torch.empty_like(_torch_internals.local_of(tensor), device="meta")
    return _torch_internals.dtensor_over(local, _torch_internals.spec_of(tensor), False)


def _unknown(optimizer, param: Parameter, state: str, why: str) -> Unimplemented:
    return Unimplemented(
        f"filling {type(optimizer).__name__}: {state} of {param.name} is not of the parameter's shape, and "
        f"how it is sharded cannot be found out: {why}; take one step with zero gradients before",
        "OPTIMIZER_UNSUPPORTED",
        {"tensor": param.name},
    )
