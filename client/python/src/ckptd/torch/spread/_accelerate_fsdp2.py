"""accelerate's functions for FSDP2, fed by the daemons. Only calls import accelerate."""

import os
from typing import Any, Callable, List, Mapping, Optional, Tuple

import torch
from torch import nn

from ... import _client
from ..._errors import InvalidArgument
from ..agree import _agreement
from ..compat import _checkpoint_names, _native_fallback, _torch_internals
from ..load import _buffers, _load_into, _result, _tied_weights
from ..load._targets import Target
from . import _spread_module
from ._spread import Available, DtypeFor, RequestedTensors, SpreadOptions, StateSource

_UTILS = "accelerate.utils.fsdp_utils"
_LOAD = "fsdp2_load_full_state_dict"


def fsdp2_load_full_state_dict(
    accelerator: Any,
    model: nn.Module,
    full_sd: StateSource,
    cpu_offload: bool = False,
    *,
    allow_rank0_values: bool = False,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
    tied: Optional[str] = None,
) -> nn.Module:
    """accelerate's function of this name: rank 0's full state dict into a sharded model.

    full_sd: on rank 0 a state dict, a LazyStateDict, or the path of a checkpoint; other ranks'
    arguments do not count. cpu_offload: for a model with CPUOffloadPolicy, whose parameters are
    on the host anyway. allow_rank0_values: give all ranks rank 0's values also for parameters
    that FSDP was told to ignore, or shards over part of the ranks; by default these are refused
    by name (RANK_UNIQUE). timeout, digest, address, client: see load_into. tied: see
    set_model_state_dict.

    As in accelerate: floating tensors take the model's dtypes (float8_e4m3fn and integers keep
    theirs), names that the model lacks are ignored, a name that full_sd lacks is a KeyError, and
    it returns `model`. Unlike accelerate: buffers and plain parameters are filled as well, tied
    ones stay tied and need only one of their names, parameters stay the same objects, and an
    error comes on every rank. fallback="native" calls accelerate's function if no daemon can be
    reached; safetensors reads a path on rank 0.
    Raises RuntimeError for tensors of another shape and for models that differ between
    ranks, ckptd.Error.
    """
    _tied_weights.check(tied)
    must_match = _native_fallback.named(fallback, _tied_weights.describe(tied))
    own = SpreadOptions(timeout, address, client, digest, must_match, allow_rank0_values, tied)
    with _agreement.collective_call(_LOAD, _agreement.OwnDaemon(address, client)):
        return _native_fallback.stand_in(
            _LOAD,
            lambda: _spread(model, full_sd, cpu_offload, own),
            lambda: _native_fallback.original(_UTILS, _LOAD)(
                accelerator, model, _native_dict(model, full_sd, own), cpu_offload
            ),
            fallback,
        )


def _native_dict(model: nn.Module, given: StateSource, options: SpreadOptions) -> Any:
    """Input for accelerate. Values of a file get the model's dtypes, or its ranks would wait for ever."""
    whole = _spread_module.dict_for_original(_LOAD, model, given, options)
    if not isinstance(given, (str, os.PathLike)):
        return whole
    wanted = model.state_dict()
    for name in set(whole) & set(wanted):
        value = whole[name]
        if value.is_floating_point() and value.dtype != torch.float8_e4m3fn:
            whole[name] = value.to(wanted[name].dtype)
    return whole


def _spread(model: nn.Module, given: StateSource, cpu_offload: bool, options: SpreadOptions) -> nn.Module:
    def check(available: Mapping[str, Available], wanted: RequestedTensors) -> Tuple[List[str], List[str]]:
        missing, unexpected = _spread_module.compare_names(available, wanted)
        if missing:
            raise KeyError(
                f"loading a full state dict: it lacks the model's {_spread_module.first_of(missing)}; it has "
                f"{len(available)} names and the model {len(wanted.targets)} tensors: pass that of the same model"
            )
        _result.raise_as_torch(model, [], [], _spread_module.shape_mismatches(available, wanted.targets))
        return [], unexpected

    def dtypes(wanted: RequestedTensors) -> DtypeFor:
        _check_offload(wanted, cpu_offload)
        return _dtype_for

    _spread_module.spread_over(_LOAD, model, given, check, dtypes, options)
    _spread_module.finish(model, _spread_module.incompatible([], []), strict=True)
    return model


def _dtype_for(target: Target, source: torch.dtype) -> torch.dtype:
    """accelerate's rule."""
    casts = source.is_floating_point and source != torch.float8_e4m3fn
    return target.tensor.dtype if casts else source


