"""Messages during the wait for a load, and errors for its end."""

import logging
import time
from typing import Optional

from ._errors import FailedPrecondition, InvalidArgument, Unavailable
from ._rpc import in_seconds
from ._types import Checkpoint

_LOG = logging.getLogger("ckptd")
_SAY_AFTER = 6.0  # seconds; daemons send progress every two, changed or not


def check_active(checkpoint: Checkpoint, doing: str) -> None:
    if checkpoint.failure is not None or checkpoint.state == "FAILED":
        raise checkpoint.failure or FailedPrecondition(f"{doing}: it failed", "LOAD_FAILED")
    if checkpoint.state == "TAKEN":
        raise FailedPrecondition(
            f"{doing}: an EXCLUSIVE client has taken {checkpoint.name}, and the daemon holds its "
            "memory no more; load it again",
            "TAKEN",
            {"checkpoint": checkpoint.name},
        )
    if checkpoint.state != "ACTIVE":
        raise FailedPrecondition(
            f"{doing}: {checkpoint.name} is {checkpoint.state} and holds no weights any more; "
            "load it again",
            "NOT_ACTIVE",
            {"checkpoint": checkpoint.name},
        )


def with_open_advice(error: InvalidArgument) -> InvalidArgument:
    """`error` with advice for a process that is no trainer of the group."""
    return InvalidArgument(
        f"{error.message} (no layout was given: that is a whole copy on each rank of this process's "
        "WORLD_SIZE). Beside a running group, client.open(path) opens what this rank's daemon holds, "
        "client.list() names it",
        error.reason,
        error.facts,
    )


class ReplicaWarning:
    """Warns once, on rank 0, how much memory a load without a layout takes."""

    def __init__(self, doing: str):
        self._doing: Optional[str] = doing

    def look(self, checkpoint: Checkpoint) -> None:
        if self._doing is None or checkpoint.slab_bytes == 0:
            return
        if checkpoint.rank == 0:
            ranks = checkpoint.world_size
            _LOG.warning(
                "%s: no layout was given, so each of %d ranks gets a whole copy: %.1f MB here, %.1f MB "
                "in all; layout='fsdp:%d' gives each its part, client.open() what is resident",
                self._doing,
                ranks,
                checkpoint.slab_bytes / 1e6,
                checkpoint.slab_bytes * ranks / 1e6,
                ranks,
            )
        self._doing = None


class Reminder:
    """Warns for which ranks a load waits, once these have been the same for a while."""

    def __init__(self, doing: str, timeout: float):
        self._doing, self._timeout = doing, timeout
        self._ranks: tuple = ()
        self._since: Optional[float] = None  # None: warned already, or no rank is missing

    def look(self, checkpoint: Checkpoint) -> None:
        now, ranks = time.monotonic(), checkpoint.progress.waiting_ranks
        if ranks != self._ranks:
            self._ranks, self._since = ranks, now if ranks else None
        elif self._since is not None and now - self._since > _SAY_AFTER:
            _LOG.warning(
                "%s: still waiting, after %.0f s, for %s; it gives up after %s",
                self._doing,
                now - self._since,
                checkpoint.waits_for,
                in_seconds(self._timeout),
            )
            self._since = None


def restarted(doing: str, rank: int) -> Unavailable:
    return Unavailable(
        f"{doing}: the daemon of rank {rank} was restarted meanwhile and has forgotten the load; "
        "load again",
        "RANK_LOST",
        {"rank": str(rank)},
    )
