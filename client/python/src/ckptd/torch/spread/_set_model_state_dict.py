"""set_model_state_dict of torch.distributed.checkpoint.state_dict, fed by the daemons."""

import os
from dataclasses import replace
from typing import Any, ContextManager, List, Mapping, Optional, Tuple

import torch
from torch import nn

from ... import _client, _source
from .. import _daemon
from ..agree import _agreement
from ..compat import _checkpoint_names, _native_fallback, _torch_internals
from ..load import _lazy_state_dict, _result, _tied_weights
from ..load._targets import Target
from . import _spread_module
from ._spread import Available, DtypeFor, RequestedTensors, SpreadOptions, StateQuery, StateSource

_FUNCTION = "set_model_state_dict"
_ORIGINAL = ("torch.distributed.checkpoint.state_dict", _FUNCTION)


def set_model_state_dict(
    model: nn.Module,
    model_state_dict: StateSource,
    *,
    options: Optional[Any] = None,
    allow_rank0_values: bool = False,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
    tied: Optional[str] = None,
) -> Any:
    """torch's function of this name, for a full state dict that rank 0 alone has.

    With options.full_state_dict and broadcast_from_rank0, rank 0's `model_state_dict` (a
    state dict, a LazyStateDict, or the path of a checkpoint) is spread over `model` by the
    daemons; other ranks may pass `{}`. So is, without broadcast_from_rank0, a path or a
    LazyStateDict that every rank passes: these are always full, so options may be left
    out. Everything else is torch's own function.

    As there: tensors on meta take the checkpoint's types, others keep theirs; returns
    missing and unexpected keys, RuntimeError with strict, ValueError for
    broadcast_from_rank0 without full_state_dict. Other than there: errors come on every
    rank, parameters stay the same objects and tied ones tied, memory is the daemon's, and
    the dict is left as it is. allow_rank0_values: see fsdp2_load_full_state_dict. timeout, digest,
    address, client: see load_into.
    tied: names of one tensor with different values are an error, "first" takes the value of
    the first of the model's names (torch: the last). fallback="native" calls torch's function
    when no daemon can be reached, with what safetensors reads if a path was passed. Raises ckptd.Error besides.
    """
    lazy = isinstance(model_state_dict, (str, _lazy_state_dict.LazyStateDict)) or hasattr(
        model_state_dict, "__fspath__"
    )
    with _outside(lazy, model_state_dict, options, _agreement.OwnDaemon(address, client)):
        wish = options if options is not None else _native_options(full_state_dict=lazy)
        original = _native_fallback.original(*_ORIGINAL)
        if lazy and not (wish.full_state_dict or wish.broadcast_from_rank0):
            raise ValueError(
                "set_model_state_dict: a path or a LazyStateDict is a full state dict, and the "
                "options ask for a sharded one; pass StateDictOptions(full_state_dict=True), or "
                "no options"
            )
        if not (wish.full_state_dict and (lazy or wish.broadcast_from_rank0)):
            # Its ValueError, too: of options that have no room for any full one.
            return original(model, {} if lazy else model_state_dict, options=options)
        if not lazy:
            model_state_dict = _torch_internals.by_name(model, model_state_dict)
        must_match = _native_fallback.named(fallback, must_match_of(model_state_dict, wish), _tied_weights.describe(tied))
        _tied_weights.check(tied)
        own = SpreadOptions(timeout, address, client, digest, must_match, allow_rank0_values, tied)
        return _native_fallback.stand_in(
            _FUNCTION,
            lambda: spread_over(model, model_state_dict, wish, own),
            lambda: original(
                model,
                _spread_module.dict_for_original(
                    _FUNCTION, model, model_state_dict, own, not wish.broadcast_from_rank0
                ),
                options=wish,
            ),
            fallback,
        )


def _outside(lazy: bool, given: Any, options: Any, own_daemon: _agreement.OwnDaemon) -> ContextManager[None]:
    """Of a failure before the round: what this rank alone may load by torch is no part of one.

    Nobody loads an empty one by torch: somebody has forgotten the options.
    """
    together = options is not None and getattr(options, "broadcast_from_rank0", True)
    part = lazy or together or not given
    return (_agreement.collective_call if part else _agreement.local_preparation)(_FUNCTION, own_daemon)


def _native_options(full_state_dict: bool) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=full_state_dict)


def must_match_of(given: Any, wish: Any) -> str:
    """What must be the same on all ranks, where each of them passes it."""
    if wish.broadcast_from_rank0:
        return ""
    if isinstance(given, _lazy_state_dict.LazyStateDict):
        return given.identity()
    return _source.absolute(os.fspath(given)) if isinstance(given, (str, os.PathLike)) else ""


def spread_over(model: nn.Module, given: StateQuery, wish: Any, options: SpreadOptions) -> Any:
    """set_model_state_dict by the daemons; wish: its options. Returns what that returns."""
    whole, model = model, _checkpoint_names.without_ddp(model)

    def check(available: Mapping[str, Available], wanted: RequestedTensors) -> Tuple[List[str], List[str]]:
        if not available and _refuses_none(wish):
            raise RuntimeError(
                f"{_FUNCTION}: the state dict has no tensors, and strict=True asks for all; pass the "
                "model's checkpoint, or strict=False"
            )
        missing, unexpected = _spread_module.compare_names(available, wanted)
        # Where every rank has the dict, torch keeps what it lacks without a word.
        lacks = missing if wish.strict and wish.broadcast_from_rank0 else []
        sizes = _spread_module.shape_mismatches(available, wanted.targets)
        _result.raise_as_torch(model, lacks, unexpected if wish.strict else [], sizes)
        return missing, unexpected

    if not wish.broadcast_from_rank0:  # every rank passes the same, for itself
        options = replace(options, allow_rank0_values=True)
    made = _spread_module.spread_over(_FUNCTION, model, given, check, _dtypes, options)
    # Torch's result: what the model keeps counts as there, and rank 0 alone knows the dict.
    knows = _daemon.rank_and_size()[0] == 0 or not wish.broadcast_from_rank0
    keys = _spread_module.incompatible([], made.unexpected if knows else [])
    with torch.no_grad():  # as torch's
        return _spread_module.finish(whole, keys, wish.strict)


def _refuses_none(wish: Any) -> bool:
    """Whether torch's function raises for a state dict of nothing."""
    lenient = ("broadcast_from_rank0", "cpu_offload", "ignore_frozen_params")
    return wish.strict and not any(getattr(wish, option, False) for option in lenient)


def _dtypes(wanted: RequestedTensors) -> DtypeFor:
    """Torch's rule: with anything on meta it assigns, and only real DTensors are copied into."""
    assigns = any(t.tensor.is_meta and t.tensor.dim() > 0 for t in wanted.targets)

    def dtype_for(target: Target, source: torch.dtype) -> torch.dtype:
        if assigns and (target.tensor.is_meta or target.spec is None):
            return source
        return target.tensor.dtype

    return dtype_for
