"""Plain values of the API, made from messages."""

import itertools
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from . import _dtypes, _proto
from ._errors import DataLoss, Error, make
from ._source import path_of

MODES = {"shared": 1, "private": 2, "exclusive": 3}
MODE_NAMES = {number: name for name, number in MODES.items()}
HANDLES = {"memfd": 1, "vmm_fd": 2, "cuda_ipc": 3}
_HANDLE_NAMES = {number: name for name, number in HANDLES.items()}
_STAGES = _proto.enum_names("Stage", "STAGE_")
_KINDS = {n: name.lower() for n, name in _proto.enum_names("EntryKind", "ENTRY_KIND_").items()}
_STATES = _proto.enum_names("Checkpoint.State", "STATE_")


@dataclass(frozen=True)
class Progress:
    """Progress of a load. Counts cover the whole group."""

    stage: str
    bytes_total: int
    bytes_done: int
    bytes_per_second: float
    slowest_rank: int  # -1 when unknown
    waiting_ranks: Tuple[int, ...]
    conflict: str  # what one of them loads instead, for people; else empty
    no_memory: str  # stage WAITING_FOR_MEMORY: holders of memory, for people
    storage_bytes: int
    mapped_bytes: int  # of these, read through a mapping of the page cache
    direct_bytes: int  # and past it
    sent_bytes: int
    restored_bytes: int  # bytes of this rank from its daemon's host tier
    streamed_ranks: Tuple[int, ...]  # ranks that got bytes through streams, not by mapping
    stages: Tuple[Tuple[str, float], ...]  # finished ones, seconds each
    # A file that is much slower than the others, or does not answer; else empty.
    slowest_file: str = ""
    slowest_file_bytes_per_second: float = 0.0  # as one thread reads it

    @property
    def waits_for(self) -> str:
        """The current activity of the load, for people."""
        if self.waiting_ranks:
            ranks = "rank " if len(self.waiting_ranks) == 1 else "ranks "
            ranks += ", ".join(map(str, self.waiting_ranks))
            if self.no_memory:
                return f"memory of {ranks}: {self.no_memory}"
            # Only a load by rank needs every trainer; any load needs every daemon.
            what = "a daemon that joins the group, or a trainer that makes the same load"
            return f"{ranks} to take part ({self.conflict or what})"
        text = self.stage.lower()
        if self.bytes_total:
            text += f", {self.bytes_done} of {self.bytes_total} bytes"
        if self.slowest_rank >= 0:
            text += f", rank {self.slowest_rank} is the slowest"
        if self.slowest_file:
            text += f", {self.slowest_file} is a slow file"
        return text


@dataclass(frozen=True)
class Checkpoint:
    """A loaded (or loading) generation of a source, as one rank's daemon sees it."""

    name: str  # checkpoints/{id}
    source: str
    state: str
    rank: int
    world_size: int
    slab_bytes: int
    tensor_count: int
    intended_mode: str
    plan_digest: str
    identity: str
    source_identity: str  # Source.identity of the files it was loaded from
    digests: bool
    pinned: bool
    lease_count: int
    layout: str
    progress: Progress
    # Error of a failed load. If ACTIVE: error of the last load for ranks that lack it.
    failure: Optional[Error] = None
    # Only in the result of load(): whether it was resident before, and how it differs from
    # another generation of the same source.
    resident: bool = False
    differs: Tuple[str, ...] = ()
    handle: str = ""  # how its memory is handed over; empty from an older daemon
    # The resident checkpoint whose memory it uses, because that has all requested tensors under
    # another layout. Lists show that one. Empty: it has its own memory.
    served_from: str = ""
    # If ACTIVE: number of ranks on which its shard is resident; 0 from an older daemon.
    resident_ranks: int = 0
    view: str = ""  # short description of the view it was loaded with; empty: none

    @property
    def waits_for(self) -> str:
        """The current activity of the load, for people."""
        text = self.progress.waits_for
        if self.progress.waiting_ranks and self.differs:
            what = ", ".join(self.differs)
            text += f"; another load of this source is resident, and this one differs in: {what}"
        return text


