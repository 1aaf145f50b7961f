"""Finds out which processes of a process group on this host have ended."""

import os
from typing import List, Optional

from ... import _errors


class LocalProcesses:
    """The group's processes on this host, which list themselves in the store."""

    def __init__(self, lines, rank: int):
        self._lines, self._rank = lines, rank
        self._known: List[tuple] = []
        lines.add([rank, os.getpid(), _started(os.getpid())])

    def lost(self) -> Optional[_errors.Error]:
        """The error for a process that has ended; None as long as all live."""
        self._known += map(tuple, self._lines.read())
        for rank, pid, started in self._known:
            if rank != self._rank and _started(pid) != started:
                return _errors.Aborted(
                    f"waiting for rank {rank}: its process {pid} has ended; see its log for why, "
                    "and start the job again",
                    "RANK_LOST",
                    {"rank": str(rank)},
                )
        return None


def host_key() -> str:
    """Equal for processes that see each other's process ids."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"host/{file.read().strip()}-{os.stat('/proc/self/ns/pid').st_ino}"


def _started(pid: int) -> Optional[str]:
    """When a process began, in ticks since boot; None once it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
