"""One round of the ranks over a process group's store. See _agree, which begins them."""

import contextlib
import json
import logging
import time
from typing import Callable, Iterable, List, NamedTuple, Optional, Sequence

import torch.distributed as dist

from .._rpc import Deadline, in_seconds
from ._failures import Heard, as_text, from_text
from ._shared import Shared

_LOG = logging.getLogger("ckptd")
_STAGES = 3
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.1  # seconds, for
_FEW = 64  # ranks at most; more of them ask one store as often together
_LOOK_EACH = 1.0  # at the neighbours
_SAY_AFTER = 6.0, 7.5  # rank 0, which looks who has come; the others, which go by that


class Call(NamedTuple):
    """A call that all ranks make, and so a round of theirs."""

    function: str
    times: int  # that it was made, with this one

    def __str__(self) -> str:
        return f"{self.function} for the {_ordinal(self.times)} time"


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

    def __init__(self, shared: Shared, call: Call, deadline: Deadline):
        self.rank, self.size = shared.rank, dist.get_world_size()
        self.call, self._shared, self._store = call, shared, shared.store
        self._deadline = deadline

    def _key(self, what: object) -> str:
        return f"{self.call.function}/{self.call.times}/{what}"

    def enter(self, of: str) -> None:
        """of: what the call is of, where that must be the same on all ranks.

        Raises RuntimeError when it is not, or when another rank waits in another call for
        this one.
        """
        self._open()
        self._hear(_STAGES - 1)
        there = self._store.compare_set(self._key("of"), "", f"={of}").decode()[1:]
        if there != of:
            raise RuntimeError(
                f"{self.call.function}: the ranks do not ask for the same: here it is "
                f"{of or 'nothing of that kind'}, elsewhere {there or 'nothing of that kind'}; pass "
                "the same on every rank"
            )
        self._look_elsewhere(_STAGES - 1)

    def _open(self) -> None:
        mine = str(self.rank)
        self._store.set(self._key(f"here/{mine}"), b"1")
        if self._store.compare_set(self._key("opened"), "", mine).decode() == mine:
            self._shared.open(*self.call)

    def fail_before(self, error: BaseException) -> None:
        """In place of enter(): this rank's call failed before it came."""
        self.fail(error)  # first, or those in other calls would take it for one that waits
        self._open()

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
        self._end_all(as_text(error, self.rank))

    def failure(self) -> Optional[Exception]:
        """What it has failed of; None while it has not."""
        text = self._ended(_STAGES - 1)
        return from_text(text) if text else None

    def forget_word(self) -> None:
        """To be called when all have it: a store lives as long as the job."""
        if self.rank == 0:
            with contextlib.suppress(Exception):  # not every store can
                self._store.delete_key(self._key("word"))

    def _end_all(self, text: str) -> None:
        for stage in range(_STAGES):
            self._end(stage, text)

    def _end(self, stage: int, text: str) -> None:
        self._store.compare_set(self._key(stage), "", f"={text}")

    def _look_elsewhere(self, stage: int) -> None:
        """Raises RuntimeError when another rank waits in another call, which would be for ever."""
        ahead = self._shared.ahead()
        # Who has gone on from this one may be at its next one already.
        if not ahead or self._ended(stage, "ended"):
            return
        for there in (Call(*call) for call in ahead):
            other = Group(self._shared, there, self._deadline)
            if other._ended(_STAGES - 1):
                continue
            error = RuntimeError(
                f"{self.call.function}: the ranks are not at the same call: here it is {self.call}, "
                f"elsewhere {there}; all ranks must make the same calls in the same order"
            )
            other.fail(error)
            raise error

    def _wait(self, stage: int) -> None:
        key, said, began = self._key(stage), False, time.monotonic()
        looked = began
        # Asked again and again, as a store's own wait reports each end of its patience as trouble.
        while not self._store.check([key]):
            now = time.monotonic()
            pause = (_SHORTEST_PAUSE + (now - began) / 40) * max(1, self.size / _FEW)
            time.sleep(min(_LONGEST_PAUSE, pause))
            if now - looked > _LOOK_EACH:
                looked = now
                self._look_at_others()
                self._look_elsewhere(stage)
            if self._deadline.passed():
                self.fail(self._deadline.exceeded(self.call.function, self._missing()))
            elif not said and now - began > _SAY_AFTER[self.rank > 0]:
                said = True
                _LOG.warning(
                    "%s: rank %d is still waiting, after %.0f s, for %s; it gives up after %s",
                    self.call.function,
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
        self._look_at_others()
        self._hear(stage)

    def _look_at_others(self) -> None:
        # Who could still say why it ends has said it before.
        for rank, failure in self._shared.board.read().items():
            if failure.lost and self._absent([rank]):
                self._end_all(failure.text)
        lost = self._shared.neighbours.lost()
        if lost:
            self.fail(lost)

    def _hear(self, stage: int) -> None:
        """Raises what `stage` has ended with, if that was a failure."""
        text = self._ended(stage)
        if text:
            raise Heard(from_text(text))

    def _ended(self, stage: int, well: str = "") -> str:
        """With which failure `stage` has ended; `well` if with none, "" if it has not."""
        key = self._key(stage)
        return self._store.get(key).decode()[1:] or well if self._store.check([key]) else ""

    def _awaited(self, stage: int) -> str:
        """Who has not come, for people. Rank 0 looks for all: a look asks for each rank."""
        key = self._key(f"awaited/{stage}")
        if self.rank == 0:
            ranks = self._absent(range(self.size))
            self._store.set(key, json.dumps(ranks).encode())
            return self._called(ranks)
        if not self._store.check([self._key("here/0")]):
            return self._called([0])
        if not self._store.check([key]):
            return self._called([])
        return self._called(self._absent(json.loads(self._store.get(key))))

    def _absent(self, ranks: Iterable[int]) -> List[int]:
        return [rank for rank in ranks if not self._store.check([self._key(f"here/{rank}")])]

    def _missing(self) -> str:
        return self._called(self._absent(range(self.size)))

    def _called(self, ranks: Sequence[int]) -> str:
        """Who has not come, and a failure of theirs that may be why, for people."""
        if not ranks:
            return "the other ranks"
        what = "rank " if len(ranks) == 1 else "ranks "
        what += ", ".join(map(str, ranks)) + ", which must make the same call"
        failures = self._shared.board.read()
        why = [str(from_text(failures[rank].text)) for rank in ranks if rank in failures]
        return f"{what} ({why[0]})" if why else what


def _ordinal(number: int) -> str:
    endings = {} if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th')}"
