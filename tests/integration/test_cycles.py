"""What is done a thousand times leaves descriptors, threads, memory and leases as they were."""

import contextlib
import os

import ckptd
import grpc
import pytest
from ckptd import _proto
from faults import assert_no_more_than, footprint, resources, sparse
from group import PATIENCE, sanitized, wait_until
from tiers import both

# Of all threads: with one each, how much malloc keeps depends on which of them did what. Large
# blocks have mappings of their own: a small one that stays keeps no large hole behind it.
ONE_HEAP = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "8192",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}
# Bytes that malloc may still spread over after a warm-up: 256 an attachment, 2 KiB a load.
SPREAD = 256 << 10
# What is lost is lost in each round; a moment at which more threads than ever were busy is in a few.
ROUNDS = 10


class Rank:
    """A client of one rank, and its operator: without a process for each question."""

    def __init__(self, group, rank, stack):
        self.client = stack.enter_context(ckptd.connect(group.address(rank)))
        admin = f"unix:{group.run_dir}/{group.job}/rank-{rank}.admin.sock"
        self.channel = stack.enter_context(grpc.insecure_channel(admin))

    def ask(self, method, **fields):
        path, request, response, _ = _proto.METHODS[f"AdminService.{method}"]
        reply = self.channel.unary_unary(path)(
            _proto.message(request)(**fields).SerializeToString(), timeout=PATIENCE
        )
        return _proto.message(response).FromString(reply)

    def wait_released(self):
        wait_until(lambda: not self.ask("ListLeases").leases, "all leases to end")


def held(info):
    """What a daemon may not have more of than before."""
    counts = {key: int(value) for key, value in info["memory"].items() if key.endswith("_bytes")}
    return {**counts, **footprint(info)}


def anonymous(group):
    return [resources(info["pid"])["anonymous"] for info in group.wait_ready()]


def assert_flat(group, ranks, cycle, warm_up, count):
    """`count` cycles leave nothing that is not there after `warm_up`."""
    for _ in range(warm_up):
        cycle()
    for rank in ranks:
        rank.wait_released()
    before = [held(info) for info in group.wait_ready()]
    grown = []
    # Sanitizers keep what was freed, and look for leaks themselves.
    for _ in range(1 if sanitized() else ROUNDS):
        was = anonymous(group)
        for _ in range(count):
            cycle()
        for rank in ranks:
            rank.wait_released()
        grown.append(max(now - then for now, then in zip(anonymous(group), was)))
        if grown[-1] <= SPREAD:
            break
    assert_no_more_than(before, group, held)
    assert sanitized() or min(grown) <= SPREAD, f"bytes more after each round: {grown}"


@both
def test_a_thousand_attachments_leave_everything_flat(start, tmp_path):
    group = start(1, environment=ONE_HEAP)
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    with contextlib.ExitStack() as stack:
        rank = Rank(group, 0, stack)
        checkpoint = rank.client.load(path, layout="fsdp:1")

        def cycle():
            with rank.client.acquire(checkpoint):
                pass

        assert_flat(group, [rank], cycle, 100, 1000)


# On fake GPUs that other tests of the process have used, daemons on a busy machine take some KiB
# more for each load. By itself this is flat, so it has a process of its own.
@pytest.mark.parametrize("memory", ["host", pytest.param("cuda", marks=pytest.mark.skipif(
    os.environ.get("CKPTD_CYCLES") != "all", reason="loads on GPUs have a process of their own in tests/run long"))], indirect=True)
def test_a_hundred_loads_and_unloads_leave_everything_flat(start, tmp_path):
    group = start(2, environment=ONE_HEAP)
    path = sparse(tmp_path / "m.safetensors", 3 << 20)
    with contextlib.ExitStack() as stack:
        ranks = [Rank(group, rank, stack) for rank in range(2)]

        def cycle():
            checkpoints = [rank.client.load(path, layout="fsdp:2") for rank in ranks]
            for rank, checkpoint in zip(ranks, checkpoints):
                with rank.client.acquire(checkpoint):
                    pass
            for rank, checkpoint in zip(ranks, checkpoints):
                rank.wait_released()
                rank.ask("UnloadCheckpoint", name=checkpoint.name)

        assert_flat(group, ranks, cycle, 100, 100)
        assert all(int(info["memory"]["used_bytes"]) == 0 for info in group.wait_ready())
