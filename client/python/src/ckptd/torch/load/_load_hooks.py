"""Modules' hooks for load_state_dict, where the daemons' memory replaces that function.

Hooks that run after it are run. Hooks that run before it work on a state dict, which does not
exist here: the log names them. Hooks of torch itself, FSDP's included, are left out.
"""

import logging
from typing import Any, Callable, Dict, List, Tuple

from torch import nn

from ..compat import _torch_internals
from ._result import raise_as_torch

_LOG = logging.getLogger("ckptd")
_NOT_USERS = ("torch.", "ckptd.")
Modules = List[Tuple[str, nn.Module]]  # (path, module), as _checkpoint_names.modules_of gives them


def _is_user_hook(hook: Callable) -> bool:
    function = getattr(hook, "func", hook)  # the function of a functools.partial
    return not (getattr(function, "__module__", None) or "").startswith(_NOT_USERS)


def _name_of(hook: Callable) -> str:
    function = getattr(hook, "func", hook)
    return getattr(function, "__qualname__", type(function).__qualname__)


def warn_of_skipped_hooks(doing: str, modules: Modules) -> None:
    """Warns of hooks before load_state_dict, and of modules with loading code of their own."""
    found: Dict[str, List[str]] = {}
    for path, hook in _torch_internals.hooks_before_load(modules):
        if _is_user_hook(hook):
            found.setdefault(_name_of(hook), []).append(path)
    for name, paths in found.items():
        more = f" and of {len(paths) - 1} more" if len(paths) > 1 else ""
        _LOG.warning(
            "%s: hook %r of the module %r%s is not run: it works on a state dict before "
            "load_state_dict, and there is none here. Each tensor gets what the checkpoint holds "
            "under its name; if the hook changes names or values, save the checkpoint as the "
            "model has it, or load it with PyTorch",
            doing,
            name,
            paths[0],
            more,
        )


def run_after(model: nn.Module, modules: Modules, keys: Any, strict: bool) -> None:
    """Runs hooks after load_state_dict, children's first, as torch does.

    keys: the result, which hooks may change. With strict, names that they add raise torch's
    RuntimeError. modules: all of `model`, to see quickly whether there are hooks.
    """
    for _, module in (("", model), *modules):  # FSDP2 has a hook for every parameter
        if any(map(_is_user_hook, _torch_internals.hooks_after_load(module))):
            break
    else:
        return
    before = [list(names) for names in keys]
    for module in _torch_internals.children_first(model):
        for hook in filter(_is_user_hook, _torch_internals.hooks_after_load(module)):
            if hook(module, keys) is not None:
                raise AssertionError(
                    f"the hook {_name_of(hook)!r} after load_state_dict returned a value; it may "
                    "change the keys in place, and returns None"
                )
    if strict:
        added = [[n for n in now if n not in names] for now, names in zip(keys, before)]
        raise_as_torch(model, *added, [])
