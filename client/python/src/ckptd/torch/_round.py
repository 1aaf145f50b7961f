"""One round of the ranks over a process group's store. See _agree, which begins them."""

import contextlib
import json
import logging
import time
from typing import Callable, Iterable, List, NamedTuple, Optional, Sequence

import torch.distributed as dist

from .._rpc import Deadline, in_seconds
from ._failures import Board, Failure, Heard, as_text, from_text, told_by
from ._neighbours import Neighbours

_LOG = logging.getLogger("ckptd")
_STAGES = 3
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1  # seconds
_LOOK_EACH = 1.0  # at the neighbours
_SAY_AFTER = 6.0, 7.5  # rank 0, which looks who has come; the others, which go by that
_GRACE = 5.0  # seconds for a rank to come after a mistake


class Call(NamedTuple):
    """A call that a round is for."""

    function: str  # and what it is of, where that must be the same on all ranks
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

    def __init__(self, store, number: int, doing: str, deadline: Deadline):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store, self._number, self._doing, self._deadline = store, number, doing, deadline
        self._neighbours, self._board = Neighbours(store, self.rank), Board(store)
        self._began = time.monotonic()

    def _key(self, what: object) -> str:
        return f"{self._number}/{what}"

    def past(self) -> Optional[Call]:
        """The call of a round that has failed and that this rank has no part in; None for others.

        It is another function's, or failed because this rank's own did before. Raises Heard
        when the round failed as its rank's process ended.
        """
        failed = self._ended(_STAGES - 1)
        if not failed or not self._store.check([self._key("call")]):
            return None
        there = Call(*json.loads(self._store.get(self._key("call"))))
        if there.function == self._doing:
            return there if told_by(failed) == self.rank else None
        if self._store.check([self._key("astray")]):
            return None
        error = from_text(failed)
        if getattr(error, "reason", "") == "RANK_LOST":
            raise Heard(error)
        return there

    def enter(self, times: int) -> None:
        """times: how often this process has made the call `doing`, with this one.

        Raises RuntimeError when another rank has come to this round by another call, or by
        another one of the same function: its values would be those of another model.
        """
        mine = Call(self._doing, times)
        there = self._claim(mine)
        self._store.set(self._key(f"here/{self.rank}"), b"1")
        if there == mine:
            return
        self._store.set(self._key("astray"), b"1")
        raise RuntimeError(
            f"{self._doing}: the ranks are not at the same call: here it is {mine}, elsewhere "
            f"{there}; one of them made a call that the others did not make, or that failed "
            "there alone: all ranks must make the same calls in the same order, so start the job "
            "again"
        )

    def _claim(self, mine: Call) -> Call:
        """The call that this round is for: the first that came."""
        first = self._store.compare_set(self._key("call"), "", json.dumps(mine))
        return Call(*json.loads(first))

    def tell(self, error: BaseException, times: int, certain: bool) -> bool:
        """This rank's call failed before it came: ends the round with that if it is for this call.

        certain: and makes it one for this call if it is for none. Returns whether it was ended.
        """
        if not certain and not self._store.check([self._key("call")]):
            return False
        mine = Call(self._doing, times)
        if self._claim(mine) != mine:
            return False
        self._store.set(self._key(f"here/{self.rank}"), b"1")
        self.fail(error)
        return True

    def note(self, error: Exception, ends: str) -> None:
        """This rank's call failed, and is no part of this round unless that is for call `ends`."""
        self._board.tell(self.rank, self._number, Failure(as_text(error, self.rank), ends))

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
        self._hear(stage)

    def _look_at_neighbours(self) -> None:
        lost = self._neighbours.lost()
        if lost:
            self.fail(lost)
        for rank, failure in self._board.of(self._number).items():
            waited = time.monotonic() - self._began
            ends = failure.ends and self._doing.startswith(failure.ends)
            if ends and waited > _GRACE and self._absent([rank]):
                self._end_all(failure.text)

    def _hear(self, stage: int) -> None:
        """Raises what `stage` has ended with, if that was a failure."""
        text = self._ended(stage)
        if text:
            raise Heard(from_text(text))

    def _ended(self, stage: int) -> str:
        """With which failure `stage` has ended; "" with none, or not yet."""
        key = self._key(stage)
        return self._store.get(key).decode()[1:] if self._store.check([key]) else ""

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
        failures = self._board.of(self._number)
        why = [str(from_text(failures[rank].text)) for rank in ranks if rank in failures]
        return f"{what} ({why[0]})" if why else what


def _ordinal(number: int) -> str:
    endings = {} if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th')}"
