"""The client of one daemon."""

import time
import uuid
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Union,
)

# _shard is imported now: a restarted trainer waits for its first acquire, which should not import.
from . import (
    _address,
    _auto,
    _deferred_free,
    _device_map,
    _layout,
    _outside,
    _passing,
    _proto,
    _shard,
    _types,
)
from ._device_map import Device, DeviceMap
from ._errors import (
    Error,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    source_changed,
)
from ._participant import NoParticipant, job_key
from ._rpc import GONE_SECONDS, LAST_SECONDS, Connection, Deadline, is_transient
from ._source import Path, of_part, path_of, source_text
from ._types import Checkpoint, Plan, Progress, Source, Verification
from ._view import View, through, view_of
from ._waiting import Reminder, ReplicaWarning, with_open_advice, check_active, restarted

if TYPE_CHECKING:
    import torch

# For a daemon that is starting. Short, because other ranks may wait for this one.
CONNECT_SECONDS = 5.0
_CALL_SECONDS = 30.0
# Advice for calls without a timeout of the caller: the daemon answers from memory.
_AT_ONCE = (
    "a daemon answers this at once, unless it is stopped or kept from running: see its log and try "
    "again"
)
_LOAD_SECONDS = 600.0
_POLL_SECONDS = 0.5  # between two requests for a load that cannot be watched
_MAX_LOAD_SECONDS = 86400.0
_MAY_BE_PASSED = ("SOURCE_NOT_FOUND", "SOURCE_FORBIDDEN", "SOURCE_UNREADABLE")

# Accepted layouts: see Client.load.
Layout = Union[None, str, Dict[str, Any], _layout.RankLayout]


def connect(
    address: Optional[str] = None, wait: float = CONNECT_SECONDS, *, rank: Optional[int] = None
) -> "Client":
    """Finds the daemon of this process: `address`, CKPTD_ADDRESS, or the default socket.

    Waits up to `wait` seconds for a daemon that is still starting: 5 unless more are given.
    {rank} and {local_rank} in the address are replaced from torchrun's or Slurm's
    environment; `rank` beats it. With CKPTD_AUTO=1 and no address, starts daemons where there are
    none. Raises Unavailable (DAEMON_UNREACHABLE) with
    the address, how it was chosen and what to try.
    """
    resolved = _address.resolve(address, rank)
    if resolved.is_default and _auto.wanted() and not _address.listens(resolved):
        _auto.start_daemons(resolved)
    foreign = _address.wait_until_listening(resolved, wait)
    return Client(resolved, foreign)


def mode_number(mode: str) -> int:
    number = _types.MODES.get(str(mode).lower())
    if number is None:
        raise InvalidArgument(
            f"reading mode={mode!r}: there is no such mode; use 'shared' (read-only), 'private' "
            "(copy on write) or 'exclusive' (the memory itself); functions of ckptd.torch know "
            "'auto', too",
            "INVALID_REQUEST",
        )
    return number


def _handle_number(handle: Optional[str]) -> int:
    number = 0 if handle is None else _types.HANDLES.get(str(handle).lower())
    if number is None:
        raise InvalidArgument(
            f"reading handle={handle!r}: there is no such kind; leave it out, or use "
            f"{', '.join(map(repr, _types.HANDLES))}",
            "INVALID_REQUEST",
        )
    return number