def seconds(duration) -> float:
    return duration.seconds + duration.nanos * 1e-9


def progress_of(message) -> Progress:
    return Progress(
        stage=_STAGES.get(message.stage, str(message.stage)),
        bytes_total=message.bytes_total,
        bytes_done=message.bytes_done,
        bytes_per_second=message.bytes_per_second,
        slowest_rank=message.slowest_rank,
        waiting_ranks=tuple(message.waiting_ranks),
        conflict=message.conflict,
        no_memory=message.no_memory,
        storage_bytes=message.read.storage_bytes,
        mapped_bytes=message.read.mapped_bytes,
        direct_bytes=message.read.direct_bytes,
        sent_bytes=message.sent_bytes,
        restored_bytes=message.restored_bytes,
        streamed_ranks=tuple(message.streamed_ranks),
        stages=tuple(
            (_STAGES.get(t.stage, str(t.stage)), seconds(t.duration)) for t in message.stages
        ),
        slowest_file=path_of(message.slowest_file.path),
        slowest_file_bytes_per_second=message.slowest_file.bytes_per_second,
    )


def checkpoint_of(message, resident: bool = False, differs=()) -> Checkpoint:
    failure = None
    if message.HasField("failure"):
        facts = {"rank": str(message.failure.rank)} if message.failure.rank >= 0 else {}
        failure = make(message.failure.code, message.failure.message, message.failure.reason, facts)
    return Checkpoint(
        name=message.name,
        source=path_of(message.source),
        state=_STATES.get(message.state, str(message.state)),
        rank=message.rank,
        world_size=message.world_size,
        slab_bytes=message.slab_bytes,
        tensor_count=message.tensor_count,
        intended_mode=MODE_NAMES.get(message.intended_mode, "shared"),
        plan_digest=message.plan_digest,
        identity=message.identity,
        source_identity=message.source_identity,
        digests=message.digests,
        pinned=message.pinned,
        lease_count=message.lease_count,
        layout=message.layout,
        progress=progress_of(message.progress),
        failure=failure,
        resident=resident or bool(message.served_from),
        differs=() if message.served_from else tuple(differs),
        handle=_HANDLE_NAMES.get(message.handle_kind, ""),
        served_from=message.served_from,
        resident_ranks=message.resident_ranks,
        view=message.view,
    )


