"""A process's participation in a load that all ranks make: ranks tell each other their failures.

Everything goes through the daemons. Each participating process keeps a call open (JoinLoad), which
breaks when the process ends, however it ends. If the daemons do not support that (older versions,
too many clients), the load continues without.
"""

import contextlib
import hashlib
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional

from . import _errors, _proto
from ._errors import Error
from ._rpc import Connection, Deadline, in_seconds
from ._source import Path, join_part, path_of, source_text, split_part

if TYPE_CHECKING:
    from ._client import Client

_LOG = logging.getLogger("ckptd")
_LEAVE_SECONDS = 4.0  # usually enough for rank 0 to learn of a failure
# A rank that has its weights says so as long as a daemon can be slow: it would be taken for lost.
_PLACED_SECONDS = 30.0
_SAY_AFTER = 6.0
_LATER = 5.0  # further seconds in which the daemons report that time is up
_ABORTED = 10


class NoParticipant:
    """Replaces a Participant where there are no other ranks, or no way to learn of them."""

    failure: Optional[Error] = None  # another rank's failure, which this one must raise

    def raise_failure(self) -> None:
        """Raises another rank's failure, if there is one and this rank still waits."""

    def mark_resident(self) -> None:
        """Notes that the checkpoint is resident here, so that this rank waits for others only at a barrier."""

    @contextlib.contextmanager
    def cancel_on_failure(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Calls cancel(), on any thread, when another rank fails within the block."""
        yield


class Participant(NoParticipant):
    """See participate."""

    def __init__(self, connection: Connection, source: Path, deadline: Deadline, barrier: bool, needs_all: bool):
        self._connection, self._deadline, self._barrier = connection, deadline, barrier
        self._needs_all = needs_all or barrier
        self._id, self._alone = uuid.uuid4().hex, False
        self._source, request = _request(self._id, source, deadline, barrier)
        self._cancels: List[Callable[[], object]] = []
        self._call = connection.future("JoinLoad", request)
        self._call.add_done_callback(self._answered)

    def _answered(self, call) -> None:  # on a thread of gRPC
        import grpc

        if call.cancelled() or call.code() != grpc.StatusCode.OK:
            return
        answer = call.result()
        if not answer.HasField("failure"):
            return
        failure = answer.failure
        self.failure = _errors.make(
            failure.code, failure.message, failure.reason, dict(answer.facts)
        )
        for cancel in list(self._cancels):
            cancel()

    def mark_resident(self) -> None:
        self._alone = not self._needs_all

    def raise_failure(self) -> None:
        if self.failure is not None and not self._alone:
            raise self.failure

    @contextlib.contextmanager
    def cancel_on_failure(self, cancel: Callable[[], object]) -> Iterator[None]:
        self._cancels.append(cancel)
        if self.failure is not None:
            cancel()
        try:
            yield
        finally:
            self._cancels.remove(cancel)

    def failed(self, error: BaseException) -> None:
        """Tells other ranks of `error`. Never raises: failing that, they see this rank's call break."""
        if error is not self.failure:
            with contextlib.suppress(Exception):
                self._leave(error)

    def placed(self) -> None:
        """Tells other ranks that this one has placed its weights. With a barrier, waits until all have."""
        self.raise_failure()
        self._leave(None)
        if self._barrier:
            self._await_all()
        else:
            self._await_answer()

    def close(self) -> None:
        self._call.cancel()

    def _leave(self, error: Optional[BaseException]) -> None:
        if self._call.done():
            return  # the daemon has no call left for this rank
        request = _proto.message("LeaveLoadRequest")(participant=self._id)
        if error is not None:
            _fill_failure(request, error, self._source)
        doing = f"loading {self._source}: telling the other ranks how it ended"
        deadline = Deadline(_PLACED_SECONDS if error is None else _LEAVE_SECONDS)
        with contextlib.suppress(Error):  # this rank could not handle it
            self._connection.call("LeaveLoad", request, doing, deadline, False)

    def _await_answer(self) -> None:
        """Raises a failure that came before the daemon knew that this rank had left: it tells a process once."""
        import grpc

        with contextlib.suppress(grpc.FutureTimeoutError, grpc.FutureCancelledError):
            self._call.exception(timeout=_LEAVE_SECONDS)
            self._answered(self._call)  # may be on its way to the other thread
        self.raise_failure()

    def _await_all(self) -> None:
        import grpc

        said, end = False, Deadline(self._deadline.left() + _LATER)
        doing = f"loading {self._source} with a barrier"
        while not self._call.done():
            if end.passed():
                raise self._deadline.exceeded(doing, "the other ranks to place theirs")
            with contextlib.suppress(grpc.FutureTimeoutError):
                self._call.exception(timeout=min(end.for_call(), _SAY_AFTER))
                break
            if not said:
                _LOG.warning(
                    "%s: still waiting, after %.0f s, for other ranks to place theirs; it gives up "
                    "after %s",
                    doing,
                    _SAY_AFTER,
                    in_seconds(self._deadline.timeout),
                )
            said = True
        self.raise_failure()
        error = self._call.exception()
        if error is not None:
            raise self._connection.translate(error, doing, self._deadline)


def _request(number: str, source: Path, deadline: Deadline, barrier: bool):
    """(the source for sentences, JoinLoadRequest)"""
    request = _proto.message("JoinLoadRequest")(
        participant=number, pid=os.getpid(), barrier=barrier, job_key=job_key()
    )
    with contextlib.suppress(TypeError, ValueError, Error):  # the load will raise the error
        request.source = source_text(source)
        path, part = split_part(path_of(request.source))
        request.real_source = source_text(join_part(os.path.realpath(path), part))
    _fill_duration(request.process_age, _age())
    _fill_duration(request.timeout, deadline.left())
    return request.source, request


def job_key() -> str:
    """A key that is equal on all ranks of this job and differs in other jobs; "" if unknown.

    MASTER_ADDR is not part of it: ranks may spell one host in several ways. Jobs that share daemons
    have their first ranks on one host, and so differ in ports.
    """
    facts = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT")]
    return hashlib.sha256(os.fsencode("\0".join(facts))).hexdigest()[:32] if any(facts) else ""


def _fill_duration(duration, seconds: float) -> None:
    whole, fraction = divmod(seconds, 1)
    duration.seconds, duration.nanos = int(whole), int(fraction * 1e9)


def _age() -> float:
    """Age of this process in seconds."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    began = ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def _fill_failure(request, error: BaseException, source: str) -> None:
    failure = request.failure
    if isinstance(error, Error):
        numbers = {kind: number for number, kind in _errors.BY_NUMBER.items()}
        failure.code = next((numbers[t] for t in type(error).__mro__ if t in numbers), _ABORTED)
        failure.message, failure.reason = _sendable(error.message), error.reason
        request.facts.update({key: _sendable(value) for key, value in error.facts.items()})
        return
    failure.code, failure.reason = _ABORTED, "RANK_FAILED"
    if isinstance(error, Exception):
        what = f"it raised {type(error).__name__}: {error}; see its log"
    else:
        what = f"its process {os.getpid()} was interrupted ({type(error).__name__}); load again"
    failure.message = _sendable(f"loading {source}: {what}")


def _sendable(text: object) -> str:
    return str(text).encode(errors="backslashreplace").decode()


@contextlib.contextmanager
def participate(
    client: "Client", source: Path, deadline: Deadline, barrier: bool, needs_all: bool = False
) -> Iterator[NoParticipant]:
    """A block that is this rank's participation in a load of `source`.

    An exception that leaves the block reaches other ranks in their blocks. Their exceptions reach
    this one by raise_failure() and cancel_on_failure(). barrier: the block ends when it has ended
    well on every rank; it then raises another rank's failure, DeadlineExceeded with the missing
    ranks, and Unimplemented for older daemons. needs_all: it goes on to what needs every rank, so it
    raises their failures also where its own weights are resident.
    """
    participant = Participant(client._connection, source, deadline, barrier, needs_all)
    try:
        yield participant
        participant.placed()
    except BaseException as error:
        participant.failed(error)
        raise
    finally:
        participant.close()
