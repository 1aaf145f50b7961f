"""One round of the ranks over a process group's store. See _agreement, which begins them."""

import contextlib
import json
import logging
import secrets
import time
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import torch.distributed as dist

from ..._rpc import Deadline, in_seconds
from ._failures import RemoteFailure, deserialise, serialise
from ._message_auth import MessageAuth, digest
from ._store_state import (
    StoreState,
    check_long_value,
    delete_long_value,
    get_long_value,
    get_values,
    set_long_value,
    set_values,
)

_LOG = logging.getLogger("ckptd")
_STAGES = 3
_WELL = "well"  # the end of a stage without a failure
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.1  # seconds between two looks at the store
_FEW = 64  # ranks; more of them pause longer, so that the store gets as many requests
_CHECK_EACH = 1.0  # seconds between two checks of the other processes
_SAY_AFTER = 6.0, 7.5  # seconds: rank 0, which looks who has come; other ranks, which read its list


class CollectiveCall(NamedTuple):
    """A call that all ranks make. It identifies their round."""

    function: str
    times: int  # how often it was made, this one included

    def __str__(self) -> str:
        return f"{self.function} for the {_ordinal(self.times)} time"


class SingleProcess:
    """Stands for an AgreementRound where there is one process, which has no one to agree with."""

    rank, size, client = 0, 1, None

    def announcement(self, make: Callable[[], str]) -> str:
        return make()

    def vote(self, stage: int, says: str = "") -> str:
        return digest(digest(says))

    def check_others(self, stage: int) -> None:
        pass

    def forget_announcement(self) -> None:
        pass


