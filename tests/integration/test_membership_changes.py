"""Daemons that come and go at random while loads travel by NCCL: right bytes after each, and nothing left.

CKPTD_MEMBERSHIP_CHANGES=200 makes so many changes, others each time; CKPTD_SEED=N those of an earlier run."""

import contextlib
import os
import random
import signal
import time

import ckptd
import fake_nccl
import pytest
import torch
from faults import Loading, content, resources
from group import wait_until
from hosts import SpreadGroup, TwoHosts, why_not
from nccl_bench import HEARTBEATS, LIMIT, NCCL, sample
from tiers import Tier

RANKS = 4
CHANGES = int(os.environ.get("CKPTD_MEMBERSHIP_CHANGES", "8"))
# Few changes are the same ones in each run, so that a failure is that of the code.
SEED = int(os.environ.get("CKPTD_SEED", "0")) or (random.randrange(1, 1 << 31) if CHANGES > 8 else 2)
FAULTS = (
    "ncclRecv nth=1 after_bytes=1000 late=6",
    "ncclSend nth=1 error=3",
    "ncclSend nth=1 after_bytes=5000 die=1",
    "ncclRecv nth=2 die=1",
    "ncclRecv nth=1 hang=1",
    "ncclBroadcast nth=1 late=6",
    "ncclCommInitRankConfig nth=1 error=2",
    "ncclGroupEnd nth=2 error=3",
)
# What a process may have more than after its first load: threads of gRPC come and go.
SPARE = {"fds": 12, "memfds": 0, "threads": 12}


class OneHost:
    """In place of TwoHosts where namespaces cannot be made: all on this one, nothing to cut."""

    addresses = ("127.0.0.1", "127.0.0.1")

    def inside(self, _):
        return ()


@pytest.fixture
def network():
    if why_not():
        yield OneHost()
        return
    with TwoHosts() as made:
        yield made


@pytest.fixture
def tier(fake_gpus):
    if fake_nccl.why_not():
        pytest.skip(fake_nccl.why_not())
    made = Tier(fake_gpus)
    yield made
    made.assert_clean()


@pytest.fixture
def nccl(tier, network):
    made = fake_nccl.FakeNccl(tier.fake, link_bytes_per_second=6000000, **interface_of(network))
    yield made
    assert made.violations() == []


def interface_of(network):
    return {"interface": "eth0"} if isinstance(network, TwoHosts) else {}


@pytest.fixture
def group(tier, nccl, network, tmp_path_factory):
    two = isinstance(network, TwoHosts)
    made = SpreadGroup(
        tmp_path_factory.mktemp("s"), network, (0, 0, 1, 1) if two else (0,) * RANKS, *tier.options, *NCCL, *HEARTBEATS,
        "--reader", ("rank0", "all")[SEED % 2], budget="128MiB",
        per_rank={rank: ("--device", rank) for rank in range(RANKS)},
        environment={**tier.environment, **nccl.environment()},
    )  # fmt: skip
    with made:
        yield made
        made.stop()


