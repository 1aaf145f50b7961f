"""Memory that daemons take ahead where nobody has said how much, and how they give it back."""

import pathlib
import re
import signal

import ckptd
import pytest
from faults import MARK, content, sparse, unload_everywhere
from group import DEFAULT_ARENA, Group, wait_until

MIB = 1 << 20


def memory_of(group, rank):
    return group.info(rank)["memory"]


def wait_filled(group, target):
    """Every rank's memory, once its arena has `target` bytes."""
    def filled():
        memories = [memory_of(group, rank) for rank in range(group.ranks)]
        return all(int(m["arena_bytes"]) == int(m["arena_target_bytes"]) == target for m in memories) and memories
    return wait_until(filled, f"arenas of {target} bytes:\n{group.log()}")


def shared_memory(group, rank):
    """Bytes of shared memory in a daemon's mappings, its peers' included."""
    status = pathlib.Path(f"/proc/{group.pid(rank)}/status").read_text()
    return int(re.search(r"^RssShmem:\s+(\d+) kB", status, flags=re.M).group(1)) * 1024


@pytest.fixture
def path(tmp_path):
    return sparse(tmp_path / "model.safetensors", 21 * MIB)


def load(group, path):
    with ckptd.connect(group.address(0)) as client:
        checkpoint = client.load(path, layout=f"replicate:{group.ranks}")
        with client.acquire(checkpoint) as shard:
            assert content(shard.tensors["mark"]) == MARK
        return int(group.json("get", checkpoint.name)["slab_bytes"])


def test_by_default_daemons_take_ahead_what_the_job_loaded_last_and_trim_gives_it_back(tmp_path_factory, path):
    folder = tmp_path_factory.mktemp("g")
    options = ("--memory-budget", "64MiB")  # that the first guess is small
    with Group(folder, 2, *options, environment=DEFAULT_ARENA) as group:
        first = wait_filled(group, 64 * MIB)
        assert all(re.search("a quarter of the memory .* among 2 daemons.*; no more than the budget", m["arena_why"])
                   for m in first), first
        slab = load(group, path)
        target = -(-slab // (2 * MIB)) * 2 * MIB
        wait_until(lambda: int(memory_of(group, 1)["arena_target_bytes"]) == target, "the load to be noted")
        assert memory_of(group, 1)["arena_why"] == "as much as the largest shard that was loaded"
    with Group(folder, 2, *options, environment=DEFAULT_ARENA) as group:
        again = wait_filled(group, target)
        assert {m["arena_why"] for m in again} == {
            "as much as the largest shard that this job loaded when it ran last"}
        assert "being faulted in, in the background: as much as the largest shard" in group.log()
        assert shared_memory(group, 1) >= target
        trimmed = group.json("trim", rank=1)
        assert trimmed == {"freed_bytes": target, "used_bytes": 0, "lingering_bytes": 0}
        wait_until(lambda: shared_memory(group, 1) < MIB, "the memory to be the system's")
        assert int(memory_of(group, 0)["arena_bytes"]) == target  # each rank for itself
        assert load(group, path) == slab
        assert group.json("trim", rank=1)["used_bytes"] == target


def test_what_a_killed_daemon_loaded_is_remembered_by_the_next_one(tmp_path_factory, path):
    with Group(tmp_path_factory.mktemp("g"), 1, "--memory-budget", "64MiB", environment=DEFAULT_ARENA) as group:
        load(group, path)
        wait_until(lambda: list((group.run_dir / group.job).glob("rank-0.arena")), "the load to be written down")
        target = int(memory_of(group, 0)["arena_target_bytes"])
        group.kill(0, signal.SIGKILL)
        wait_filled(group, target)


def test_memory_that_one_daemon_gives_back_is_not_held_by_the_one_that_filled_it(start, path):
    group = start(2, "--memory-budget", "64MiB")
    slab = load(group, path)
    wait_until(lambda: shared_memory(group, 0) >= 2 * slab, "rank 0 to have both shards mapped")
    unload_everywhere(group)
    assert all(int(group.json("trim", rank=rank)["freed_bytes"]) >= slab for rank in range(2))
    wait_until(lambda: shared_memory(group, 0) < MIB, "rank 0 to let go of rank 1's memory")
    load(group, path)


def test_memory_that_nobody_needs_for_a_while_goes_back(tmp_path_factory):
    options = ("--memory-budget", "16MiB", "--arena-idle", "0.2")
    with Group(tmp_path_factory.mktemp("g"), 1, *options, environment=DEFAULT_ARENA) as group:
        wait_until(lambda: "nothing was loaded for" in memory_of(group, 0)["arena_why"], "the idle time to pass")
        wait_until(lambda: int(memory_of(group, 0)["arena_bytes"]) == 0, "the memory to be given back")
        wait_until(lambda: "free memory was given back: nothing was loaded" in group.log(), "that to be said")
