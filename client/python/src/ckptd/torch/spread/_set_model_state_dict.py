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
    daemons; other ranks may pass `{}`. Without broadcast_from_rank0, a path or a LazyStateDict
    that every rank passes is spread in the same way. These are always full, so options may be
    left out. All other calls go to torch's own function.

    As in torch: tensors on meta take the checkpoint's dtypes, others keep theirs. It returns
    missing and unexpected keys, raises RuntimeError with strict, and ValueError for
    broadcast_from_rank0 without full_state_dict. Unlike torch: errors come on every rank,
    parameters stay the same objects, tied ones stay tied, memory is the daemon's, and the dict
    is not changed. allow_rank0_values: see fsdp2_load_full_state_dict. timeout, digest, address,
    client: see load_into. tied: different values under names of one tensor are an error; "first"
    takes the value of the first of the model's names (torch takes the last). fallback="native"
    calls torch's function if no daemon can be reached; safetensors reads a path. Also raises
    ckptd.Error.
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
            # It also raises the ValueError for options that contradict each other.
            return original(model, {} if lazy else model_state_dict, options=options)
        if not lazy:
            model_state_dict = _torch_internals.by_name(model, model_state_dict)
        parts = must_match_of(model_state_dict, wish), _tied_weights.describe(tied)
        must_match = _native_fallback.named(fallback, *parts)
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
    """How a failure before the round is reported: by a call of all ranks, or of this one alone.

    A rank may load its own dict by torch alone. An empty dict is part of a call of all ranks, in
    which the options were forgotten.
    """
    together = options is not None and getattr(options, "broadcast_from_rank0", True)
    part = lazy or together or not given
    return (_agreement.collective_call if part else _agreement.local_preparation)(_FUNCTION, own_daemon)


def _native_options(full_state_dict: bool) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=full_state_dict)


def must_match_of(given: Any, wish: Any) -> str:
    """Text for the source that must be equal on all ranks; "" if only rank 0 passes one."""
    if wish.broadcast_from_rank0:
        return ""
    if isinstance(given, _lazy_state_dict.LazyStateDict):
        return given.identity()
    return _source.absolute(os.fspath(given)) if isinstance(given, (str, os.PathLike)) else ""


def spread_over(model: nn.Module, given: StateQuery, wish: Any, options: SpreadOptions) -> Any:
    """set_model_state_dict by the daemons. wish: its options. Returns its result."""
    whole, model = model, _checkpoint_names.without_ddp(model)

    def check(available: Mapping[str, Available], wanted: RequestedTensors) -> Tuple[List[str], List[str]]:
        if not available and _refuses_empty(wish):
            raise RuntimeError(
                f"{_FUNCTION}: the state dict has no tensors, and strict=True asks for all; pass the "
                "model's checkpoint, or strict=False"
            )
        missing, unexpected = _spread_module.compare_names(available, wanted)
        # If every rank has the dict, torch silently keeps tensors that the dict lacks.
        lacks = missing if wish.strict and wish.broadcast_from_rank0 else []
        sizes = _spread_module.shape_mismatches(available, wanted.targets)
        _result.raise_as_torch(model, lacks, unexpected if wish.strict else [], sizes)
        return missing, unexpected

    if not wish.broadcast_from_rank0:  # every rank passes its own values
        options = replace(options, allow_rank0_values=True)
    made = _spread_module.spread_over(_FUNCTION, model, given, check, _dtypes, options)
    # As in torch's result: kept tensors do not count as missing, and only rank 0 knows the dict.
    knows = _daemon.rank_and_size()[0] == 0 or not wish.broadcast_from_rank0
    keys = _spread_module.incompatible([], made.unexpected if knows else [])
    with torch.no_grad():  # as in torch
        return _spread_module.finish(whole, keys, wish.strict)


def _refuses_empty(wish: Any) -> bool:
    """Whether torch's function raises for an empty state dict."""
    lenient = ("broadcast_from_rank0", "cpu_offload", "ignore_frozen_params")
    return wish.strict and not any(getattr(wish, option, False) for option in lenient)


def _dtypes(wanted: RequestedTensors) -> DtypeFor:
    """Torch's rule: if a tensor is on meta it assigns all, and copies only into real DTensors."""
    assigns = any(t.tensor.is_meta and t.tensor.dim() > 0 for t in wanted.targets)

    def dtype_for(target: Target, source: torch.dtype) -> torch.dtype:
        if assigns and (target.tensor.is_meta or target.spec is None):
            return source
        return target.tensor.dtype

    return dtype_for
