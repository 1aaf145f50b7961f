"""Spreads over a module: its tensors, and torch's errors for names and shapes."""

from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple

import torch
from torch import nn

from .. import _daemon
from ..compat import _checkpoint_names, _torch_internals
from ..load import _buffers, _extra_state, _load_hooks, _load_into, _memory, _tied_weights
from ..load._targets import Target, checkpoint_tensors
from . import _native_input, _rank_unique
from ._spread import (
    Available,
    DtypeFor,
    NameCheck,
    RequestedTensors,
    SpreadOptions,
    SpreadResult,
    StateQuery,
    StateSource,
    spread,
)


def wanted_of(model: nn.Module, modules: _load_hooks.Modules) -> RequestedTensors:
    """Tensors and extra states in a state dict of `model`. Reshards FSDP2 modules. Raises ckptd.Error."""
    targets = [target for target in _load_into.list_targets(modules) if target.persistent]
    return RequestedTensors(targets, tuple(name for name, _ in _extra_state.of(modules)))


def spread_over(
    doing: str,
    model: nn.Module,
    given: StateQuery,
    check: NameCheck,
    dtype_for: Callable[[RequestedTensors], DtypeFor],
    options: SpreadOptions,
) -> SpreadResult:
    """Spreads rank 0's `given` over `model` and places it on every rank.

    dtype_for: requested tensors -> rule for their dtypes. See _spread.spread. The caller runs
    hooks after load_state_dict, by finish().
    """
    modules, counts = _checkpoint_names.modules_of(model), []
    _load_hooks.warn_of_skipped_hooks(doing, modules)

    def plan() -> Tuple[RequestedTensors, DtypeFor]:
        wanted = wanted_of(model, modules)
        if not options.allow_rank0_values and _daemon.rank_and_size()[1] > 1:
            _rank_unique.refuse(doing, model, modules, wanted.targets)
        counts.extend(target for target in wanted.targets if target.optional)
        return wanted, dtype_for(wanted)

    made = spread(doing, plan, given, check, options)
    made.fill()
    _extra_state.give(_extra_state.of(modules), made.objects)
    _zero_counts(model, counts, made)
    return made


def dict_for_original(
    doing: str, model: nn.Module, given: StateSource, options: SpreadOptions, every_rank: bool = False
) -> Any:
    """See _native_input.as_dict. Refuses inputs that spread() refuses, though the original would not."""

    def look(whole: Any) -> Any:
        if not (every_rank or options.allow_rank0_values):
            modules = _checkpoint_names.modules_of(model)
            _rank_unique.refuse(doing, model, modules, wanted_of(model, modules).targets)
        return _tied_weights.in_dict(doing, model, whole, options.tied)

    return _native_input.as_dict(doing, given, options.timeout, every_rank, look)


def finish(model: nn.Module, keys: Any, strict: bool) -> Any:
    """Runs hooks after load_state_dict, wrappers' included. Returns the keys, which hooks may change."""
    _load_hooks.run_after(model, _checkpoint_names.modules_of(_checkpoint_names.without_ddp(model)), keys, strict)
    return keys


def _zero_counts(model: nn.Module, counts: List[Target], made: SpreadResult) -> None:
    """Sets batch norms' counts on meta to zero where rank 0 had no value, as torch does."""
    left = [t for t in counts if t.tensor.is_meta and _torch_internals.is_buffer_on_meta(*t.slots[0])]
    if left:
        device = _memory.device_of(made.parts[0][1]) if made.parts else torch.device("cpu")
        _buffers.recompute(model, left, None, device)


def compare_names(
    available: Mapping[str, Available], wanted: RequestedTensors, metadata: Optional[Mapping[str, Any]] = None
) -> Tuple[List[str], List[str]]:
    """(missing, unexpected). A tied tensor exists if one of its names does.

    Old state dicts lack batch norms' counts. So these are missing only if the state dict's
    `metadata` says that it was made by a version that has them.
    """
    missing = [
        names[0]
        for target in wanted.targets
        if not (target.optional and _is_old(target.name, metadata))
        for names, _ in checkpoint_tensors(target)
        if not any(name in available for name in names)
    ]
    missing += [name for name in wanted.objects if name not in available]
    names = wanted.names
    return missing, [name for name in available if name not in names]


def _is_old(count: str, metadata: Optional[Mapping[str, Any]]) -> bool:
    """Whether a state dict may be older than batch norms' counts, by torch's rule."""
    version = (metadata or {}).get(count.rpartition(".")[0], {}).get("version")
    return version is None or version < 2


def shape_mismatches(available: Mapping[str, Available], targets: Iterable[Target]) -> List[str]:
    """Torch's sentence for each tensor of another shape, and for each value that is no tensor."""
    found = []
    for names, size in (part for target in targets for part in checkpoint_tensors(target)):
        name = next((n for n in names if n in available), None)
        shape = tuple(size)
        if name is not None and available[name].kind:
            found.append(
                f'While copying the parameter named "{name}", expected torch.Tensor or Tensor-like '
                f"object from checkpoint but received {available[name].kind}"
            )
        elif name is not None and available[name].shape != shape and (available[name].shape, shape) != ((1,), ()):
            found.append(
                f"size mismatch for {name}: copying a param with shape "
                f"torch.Size({list(available[name].shape)}) from checkpoint, the shape in current model "
                f"is torch.Size({list(shape)})."
            )
    return found


def first_of(names: List[str]) -> str:
    """The first names and the number of others, for sentences."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"{name!r:.200}" for name in names[:3]) + more


def incompatible(missing: List[str], unexpected: List[str]) -> Any:
    """The result of Module.load_state_dict."""
    return _torch_internals.IncompatibleKeys(missing, unexpected)
