"""load_into: from a model on meta, or a real one, to a model over the daemon's memory."""

import contextlib
import functools
import os
import time
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import nn

from ... import _client, _outside, _source
from ..._errors import Error, InvalidArgument, Unimplemented
from ..._layout import RankLayout
from ..._participant import NoParticipant, participate
from ..._rpc import Deadline
from ..._shard import Shard
from ..._types import Progress
from .._daemon import connected, rank_and_size
from ..compat import (
    _checkpoint_names,
    _fsdp1_internals,
    _hugging_face,
    _torch_internals,
    _transformers_conversion,
)
from . import (
    _buffers,
    _extra_state,
    _file_tensor,
    _load_hooks,
    _local_flats,
    _memory,
    _place_tensors,
    _source_match,
    _targets,
    _tied_weights,
)
from ._gc_pause import gc_paused
from ._rename import Regex, Rename, ignored
from ._result import LoadResult
from ._targets import Target

_SHOWN = 5  # names in a sentence
_LOOK_SECONDS = 5.0  # for a look-up that only improves an error message


class StageTimer:
    """Seconds per stage, and "total"."""

    def __init__(self) -> None:
        self.seconds: dict = {}
        self._start = self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self.seconds["total"] = now - self._start
        self._last = now


def load_into(
    model: nn.Module,
    source: Union[str, os.PathLike],
    *,
    mode: str = "auto",
    handle: Optional[str] = None,
    dtype: Union[torch.dtype, str, None] = None,
    strict: bool = True,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    init_buffers: Optional[_buffers.InitBuffers] = None,
    tied: Optional[str] = None,
    variant: Optional[str] = None,
    part: Optional[str] = None,
    rename: Optional[Rename] = None,
    ignore: Sequence[Regex] = (),
    barrier: bool = False,
    _participant: Optional[NoParticipant] = None,
) -> LoadResult:
    """Makes the daemon's memory the storage of every parameter and buffer of `model`.

    Call it once on each rank, after fully_shard (or parallelize_module, or nothing). The model
    may be on meta or real, also a real one inside of DistributedDataParallel. It opens no
    process group. Parameter and buffer objects stay the same, so optimizers built before keep
    working. Tied weights stay tied. Tensors of a real model that only share storage keep their
    memory and are copied into. It may be called again between two steps, to return to the
    checkpoint: gradients and optimizer state stay as they are. Never call it between a forward
    and its backward: FSDP2 does not notice and would mix the weights (plain modules raise in
    backward).

    mode: "private" (training leaves the daemon's weights as they are: copy on write
    in host memory, a copy in a GPU's), "shared" (read-only, for models without
    trainable parameters; anything written, batch-norm statistics too, ends the
    process with SIGSEGV, or the GPU's context with a fault), "exclusive" (the
    daemon gives its memory away) or "auto": private in host memory; in a GPU's,
    shared for models without trainable parameters, else exclusive.
    handle: how the memory is handed over, see Client.load. None is right unless other programs
    need another kind.
    dtype: for floating tensors, instead of the model's own dtypes: torch.bfloat16,
    "bfloat16" or "BF16".
    strict: missing and unexpected names are an error, as in load_state_dict; names
    are unexpected when no rank's model has them (pipeline stages make up one
    model). Non-persistent buffers are never missing or unexpected. Values from get_extra_state
    count as well; a checkpoint holds them if they are tensors.
    timeout: seconds for everything, including waits for other ranks and for memory in use.
    init_buffers: function of (model, names) that computes non-persistent buffers on meta, in
    place or by replacing them. Hugging Face models need none, unless their own initialisation
    raises: then it gets all of their buffers. A buffer that is not computed takes the
    checkpoint's value, if there is one.
    tied: it is an error if the checkpoint has different values under names of one tensor;
    "first" takes the value of the first of the model's names.
    source: a file, an index, or a folder. In a folder the files are read that transformers
    reads: model.safetensors, else model.safetensors.index.json, else a numbered series, else
    all .safetensors files but those of adapters and optimizers; and where there are none,
    pytorch_model.bin or its index. variant="fp16" reads model.fp16.safetensors, or its index,
    instead. Also hf://ORG/NAME@REVISION, in the local cache.
    part="model" takes that part of a source that has several, as "#model" behind its path does.
    rename: maps names of the checkpoint to names of the model: a dict, a function of a name,
    or (pattern, replacement) pairs for re.sub, applied in turn. Other names stay.
    result.unexpected and errors about the checkpoint have the checkpoint's names.
    ignore: patterns, as for re.search, of the checkpoint's names that may be unexpected;
    the patterns of a Hugging Face model (_keys_to_ignore_on_load_unexpected) count as well.
    barrier: return when every rank has placed its weights, and raise the failure of any of
    them. Give it on all ranks, or on none: with it a single restarted rank cannot attach by
    itself.
    If a rank fails, or its process ends in the call, ranks that still wait raise its error;
    with `barrier` all ranks do.
    Hooks after load_state_dict are run once strict errors have been raised. Hooks before it are
    not run and named in a warning.

    Returns a LoadResult. Raises ckptd.Error. The model is then as it was, except after
    BUFFERS_LEFT and late failures of other ranks: the weights are in by then. Raises TypeError
    for an argument that is no module.
    """
    deadline = Deadline(timeout)
    # _participant: that of a call of which this one is a part.
    part_of = contextlib.nullcontext((client, _participant))
    whole = participation(source, barrier, deadline, address, client) if _participant is None else part_of
    with whole as (client, participant):
        _check_arguments(model, source)
        source = _source.of_part(_source.of_variant(source, variant), part)
        names = functools.partial(_names_in, source, address, client)
        with _transformers_conversion.with_conversion_advice(model, names):
            return _load_into(
                model,
                source,
                mode,
                handle,
                dtype,
                strict,
                deadline,
                digest,
                address,
                client,
                init_buffers,
                tied,
                rename,
                ignore,
                participant,
            )