class Client:
    """Talks to one daemon. Thread-safe; not usable in a child forked after a call.

    A context manager. Closing it closes the connection to the service, but no shard: each shard
    has its own connection. foreign: whether the daemon has another user, or is in another
    container: then it is passed the files that it is to read, as far as this process can open them.
    """

    def __init__(self, address: _address.Address, foreign: bool = False) -> None:
        self.address = address
        self._connection = Connection(address)
        self._passing = _passing.Passing(self._connection, foreign)
        # checkpoint -> request id of its last load. For it the daemon keeps the shard until acquire().
        self._load_ids: Dict[str, str] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ckptd.Client of {self.address}>"

    def close(self) -> None:
        """Closes the connection to the service; a later call opens another one."""
        self._connection.close()

    def _call(self, method: str, request, doing: str, deadline: Optional[Deadline] = None):
        deadline = deadline or Deadline(_CALL_SECONDS, _AT_ONCE)
        return self._connection.call(method, request, doing, deadline)

    def load(
        self,
        source: Path,
        *,
        layout: Layout = None,
        mode: str = "shared",
        handle: Optional[str] = None,
        dtype: Union[None, str, "torch.dtype"] = None,
        keep_fp32: Sequence[str] = (),
        timeout: float = _LOAD_SECONDS,
        digest: bool = True,
        wait_memory: float = 0.0,
        progress: Optional[Callable[[Progress], None]] = None,
        part: Optional[str] = None,
        view: View = None,
        _participant: NoParticipant = NoParticipant(),
    ) -> Checkpoint:
        """Loads `source`, a path or file URI (or finds it resident), and waits until it is ACTIVE.

        part: which part of a source that has several ("model", "optimizer"), as "#optimizer"
        behind its path says, too; None for the format's default. view: rules that give the source
        other names, axes and tensors (deploy/formats.md): a list or dict, its JSON, or a path of it.
        layout: "fsdp:8", "hsdp:2x4", "replicate:8", a dict of rules, a RankLayout,
        or None for a full copy on each rank (for a process that is no rank of the job: on this
        daemon's rank alone). dtype: floating tensors are cast to it ("BF16", "bfloat16" or
        torch.bfloat16); those matching a glob in keep_fp32 stay float32. mode: the mode in which
        the shard will be acquired. handle: how it will be handed over; None for the usual kind
        of the daemon's memory. "cuda_ipc" (GPU memory that any CUDA program can open) needs one
        PID namespace, is never "exclusive", is not protected from writes, and goes with the
        daemon. wait_memory: seconds, within the timeout, to wait for memory that clients hold
        now; without it a lack of memory is ResourceExhausted (NO_MEMORY) at once. The loaded
        checkpoint is kept from eviction until this client acquires it, for 10 s. progress is
        called at each change and every two seconds, in this thread. Raises ckptd.Error: the
        load's own failure, or DeadlineExceeded that names what the load was waiting for.
        """
        deadline = Deadline(min(timeout, _MAX_LOAD_SECONDS))
        request = _proto.message("LoadCheckpointRequest")(request_id=uuid.uuid4().hex)
        spec = request.spec
        source = through(of_part(source, part), view)
        spec.source, spec.view = source_text(source), view_of(source)
        spec.intended_mode = mode_number(mode)
        spec.handle_kind = _handle_number(handle)
        spec.skip_digests = not digest
        spec.job_key = job_key()
        _layout.fill_layout(spec.layout, _outside.fit_layout(self, source, layout, deadline))
        _layout.fill_policy(spec.dtype_policy, dtype, keep_fp32)
        spec.timeout.FromNanoseconds(int(deadline.timeout * 1e9))
        spec.wait_memory.FromNanoseconds(int(min(wait_memory, _MAX_LOAD_SECONDS) * 1e9))
        with self._passing.files(spec.source, deadline) as passed:
            # Rank 0's daemon reads, and its trainer may be about to pass the same files.
            elsewhere = passed and self._passing.rank != 0
            later = Deadline(min(GONE_SECONDS, deadline.left()) if elsewhere else 0.0)
            while True:
                try:
                    return self._load(request, layout is None, deadline, progress, _participant)
                except (NotFound, PermissionDenied) as error:
                    if error.reason not in _MAY_BE_PASSED or later.passed():
                        raise
                time.sleep(0.2)
                request.request_id = uuid.uuid4().hex

    def _load(
        self, request, open_layout: bool, deadline: Deadline, progress, participant: NoParticipant
    ) -> Checkpoint:
        doing = f"loading {request.spec.source}"
        _deferred_free.drain()  # memory that this process has dropped may be the room for it
        try:
            reply = self._call("LoadCheckpoint", request, doing, deadline)
        except InvalidArgument as error:
            if error.reason != "WRONG_WORLD_SIZE" or not open_layout:
                raise
            raise with_open_advice(error) from None
        started = _types.checkpoint_of(reply.checkpoint, reply.resident, reply.differs)
        self._load_ids[started.name] = request.request_id
        whole = open_layout and started.world_size > 1 and not started.resident
        replicas = ReplicaWarning(doing) if whole else None
        return self._wait(started, doing, deadline, progress, replicas, participant)

    def _wait(
        self, checkpoint: Checkpoint, doing: str, deadline: Deadline, progress, replicas, participant: NoParticipant
    ) -> Checkpoint:
        resident, differs = checkpoint.resident, checkpoint.differs
        lost, heard, reminder = None, time.monotonic(), Reminder(doing, deadline.timeout)
        if checkpoint.state != "LOADING":
            participant.mark_resident()
        while checkpoint.state == "LOADING":
            try:
                for message in self._follow(checkpoint.name, doing, deadline, participant):
                    checkpoint = _types.checkpoint_of(message, resident, differs)
                    lost, heard = None, time.monotonic()
                    reminder.look(checkpoint)
                    if replicas is not None:
                        replicas.look(checkpoint)
                    if progress is not None:
                        progress(checkpoint.progress)
            except Error as error:
                if participant.failure is not None:
                    checkpoint = self._ended_checkpoint(checkpoint, participant)
                    break
                if deadline.passed():
                    raise deadline.exceeded(doing, checkpoint.waits_for) from None
                if lost is not None and error.reason == "CHECKPOINT_NOT_FOUND":
                    raise restarted(doing, checkpoint.rank) from None
                silent = time.monotonic() - heard
                lost = lost or Deadline(max(LAST_SECONDS, GONE_SECONDS - silent))
                if not is_transient(error) or lost.passed():
                    raise
            if checkpoint.state == "LOADING":
                # The stream ended early: the daemon restarts, or the connection broke.
                if deadline.passed():
                    raise deadline.exceeded(doing, checkpoint.waits_for)
                time.sleep(min(0.05, deadline.left()))
        if replicas is not None:
            replicas.look(checkpoint)
        check_active(checkpoint, doing)
        return checkpoint

    def _ended_checkpoint(self, checkpoint: Checkpoint, participant: NoParticipant) -> Checkpoint:
        """The ended load. Raises another rank's failure if the load has not ended."""
        # If the load failed for the same cause, the daemon's error is equal on each rank.
        now = self.get(checkpoint)
        if now.state == "LOADING":
            participant.raise_failure()
        return now

    def watch(
        self, checkpoint: Union[str, Checkpoint], timeout: float = _LOAD_SECONDS
    ) -> Iterator[Checkpoint]:
        """Yields the checkpoint at each change and every two seconds until it leaves LOADING.

        Raises NotFound for one that the daemon has not, DeadlineExceeded after `timeout`
        seconds.
        """
        name = _name(checkpoint)
        for message in self._follow(name, f"watching {name}", Deadline(timeout), NoParticipant()):
            yield _types.checkpoint_of(message)

    def _follow(self, name: str, doing: str, deadline: Deadline, participant: NoParticipant):
        """Yields Checkpoint messages from the daemon's stream, or by polling if it has no stream left."""
        request = _proto.message("WatchCheckpointRequest")(
            name=name, load_request_id=self._load_ids.get(name)
        )
        try:
            replies = self._connection.stream(
                "WatchCheckpoint", request, doing, deadline, participant.cancel_on_failure
            )
            for reply in replies:
                yield reply.checkpoint
            return
        except ResourceExhausted as error:
            if error.reason != "TOO_MANY_WAITING":
                raise
        request = _proto.message("GetCheckpointRequest")(name=name)
        while True:
            reply = self._connection.call("GetCheckpoint", request, doing, deadline, retry=False)
            yield reply.checkpoint
            now = _types.checkpoint_of(reply.checkpoint)
            if now.state != "LOADING":
                return
            participant.raise_failure()
            if deadline.left() <= _POLL_SECONDS:
                time.sleep(deadline.left())
                raise deadline.exceeded(doing, now.waits_for)
            time.sleep(_POLL_SECONDS)

    def get(self, checkpoint: Union[str, Checkpoint]) -> Checkpoint:
        """The checkpoint as it is now. Raises NotFound for one that the daemon has not."""
        name = _name(checkpoint)
        reply = self._call(
            "GetCheckpoint", _proto.message("GetCheckpointRequest")(name=name), f"asking for {name}"
        )
        return _types.checkpoint_of(reply.checkpoint)

    def list(self) -> List[Checkpoint]:
        """All checkpoints of this daemon, newest first."""
        found: List[Checkpoint] = []
        request = _proto.message("ListCheckpointsRequest")()
        while True:
            reply = self._call("ListCheckpoints", request, "listing checkpoints")
            found.extend(_types.checkpoint_of(message) for message in reply.checkpoints)
            if not reply.next_page_token:
                return found
            request.page_token = reply.next_page_token

    def open(
        self,
        source: Path,
        mode: str = "shared",
        *,
        timeout: float = _CALL_SECONDS,
        part: Optional[str] = None,
    ) -> _shard.Shard:
        """This rank's shard of the newest resident checkpoint of `source`. Loads nothing.

        Its layout does not matter. part: see `load`. One that was loaded with a view does not count:
        acquire it by its name. Raises NotFound (CHECKPOINT_NOT_FOUND)
        where this daemon holds none, Aborted (SOURCE_CHANGED) where the files have changed since,
        and what `acquire` raises.
        """
        deadline = Deadline(timeout)
        source = of_part(source, part)
        path = path_of(source_text(source))
        found = [c for c in self.list() if c.source == path and c.state == "ACTIVE" and not c.view]
        if not found:
            raise NotFound(
                f"opening {path}: this daemon holds nothing of it; load it, or see what it holds by "
                "client.list()",
                "CHECKPOINT_NOT_FOUND",
            )
        now = self.inspect(source, deadline.for_call()).identity
        fresh = [c for c in found if c.source_identity == now]
        if not fresh:
            raise source_changed(path, f"since {found[0].name} was loaded", "load it again")
        return self.acquire(fresh[0], mode, timeout=deadline.for_call())

    def device(self, timeout: Optional[float] = None) -> Optional[str]:
        """UUID of the GPU in whose memory this daemon keeps shards; None for host memory.

        Raises DeadlineExceeded after `timeout` seconds, after 30 without one.
        """
        deadline = None if timeout is None else Deadline(timeout)
        request = _proto.message("ListCheckpointsRequest")(page_size=1)
        reply = self._call("ListCheckpoints", request, "asking for the GPU", deadline)
        return reply.device_uuid or None

    def trainer_key(self, timeout: float = _CALL_SECONDS) -> bytes:
        """The group's key, which only its trainers can get. They sign their messages with it.

        Raises Unavailable (RANK_MISSING) before the daemon has joined its group.
        """
        request, doing = _proto.message("GetTrainerKeyRequest")(), "asking for the group's key"
        return self._call("GetTrainerKey", request, doing, Deadline(timeout)).key

    def inspect(
        self,
        source: Path,
        timeout: float = _CALL_SECONDS,
        *,
        part: Optional[str] = None,
        view: View = None,
        values: bool = False,
    ) -> Source:
        """Names, dtypes and shapes of a source, as the daemon reads its headers.

        part, view: see `load`. values: whether what is no tensor is listed, too.
        """
        deadline = Deadline(timeout)
        source = through(of_part(source, part), view)
        path = source_text(source)
        request = _inspect_request(path)
        request.values, request.view = values, view_of(source)
        with self._passing.files(path, deadline):
            return self._inspect(path, request, deadline)

    def _inspect(self, path: str, request, deadline: Deadline) -> Source:
        result = None
        while True:
            reply = self._call("InspectCheckpoint", request, f"inspecting {path}", deadline)
            if result is None:
                result = Source(
                    path_of(reply.index.source or path),
                    [(path_of(f.path), f.bytes) for f in reply.index.files],
                    reply.tensor_count,
                    reply.tensor_bytes,
                    dict(reply.index.metadata),
                    reply.source_identity,
                    remarks=list(reply.remarks),
                    format=reply.index.format,
                    value_count=reply.value_count,
                    opaque_count=reply.opaque_count,
                )
            elif reply.source_identity != result.identity:
                raise source_changed(path, "between two pages of its tensors", "inspect it again")
            _types.add_page(result, reply.index.tensors)
            result.values.update(reply.index.values)
            result.opaque.update(reply.index.opaque)
            if not reply.next_page_token:
                return result
            request.page_token = reply.next_page_token

    def check_readable(self, source: Path, timeout: float = _CALL_SECONDS) -> None:
        """Raises ckptd.Error, as `inspect` does, for what the daemon cannot read."""
        path, deadline = source_text(source), Deadline(timeout)
        with self._passing.files(path, deadline):
            self._call("InspectCheckpoint", _inspect_request(path), f"inspecting {path}", deadline)

    def plan(
        self,
        source: Path,
        *,
        layout: Layout = None,
        dtype: Union[None, str, "torch.dtype"] = None,
        keep_fp32: Sequence[str] = (),
        view: View = None,
        timeout: float = _CALL_SECONDS,
    ) -> Plan:
        """Dry run: bytes per rank and file, and peak memory. Nothing is loaded.

        layout, dtype, keep_fp32, view: as in `load`. Raises ckptd.Error for what could not be loaded,
        DeadlineExceeded after `timeout` seconds.
        """
        deadline = Deadline(timeout)
        source = through(source, view)
        path = source_text(source)
        request = _proto.message("PlanLoadRequest")()
        request.spec.source, request.spec.job_key, request.spec.view = path, job_key(), view_of(source)
        _layout.fill_layout(request.spec.layout, layout)
        _layout.fill_policy(request.spec.dtype_policy, dtype, keep_fp32)
        with self._passing.files(path, deadline):
            reply = self._call("PlanLoad", request, f"planning a load of {path}", deadline)
        return _types.plan_of(reply)

    def plan_devices(
        self,
        source: Path,
        *,
        max_memory: Union[str, Mapping[Device, Union[int, str]]],
        way: str = "auto",
        no_split: Sequence[str] = (),
        order: Sequence[str] = (),
        tied: Optional[Mapping[str, str]] = None,
        dtype: Union[None, str, "torch.dtype"] = None,
        keep_fp32: Sequence[str] = (),
        timeout: float = _CALL_SECONDS,
    ) -> DeviceMap:
        """The device of one process on which each module would be. Nothing is loaded or built.

        max_memory: bytes or "20GiB" per device, as accelerate takes it, or "0=20GiB,cpu=64GiB".
        way: "auto", "balanced", "balanced_low_0" or "sequential". no_split: patterns of modules
        that stay in one piece. order: patterns of modules, first to last, where their names do
        not tell. tied: further names of tensors. dtype, keep_fp32: as in `load`. Raises
        InvalidArgument INVALID_REQUEST for what cannot be planned, DeadlineExceeded after
        `timeout` seconds.
        """
        deadline = Deadline(timeout)
        request = _device_map.request_for(
            source, way, max_memory, no_split, order, tied, dtype, keep_fp32
        )
        request.spec.job_key = job_key()
        doing = f"planning devices for {request.spec.source}"
        with self._passing.files(request.spec.source, deadline):
            reply = self._call("PlanLoad", request, doing, deadline)
        return _device_map.device_map_of(reply.device_map)

    def verify(
        self, checkpoint: Union[str, Checkpoint], timeout: float = _LOAD_SECONDS
    ) -> Verification:
        """Has the daemon compute the digests of its shard again and compare."""
        name = _name(checkpoint)
        reply = self._call(
            "VerifyCheckpoint",
            _proto.message("VerifyCheckpointRequest")(name=name),
            f"verifying {name}",
            Deadline(timeout),
        )
        return Verification(
            reply.tensor_count,
            reply.bytes,
            tuple(reply.mismatched),
            reply.rank,
            tuple(map(path_of, reply.files)),
        )

    def acquire(
        self,
        checkpoint: Union[str, Checkpoint],
        mode: str = "shared",
        *,
        timeout: float = _CALL_SECONDS,
    ) -> _shard.Shard:
        """This rank's shard of an ACTIVE checkpoint, mapped into this process. See Shard.

        mode: "shared", "private" or "exclusive". Raises FailedPrecondition (NOT_ACTIVE) and
        other ckptd.Errors of the daemon, DeadlineExceeded after `timeout` seconds.
        """
        name, number = _name(checkpoint), mode_number(mode)
        shard = _shard.acquire(
            self._connection, name, number, Deadline(timeout), self._load_ids.get(name)
        )
        self._load_ids.pop(name, None)
        return shard


def _inspect_request(path: str):
    return _proto.message("InspectCheckpointRequest")(source=path, job_key=job_key())


def _name(checkpoint: Union[str, Checkpoint]) -> str:
    name = checkpoint.name if isinstance(checkpoint, Checkpoint) else str(checkpoint)
    return name if name.startswith("checkpoints/") else f"checkpoints/{name}"
