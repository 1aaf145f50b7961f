"""Ranks that state different tensors, as the stages of a pipeline do, and change them one by one."""

import concurrent.futures
import os

import ckptd
import pytest
import torch
from group import save, wait_until

TENSORS = {name: torch.arange(60.0).reshape(10, 6) + 100 * i for i, name in enumerate("abcd")}
PATIENCE = 30


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "m.safetensors", TENSORS)


def statement(rank, ranks, names):
    layout = ckptd.RankLayout(rank, ranks, shardings=[ckptd.Sharding()])
    for name in names:
        layout.add(name, tuple(TENSORS[name].shape), 0)
    return layout


class Trainers:
    """One trainer per rank of a group, as often as it is asked for."""

    def __init__(self, group, path):
        self.group, self.path = group, path

    def load(self, rank, names, timeout=PATIENCE):
        """What that rank's trainer is given; whether it was resident."""
        with ckptd.connect(self.group.address(rank)) as client:
            layout = statement(rank, self.group.ranks, names)
            checkpoint = client.load(self.path, layout=layout, timeout=timeout)
            with client.acquire(checkpoint) as shard:
                got = {name: bytes(view.buffer) for name, view in shard.tensors.items()}
        assert got == {name: TENSORS[name].numpy().tobytes() for name in names}
        return checkpoint

    def all(self, wanted):
        """Each rank loads its names, at the same time. The checkpoints by rank."""
        with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
            return list(pool.map(self.load, range(len(wanted)), wanted))


@pytest.fixture
def trainers(start, path):
    return Trainers(start(3), path)


def test_stages_that_lack_tensors_each_get_their_own(trainers):
    checkpoints = trainers.all(["ab", "c", "d"])
    assert len({checkpoint.name for checkpoint in checkpoints}) == 1


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_stage_that_states_something_else_does_not_wait_for_those_that_do_not(trainers, changed):
    wanted = ["ab", "c", "d"]
    old = trainers.all(wanted)
    wanted[changed] = wanted[changed] + "d" if changed < 2 else "cd"
    new = trainers.all(wanted)
    for rank in range(3):
        assert new[rank].resident == (rank != changed)
        assert (new[rank].name == old[rank].name) == (rank != changed)
    # Its tensors were read, and nobody else's.
    progress = trainers.group.json("get", new[changed].name, rank=changed)["progress"]
    assert int(progress["storage_bytes"]) == 240 * len(wanted[changed])
    # All of it is found again.
    assert all(checkpoint.resident for checkpoint in trainers.all(wanted))


def test_a_stage_that_asks_before_the_others_goes_on_once_they_have_asked(trainers):
    trainers.all(["ab", "c", "d"])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        early = pool.submit(trainers.load, 1, "cd")
        with ckptd.connect(trainers.group.address(1)) as client:
            waited_for = wait_until(
                lambda: next((c.progress.waiting_ranks for c in client.list() if c.state == "LOADING"), None),
                "a load that gathers",
            )
        assert sorted(waited_for) == [0, 2]
        trainers.load(0, "ab")
        trainers.load(2, "d")
        early.result(PATIENCE)


def test_a_daemon_that_was_killed_loads_its_stage_again_whatever_the_others_changed(trainers):
    trainers.all(["ab", "c", "d"])
    trainers.all(["ab", "cd", "d"])
    for victim in range(3):
        trainers.group.kill(victim)
        again = trainers.all(["ab", "cd", "d"])
        assert [checkpoint.resident for checkpoint in again] == [rank != victim for rank in range(3)]


def test_a_file_that_was_replaced_is_loaded_anew_by_all_stages(trainers, path):
    old = trainers.all(["ab", "c", "d"])
    os.utime(path, ns=(1, 1))
    new = trainers.all(["ab", "cd", "d"])
    assert {c.name for c in new}.isdisjoint({c.name for c in old})
    assert len({c.name for c in new}) == 1
