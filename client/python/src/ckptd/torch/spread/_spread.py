"""Spreads rank 0's state dict over the tensors of all ranks, through the daemons.

Only rank 0 needs the values: the path of a checkpoint, a LazyStateDict, or a dict of tensors.
It announces where each tensor is, and every daemon reads its rank's slices. All ranks succeed,
or all raise the error of the first rank that failed, before any of them has changed its model.
"""

import contextlib
import functools
import json
import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import torch
import torch.distributed as dist

from ... import _address, _client
from ..._errors import Error, FailedPrecondition, Unimplemented
from ..._rpc import Deadline
from ..._shard import Shard
from .. import _daemon
from ..agree import _agreement
from ..compat import _checkpoint_names, _torch_internals
from ..load import (
    _file_tensor,
    _lazy_state_dict,
    _load_into,
    _memory,
    _place_tensors,
    _source_match,
    _targets,
    _tied_weights,
)
from ..load._file_tensor import FileTensor
from ..load._gc_pause import gc_paused
from ..load._place_tensors import Entry
from ..load._result import LoadResult
from ..load._targets import Target
from . import _plain_values, _staging

# Rank 0's state as a caller passes it: a path, a LazyStateDict, or a mapping of tensors.
StateSource = Union[str, os.PathLike, Mapping[str, Any]]
# Within this package also a function that asks rank 0's daemon: it gives name -> FileTensor.
StateQuery = Union[StateSource, Callable[[_client.Client], Mapping[str, Any]]]


@dataclass(frozen=True)
class SpreadOptions:
    """Arguments of every function that spreads, besides those of the original function.

    timeout: seconds for everything, waits for other ranks included. address, client: the daemon
    of this rank, as in load_into. digest: have the daemons compute digests. must_match: text that
    must be equal on all ranks. allow_rank0_values: spread also tensors of which each rank may have
    its own values; see _rank_unique. tied: "first" takes the value of a tied tensor's first name.
    """

    timeout: float = 600.0
    address: Optional[str] = None
    client: Optional[_client.Client] = None
    digest: bool = True
    must_match: str = ""
    allow_rank0_values: bool = False
    tied: Optional[str] = None  # see _tied_weights


@dataclass(frozen=True)
class Available:
    """A value that rank 0 has: a tensor with its dtype and shape, or some other value (dtype 0)."""

    dtype: int
    shape: Tuple[int, ...]
    kind: str = ""  # Python type of some other value


@dataclass
class SpreadResult:
    """Result of one call: parts that are ready to be placed, and missing and unexpected names."""

    objects: Dict[str, Any]  # values that are no tensors
    missing: List[str]
    unexpected: List[str]
    parts: List[Tuple[List[Entry], Shard, LoadResult]] = field(default_factory=list)

    @torch.inference_mode(False)  # else what is placed could never be trained
    def fill(self) -> None:
        """Places all parts in the model of the targets."""
        for entries, shard, result in self.parts:
            _place_tensors.fill(entries, shard, result)

    def close(self) -> None:
        for _, shard, _ in self.parts:
            shard.close()


# Check on rank 0: (name -> available value, requested tensors) -> (missing, unexpected). May raise.
NameCheck = Callable[[Mapping[str, Available], "RequestedTensors"], Tuple[List[str], List[str]]]
# (target, rank 0's dtype) -> the dtype that the target gets.
DtypeFor = Callable[[Target, torch.dtype], torch.dtype]


@dataclass(frozen=True)
class RequestedTensors:
    """Tensors that a model or dict requests, and names of values that are no tensors."""

    targets: List[Target]
    objects: Tuple[str, ...] = ()

    @property
    def names(self) -> set:
        parts = (part for target in self.targets for part in _targets.checkpoint_tensors(target))
        return {name for names, _ in parts for name in names} | set(self.objects)


