"""Hooks that modules have for load_state_dict, where the daemons' memory takes its place.

Those that run after it are run. What runs before it works on a state dict, which nobody has
here: it is named in the log. FSDP's, and all others of torch itself, are of neither kind.
"""

import logging
from typing import Any, Callable, List, Tuple

from torch import nn

from . import _private

_LOG = logging.getLogger("ckptd")
_TORCH = "torch."


def _is_users(hook: Callable) -> bool:
    return not (getattr(hook, "__module__", None) or "").startswith(_TORCH)


Modules = List[Tuple[str, nn.Module]]  # (path, module), as _names.modules_of gives them


def say_what_is_not_run(doing: str, modules: Modules) -> None:
    """Warns of hooks before load_state_dict, and of modules that load by code of their own."""
    found = {}
    for path, hook in _private.hooks_before_load(modules):
        if _is_users(hook):
            found.setdefault(getattr(hook, "__qualname__", repr(hook)), path)
    for name, path in found.items():
        _LOG.warning(
            "%s: %s of %s would run before load_state_dict and is not run here: each tensor gets "
            "what the checkpoint holds under its name",
            doing,
            name,
            f"the module {path!r}" if path else "the model",
        )


def run_after(model: nn.Module, modules: Modules, incompatible: Any) -> None:
    """Runs hooks after load_state_dict with the keys it returns, children's first as torch does."""
    for _, module in modules:  # FSDP2 has one for every parameter
        if any(map(_is_users, _private.hooks_after_load(module))):
            break
    else:
        return
    for module in _private.children_first(model):
        for hook in filter(_is_users, _private.hooks_after_load(module)):
            hook(module, incompatible)
