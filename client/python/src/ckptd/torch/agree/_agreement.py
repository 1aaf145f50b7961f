"""Agreement of the ranks of a process group over its key-value store.

The store replaces collectives: it works with any backend, its waits have deadlines, and a
rank that fails can tell the ranks that wait for it why. One call of a loading function is
one round of up to three stages:

    with agree("loading a state dict", timeout) as group:
        text = group.announcement(make)  # rank 0's, on every rank
        group.vote(1)                    # returns when every rank has come here
        group.vote(2)

A stage ends in the same way on all ranks: with rank 0's announcement, with "go on", or with
the first failure. An exception that leaves the block on one rank is raised on every rank.
One thread per process may call it. When a process ends, the ranks of its host notice within
a second. Ranks elsewhere learn it if the process could still tell.

Ranks prove their messages by a key from their daemons (see _message_auth). A rank that
reaches no daemon can only say so. If the caller allowed it, all ranks then use the original
function, in rounds without a key.

A call is identified by its function and a count: the third call of a function is the third
one on every rank. If it fails on one rank it fails on all, however they came there. A round
that ends well closes all calls before it, also those that only some ranks had made. Ranks
that wait for each other in different calls are told at once. Failures before a round begins
reach the other ranks by collective_call() and local_preparation().
"""

import atexit
import contextlib
import datetime
import os
import socket
import sys
import time
import weakref
from typing import Callable, Iterator, NamedTuple, Optional, Tuple

import torch.distributed as dist

from ... import _client, _errors
from ..._rpc import Deadline
from .. import _daemon
from ..compat import _native_fallback, _torch_internals
from ._failures import RemoteFailure, serialise
from ._message_auth import MessageAuth
from ._round import AgreementRound, CollectiveCall, SingleProcess
from ._store_state import Failure, FailureBoard, StoreState

_AT_EXIT = 2.0  # seconds by which the end of a process may be delayed
_PAUSE = 0.05  # seconds between two requests for the key


class OwnDaemon(NamedTuple):
    """The daemon of this rank, as in load_into."""

    address: Optional[str] = None
    client: Optional[_client.Client] = None


# The state, and a weak reference to its store. The store must end with the process group: rank 0's
# listens as long as it lives, and torch would reuse it, with old addresses, for the next group.
_state: Optional[Tuple[weakref.ref, StoreState]] = None
_forked = False  # whether the process group, and its rank, belong to the parent process


def _after_fork() -> None:
    global _forked
    _forked = _is_distributed()


os.register_at_fork(after_in_child=_after_fork)


def _current_state() -> StoreState:
    global _state
    store = _torch_internals.default_store()
    if _state is None or _state[0]() is not store:
        reference = weakref.ref(store, _forget)
        _state = reference, StoreState(dist.PrefixStore("ckptd", store), dist.get_rank())
    return _state[1]


def _forget(store: weakref.ref) -> None:
    global _state
    if _state is not None and _state[0] is store:
        _state = None


def _on_exit() -> None:
    """Tells the ranks that wait for this one, now or later, why it does not come."""
    if _forked or not _is_distributed():
        return
    error = getattr(sys, "last_value", None)
    why = "its process has ended"
    if error is not None:
        why = f"its process ended: {type(error).__name__}: {error}"
    rank = dist.get_rank()
    lost = _errors.Aborted(
        f"{why}; see its log, and start the job again", "RANK_LOST", {"rank": str(rank)}
    )
    with contextlib.suppress(Exception):  # the store may be gone already
        if not _is_served(_torch_internals.default_store()):
            return  # torch would print a trace for each attempt to reach it
        store = dist.PrefixStore("ckptd", _torch_internals.default_store())
        store.set_timeout(datetime.timedelta(seconds=_AT_EXIT))
        known = _state is not None and _state[0]() is _torch_internals.default_store()
        board = FailureBoard(store, _state[1].auth if known else MessageAuth())
        board.tell(rank, Failure(serialise(lost, rank), lost=True))


