"""load_into: the whole way from a model on meta to a model over the daemon's memory."""

import contextlib
import gc
import os
import time
import warnings
from typing import List, Optional, Tuple, Union

import torch
from torch import nn

from .. import _address, _client
from .._errors import Error, InvalidArgument, NotFound, Unimplemented
from .._rpc import Deadline
from .._types import Source
from . import _buffers, _fsdp, _place, _targets
from ._result import LoadResult
from ._targets import Target

_SHOWN = 5  # names in a sentence
_CONNECT_SECONDS = 10.0


class _Clock:
    """Seconds per stage."""

    def __init__(self, seconds: dict):
        self._seconds = seconds
        self._start = self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] = now - self._last
        self._seconds["total"] = now - self._start
        self._last = now


def load_into(
    model: nn.Module,
    source: Union[str, os.PathLike],
    *,
    mode: str = "auto",
    dtype: Optional[torch.dtype] = None,
    strict: bool = True,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    init_buffers: Optional[_buffers.InitBuffers] = None,
) -> LoadResult:
    """Makes the daemon's memory the storage of every parameter and buffer of `model`.

    Call it once on each rank, after fully_shard (or parallelize_module, or nothing),
    on a model built on meta or a real one; it opens no process group. Parameter
    objects stay the same, so optimizers built before keep working. Tied weights
    stay tied. It may be called again between two steps, to go back to the
    checkpoint: gradients and optimizer state are then those of before. Never call
    it between a forward and its backward: FSDP2 does not notice and would mix the
    weights (plain modules raise in backward).

    mode: "auto" (private on host memory), "private" (copy on write: training leaves
    the daemon's weights as they are), "shared" (read-only, for models without
    trainable parameters; anything written, batch-norm statistics too, ends the
    process with SIGSEGV) or "exclusive" (the daemon gives its memory away).
    dtype: for floating tensors, instead of the model's own dtypes.
    strict: missing and unexpected names are an error, as in load_state_dict. Names
    are compared with the checkpoint's headers, which the daemon reads: one more
    call, a millisecond for hundreds of tensors. Non-persistent buffers are never
    missing or unexpected.
    timeout: seconds for everything, waiting for other ranks included.
    init_buffers: function of (model, names) that computes buffers no checkpoint
    holds, in place or by replacing them; Hugging Face models need none.

    Returns a LoadResult. Raises ckptd.Error; the model is then as it was, except
    for BUFFERS_LEFT, which comes after the weights are in.
    """
    with _no_collection():
        return _load_into(
            model,
            source,
            mode,
            dtype,
            strict,
            Deadline(timeout),
            digest,
            address,
            client,
            init_buffers,
        )


def _load_into(
    model, source, mode, dtype, strict, deadline, digest, address, client, init_buffers
) -> LoadResult:
    seconds: dict = {}
    clock = _Clock(seconds)
    targets = _list_targets(model, dtype)
    mode = _choose_mode(mode, targets)
    clock.lap("model")
    rank, world_size = _rank_and_size()
    own = client or _client.connect(address, min(_CONNECT_SECONDS, deadline.timeout), rank=rank)
    try:
        clock.lap("connect")
        wanted, left, missing, unexpected = _match(own, source, targets, strict, rank, deadline)
        clock.lap("inspect")
        layout = _targets.state(wanted, rank, world_size)
        clock.lap("layout")
        checkpoint = own.load(
            source, layout=layout, mode=mode, timeout=max(deadline.left(), 1e-3), digest=digest
        )
        clock.lap("load")
        shard = own.acquire(checkpoint, mode, timeout=max(deadline.left(), 1e-3))
        clock.lap("acquire")
    finally:
        if client is None:
            own.close()
    result = LoadResult(
        checkpoint.name,
        mode,
        sum(shard.table.nbytes),
        len(shard.table.names),
        checkpoint.resident,
        missing,
        unexpected,
        seconds=seconds,
    )
    try:
        entries = _place.prepare(wanted, shard)
    except Error:
        shard.close()
        raise
    _place.fill(entries, shard, result)
    clock.lap("place")
    result.made = _buffers.remake(model, left, init_buffers) if left else []
    clock.lap("buffers")
    return result


def _list_targets(model: nn.Module, dtype: Optional[torch.dtype]) -> List[Target]:
    groups = _fsdp.Groups(model)
    groups.settle()
    targets = _targets.collect(model, groups)
    _targets.choose_dtypes(targets, dtype)
    _check_devices(targets)
    return targets


