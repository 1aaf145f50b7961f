"""Private names of models of Hugging Face transformers.

transformers is never imported here. Models are recognised by the names that they have.
"""

import contextlib
from typing import Any, Container, Iterable, Iterator, List

import torch
from torch import nn

from . import _torch_internals

# Flag of transformers on tensors and modules: it is initialised already.
FLAG = "_is_hf_initialized"


def _has(module: nn.Module, *names: str) -> bool:
    """Whether the module itself has these names. Wrappers also forward names of the wrapped module."""
    return all(name in vars(module) or hasattr(type(module), name) for name in names)


def _is_composite(module: nn.Module) -> bool:
    """Whether its transformers initialises each part of a model by the model that owns the part."""
    return _has(module, "initialize_weights", "_initialize_weights")


def roots(model: nn.Module) -> List[nn.Module]:
    """The outermost models of transformers, newer versions first, then those that look like older ones."""
    pretrained = [
        module
        for module in model.modules()
        if _has(module, "_init_weights", "config") and callable(module._init_weights)
    ]
    found = []
    for composite in (True, False):
        kind = [module for module in pretrained if _is_composite(module) == composite]
        inner = {id(sub) for module in kind for sub in module.modules() if sub is not module}
        found += [module for module in kind if id(module) not in inner]
    return found


def may_be_unexpected(model: nn.Module) -> List[str]:
    """Patterns of checkpoint names that the transformers models in `model` ignore."""
    found = [getattr(root, "_keys_to_ignore_on_load_unexpected", None) or () for root in roots(model)]
    return list(dict.fromkeys(pattern for patterns in found for pattern in patterns))


def layer_classes(model: nn.Module) -> Iterable[str]:
    """Class names of the model's layers, as the model lists them; empty if it lists none."""
    return getattr(model, "_no_split_modules", None) or ()


def initialise(root: nn.Module, owners: Iterable[nn.Module]) -> None:
    """Has `root` initialise what is not initialised. Older versions need the `owners` named."""
    if _is_composite(root):
        root.initialize_weights()
        return
    for owner in owners:
        root._init_weights(owner)


@contextlib.contextmanager
def protected(model: nn.Module, but: Container[int], fresh: Container[int]) -> Iterator[None]:
    """Inside the block all counts as initialised but the tensors `but` and the modules `fresh`.

    Tensors are replaced as well, because older code ignores their flags. They are flagged
    nevertheless, because a module may also keep them in lists of its own.
    """
    modules = list(model.modules())
    tensors = _tensors_of(modules)
    facts_of = [vars(each) for each in (*modules, *tensors)]
    before = [(facts, FLAG in facts, facts.get(FLAG)) for facts in facts_of]
    try:
        for module in modules:
            _mark(module, id(module) not in fresh)
        for tensor in tensors:
            _mark(tensor, id(tensor) not in but)
        with _torch_internals.replaced_by_meta(modules, but):
            yield
    finally:
        for tensor in _tensors_of(modules):  # new ones among them
            _mark(tensor, False)
        for facts, had, value in before:
            facts.pop(FLAG, None)
            if had:
                facts[FLAG] = value


def _mark(thing: Any, initialised: bool) -> None:
    if initialised:
        vars(thing)[FLAG] = True
    else:
        vars(thing).pop(FLAG, None)


def _tensors_of(modules: List[nn.Module]) -> List[torch.Tensor]:
    """Parameters and buffers of the modules, each once."""
    held = (held for module in modules for held in _torch_internals.tensors_of(module))
    found = (tensor for tensors in held for tensor in tensors.values() if tensor is not None)
    return list({id(tensor): tensor for tensor in found}.values())