def _is_served(store) -> bool:
    """Whether a TCPStore still has a listener. Other stores need none."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return True
    try:
        socket.create_connection((store.host, store.port), _AT_EXIT / 2).close()
    except OSError:
        return False
    return True


atexit.register(_on_exit)


@contextlib.contextmanager
def agree(
    doing: str,
    deadline: Deadline,
    must_match: str = "",
    own_daemon: Optional[OwnDaemon] = None,
    own_failure: Optional[BaseException] = None,
) -> Iterator[object]:
    """One round. Raises on every rank the error of the first rank that failed.

    must_match: text that must be equal on all ranks, such as the source. own_daemon: gives the
    key; None for a round in which ranks only wait for each other. own_failure: the error that
    keeps this rank from taking part.
    """
    if not _is_distributed():
        yield SingleProcess()
        return
    group = None
    try:
        state = _current_state()
        with contextlib.ExitStack() as round_ends:
            group = _round_for(state, doing, deadline)
            state.count(*group.call)
            group.arrive()
            if own_failure is not None:
                _fetch_key_soon(state, own_daemon, own_failure)
                raise own_failure
            if own_daemon is None:
                group.auth = MessageAuth()
            else:
                _use_key_of_daemon(state, group, own_daemon, must_match, deadline, round_ends)
            state.board.clear(state.rank)
            group.enter(must_match)
            yield group
            state.ended_well(*group.call)
    except RemoteFailure as remote_failure:
        raise remote_failure.error from None
    except dist.DistError as error:
        raise _errors.Aborted(
            f"{doing}: the process group's store is gone, and with it the process that keeps it, "
            "rank 0's or the launcher's; see its log, and start the job again",
            "RANK_LOST",
        ) from error
    except BaseException as error:
        if group is not None:
            with contextlib.suppress(dist.DistError):
                group.fail(error)
                _prefer_first_failure(group, error)
        raise


def _use_key_of_daemon(
    state, group, own_daemon: OwnDaemon, must_match: str, deadline: Deadline, round_ends
) -> None:
    """Gives the state and the round the daemon's key, and the round a connection to the daemon."""
    try:
        own = _daemon.connected(own_daemon.address, own_daemon.client, deadline, group.rank)
        group.client = round_ends.enter_context(own)
        state.use_key(_key_of(group, deadline))
    except _errors.Error:
        group.check_same(must_match)  # first: this rank alone may use the original function
        raise


def _key_of(group: AgreementRound, deadline: Deadline) -> bytes:
    """The daemon's key for trainers, once it has joined its group. Raises another rank's failure."""
    while True:
        try:
            return group.client.trainer_key(deadline.for_call())
        except _errors.Unavailable as error:
            if error.reason != "RANK_MISSING" or deadline.passed():
                raise
        failed = group.failure()
        if failed is not None:
            raise RemoteFailure(failed)
        time.sleep(_PAUSE)


def _fetch_key_soon(state: StoreState, own_daemon: Optional[OwnDaemon], error: BaseException) -> None:
    """Fetches the key if that takes no wait: without it other ranks learn only the kind of `error`."""
    if own_daemon is None or state.auth.key is not None:
        return
    if getattr(error, "reason", "") == "DAEMON_UNREACHABLE":
        return
    soon = Deadline(_AT_EXIT)
    with contextlib.suppress(_errors.Error):
        with _daemon.connected(own_daemon.address, own_daemon.client, soon, state.rank) as own:
            state.use_key(own.trainer_key(soon.for_call()))


def _prefer_first_failure(group: AgreementRound, error: BaseException) -> None:
    """Raises the round's first failure where `error` would let this rank alone use the original function."""
    first = group.failure()
    unserved = _native_fallback.is_unserved
    if unserved(error) and first is not None and not unserved(first):
        raise first from error


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _round_for(state: StoreState, doing: str, deadline: Deadline) -> AgreementRound:
    """The round of this process's next call of `doing`."""
    call = CollectiveCall(doing, state.calls_made.get(doing, 0) + 1)
    return AgreementRound(state, call, deadline, state.auth)


@contextlib.contextmanager
def collective_call(doing: str, own_daemon: OwnDaemon) -> Iterator[None]:
    """Wraps a call that all ranks make: if it fails here before its round, it fails on all ranks."""

    def tell(state: StoreState, error: Exception) -> None:
        _fetch_key_soon(state, own_daemon, error)
        group = _round_for(state, doing, Deadline(_AT_EXIT))
        state.count(*group.call)
        group.fail_before_entering(error)

    with _tell_failure_outside_round(tell):
        yield


@contextlib.contextmanager
def local_preparation(doing: str, own_daemon: OwnDaemon) -> Iterator[None]:
    """Wraps work of one rank alone, perhaps for a later call: ranks that wait are told why it failed."""

    def tell(state: StoreState, error: Exception) -> None:
        _fetch_key_soon(state, own_daemon, error)
        failed = RuntimeError(f"{doing} failed there before: {error}")
        state.board.tell(state.rank, Failure(serialise(failed, state.rank), lost=False))

    with _tell_failure_outside_round(tell):
        yield


@contextlib.contextmanager
def _tell_failure_outside_round(tell: Callable[[StoreState, Exception], None]) -> Iterator[None]:
    """Calls tell() if the block raises before it has begun a round."""
    if not _is_distributed():
        yield
        return
    before = None
    with contextlib.suppress(dist.DistError):  # the round will say that the store is gone
        before = dict(_current_state().calls_made)
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):  # which would hide the error
            if before is not None and _current_state().calls_made == before:
                tell(_current_state(), error)
        raise