def _rank_and_size() -> Tuple[int, int]:
    """Those of the process group if there is one, else of the launcher's environment."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _address.rank(), _address.world_size()


def _choose_mode(mode: str, targets: List[Target]) -> str:
    if mode == "auto":
        return "private"
    _client.mode_number(mode)
    trainable = [t.name for t in targets if not t.is_buffer and t.tensor.requires_grad]
    if mode == "shared" and trainable:
        raise InvalidArgument(
            f"filling a model with mode='shared': that memory is read-only, and {len(trainable)} "
            "parameters "
            f"({', '.join(trainable[:_SHOWN])}{', ...' if len(trainable) > _SHOWN else ''}) are "
            "trainable; "
            "use mode='private', or model.requires_grad_(False) first",
            "INVALID_REQUEST",
        )
    return mode


def _check_devices(targets: List[Target]) -> None:
    fine = set()
    for target in targets:
        holder = target.tensor if target.spec is None else target.spec.mesh
        if id(holder) in fine:
            continue
        wanted = holder.device.type if target.spec is None else holder.device_type
        if target.fsdp is not None and target.fsdp.offload_to_cpu:
            continue
        if wanted not in ("cpu", "meta"):
            raise Unimplemented(
                f"filling {target.name}: it belongs on {wanted}, and this client maps host "
                "memory; build "
                "the mesh for 'cpu', or use CPUOffloadPolicy(pin_memory=False)",
                "DEVICE_UNSUPPORTED",
                {"tensor": target.name},
            )
        fine.add(id(holder))


@contextlib.contextmanager
def _no_collection():
    """Keeps the garbage collector from walking a large model again and again meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _match(
    own: _client.Client, source, targets: List[Target], strict: bool, rank: int, deadline: Deadline
):
    """(targets to load, buffers left on meta, missing names, unexpected names)."""
    index = _inspect(own, source, strict, rank, deadline)
    wanted, left, missing, known = [], [], [], set()
    for target in targets:
        known.update(target.names)
        if index is not None:
            # The checkpoint may hold a tied tensor under any of its names.
            target.names.sort(key=lambda name: (name not in index.tensors, name not in index))
            known.update(index.aliases[name] for name in target.names if name in index.aliases)
        held = target.persistent if index is None else target.name in index
        if held and not target.persistent:
            entry = index.find(target.name)
            held = target.tensor.is_meta and entry.shape == tuple(target.tensor.shape)
        if held:
            wanted.append(target)
        elif target.persistent:
            missing.append(target.name)
        elif target.tensor.is_meta:
            left.append(target)
    unexpected = [] if index is None else [name for name in index.tensors if name not in known]
    if strict and (missing or unexpected):
        raise _mismatch(source, missing, unexpected)
    return wanted, left, sorted(missing), sorted(unexpected)


def _inspect(
    own: _client.Client, source, strict: bool, rank: int, deadline: Deadline
) -> Optional[Source]:
    try:
        return own.inspect(source, timeout=max(deadline.left(), 1e-3))
    except Error as error:
        # Only the reading rank needs to see the files. Missing names are then
        # found by the load itself; unexpected ones are rank 0's to report.
        unseen = error.reason in ("SOURCE_NOT_FOUND", "SOURCE_UNREADABLE")
        if not (strict and rank > 0 and unseen):
            raise
        warnings.warn(
            f"ckptd: rank {rank} cannot see {source}; unexpected names are checked on rank 0 only",
            stacklevel=4,
        )
        return None


def _mismatch(source, missing: List[str], unexpected: List[str]) -> Error:
    def shown(names: List[str]) -> str:
        return ", ".join(sorted(names)[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")

    parts = []
    if missing:
        parts.append(f"it lacks {len(missing)} tensors of the model ({shown(missing)})")
    if unexpected:
        parts.append(f"it has {len(unexpected)} the model has not ({shown(unexpected)})")
    kind = NotFound if missing else InvalidArgument
    return kind(
        f"loading {source} into the model: {' and '.join(parts)}; pass strict=False to load what "
        "both have",
        "TENSOR_NOT_FOUND" if missing else "UNEXPECTED_TENSORS",
        {"missing": ",".join(sorted(missing)), "unexpected": ",".join(sorted(unexpected))},
    )
