"""The names that checkpoints have for a model's tensors, where module paths say more."""

from typing import Container, List, Tuple

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import _torch_internals

# Wrappers that put themselves into module paths but not into checkpoint names. Torch leaves the
# first ones out of state dicts, too; not torch.compile's, of which only few checkpoints have it.
_LEFT_OUT_BY_TORCH = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPERS = (*_LEFT_OUT_BY_TORCH, "_orig_mod")
_COMMON = "_mod"  # is in each of them
# By it modules whose hooks leave a child's name out of state dicts tell torch's functions so.
_LEFT_OUT = "_fqn_modifiers"


def without_ddp(model: nn.Module) -> nn.Module:
    """What DistributedDataParallel wraps: no checkpoint has its prefix."""
    while isinstance(model, DistributedDataParallel):
        model = model.module
    return model


def clean(name: str) -> str:
    """A module path's name as a checkpoint has it."""
    return _without_parts(name, _WRAPPERS)


def as_saved(name: str) -> str:
    """A module path's name as the model's own state dict has it: compiled modules are in it."""
    return _without_parts(name, _LEFT_OUT_BY_TORCH)


def _without_parts(name: str, wrappers: Container[str]) -> str:
    if _COMMON not in name:
        return name
    *path, last = name.split(".")
    return ".".join([part for part in path if part not in wrappers] + [last])


def modules_of(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    """(path, module), by every path there is, without the names that modules leave out."""
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