@contextlib.contextmanager
def participation(source, barrier: bool, deadline: Deadline, address, client, needs_all: bool = False):
    """(client, this rank's participation). It begins before anything can fail, to tell other ranks.

    needs_all: see _participant.participate."""
    rank, world_size = rank_and_size()
    if world_size == 1:
        yield client, NoParticipant()
        return
    with connected(address, client, deadline, rank) as own:
        with participate(own, source, deadline, barrier, needs_all) as participant:
            yield own, participant


def _names_in(source, address, client) -> List[str]:
    """Names in `source`; empty if the daemon cannot tell."""
    deadline = Deadline(_LOOK_SECONDS)
    try:
        with connected(address, client, deadline, rank_and_size()[0]) as own:
            return list(own.inspect(source, timeout=deadline.for_call()).tensors)
    except Error:
        return []


def _check_arguments(model, source) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"filling a model: the first argument of load_into is of type {type(model).__name__}, no "
            "torch.nn.Module; pass the model first, then the path: load_into(model, path)"
        )
    if isinstance(source, torch.optim.Optimizer):
        raise TypeError(
            f"filling a model: the second argument of load_into is of type {type(source).__name__}, no path; "
            "load_training_state(model, optimizer, path) fills both"
        )
    _source.check_path("filling a model", source)


@torch.inference_mode(False)  # tensors made in inference mode could never be trained
def _load_into(
    model,
    source,
    mode,
    handle,
    dtype,
    strict,
    deadline,
    digest,
    address,
    client,
    init_buffers,
    tied,
    rename,
    ignore,
    participant,
) -> LoadResult:
    _tied_weights.check(tied)
    clock = StageTimer()
    whole, model = model, _checkpoint_names.without_ddp(model)
    modules = _checkpoint_names.modules_of(model)
    _load_hooks.warn_of_skipped_hooks("load_into", modules)
    with gc_paused():
        targets = list_targets(modules, dtype if dtype is None else _memory.parse_dtype(dtype))
    _check_mode(mode, targets)
    clock.lap("model")
    with connected(address, client, deadline, rank_and_size()[0]) as own:
        contents = _source_match.SourceContents(own, source, deadline, rename)
        extras = _source_match.extras_of(_extra_state.of(modules), contents)
        ignored([], ignore)  # raises if it is no list of patterns
        patterns = [*ignore, *_hugging_face.may_be_unexpected(model)] if strict else []
        how = LoadOptions(mode, handle, digest, participant=participant)
        targets, shard, result = _attach_found(targets, contents, extras, tied, strict, patterns, how, clock)
    with gc_paused():
        held, spare, left, result.missing = _classify(targets, shard.table)
        result.missing += [name for name, _ in extras if name not in shard.table.index]
        with closed_if_refused(shard):
            if strict and result.missing:
                raise _place_tensors.lacks(result.missing[0])
            entries = _place_tensors.prepare(held, shard)
            spares = _place_tensors.prepare(spare, shard)
            values = _extra_state.read(extras, shard)
            participant.raise_failure()  # the model is still as it was
        _place_tensors.fill(entries, shard, result)
    _extra_state.give(extras, values)
    clock.lap("place")
    if left or spares:
        _fill_buffers(model, left, spares, init_buffers, shard, result)
    clock.lap("buffers")
    keys = _torch_internals.IncompatibleKeys(result.missing, result.unexpected)
    _load_hooks.run_after(whole, modules, keys, strict)
    return result