@dataclass(frozen=True)
class SourceTensor:
    """A tensor on storage: dtype as in its header ("BF16"), and where its bytes are.

    file, offset: of its first piece. nbytes: of all pieces. kind: "parameter", "buffer",
    "optimizer" or "object". group: which part of a training state it belongs to, or "".
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    file: str
    offset: int
    nbytes: int
    pieces: int = 1
    kind: str = "parameter"
    group: str = ""


@dataclass
class Source:
    """The contents of a checkpoint on storage."""

    source: str
    files: List[Tuple[str, int]]  # path, bytes
    tensor_count: int
    tensor_bytes: int
    metadata: Dict[str, str]
    identity: str  # hex digest over the files: equal while nobody replaces or writes them
    tensors: Dict[str, SourceTensor] = field(default_factory=dict)
    aliases: Dict[str, str] = field(default_factory=dict)  # name -> tensor it is
    # Sentences for people: files of a folder that were left out, and oddities of an index.
    remarks: List[str] = field(default_factory=list)
    format: str = ""  # "safetensors"
    # How many plain values there are, and objects of classes, which nobody builds.
    value_count: int = 0
    opaque_count: int = 0
    # If they were asked for, by the path that leads to them ("optimizer.param_groups.0.lr"):
    # values as JSON ("" for what is longer than 64 KiB), and objects as "module.Name".
    values: Dict[str, str] = field(default_factory=dict)
    opaque: Dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or name in self.aliases

    def find(self, name: str) -> Optional[SourceTensor]:
        """The tensor of that name or further name, or None."""
        return self.tensors.get(self.aliases.get(name, name))


def shapes_of(ranks: List[int], dims: List[int], what: str) -> List[Tuple[int, ...]]:
    """Splits a flat column of dimensions into shapes."""
    if sum(ranks) != len(dims):
        raise DataLoss(
            f"reading {what}: {len(dims)} dimensions are listed for shapes of {sum(ranks)}; "
            "the daemon and this client do not fit together, update both",
            "INVALID_REPLY",
        )
    rest = iter(dims)
    return [tuple(itertools.islice(rest, rank)) for rank in ranks]


class _Columns:
    """The columns of a SourceTable as lists, those that are left out filled in."""

    def __init__(self, table) -> None:
        count = len(table.names)
        self.names = list(table.names)
        self.dtypes = list(table.dtypes)
        self.ranks = list(table.ranks_of_shape)
        self.sizes = list(table.bytes)
        self.files = list(table.files)
        self.offsets = list(table.offsets)
        self.pieces = list(table.piece_counts) or [1] * count
        self.kinds = list(table.kinds) or [1] * count
        self.groups = list(table.groups) or [""]
        self.group_of = list(table.group_of) or [0] * count

    def fit(self, files: int) -> bool:
        """Whether they fit together, and a source of so many files."""
        per_tensor = (self.dtypes, self.ranks, self.sizes, self.pieces, self.kinds, self.group_of)
        return (
            all(len(column) == len(self.names) for column in per_tensor)
            and min(self.pieces, default=1) > 0
            and sum(self.pieces) == len(self.files) == len(self.offsets)
            and max(self.files, default=-1) < files
            and max(self.group_of, default=-1) < len(self.groups)
        )


def add_page(source: Source, table) -> None:
    """Adds one page of an InspectCheckpoint reply."""
    columns = _Columns(table)
    what = f"the tensors of {source.source}"
    if not columns.fit(len(source.files)):
        raise DataLoss(
            f"reading {what}: the columns of the daemon's table do not fit together; "
            "update the daemon and this client",
            "INVALID_REPLY",
        )
    firsts = [0, *itertools.accumulate(columns.pieces)]
    for i, shape in enumerate(shapes_of(columns.ranks, list(table.dims), what)):
        row = _dtypes.BY_NUMBER.get(columns.dtypes[i])
        source.tensors[columns.names[i]] = SourceTensor(
            columns.names[i],
            row.name if row else str(columns.dtypes[i]),
            shape,
            source.files[columns.files[firsts[i]]][0],
            columns.offsets[firsts[i]],
            columns.sizes[i],
            columns.pieces[i],
            _KINDS.get(columns.kinds[i], str(columns.kinds[i])),
            columns.groups[columns.group_of[i]],
        )
    source.aliases.update(zip(table.alias_names, table.alias_targets))


@dataclass(frozen=True)
class RankPlan:
    """One rank's part of a Plan. slab_bytes: with padding. received_bytes: sent by other ranks."""

    rank: int
    slab_bytes: int
    tensor_bytes: int
    tensor_count: int
    received_bytes: int


@dataclass(frozen=True)
class Plan:
    """Dry run of a load."""

    ranks: Tuple[RankPlan, ...]
    files: Tuple[Tuple[str, int], ...]  # path, bytes that would be read
    storage_bytes: int
    peak_rank_bytes: int
    total_slab_bytes: int
    distinct_bytes: int  # of tensors, equal shards once
    plan_digest: str


def plan_of(message) -> Plan:
    return Plan(
        ranks=tuple(
            RankPlan(r.rank, r.slab_bytes, r.tensor_bytes, r.tensor_count, r.received_bytes)
            for r in message.ranks
        ),
        files=tuple((path_of(f.path), f.read_bytes) for f in message.files),
        storage_bytes=message.storage_bytes,
        peak_rank_bytes=message.peak_rank_bytes,
        total_slab_bytes=message.total_slab_bytes,
        distinct_bytes=message.distinct_bytes,
        plan_digest=message.plan_digest,
    )


@dataclass(frozen=True)
class Verification:
    """Result of Client.verify: the compared amount, and names of the tensors that differ."""

    tensor_count: int
    nbytes: int
    mismatched: Tuple[str, ...]
    rank: int  # rank of the shard
    files: Tuple[str, ...] = ()  # where each of `mismatched` was read from

    @property
    def ok(self) -> bool:
        """Whether no tensor differs."""
        return not self.mismatched