@torch.inference_mode(False)
def spread(
    doing: str,
    plan: Callable[[], Tuple[RequestedTensors, DtypeFor]],
    given: StateQuery,
    check: NameCheck,
    options: SpreadOptions,
) -> SpreadResult:
    """The tensors that plan() requests, over the daemons' memory, ready to be placed.

    Every rank of the process group must call it and request the same names, dtypes, shapes and
    placements. Only rank 0's `given` and `check` count. Targets without a value on rank 0 are left
    out. All ranks raise the same: an error of plan() or check(), RuntimeError for ranks that
    request different things, ckptd.Error.
    """
    deadline = Deadline(options.timeout)
    if not (dist.is_available() and dist.is_initialized()) and _address.world_size() > 1:
        raise FailedPrecondition(
            f"{doing}: {_address.world_size()} processes were started, and this one has no process "
            "group to agree with the others; call torch.distributed.init_process_group() before",
            "NO_PROCESS_GROUP",
        )
    own_daemon = _agreement.OwnDaemon(options.address, options.client)
    with _agreement.agree(doing, deadline, options.must_match, own_daemon) as group:
        with gc_paused():
            wanted, dtype_for = plan()
        client = group.client or options.client
        with _daemon.connected(options.address, client, deadline, group.rank) as own:
            with contextlib.closing(_RankZeroSource(wanted, own, deadline)) as source:
                make = functools.partial(source.announcement, doing, given, check, options.tied)
                announcement = json.loads(group.announcement(make))
                _compare(doing, announcement, wanted)
                group.vote(1)
                group.forget_announcement()
                made = SpreadResult(_values_of(announcement), *(announcement[k] for k in ("missing", "unexpected")))
                try:
                    look = functools.partial(group.check_others, 2)
                    known = source.identities
                    _load_all(made, own, announcement, wanted, dtype_for, options, deadline, look, known)
                    group.vote(2)
                except BaseException:
                    made.close()
                    raise
                return made


class _RankZeroSource:
    """Rank 0's side: announces what is to be read, and holds memory that the daemons read."""

    def __init__(self, wanted: RequestedTensors, own: _client.Client, deadline: Deadline):
        self._wanted, self._own, self._deadline = wanted, own, deadline
        self._staged: Union[None, _staging.OfferedMemory, _staging.MemoryFile] = None
        self.identities: Dict[str, str] = {}  # source -> Source.identity when its names were read

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()

    def announcement(self, doing: str, given: StateQuery, check: NameCheck, tied: Optional[str]) -> str:
        """The announcement to other ranks, as JSON."""
        entries = {_checkpoint_names.clean(n): e for n, e in _entries(given, self._own, self._deadline).items()}
        taken = self._wanted.names - set(self._wanted.objects)
        available = {n: _available_of(n, e, n in taken) for n, e in entries.items()}
        missing, unexpected = check(available, self._wanted)
        parts: Dict[Tuple[str, int], set] = {}
        take, staged = {}, {}
        for target in self._wanted.targets:
            named = _names_of(doing, target, entries, tied, self._read)
            if not named:
                continue
            found, every = [], [name for names in named for name in names]
            self._bring_together(every, entries)
            for name in every:
                entry = entries[name]
                if isinstance(entry, torch.Tensor):
                    staged[name] = entry
                    entry = FileTensor("", name, _memory.number_of(entry.dtype), (), 0)
                elif not isinstance(entry, FileTensor):
                    raise _no_tensor(doing, name, entry)
                if self.identities.setdefault(entry.source, entry.identity) != entry.identity:
                    raise _file_tensor.changed(entry.source)
                found.append(entry)
            part = _part_of(doing, target, parts, found)
            in_source = [[self._name_in_source(name, entries[name]) for name in names] for names in named]
            take[target.name] = [part, in_source, found[0].dtype]
        if staged:
            self._staged = _staging.staged(staged, self._own, self._deadline)
        path = self._staged.path if self._staged else ""
        said = {
            "doing": doing,
            "model": _signature(self._wanted),
            "parts": [[source or path, not source] for source, _ in parts],
            "take": take,
            "objects": self._objects(entries),
            "missing": missing,
            "unexpected": unexpected,
        }
        return json.dumps(said)

    def _bring_together(self, names: List[str], entries: Dict[str, Any]) -> None:
        """Reads tensors of files if others of `names` are in memory: one load must bring all of them."""
        if any(isinstance(entries[name], torch.Tensor) for name in names):
            for name in names:
                if isinstance(entries[name], FileTensor):
                    entries[name] = self._read(entries[name])

    def _name_in_source(self, name: str, entry: Any) -> str:
        return entry.name if isinstance(entry, FileTensor) else name

    def _read(self, entry: FileTensor) -> torch.Tensor:
        own_daemon = {"client": self._own, "timeout": self._deadline.for_call()}
        return _lazy_state_dict.LazyStateDict({entry.name: entry}, **own_daemon)[entry.name]

    def _objects(self, entries: Mapping[str, Any]) -> Dict[str, Any]:
        """Values that are no tensors of the model, encoded for JSON."""
        objects = {n: entries[n] for n in self._wanted.objects if n in entries}
        # In a checkpoint they are tensors. Rank 0 reads them, as other ranks may not see its files.
        on_host = dict.fromkeys(objects, "cpu")
        own_daemon = {"client": self._own, "timeout": self._deadline.for_call()}
        objects = dict(_lazy_state_dict.LazyStateDict(objects, devices=on_host, **own_daemon).items())
        return {name: _plain_values.encode(name, value) for name, value in objects.items()}