def _check_offload(wanted: RequestedTensors, cpu_offload: bool) -> None:
    on_gpu = [t.name for t in wanted.targets if t.device is not None and t.device.type != "cpu"]
    if cpu_offload and on_gpu:
        raise InvalidArgument(
            f"loading a full state dict with cpu_offload=True: {on_gpu[0]} belongs on a GPU; shard "
            "the model with CPUOffloadPolicy(), or leave cpu_offload out",
            "INVALID_REQUEST",
            {"tensor": on_gpu[0]},
        )


def fsdp2_switch_optimizer_parameters(
    optimizer: torch.optim.Optimizer, mapping: Mapping[int, nn.Parameter]
) -> None:
    """accelerate's function of this name: the optimizer goes on with the sharded parameters.

    mapping: address of an original parameter -> its sharded one. The optimizer's
    parameters have that address as `data_ptr`, a number as accelerate leaves it there or
    the method. Raises KeyError when one is missing; the optimizer is then as it was.
    """
    switched = []
    for group in optimizer.param_groups:
        pointers = [p.data_ptr() if callable(p.data_ptr) else p.data_ptr for p in group["params"]]
        lost = [pointer for pointer in pointers if not _is_mapped(pointer, mapping)]
        if lost:
            raise KeyError(
                f"switching the optimizer to sharded parameters: {len(lost)} of its parameters "
                "have none, or are on meta where all have one address, so it would continue with "
                "memory that no model uses; build the optimizer from the parameters of the very "
                "model that is prepared, or of a model on meta once it has been"
            )
        switched.append([mapping[pointer] for pointer in pointers])
    for group, params in zip(optimizer.param_groups, switched):
        group["params"] = params


def _is_mapped(pointer: int, mapping: Mapping[int, nn.Parameter]) -> bool:
    # A tensor without elements has address 0. Any empty parameter may stand for another one.
    return pointer in mapping and (pointer != 0 or _torch_internals.local_of(mapping[0]).numel() == 0)


def fsdp2_prepare_model(
    accelerator: Any,
    model: nn.Module,
    *,
    source: Optional[StateSource] = None,
    init_buffers: Optional[_buffers.InitBuffers] = None,
    allow_rank0_values: bool = False,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
    tied: Optional[str] = None,
) -> nn.Module:
    """accelerate's function of this name, with the weights spread by the daemons.

    Wrapping, policies, upcasts and ties are accelerate's own. Where its plugin has
    cpu_ram_efficient_loading, rank 0's weights go to the other ranks by
    fsdp2_load_full_state_dict of this package; without it nothing needs to be spread.

    source: weights that replace those of rank 0's model: a path, a LazyStateDict or a state
    dict. The model may then be on meta on every rank. Buffers that no checkpoint holds are
    computed first, as load_into does with init_buffers. allow_rank0_values: see
    fsdp2_load_full_state_dict.
    Returns the model. Raises what accelerate's does, and fsdp2_load_full_state_dict.
    """
    options = {"timeout": timeout, "digest": digest, "address": address, "client": client}
    options["allow_rank0_values"] = allow_rank0_values

    def load(accelerator, model, full_sd, cpu_offload=False):
        given = full_sd if source is None else source
        return fsdp2_load_full_state_dict(
            accelerator, model, given, cpu_offload, fallback=fallback, tied=tied, **options
        )

    spreads = accelerator.state.fsdp_plugin.cpu_ram_efficient_loading
    own_daemon = _agreement.OwnDaemon(address, client)
    if spreads:
        reporting = _agreement.collective_call(_LOAD, own_daemon)
    else:
        reporting = _agreement.local_preparation("fsdp2_prepare_model", own_daemon)
    with reporting:
        _native_fallback.check(fallback)
        if source is not None:
            _prepare_meta(accelerator, model, init_buffers)
        return _with_load(load, accelerator, model)


def _with_load(load: Callable, accelerator: Any, model: nn.Module) -> nn.Module:
    """accelerate's fsdp2_prepare_model, which finds the loading function in its module."""
    prepare = _native_fallback.original(_UTILS, "fsdp2_prepare_model")
    with _native_fallback.in_place(_UTILS, _LOAD, load):
        return prepare(accelerator, model)


def _prepare_meta(accelerator: Any, model: nn.Module, init_buffers) -> None:
    if not accelerator.state.fsdp_plugin.cpu_ram_efficient_loading:
        raise InvalidArgument(
            "preparing a model with source=: accelerate shards the model's own weights unless "
            "cpu_ram_efficient_loading is on; set it in the plugin, or call "
            "enable_fsdp_ram_efficient_loading() before the Accelerator is made",
            "INVALID_REQUEST",
        )
    # accelerate saves these buffers before it moves the model to meta.
    targets = _load_into.list_targets(_checkpoint_names.modules_of(model))
    left = [t for t in targets if not t.persistent and t.tensor.is_meta]
    if left:
        _buffers.recompute(model, left, init_buffers, torch.device("cpu"))