class Storm:
    def __init__(self, group, network, library, sources):
        self.group, self.network, self.library, self.sources = group, network, library, sources
        self.random = random.Random(SEED)
        self.first = {}  # process -> its resources after its first load

    def change(self):
        """One change with or without a load in flight, undone again; which it was."""
        loading = self.begin() if self.random.random() < 0.7 else None
        self.await_moment(loading, self.random.choice([0, 1, 3000, 20000]))
        what = self.random.choice(["kill", "end", "stop", "nccl", *["cut"] * isinstance(self.network, TwoHosts)])
        victims = self.random.sample(range(RANKS), self.random.choice([1, 1, 1, 2, 3]))
        since = time.monotonic()
        getattr(self, what)(victims)
        if loading is not None:
            loading.outcome(max(0.0, since + LIMIT + 2 - time.monotonic()))
        self.come_back()
        return f"{what} {victims}, {'a load' if loading else 'nothing'} in flight"

    def await_moment(self, loading, amount):
        """Until so many bytes more are in NCCL's trace, or the load is over."""
        trace = self.library.cuda.folder / "nccl-trace"
        size = trace.stat().st_size
        wait_until(lambda: loading is None or loading.ended or trace.stat().st_size >= size + amount, "the load to go on")

    def begin(self):
        layout = self.random.choice(["fsdp:4", "hsdp:2x2", "replicate:4"])
        path, _ = self.random.choice(self.sources)
        return Loading(self.group, self.random.randrange(RANKS), path, layout, timeout=30)

    def kill(self, victims, number=signal.SIGKILL):
        for rank in victims:
            os.kill(self.group.pid(rank), number)
        for rank in victims:
            self.group.processes[rank].wait(timeout=LIMIT)
            self.group.processes[rank] = self.group.start(rank)

    def end(self, victims):
        self.kill(victims, signal.SIGTERM)

    def nccl(self, victims):
        """Whoever comes back has a mistake in its NCCL, once."""
        self.library.script(self.random.choice(FAULTS))
        self.kill(victims)
        self.group.wait_ready()
        self.library.script()

    def stop(self, victims):
        """They stand still until somebody has noticed."""
        with contextlib.ExitStack() as stopped:
            for rank in victims:
                os.kill(self.group.pid(rank), signal.SIGSTOP)
                stopped.callback(os.kill, self.group.pid(rank), signal.SIGCONT)
            awake = [rank for rank in range(RANKS) if rank not in victims]
            self.await_notice(awake)

    def cut(self, _):
        self.network.cut()
        try:
            self.await_notice(range(RANKS))
        finally:
            self.network.mend()

    def await_notice(self, awake):
        def noticed():
            infos = [self.group.info(rank) for rank in awake]
            return any(info is not None and info["state"] != "READY" for info in infos)
        wait_until(noticed, "somebody to notice", LIMIT)

    def settle(self):
        """Loads until it works: at once, unless somebody's NCCL still has a mistake to make."""
        heard = []
        for _ in range(2 * RANKS):
            loading = self.begin()
            checkpoint = loading.outcome(LIMIT + 10)
            if isinstance(checkpoint, ckptd.Checkpoint):
                return loading
            heard.append(checkpoint)
            self.come_back()
        raise AssertionError(f"no load works any more: {heard}\n{self.group.log()}")

    def come_back(self):
        def complete():
            self.revive()  # again: who dies closes its connections before its end can be seen
            return self.group.ready()
        wait_until(complete, f"a complete group; logs in {self.group.folder}")

    def revive(self):
        """Those whose NCCL has killed them."""
        for rank, process in enumerate(self.group.processes):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL, f"rank {rank} ended with {process.returncode}"
                self.group.processes[rank] = self.group.start(rank)

    def check(self):
        """A load that works has the right bytes on all ranks, and leaves nothing behind."""
        self.unload()  # else what came through would be found, without those who came back since
        loading = self.settle()
        state = dict(self.sources)[loading.path]
        for rank in range(RANKS):
            with ckptd.connect(self.group.address(rank)) as client:
                # Who has come back since gets its shard now.
                checkpoint = client.load(loading.path, layout=loading.layout, timeout=30)
                with client.acquire(checkpoint) as shard:
                    for name, tensor in state.items():
                        expected = rows(tensor, rank, loading.layout)
                        assert content(shard.tensors[name]) == expected.numpy().tobytes(), (rank, name)
        self.unload()
        wait_until(self.is_empty, f"all memory to be given back:\n{self.group.log()}", LIMIT)
        for process in self.group.processes:
            first = self.first.setdefault(process.pid, resources(process.pid))
            try:  # what clients have closed, a daemon notices in a moment
                wait_until(lambda: not self.more(process.pid, first), "what was left to go")
            except AssertionError as error:
                raise AssertionError(f"{error}: {self.more(process.pid, first)} beside {first}") from None

    @staticmethod
    def more(pid, first):
        """The kinds of which a process has more than is spare."""
        now = resources(pid)
        return {kind: now[kind] for kind, spare in SPARE.items() if now[kind] > first[kind] + spare}

    def unload(self):
        """Also what was in flight and has come through."""
        for rank in range(RANKS):
            for checkpoint in self.group.json("list", rank=rank)["checkpoints"]:
                if checkpoint["state"] == "STATE_ACTIVE":
                    self.group.unload(checkpoint["name"], rank)

    def is_empty(self):
        infos = self.group.ready()
        return infos and all(int(i["memory"]["used_bytes"]) == int(i["memory"]["lingering_bytes"]) == 0 for i in infos)


def rows(tensor, rank, layout):
    parts = {"fsdp:4": 4, "hsdp:2x2": 2, "replicate:4": 1}[layout]
    chunks = torch.chunk(tensor, parts)
    place = rank % parts
    return (chunks[place] if place < len(chunks) else tensor[:0]).contiguous()


def test_after_every_change_the_next_load_has_the_right_bytes_and_nothing_is_left(group, network, nccl, tmp_path):
    sources = [sample(tmp_path / str(count), count=count) for count in (2, 5)]
    storm = Storm(group, network, nccl, sources)
    storm.check()
    for number in range(1, CHANGES + 1):
        what = None
        try:
            what = storm.change()
            storm.check()
        except BaseException as error:
            raise AssertionError(f"CKPTD_SEED={SEED}, change {number} ({what}): {error}\n{group.log()}") from error
