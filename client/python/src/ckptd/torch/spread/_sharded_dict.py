"""A plain dict of shards, filled from rank 0's state dict by the daemons."""

from typing import Dict, List, Mapping, MutableMapping, Optional, Tuple

import torch
import torch.distributed as dist

from ... import _client
from ..._errors import Unimplemented
from .. import _daemon
from ..agree import _agreement
from ..compat import _native_fallback, _torch_internals
from ..load import _memory
from ..load._targets import Arrangements, Target
from . import _dist_module, _native_input, _spread_module
from ._spread import Available, DtypeFor, RequestedTensors, SpreadOptions, StateSource, spread

_SHARDING = "sharding a state dict from rank 0"


def broadcast_and_shard_state_dict(
    state_dict: StateSource,
    meta_sharded_state_dict: Mapping[str, torch.Tensor],
    sharded_state_dict: MutableMapping[str, torch.Tensor],
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> None:
    """Rank 0's side of sharding `state_dict` over all ranks. The other ranks call
    shard_broadcasted_state_dict at the same time.

    meta_sharded_state_dict: name -> DTensor or plain tensor that gives shape, dtype, mesh and
    placements, such as state_dict() of a sharded model on meta. Names must be equal on every
    rank. sharded_state_dict gets this rank's part of each tensor, over the daemon's memory, in
    that order, for load_state_dict(assign=True).

    Raises ValueError on other ranks than 0, KeyError on all ranks for a name that
    state_dict lacks, RuntimeError for another shape, ckptd.Error.
    """
    with _agreement.collective_call(_SHARDING, _agreement.OwnDaemon(address, client)):
        if _daemon.rank_and_size()[0] != 0:
            raise ValueError(
                "broadcasting a state dict: this is not rank 0, which alone has it; call "
                "shard_broadcasted_state_dict here"
            )
    own = SpreadOptions(timeout, address, client, digest, _native_fallback.named(fallback))
    _shard(state_dict, meta_sharded_state_dict, sharded_state_dict, own, fallback)


def shard_broadcasted_state_dict(
    meta_sharded_state_dict: Mapping[str, torch.Tensor],
    sharded_state_dict: MutableMapping[str, torch.Tensor],
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> None:
    """The other ranks' side of broadcast_and_shard_state_dict. Raises ValueError on rank 0."""
    with _agreement.collective_call(_SHARDING, _agreement.OwnDaemon(address, client)):
        if _daemon.rank_and_size()[0] == 0:
            raise ValueError(
                "receiving a state dict: this is rank 0, which has it; call "
                "broadcast_and_shard_state_dict here"
            )
    own = SpreadOptions(timeout, address, client, digest, _native_fallback.named(fallback))
    _shard({}, meta_sharded_state_dict, sharded_state_dict, own, fallback)


def _shard(given: StateSource, meta, into, options: SpreadOptions, fallback: Optional[str]) -> None:
    with _agreement.collective_call(_SHARDING, _agreement.OwnDaemon(options.address, options.client)):
        values = _native_fallback.stand_in(
            "broadcast_and_shard_state_dict",
            lambda: _shard_by_daemons(given, meta, options),
            lambda: _shard_by_broadcast(given, meta, options),
            fallback,
        )
    into.update((name, values[name]) for name in meta)


def _shard_by_daemons(given: StateSource, meta, options: SpreadOptions) -> Dict[str, torch.Tensor]:
    sink = _torch_internals.BufferSink()

    def plan() -> Tuple[RequestedTensors, DtypeFor]:
        known = Arrangements()
        targets = [_target(name, like, sink, known) for name, like in meta.items()]
        return RequestedTensors(targets), _dist_module.own_dtype

    def check(available: Mapping[str, Available], wanted: RequestedTensors) -> Tuple[List[str], List[str]]:
        missing, unexpected = _spread_module.compare_names(available, wanted)
        if missing:
            raise KeyError(
                f"sharding rank 0's state dict: it lacks {_spread_module.first_of(missing)}, which the "
                "sharded one has; pass the state dict of the same model"
            )
        sizes = _spread_module.shape_mismatches(available, wanted.targets)
        if sizes:
            raise RuntimeError(f"sharding rank 0's state dict: {sizes[0]}")
        return [], unexpected

    spread(_SHARDING, plan, given, check, options).fill()
    return sink.found


def _target(name: str, like: torch.Tensor, sink: _torch_internals.BufferSink, known: Arrangements) -> Target:
    if not _memory.number_of(like.dtype):
        raise Unimplemented(
            f"sharding {name}: checkpoints hold no {like.dtype}",
            "DTYPE_UNSUPPORTED",
            {"tensor": name},
        )
    spec = _torch_internals.spec_of(like) if _torch_internals.is_dtensor(like) else None
    arrangement = known.over_mesh(spec) if spec is not None else known.plain(like)
    return Target([name], like, [(sink, name)], True, True, arrangement, None, spec, like.dtype)


def _shard_by_broadcast(given: StateSource, meta, options: SpreadOptions) -> Dict[str, torch.Tensor]:
    """Shards by torch alone: broadcasts whole tensors, of which each rank keeps its part."""
    from torch.distributed.tensor import distribute_tensor

    state = _native_input.as_dict("broadcast_and_shard_state_dict", given, options.timeout)
    found = {}
    for name, like in meta.items():
        mesh = like.device_mesh if _torch_internals.is_dtensor(like) else None
        device = torch.device("cpu") if mesh is None else _torch_internals.device_of_mesh(mesh)
        if _daemon.rank_and_size()[0] == 0:
            whole = state[name].detach().to(device, like.dtype).contiguous()
        else:
            whole = torch.empty(like.shape, dtype=like.dtype, device=device)
        dist.broadcast(whole, src=0)
        found[name] = whole if mesh is None else distribute_tensor(whole, mesh, like.placements)
    return found
