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
"""

import atexit
import contextlib
import datetime
import json
import logging
import os
import sys
import time
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence

import torch.distributed as dist

from .. import _errors
from .._rpc import Deadline, in_seconds
from . import _private

_LOG = logging.getLogger("ckptd")
_STAGES = 3
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1  # seconds
_LOOK_EACH = 1.0  # at the neighbours
_SAY_AFTER = 6.0, 7.5  # rank 0, which looks who has come; the others, which go by that
_AT_EXIT = 2.0  # seconds a process may take longer to end
# What may cross from rank to rank: types that the functions stood in for raise, and ours.
_TYPES = {
    t.__name__: t for t in (KeyError, ValueError, TypeError, RuntimeError, OSError, MemoryError)
}
_TYPES.update({t.__name__: t for t in _errors.BY_NUMBER.values()})


class _Heard(Exception):
    """Another rank's failure; `error` is what to raise for it."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


def as_text(error: BaseException, rank: int) -> str:
    """A failure as it travels."""
    ours = isinstance(error, _errors.Error)
    kind = next((t.__name__ for t in type(error).__mro__ if t.__name__ in _TYPES), "RuntimeError")
    message = error.message if ours else str(error.args[0] if error.args else error)
    if type(error).__name__ not in _TYPES and not ours:
        message = f"{type(error).__name__}: {message}"
    reason = error.reason if ours else ""
    return json.dumps([rank, kind, message, reason, error.facts if ours else {}])


def from_text(text: str) -> Exception:
    """The exception to raise on another rank than the one where it happened."""
    rank, kind, message, reason, facts = json.loads(text)
    message = f"rank {rank}: {message}"
    made = _TYPES.get(kind, RuntimeError)
    if issubclass(made, _errors.Error):
        return made(message, reason, {**facts, "rank": str(rank)})
    return made(message)


class Alone:
    """The same for one process: nobody to agree with."""

    rank, size = 0, 1

    def word(self, make: Callable[[], str]) -> str:
        return make()

    def vote(self, stage: int) -> None:
        pass

    def look(self, stage: int) -> None:
        pass

    def forget_word(self) -> None:
        pass


