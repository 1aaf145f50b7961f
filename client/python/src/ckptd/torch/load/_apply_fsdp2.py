"""apply_fsdp2: fully_shard on each layer of a model, and on the model."""

from typing import Any, Dict, Iterable, List, Optional, Union

from torch import nn

from ..compat import _hugging_face


def apply_fsdp2(
    model: nn.Module,
    mesh: Any,
    *,
    classes: Optional[Iterable[str]] = None,
    reshard_after_forward: Union[None, bool, int] = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: Optional[set] = None,
) -> nn.Module:
    """Shards `model` over `mesh` with FSDP2, in place: its layers one by one, then the root.

    Layers are modules of `classes` (names), else of the classes that a Hugging Face model lists
    in _no_split_modules, else the members of the outermost ModuleLists. The other arguments are
    fully_shard's, None for its defaults. Modules that are sharded already stay as they are.
    Returns `model`. Nothing is loaded or moved to another rank. Raises ValueError if the model
    has no module of one of `classes`.
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard

    given: Dict[str, Any] = {
        "reshard_after_forward": reshard_after_forward,
        "mp_policy": mp_policy,
        "offload_policy": offload_policy,
        "ignored_params": ignored_params,
    }
    options = {name: value for name, value in given.items() if value is not None}
    for module in (*_layers(model, classes), model):
        if not isinstance(module, FSDPModule):
            fully_shard(module, mesh=mesh, **options)
    return model


def _layers(model: nn.Module, classes: Optional[Iterable[str]]) -> List[nn.Module]:
    """Layers, inner ones first, as fully_shard needs them."""
    own = _hugging_face.layer_classes(model)
    names = set(own if classes is None else classes)
    found = [m for m in model.modules() if m is not model and type(m).__name__ in names]
    unknown = names - {type(m).__name__ for m in found}
    if classes is not None and unknown:
        raise ValueError(
            f"sharding {type(model).__name__}: it has no module of class {sorted(unknown)[0]}; "
            "name classes of its layers"
        )
    return found[::-1] or [m for m in _members(model) if next(m.parameters(), None) is not None]


def _members(model: nn.Module, in_list: bool = False) -> Iterable[nn.Module]:
    """Members of outermost ModuleLists. A list inside is replaced by its members: it cannot be sharded."""
    for child in model.children():
        is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if in_list and not is_list:
            yield child
        else:
            yield from _members(child, in_list or isinstance(child, nn.ModuleList))