class AgreementRound:
    """One round among all ranks of the default process group.

    Replays are refused: each rank votes with a random challenge, and rank 0 answers it when all
    have voted. An answer names one challenge and one announcement, and gives the text that the
    votes of the next stage must name. auth has no key in a round in which ranks only wait.
    """

    client: Optional[Any] = None  # connection to the daemon that gave the key, during the round

    def __init__(self, state: StoreState, call: CollectiveCall, deadline: Deadline, auth: MessageAuth):
        self.rank, self.size = state.rank, dist.get_world_size()
        self.call, self._state, self._store = call, state, state.store
        self._deadline, self.auth = deadline, auth
        self._must_match, self._round, self._announcement_mac = "", "", ""
        self._challenge = secrets.token_hex(8)
        self._says = self._all_say = ""  # digests of what this rank, and all ranks, said in a vote

    def _key(self, what: object) -> str:
        return f"{self.call.function}/{self.call.times}/{what}"

    def arrive(self) -> None:
        """Says that this rank has come. Call it first: others then list it no longer as missing."""
        self._store.set(self._key(f"here/{self.rank}"), b"1")

    def enter(self, must_match: str) -> None:
        """Takes part. must_match: text that must be equal on all ranks.

        Raises RuntimeError if it is not equal, or if another rank waits in a different call.
        """
        self._must_match = must_match
        self._open()
        self._raise_failure_of(_STAGES - 1)
        self.check_same(must_match)
        self._check_no_other_call(_STAGES - 1)

    def check_same(self, must_match: str) -> None:
        """Raises RuntimeError if another rank passed other text. The votes prove that none did."""
        key, brief = self._key("of"), digest(must_match)
        mine = self.auth.sign(key, must_match if self.auth.key else brief)
        kept = self._store.compare_set(key, "", mine)
        if MessageAuth.body(kept) in (must_match.encode(), brief.encode()):
            return
        there = self.auth.read_if_proven(key, kept)
        if there is None:
            there = "something else"
        raise RuntimeError(
            f"{self.call.function}: the ranks do not ask for the same: here it is "
            f"{must_match or 'nothing of that kind'}, elsewhere {there or 'nothing of that kind'}; pass "
            "the same on every rank"
        )

    def _open(self) -> None:
        self.arrive()
        mine = str(self.rank)
        if self._store.compare_set(self._key("opened"), "", mine).decode() == mine:
            self._state.open(*self.call)

    def fail_before_entering(self, error: BaseException) -> None:
        """Replaces enter() where this rank's call failed before it."""
        self.fail(error)  # first: ranks in other calls would else take it for a rank that waits
        self._open()

    def announcement(self, make: Callable[[], str]) -> str:
        """Stage 0: rank 0's make(), on every rank. A vote must follow, which proves that it is not a replay."""
        key = self._key("announcement")
        if self.rank == 0:
            said = make()
            kept = self.auth.sign(key, said).encode()
            check_long_value(kept)
            set_long_value(self._store, key, kept)
            self._end_well(0)
        else:
            self._wait(0, key)
            kept = get_long_value(self._store, key)
            said = self._read_value("rank 0's announcement", key, kept)
        self._announcement_mac = MessageAuth.mac_of(kept)  # binds the following votes to it
        return said

    def vote(self, stage: int, says: str = "") -> str:
        """Returns when every rank has called it. Raises if one of them failed before.

        The result is a digest of what all ranks say, and the same on all ranks.
        """
        self._says = digest(says)
        if self.rank == 0:
            self._wait(stage)
            return self._all_say
        key, name = self._ballot(stage, self.rank)
        self._store.set(key, self.auth.sign(name, f"{self._challenge} {self._says}").encode())
        key, name = self._answer(stage, self.rank, self._challenge)
        self._wait(stage, key)
        answer = self._read("rank 0's answer, or its announcement before", key, name)
        self._round, _, self._all_say = answer.partition(" ")
        return self._all_say

    def _ballot(self, stage: int, rank: int) -> Tuple[str, str]:
        """(key in the store, name that its proof covers) of a rank's vote."""
        key = self._key(f"vote/{stage}/{rank}")
        return key, f"{key} {self._round} {self._must_match}"

    def _answer(self, stage: int, rank: int, challenge: str) -> Tuple[str, str]:
        key = self._key(f"answer/{stage}/{rank}")
        return key, f"{key} {challenge} {self._round} {self._announcement_mac}"

    def _count(self, stage: int) -> bool:
        """Rank 0 ends `stage` well and answers all ranks, if all have voted. Returns whether it did."""
        ballots = [self._ballot(stage, rank) for rank in range(1, self.size)]
        if not self._store.check([key for key, _ in ballots]):
            return False
        values = get_values(self._store, [key for key, _ in ballots])
        votes = [
            self._read_value(f"rank {rank}'s vote", name, value).partition(" ")
            for rank, ((_, name), value) in enumerate(zip(ballots, values), 1)
        ]
        if not self._end_well(stage):
            return False
        self._all_say = digest(" ".join([self._says, *(said for _, _, said in votes)]))
        following, answers = secrets.token_hex(8), {}
        for rank, (challenge, _, _) in enumerate(votes, 1):
            key, name = self._answer(stage, rank, challenge)
            answers[key] = self.auth.sign(name, f"{following} {self._all_say}")
        set_values(self._store, answers)
        self._round = following
        return True

    def _is_over(self, stage: int, then: str) -> bool:
        """Whether `stage` has ended well and the key `then` exists. Raises the stage's failure."""
        if self.rank == 0 and self._count(stage):
            return True
        if not self._store.check([self._key(stage)]):
            return False
        self._raise_failure_of(stage)
        return self.rank > 0 and self._store.check([then])  # rank 0 itself ends stages well

    def _read(self, what: str, key: str, name: str) -> str:
        return self._read_value(what, name, self._store.get(key))

    def _read_value(self, what: str, name: str, value: bytes) -> str:
        return self.auth.verify(f"{self.call.function}: {what}", name, value)

    def _end_well(self, stage: int) -> bool:
        """Ends `stage` well. Returns False if it had failed before."""
        key = self._key(stage)
        kept = self._store.compare_set(key, "", self.auth.sign(key, _WELL))
        return self._failure_in(stage, kept) == _WELL

    def _failure_in(self, stage: int, value: bytes) -> str:
        what = f"{self.call.function}: the end of stage {stage}"
        return self.auth.verify_failure(what, self._key(stage), value)

    def fail(self, error: BaseException) -> None:
        """Ends every stage that has not ended with `error`; the first failure wins."""
        self._fail_all_stages(serialise(error, self.rank))

    def failure(self) -> Optional[Exception]:
        """The failure of this round, or None."""
        text = self._ended(_STAGES - 1)
        return deserialise(text) if text else None

    def forget_announcement(self) -> None:
        """Deletes the announcement. Call it when all ranks have it: a store lives as long as the job."""
        if self.rank == 0:
            with contextlib.suppress(Exception):  # some stores cannot delete
                delete_long_value(self._store, self._key("announcement"))

    def _fail_all_stages(self, text: str) -> None:
        for stage in range(_STAGES):
            key = self._key(stage)
            self._store.compare_set(key, "", self.auth.sign(key, text))

    def _check_no_other_call(self, stage: int) -> None:
        """Raises RuntimeError if another rank waits in another call: neither would ever end."""
        ahead = self._state.calls_ahead()
        # A rank that has left this round may be in its next call already.
        if not ahead or self._ended(stage) is not None:
            return
        for there in (CollectiveCall(*call) for call in ahead):
            other = AgreementRound(self._state, there, self._deadline, self.auth)
            if other._ended(_STAGES - 1) is not None:
                continue
            error = RuntimeError(
                f"{self.call.function}: the ranks are not at the same call: here it is {self.call}, "
                f"elsewhere {there}; all ranks must make the same calls in the same order"
            )
            other.fail(error)
            raise error

    def _wait(self, stage: int, then: str = "") -> None:
        said, began = False, time.monotonic()
        looked = began
        # A loop, because a store's own wait logs each of its timeouts as an error.
        while not self._is_over(stage, then):
            now = time.monotonic()
            pause = (_SHORTEST_PAUSE + (now - began) / 40) * max(1, self.size / _FEW)
            time.sleep(min(_LONGEST_PAUSE, pause))
            if now - looked > _CHECK_EACH:
                looked = now
                self._check_other_processes()
                self._check_no_other_call(stage)
            if self._deadline.passed():
                late = self._deadline.exceeded(self.call.function, self._describe_missing())
                self.fail(late)
                self._raise_failure_of(stage)
                raise late  # the stage ended well, but rank 0's answer is missing
            if not said and now - began > _SAY_AFTER[self.rank > 0]:
                said = True
                _LOG.warning(
                    "%s: rank %d is still waiting, after %.0f s, for %s; it gives up after %s",
                    self.call.function,
                    self.rank,
                    now - began,
                    self._describe_awaited(stage),
                    in_seconds(self._deadline.timeout),
                )

    def check_others(self, stage: int) -> None:
        """Raises if `stage` has failed. For a rank that waits for something else meanwhile.

        A rank that waits for the daemons learns their failures from them, but failures of
        the other ranks' processes only here.
        """
        self._check_other_processes()
        self._raise_failure_of(stage)

    def _check_other_processes(self) -> None:
        # A process that could tell why it ended has told it before.
        for rank, failure in self._state.board.read().items():
            if failure.lost and self._absent([rank]):
                self._fail_all_stages(failure.text)
        local_processes = self._state.local_processes
        lost = local_processes.lost() if local_processes else None
        if lost:
            self.fail(lost)

    def _raise_failure_of(self, stage: int) -> None:
        """Raises the failure of `stage`, if it has one."""
        text = self._ended(stage)
        if text:
            raise RemoteFailure(deserialise(text))

    def _ended(self, stage: int) -> Optional[str]:
        """The failure of `stage` as text; "" if it ended well, None if it has not ended."""
        key = self._key(stage)
        if not self._store.check([key]):
            return None
        text = self._failure_in(stage, self._store.get(key))
        return "" if text == _WELL else text

    def _describe_awaited(self, stage: int) -> str:
        """Missing ranks, for people. Rank 0 looks for all ranks, since a look asks for each single one."""
        key = self._key(f"awaited/{stage}")
        if self.rank == 0:
            ranks = self._absent(range(self.size))
            self._store.set(key, self.auth.sign(key, json.dumps(ranks)).encode())
            return self._describe_ranks(ranks)
        if not self._store.check([self._key("here/0")]):
            return self._describe_ranks([0])
        if not self._store.check([key]):
            return self._describe_ranks([])
        ranks = self.auth.read_if_proven(key, self._store.get(key)) or "[]"
        return self._describe_ranks(self._absent(json.loads(ranks)))

    def _absent(self, ranks: Iterable[int]) -> List[int]:
        return [rank for rank in ranks if not self._store.check([self._key(f"here/{rank}")])]

    def _describe_missing(self) -> str:
        return self._describe_ranks(self._absent(range(self.size)))

    def _describe_ranks(self, ranks: Sequence[int]) -> str:
        """Names missing ranks, and a failure of theirs that may be the cause, for people."""
        if not ranks:
            return "the other ranks"
        what = "rank " if len(ranks) == 1 else "ranks "
        what += ", ".join(map(str, ranks)) + ", which must make the same call"
        failures = self._state.board.read()
        why = [str(deserialise(failures[rank].text)) for rank in ranks if rank in failures]
        return f"{what} ({why[0]})" if why else what


def _ordinal(number: int) -> str:
    endings = {} if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{endings.get(number % 10, 'th')}"