def _no_tensor(doing: str, name: str, entry: Any) -> TypeError:
    kind = type(entry).__name__
    return TypeError(f"{doing}: {name} is a tensor of the model and {kind} in the state dict; pass a tensor")


def _names_of(
    doing: str, target: Target, entries: Mapping[str, Any], tied: Optional[str], read: _tied_weights.Read
) -> List[List[str]]:
    """Rank 0's names for a target, one list per member of a flat parameter; empty if it has none."""
    parts = _targets.checkpoint_tensors(target)
    found = [_tied_weights.names_of(doing, names, entries, tied, read) for names, _ in parts]
    return _source_match.all_members_or_none(doing, target, found)


def _part_of(
    doing: str, target: Target, parts: Dict[Tuple[str, int], set], entries: List[FileTensor]
) -> int:
    """Number of the load that brings `entries`. A load can request each name of its source only once."""
    source, names, again = entries[0].source, {entry.name for entry in entries}, 0
    if any(entry.source != source for entry in entries):
        raise Unimplemented(
            f"{doing}: the members of the flat parameter {target.name} are in several files, or "
            "some in memory; pass one path, or all of them in memory",
            "MODEL_UNSUPPORTED",
            {"tensor": target.name},
        )
    while names & parts.setdefault((source, again), set()):
        again += 1
    parts[source, again] |= names
    return list(parts).index((source, again))


def _entries(given: StateQuery, own: _client.Client, deadline: Deadline) -> Mapping[str, Any]:
    """name -> FileTensor, tensor or other value."""
    if isinstance(given, (str, os.PathLike)):
        return _file_tensor.entries_of(own, given, deadline)
    if callable(given):
        return given(own)
    if isinstance(given, _lazy_state_dict.LazyStateDict):
        return given.entries
    if not isinstance(given, Mapping):  # as torch
        raise TypeError(f"Expected state_dict to be dict-like, or a path, got {type(given)}.")
    odd = next((name for name in given if not isinstance(name, str)), None)
    if odd is not None:
        raise TypeError(f"Expected names of tensors in state_dict, got {odd!r:.200} as a key.")
    return given


def _available_of(name: str, entry: Any, taken: bool) -> Available:
    if isinstance(entry, FileTensor):
        return Available(entry.dtype, tuple(entry.shape))
    if isinstance(entry, torch.Tensor):
        if taken and not _torch_internals.is_dtensor(entry):
            _staging.require_values_in_memory(name, entry)
        has_shape = not (entry.is_nested or torch.nn.parameter.is_lazy(entry))
        return Available(_memory.number_of(entry.dtype), tuple(entry.shape) if has_shape else ())
    return Available(0, (), str(type(entry)))


