"""Checkpoint names of a model's tensors. Wrappers add parts to module paths that checkpoints lack."""

from typing import Container, List, Tuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import _torch_internals

# Wrappers that appear in module paths but not in checkpoint names. Torch leaves the first two out
# of state dicts as well. It keeps torch.compile's, which only few checkpoints have.
_LEFT_OUT_BY_TORCH = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPERS = (*_LEFT_OUT_BY_TORCH, "_orig_mod")
_COMMON = "_mod"  # part of each of them
# Method by which a module tells torch's functions that its state dict leaves out a child's name.
_LEFT_OUT = "_fqn_modifiers"


def without_ddp(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, whose prefix no checkpoint has."""
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model


def clean(name: str) -> str:
    """The checkpoint name for a name by module path."""
    return _without_parts(name, _WRAPPERS)


def as_saved(name: str) -> str:
    """The state-dict name for a name by module path. It keeps the prefix of compiled modules."""
    return _without_parts(name, _LEFT_OUT_BY_TORCH)


def _without_parts(name: str, wrappers: Container[str]) -> str:
    if _COMMON not in name:
        return name
    *path, last = name.split(".")
    return ".".join([part for part in path if part not in wrappers] + [last])


def modules_of(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    """(path, module) for every path of each module, without names that modules leave out."""
    modules = _torch_internals.walk(model)
    if not any(hasattr(kind, _LEFT_OUT) for kind in {type(module) for _, module in modules}):
        return modules
    left_out = {
        f"{path}.{child}" if path else child
        for path, module in modules
        if hasattr(type(module), _LEFT_OUT)
        for child in getattr(module, _LEFT_OUT)().values()
    }
    return [(_without(path, left_out), module) for path, module in modules] if left_out else modules


def _without(path: str, left_out: set) -> str:
    parts = path.split(".")
    kept = (part for n, part in enumerate(parts, 1) if ".".join(parts[:n]) not in left_out)
    return ".".join(kept)