class Group:
    """One round among all ranks of the default process group. See the module."""

    def __init__(self, store, number: int, doing: str, deadline: Deadline):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store, self._number, self._doing, self._deadline = store, number, doing, deadline
        self._neighbours = _Neighbours(store, self.rank)

    def _key(self, what: object) -> str:
        return f"{self._number}/{what}"

    def enter(self, times: int) -> None:
        """times: how often this process has made the call `doing`, with this one.

        Raises RuntimeError when another rank has come to this round by another call, or by
        another one of the same function: its values would be those of another model.
        """
        self._store.set(self._key(f"here/{self.rank}"), b"1")
        mine = f"{self._doing} for the {_ordinal(times)} time"
        first = self._store.compare_set(self._key("call"), "", mine).decode()
        if first != mine:
            raise RuntimeError(
                f"{self._doing}: the ranks are not at the same call: here it is {mine}, elsewhere "
                f"{first}; one of them made a call that the others did not make, or that failed "
                "there alone: all ranks must make the same calls in the same order, so start the job "
                "again"
            )

    def word(self, make: Callable[[], str]) -> str:
        """What rank 0's make() returns. Stage 0."""
        key = self._key("word")
        if self.rank == 0:
            said = make()
            self._store.set(key, said.encode())
            self._end(0, "")
            return said
        self._wait(0)
        return self._store.get(key).decode()

    def vote(self, stage: int) -> None:
        """Returns when every rank has called it, raises when one of them failed before."""
        if self._store.add(self._key(f"votes/{stage}"), 1) == self.size:
            self._end(stage, "")
        self._wait(stage)

    def fail(self, error: BaseException) -> None:
        """Ends every stage that has not ended with `error`; the first failure wins."""
        text = as_text(error, self.rank)
        for stage in range(_STAGES):
            self._end(stage, text)

    def forget_word(self) -> None:
        """To be called when all have it: a store lives as long as the job."""
        if self.rank == 0:
            with contextlib.suppress(Exception):  # not every store can
                self._store.delete_key(self._key("word"))

    def _end(self, stage: int, text: str) -> None:
        self._store.compare_set(self._key(stage), "", f"={text}")

    def _wait(self, stage: int) -> None:
        key, said, began = self._key(stage), False, time.monotonic()
        looked = began
        # Asked again and again, as a store's own wait reports each end of its patience as trouble.
        while not self._store.check([key]):
            now = time.monotonic()
            time.sleep(min(_LONGEST_PAUSE, _SHORTEST_PAUSE + (now - began) / 10))
            if now - looked > _LOOK_EACH:
                looked = now
                self._look_at_neighbours()
            if self._deadline.passed():
                self.fail(self._deadline.exceeded(self._doing, self._missing()))
            elif not said and now - began > _SAY_AFTER[self.rank > 0]:
                said = True
                _LOG.warning(
                    "%s: rank %d is still waiting, after %.0f s, for %s; it gives up after %s",
                    self._doing,
                    self.rank,
                    now - began,
                    self._awaited(stage),
                    in_seconds(self._deadline.timeout),
                )
        self._hear(stage)

    def look(self, stage: int) -> None:
        """Raises when `stage` has failed, or does now: of a rank that waits for something else.

        A rank that waits for the daemons hears of their failures from them, and of those of
        the other ranks' processes only here.
        """
        self._look_at_neighbours()
        if self._store.check([self._key(stage)]):
            self._hear(stage)

    def _look_at_neighbours(self) -> None:
        lost = self._neighbours.lost()
        if lost:
            self.fail(lost)

    def _hear(self, stage: int) -> None:
        """Raises what `stage` has ended with, if that was a failure."""
        text = self._store.get(self._key(stage)).decode()[1:]
        if text:
            raise _Heard(from_text(text))

    def _awaited(self, stage: int) -> str:
        """Who has not come, for people. Rank 0 looks for all: a look asks for each rank."""
        key = self._key(f"awaited/{stage}")
        if self.rank == 0:
            ranks = self._absent(range(self.size))
            self._store.set(key, json.dumps(ranks).encode())
            return _called(ranks)
        if not self._store.check([self._key("here/0")]):
            return _called([0])
        if not self._store.check([key]):
            return _called([])
        return _called(self._absent(json.loads(self._store.get(key))))

    def _absent(self, ranks: Iterable[int]) -> List[int]:
        return [rank for rank in ranks if not self._store.check([self._key(f"here/{rank}")])]

    def _missing(self) -> str:
        return _called(self._absent(range(self.size)))


def _ordinal(number: int) -> str:
    endings = {} if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th')}"


def _called(ranks: Sequence[int]) -> str:
    """Who has not come, for people."""
    if not ranks:
        return "the other ranks"
    what = "rank " if len(ranks) == 1 else "ranks "
    return what + ", ".join(map(str, ranks)) + ", which must make the same call"


_registered: set = set()  # ids of this process, and of those it was forked from


class _Neighbours:
    """Processes of the group on this host, by what they left in the store."""

    def __init__(self, store, rank: int):
        self._store, self._rank = store, rank
        self._host = f"host/{_host()}"
        self._known: List[tuple] = []
        if os.getpid() not in _registered:
            _registered.add(os.getpid())
            number = store.add(f"{self._host}/count", 1)
            mine = json.dumps([rank, os.getpid(), _started(os.getpid())])
            store.set(f"{self._host}/{number}", mine.encode())

    def lost(self) -> Optional[_errors.Error]:
        """What to say of a process that has ended; None while all live."""
        while self._store.check([f"{self._host}/{len(self._known) + 1}"]):
            text = self._store.get(f"{self._host}/{len(self._known) + 1}")
            self._known.append(tuple(json.loads(text)))
        for rank, pid, started in self._known:
            if rank != self._rank and _started(pid) != started:
                return _errors.Aborted(
                    f"waiting for rank {rank}: its process {pid} has ended; see its log for why, "
                    "and start the job again",
                    "RANK_LOST",
                    {"rank": str(rank)},
                )
        return None


def _host() -> str:
    """The same for processes that see each other's ids."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}-{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> Optional[str]:
    """When a process began, in ticks since boot; None once it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


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
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        yield Alone()
        return
    _rounds += 1
    _times[doing] = _times.get(doing, 0) + 1
    group = None
    try:
        group = Group(_private.default_store("ckptd"), _rounds, doing, deadline)
        group.enter(_times[doing])
        yield group
    except _Heard as heard:
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
