"""Agreement of the ranks of a process group over its key-value store.

No collectives: a store works with any backend, its waits have deadlines, and a rank
that fails can tell those that wait for it why. One call of a loading function is one
round of up to three stages:

    with agree("loading a state dict", timeout) as group:
        word = group.word(make)   # rank 0's, on every rank
        group.vote(1)             # returns when every rank has come here
        group.vote(2)

A stage ends for all ranks alike: with what rank 0 said or "go on", or with the first
failure. An exception that leaves the block on one rank is raised on every rank.
Called by one thread per process. A process that ends takes its rank out: others of its
host see that within a second, those elsewhere if it could still say so.

What fails on one rank before the round is begun, ranks hear by telling().
"""

import atexit
import contextlib
import datetime
import enum
import sys
from typing import Dict, Iterator

import torch.distributed as dist

from .. import _errors
from .._rpc import Deadline
from . import _private
from ._failures import Heard
from ._round import Alone, Group

_AT_EXIT = 2.0  # seconds a process may take longer to end

_rounds = 0  # so many this process has been in: all ranks make the same calls
_times: Dict[str, int] = {}  # how often each call was made


def _on_exit() -> None:
    """Tells ranks that go on to a next call why this one will not come."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    error = getattr(sys, "last_value", None)
    why = "its process has ended"
    if error is not None:
        why = f"its process ended: {type(error).__name__}: {error}"
    lost = _errors.Aborted(
        f"{why}; see its log, and start the job again", "RANK_LOST", {"rank": str(dist.get_rank())}
    )
    with contextlib.suppress(Exception):  # the store may be gone already
        store = _private.default_store("ckptd")
        store.set_timeout(datetime.timedelta(seconds=_AT_EXIT))
        Group(store, _rounds + 1, "ending", Deadline(_AT_EXIT)).fail(lost)


atexit.register(_on_exit)


@contextlib.contextmanager
def agree(doing: str, deadline: Deadline) -> Iterator[object]:
    """One round. Raises what the first rank that failed raised, on every rank."""
    global _rounds
    if not _is_distributed():
        yield Alone()
        return
    group = None
    try:
        group = _next_round(doing, deadline)
        _rounds, _times[doing] = _rounds + 1, _times.get(doing, 0) + 1
        group.enter(_times[doing])
        yield group
    except Heard as heard:
        raise heard.error from None
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
        raise


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _next_round(doing: str, deadline: Deadline) -> Group:
    """The one that this process comes to by `doing`, past those that were for other calls."""
    global _rounds
    while True:
        group = Group(_private.default_store("ckptd"), _rounds + 1, doing, deadline)
        there = group.past()
        if there is None:
            return group
        _rounds += 1
        # That call counts as made here as well, or the next one would never be the same.
        _times[there.function] = max(there.times, _times.get(there.function, 0))


class Outside(enum.Enum):
    """What a call that failed on one rank, before its round, is to the other ranks."""

    PART = "they make it too: their round ends with it"
    MISTAKE = "they may make it too: the round that they wait in does, if this rank does not come"
    PREPARATION = "it was for a call to come: they read of it in the log"


@contextlib.contextmanager
def telling(doing: str, what: Outside) -> Iterator[None]:
    """Tells the other ranks when the block fails before its round is begun.

    doing: the round's, or that of a preparation.
    """
    before = _rounds
    try:
        yield
    except Exception as error:
        if _is_distributed() and _rounds == before:
            with contextlib.suppress(Exception):  # which would hide the error
                _tell(doing, error, what)
        raise


def _tell(doing: str, error: Exception, what: Outside) -> None:
    global _rounds
    group = _next_round(doing, Deadline(_AT_EXIT))
    times = _times.get(doing, 0) + 1
    if what is Outside.PREPARATION:
        group.note(RuntimeError(f"{doing} failed there before: {error}"), ends="")
    elif group.tell(error, times, what is Outside.PART):
        _rounds, _times[doing] = _rounds + 1, times
    else:
        group.note(error, ends=doing)
