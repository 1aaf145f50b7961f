"""Loads that are held in a stage, from outside: their leader is stopped when the stage appears."""

import contextlib
import os
import signal
import time

import ckptd
from faults import (
    Loading,
    assert_loads,
    assert_no_more_than,
    assert_nothing_is_left,
    load_everywhere,
    sparse,
    stage_of,
    stand_still,
    statement,
    unload_everywhere,
    wait_gathered,
)
from group import wait_until

# Stages in which the daemons themselves are busy.
WORKING = ["OPENING", "PLANNING", "ALLOCATING", "TRANSFERRING", "PUBLISHING"]
# Longer than a busy machine keeps a process from running, and well within the 10 s in which all ranks hear.
HEARTBEATS = ("--heartbeat-interval", "0.25", "--heartbeat-timeout", "3")
# Longest that a test waits for anybody once something has died. The daemons' and clients' own deadlines
# are below 10 s; on a busy machine a process may get to run later. The table at the end has the times.
LIMIT = 30


# (bytes to allocate and read, tensors to open and plan) that make a stage last.
LASTING = {"OPENING": (1 << 20, 50_000), "PLANNING": (1 << 20, 50_000)}


def needed_for(stage):
    """Options of a group whose loads can be held in that stage.

    Where several ranks read, each hashes its shard once more before it is published.
    """
    return ("--reader", "all") if stage == "PUBLISHING" else ()


class Hold:
    """A load that has come to `stage`, where its leader stands still until go_on().

    path: what it loads. loads: who waits for it, made by begin(group, path). pids: of the
    daemons, by rank. The stages of such a file last long enough to be seen; should one
    slip by all the same, another file is tried.
    make: writes another kind of checkpoint below the folder it is given, and names it.
    timeout: of the clients that gather.
    """

    def __init__(self, group, stage, folder, make=None, begin=load_everywhere, timeout=60):
        self.group, self.folder, self.make, self.begin = group, folder, make, begin
        self.timeout = timeout
        self.pids = [group.pid(rank) for rank in range(group.ranks)]
        self.path, self.loads = None, []
        self._still = set()
        ways = {"GATHERING": self._gather, "QUEUED": self._queue}
        try:
            ways.get(stage, lambda: self._come_to(stage))()
        except BaseException:
            self.go_on()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on()

    def stop(self, *ranks):
        for rank in ranks:
            self._still.add(rank)
            stand_still(self.pids[rank])

    def go_on(self, *but):
        """All go on, except those ranks."""
        for rank in self._still - set(but):
            self._still.remove(rank)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGCONT)

    def _gather(self):
        """All trainers but the last one's have stated their tensors."""
        last, path = self.group.ranks - 1, sparse(self.folder / "GATHERING.safetensors")
        self.path, self.loads = path, [
            Loading(self.group, rank, path, statement(rank, self.group.ranks), self.timeout)
            for rank in range(last)
        ]
        wait_gathered(self.group, path, self.loads)
        self.stop(0)

    def _queue(self):
        """Another load waits for the last rank, which stands still, too: until it is missed."""
        last = self.group.ranks - 1
        for attempt in range(10):
            first = sparse(self.folder / f"first-{attempt}.safetensors")
            self.path = sparse(self.folder / f"QUEUED-{attempt}.safetensors")
            self.stop(last)
            self.loads = [Loading(self.group, 0, first, f"fsdp:{self.group.ranks}")]
            with ckptd.connect(self.group.address(0)) as client:
                self._see(client, first, "ALLOCATING")
                waiting = load_everywhere(self.group, self.path)
                self.loads += waiting
                if self._see(client, self.path, "QUEUED", waiting[:last]):
                    return self.stop(0)
            self.go_on()
            self._forget()
        raise AssertionError("no load was seen QUEUED")

    def _see(self, client, path, stage, loads=()):
        """Waits until `loads` wait for it in that stage; whether that was before a load had ended.

        One that sees half of the bytes transferred has come late: all may be before it acts.
        """

        def now():
            over = "over" if any(each.ended for each in self.loads) else None
            one = next((one for one in client.list() if one.source == path), None)
            if one is None or one.state != "LOADING":
                return "over" if one else over
            at = one.progress
            early = stage != "TRANSFERRING" or 2 * at.bytes_done < at.bytes_total
            return stage if at.stage == stage and early and all(each.accepted for each in loads) else over

        return wait_until(now, f"the load to be {stage}") == stage

    def _forget(self):
        """Ends what was not seen in time."""
        for loading in self.loads:
            loading.outcome(60)
        self.group.wait_ready()
        unload_everywhere(self.group)

    def _come_to(self, stage):
        with ckptd.connect(self.group.address(0)) as client:
            for attempt in range(100):  # some loads are over before they are seen
                self.path = self._file(stage, attempt)
                self.loads = self.begin(self.group, self.path)
                if self._see(client, self.path, stage, self.loads):
                    return self.stop(0)
                self._forget()
        raise AssertionError(f"no load was seen {stage}")

    def _file(self, stage, attempt):
        if self.make is not None:
            return self.make(self.folder / str(attempt))
        path = self.folder / f"{stage}-{attempt}.safetensors"
        return sparse(path, *LASTING.get(stage, (256 << 20, 5000)))


@contextlib.contextmanager
def held_at(group, stage, folder, make=None):
    """Starts a load on every rank and stops the leader in `stage`: (path, loads, leader's pid)."""
    with Hold(group, stage, folder, make) as held:
        yield held.path, held.loads, held.pids[0]


def names(error, rank):
    return isinstance(error, ckptd.Error) and (
        f"rank {rank}" in error.message or error.facts.get("rank") == str(rank)
    )


def is_locked_out(result):
    return isinstance(result, ckptd.Error) and "another daemon has had" in result.message and ".claims" in result.message


def served(result):
    return isinstance(result, ckptd.Checkpoint) and result.state == "ACTIVE"


def assert_heard(stage, results, rank):
    """All heard whom they lost, but those whose request came so late that it was carried out.

    And those whose shard was there already, while others were still being published. One that was
    stopped between taking the lock of memory claims and writing its name is not known to others.
    """
    assert all(names(result, rank) or served(result) or is_locked_out(result) for result in results), results
    assert stage == "PUBLISHING" or not all(map(served, results)), results


def summary(result):
    return result.reason if isinstance(result, ckptd.Error) else result.state


def outcomes_of(loads, since):
    """(what each client got, the longest that one waited); nobody may wait for too long."""
    results = [loading.outcome(max(0.0, since + LIMIT - time.monotonic())) for loading in loads]
    return results, max(loading.ended for loading in loads) - since


def await_ended(group, path):
    """The leader is busy with no load of `path`: one that it went on with, others had given up."""
    with ckptd.connect(group.address(0)) as client:
        wait_until(lambda: stage_of(client, path) not in WORKING, "the leader's load to end", LIMIT)


def assert_heals(group, path, before):
    """The group re-forms, the next load works, and afterwards nothing is left of either."""
    group.wait_ready()
    await_ended(group, path)
    assert_loads(group, path)
    assert_nothing_is_left(group)
    assert_no_more_than(before, group)