def _values_of(announcement: dict) -> Dict[str, Any]:
    return {name: _plain_values.decode(data) for name, data in announcement["objects"].items()}


def _signature(wanted: RequestedTensors) -> List[list]:
    """Facts that must be equal on all ranks, by name."""
    found = []
    for target in wanted.targets:
        lies = "whole" if target.spec is None else str(target.spec.placements)
        if target.flat is not None:
            lies = f"of {target.flat.elements} elements"
        what = f"{str(target.tensor.dtype)[6:]} {list(target.tensor.shape)}, {lies}"
        found.append([target.name, what])
    return sorted(found) + [[name, "no tensor"] for name in sorted(wanted.objects)]


def _compare(doing: str, announcement: dict, wanted: RequestedTensors) -> None:
    """Raises RuntimeError if this rank's model differs from rank 0's."""
    if announcement["doing"] != doing:
        raise RuntimeError(
            f"{doing}: rank 0 is at another call, {announcement['doing']}; all ranks must make the same "
            "calls in the same order"
        )
    mine, first = dict(map(tuple, _signature(wanted))), dict(map(tuple, announcement["model"]))
    if mine == first:
        return
    name = sorted(set(mine.items()) ^ set(first.items()))[0][0]
    raise RuntimeError(
        f"{doing}: the models differ at {name!r}: here {mine.get(name, 'there is none')}, on rank "
        f"0 {first.get(name, 'there is none')}; build and shard the same model on every rank"
    )


def _load_all(
    spread: SpreadResult,
    own: _client.Client,
    announcement: dict,
    wanted: RequestedTensors,
    dtype_for: DtypeFor,
    options: SpreadOptions,
    deadline: Deadline,
    look: Callable[[], None],
    identities: Mapping[str, str],
) -> None:
    """Has the daemons load each part, and checks this rank's shard against the model.

    look: raises if another rank has failed; called during waits for the daemons. identities:
    source -> Source.identity when rank 0 read its names.
    """
    rank, size = _daemon.rank_and_size()
    for number, (source, in_memory) in enumerate(announcement["parts"]):
        targets = []
        for target in wanted.targets:
            part, names, dtype = announcement["take"].get(target.name, (None, [], 0))
            if part != number:
                continue
            if target.flat is not None:
                flat = target.flat.with_names(names)
                targets.append(replace(target, flat=flat, dtype=target.tensor.dtype))
                continue
            source_dtype = _memory.dtype_of(dtype, names[0][0])
            wish = dtype_for(target, source_dtype)
            found = replace(target, names=names[0], dtype=wish, persistent=True)
            targets.append(_source_match.with_local_cast(found, source_dtype))
        with gc_paused():
            layout = _targets.rank_layout(targets, rank, size, strict=True)
        layout.refuse_unexpected = False  # the ranks have agreed on the names already
        # A copy of rank 0's memory is useless to others, so the daemon keeps none.
        mode = "exclusive" if in_memory else "auto"
        how = _load_into.LoadOptions(mode, None, options.digest, progress=lambda _: look())
        how = replace(how, identity="" if in_memory else identities.get(source, ""))
        try:
            shard, result = _load_into.attach(
                own, source, targets, lambda: layout, how, deadline, _load_into.StageTimer()
            )
        except Error as error:
            unopened = error.code in ("NOT_FOUND", "PERMISSION_DENIED")
            if in_memory and unopened and error.reason != "TENSOR_NOT_FOUND":
                raise type(error)(
                    f"{error.message}; {_staging.not_visible_advice(source)}", error.reason, error.facts
                ) from None
            raise
        spread.parts.append(([], shard, result))
        with gc_paused():
            spread.parts[-1] = (_place_tensors.prepare(targets, shard), shard, result)