def _attach_found(
    targets: List[Target],
    contents: _source_match.SourceContents,
    extras: _extra_state.Extras,
    tied: Optional[str],
    strict: bool,
    patterns: Sequence[Regex],
    how: "LoadOptions",
    clock: StageTimer,
) -> Tuple[List[Target], Shard, LoadResult]:
    """(targets by the checkpoint's names, shard, result)."""
    own, source, deadline = contents.own, contents.source, contents.deadline
    targets, views = _local_flats.look_up(targets, contents)
    targets = _source_match.look_up(targets, contents, strict)
    targets, left_out = _source_match.first_names(targets, contents, tied)
    left_out = [*left_out, *views]

    def layout_of() -> RankLayout:
        shapes = _source_match.shapes_of(extras, contents)
        layout = _targets.rank_layout(targets, *rank_and_size(), strict, shapes)
        # With patterns, unexpected names are checked here.
        layout.refuse_unexpected = strict and not (patterns or left_out)
        return layout

    try:
        shard, result = attach(own, source, targets, layout_of, how, deadline, clock)
    except Error as error:
        raise _source_match.with_advice(error, targets, contents) from None
    with closed_if_refused(shard):
        _source_match.check_counts(targets, contents, shard.table.index)
        result.unexpected = [name for name in result.unexpected if name not in left_out]
        if strict and (patterns or left_out):
            _source_match.check_unexpected(result.unexpected, source, patterns)
    return targets, shard, result


@contextlib.contextmanager
def closed_if_refused(shard: Shard):
    try:
        yield
    except Error:
        shard.close()
        raise


def _fill_buffers(model, left: List[Target], spares, init_buffers, shard: Shard, result) -> None:
    """Fills buffers on meta: `left` and `spares` are computed; failing that, `spares` are placed."""
    held = [entry.target for entry in spares]
    result.made, unknown = _buffers.recompute(
        model, left, init_buffers, _memory.device_of(shard), held
    )
    names = {target.name for target in unknown}
    _place_tensors.fill([entry for entry in spares if entry.target.name in names], shard, result)


@dataclass(frozen=True)
class LoadOptions:
    """Arguments of load_into by these names. progress: see Client.load."""

    mode: str = "auto"
    handle: Optional[str] = None
    digest: bool = True
    progress: Optional[Callable[[Progress], None]] = None
    identity: str = ""  # required Source.identity: see _file_tensor.check_unchanged
    participant: NoParticipant = NoParticipant()


def attach(
    own: _client.Client,
    source: Union[str, os.PathLike],
    targets: List[Target],
    layout_of: Callable[[], RankLayout],
    how: LoadOptions,
    deadline: Deadline,
    clock: StageTimer,
) -> Tuple[Shard, LoadResult]:
    """This rank's shard of `source`, and the result before the tensors are placed.

    layout_of makes the layout. It is called once the daemon is known to fit the targets.
    """
    mode = _settle_mode(how.mode, targets, own, deadline)
    clock.lap("connect")
    with gc_paused():
        layout = layout_of()
    clock.lap("layout")
    left = deadline.for_call()
    checkpoint = own.load(
        source,
        layout=layout,
        mode=mode,
        handle=how.handle,
        timeout=left,
        digest=how.digest,
        wait_memory=left,
        progress=how.progress,
        _participant=how.participant,
    )
    _file_tensor.check_unchanged(checkpoint, os.fspath(source), how.identity)
    clock.lap("load")
    with gc_paused():  # the table has a row per tensor; a daemon with the shard does not wait
        shard = own.acquire(checkpoint, mode, timeout=deadline.for_call())
    if layout.source_for_rules is not None:
        with closed_if_refused(shard):
            _add_layout_names(layout, shard)
    clock.lap("acquire")
    return shard, LoadResult(
        checkpoint.served_from or checkpoint.name,
        mode,
        sum(shard.table.nbytes),
        len(shard.table.names),
        checkpoint.resident,
        [],
        shard.table.unexpected,
        seconds=clock.seconds,
        device=shard.device,
        copied_bytes=shard.copied_bytes,
        handle=shard.handle,
    )


