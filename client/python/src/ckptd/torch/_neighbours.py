"""Processes of a process group that are on this host: which of them have ended."""

import json
import os
from typing import List, Optional

from .. import _errors

class Neighbours:
    """Processes of the group on this host, by what they left in the store."""

    def __init__(self, store, rank: int):
        self._store, self._rank = store, rank
        self._host = f"host/{_host()}"
        self._known: List[tuple] = []
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