def _add_layout_names(layout: RankLayout, shard: Shard) -> None:
    """Adds the layout's names to a shard that has the source's names.

    A process that is no rank of the job loads by rules and gets such a shard. Raises
    InvalidArgument (LAYOUT_MISMATCH) for different values under names of one tensor.
    """
    found, table = layout.source_for_rules, shard.table
    table.unexpected += _outside.unexpected(found, layout)
    for name, stored in _outside.stored_names(found, layout).items():
        held = [one for one in stored if one in table.index]
        if len(held) > 1:
            values = {one: _memory.whole(shard, table.index[one]) for one in held}
            _tied_weights.names_of(f"loading {found.source}", held, values, None, lambda value: value)
        if held:
            table.index.setdefault(name, table.index[held[0]])


def list_targets(modules: _load_hooks.Modules, dtype: Optional[torch.dtype] = None) -> List[Target]:
    """Every tensor of a model's `modules`, each once, with its wanted dtype.

    Puts FSDP into the state between two steps. Raises ckptd.Error.
    """
    groups = _torch_internals.Groups(module for _, module in modules)
    flats = _fsdp1_internals.flats_of(modules, _checkpoint_names.clean)
    groups.reshard()
    for flat in flats:
        flat.reshard()
    with _torch_internals.without_torch_function():
        targets = _targets.collect(modules, groups, flats)
        _targets.choose_dtypes(targets, dtype, _fsdp1_internals.buffer_dtypes(modules, _checkpoint_names.clean))
    _check_devices(targets)
    return targets


def _trainable(targets: List[Target]) -> List[str]:
    return [t.name for t in targets if not t.is_buffer and t.tensor.requires_grad]


def _check_mode(mode: str, targets: List[Target]) -> None:
    if mode != "auto":
        _client.mode_number(mode)
    names = _trainable(targets) if mode == "shared" else []
    if names:
        raise InvalidArgument(
            f"filling a model with mode='shared': that memory is read-only, and {len(names)} "
            f"parameters ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}) are "
            "trainable; use mode='private', or model.requires_grad_(False) first",
            "INVALID_REQUEST",
        )


def _settle_mode(
    mode: str, targets: List[Target], client: _client.Client, deadline: Deadline
) -> str:
    """The mode for "auto". Refuses a model on a GPU for a daemon in host memory, before the load.

    A model on the host gets the mode for host memory. For a model without a device the daemon's
    memory decides.
    """
    homes = {t.arrangement.device: t for t in _targets.one_per_arrangement(t for t in targets if not t.is_buffer)}
    homes.pop(None, None)
    on_gpu = [target for device, target in homes.items() if device.type == "cuda"]
    auto = mode == "auto"
    if not on_gpu and (homes or not auto):
        return "private" if auto else mode
    if client.device(deadline.for_call()) is None:
        for target in on_gpu:
            _memory.check_device(target.name, target.device, torch.device("cpu"), None)
        return "private" if auto else mode
    if not auto:
        return mode
    return "exclusive" if _trainable(targets) else "shared"


def _check_devices(targets: List[Target]) -> None:
    for target in _targets.one_per_arrangement(targets):
        device = target.device
        if device is not None and device.type not in ("cpu", "cuda"):
            raise Unimplemented(
                f"filling {target.name}: it belongs on {device}, and daemons keep shards in host "
                "memory or in that of NVIDIA GPUs; build the mesh for 'cpu', or use "
                "CPUOffloadPolicy(pin_memory=False)",
                "DEVICE_UNSUPPORTED",
                {"tensor": target.name},
            )


def _classify(
    targets: List[Target], table
) -> Tuple[List[Target], List[Target], List[Target], List[str]]:
    """(targets in the shard, spare values of buffers on meta, buffers left on meta, missing names).

    The model computes non-persistent buffers, as in torch. Values that an old checkpoint has of
    them are spares, for models that cannot compute them.
    """
    held, spare, left, missing = [], [], [], []
    for target in targets:
        found = bool(target.requested_names) and (target.flat is not None or target.requested_names[0] in table.index)
        # A buffer that the model computed itself stays, whatever the checkpoint holds.
        if found and target.persistent:
            held.append(target)
        elif found and target.tensor.is_meta and _fits(target, table):
            spare.append(target)
        elif target.persistent and not target.optional:
            missing += [names[0] for names, _ in _targets.checkpoint_tensors(target)]
        elif target.tensor.is_meta:
            left.append(target)
    return held, spare, left, sorted(missing)


def _fits(target: Target, table) -> bool:
    """Whether an optional buffer has the checkpoint's dtype. Other tensors are checked later."""
    return table.dtypes[table.index[target.requested_names[0]]].number == _memory.number_of(target.dtype)
