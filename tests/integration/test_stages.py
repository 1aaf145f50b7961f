"""Ranks that state different tensors, as the stages of a pipeline do, and change them."""

import concurrent.futures
import os
import subprocess
import sys
import time

import ckptd
import pytest
import torch
from group import PATIENCE, SOON, save, wait_until

TENSORS = {name: torch.arange(60.0).reshape(10, 6) + 100 * i for i, name in enumerate("abcd")}


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


def test_stages_that_state_something_else_are_loaded_anew_together(trainers):
    old = trainers.all(["ab", "c", "d"])
    new = trainers.all(["b", "ac", "cd"])
    assert {c.name for c in new}.isdisjoint({c.name for c in old})
    assert all(checkpoint.resident for checkpoint in trainers.all(["b", "ac", "cd"]))


def test_a_stage_that_alone_states_something_else_waits_no_longer_than_it_was_told(trainers):
    """The others are served what they hold, and need not state anything."""
    trainers.all(["ab", "c", "d"])
    with pytest.raises(ckptd.DeadlineExceeded, match="ranks 0, 2"):
        trainers.load(1, "cd", timeout=5)
    assert trainers.load(0, "ab").resident and trainers.load(1, "c").resident


def test_a_daemon_that_was_killed_loads_its_stage_again(trainers):
    trainers.all(["ab", "c", "d"])
    for victim in range(3):
        trainers.group.kill(victim)
        again = trainers.all(["ab", "c", "d"])
        assert [checkpoint.resident for checkpoint in again] == [rank != victim for rank in range(3)]


def test_a_file_that_was_touched_is_loaded_anew_by_all_stages(trainers, path):
    old = trainers.all(["ab", "c", "d"])
    os.utime(path, ns=(1, 1))
    new = trainers.all(["ab", "cd", "d"])
    assert {c.name for c in new}.isdisjoint({c.name for c in old})
    assert len({c.name for c in new}) == 1


def test_a_trainer_that_waits_for_others_hears_soon_for_whom(trainers, caplog):
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        loads = [pool.submit(trainers.load, rank, "ab") for rank in (0, 2)]
        wait_until(lambda: len(caplog.messages) == 2, "both to be told")
        assert time.monotonic() - began < SOON
        assert len({load.result(PATIENCE).name for load in (*loads, pool.submit(trainers.load, 1, "ab"))}) == 1
    for said in caplog.messages:
        assert said.startswith(f"loading {trainers.path}: still waiting, after ")
        assert "s, for rank 1 to take part" in said and said.endswith(f"it gives up after {PATIENCE} s")


def test_trainers_that_load_different_files_hear_soon_of_the_other_one(start, tmp_path, path):
    """The file on rank 1 is another one, by mistake."""
    pair, other = Trainers(start(2), path), save(tmp_path / "other.safetensors", TENSORS)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(trainer.load, rank, "ab", PATIENCE)
                 for rank, trainer in enumerate((pair, Trainers(pair.group, other)))]
        for load, elsewhere in zip(loads, (f"rank 1 loads {other}", f"rank 0 loads {path}")):
            with pytest.raises(ckptd.FailedPrecondition, match=elsewhere) as caught:
                load.result(PATIENCE)
            assert caught.value.reason == "LOAD_CONFLICT"
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize("mistaken", [0, 2])
def test_a_path_that_rank_0_does_not_have_is_refused_at_once_wherever_it_is_asked_for(trainers, path, mistaken):
    group = trainers.group
    wrong, began = Trainers(group, f"{path}.not"), time.monotonic()
    with pytest.raises(ckptd.NotFound, match=r"not.*: .*check the path"):
        wrong.load(mistaken, "ab")
    assert time.monotonic() - began < SOON
    assert len({checkpoint.name for checkpoint in trainers.all(["ab", "c", "d"])}) == 1


LEFT_ALONE = """
import sys
sys.path[:0] = sys.argv[4:]
import ckptd
layout = ckptd.RankLayout(int(sys.argv[3]), 3, shardings=[ckptd.Sharding()])
layout.add("a", (10, 6), 0)
with ckptd.connect(sys.argv[1]) as client:
    client.load(sys.argv[2], layout=layout, timeout=600, progress=lambda _: print("watches", flush=True))
"""


@pytest.mark.parametrize("dead,first", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_what_a_trainer_that_was_killed_has_stated_keeps_nobody_from_loading(trainers, path, dead, first):
    group = trainers.group
    with ckptd.connect(group.address(dead)) as client, ckptd.connect(group.address(first)) as other:
        trainer = subprocess.Popen(
            [sys.executable, "-c", LEFT_ALONE, group.address(dead), path, str(dead), *sys.path],
            stdout=subprocess.PIPE, text=True)
        with trainer:
            assert trainer.stdout.readline() == "watches\n"
            trainer.kill()
        wait_until(lambda: client.list()[0].state == "FAILED", "it to be missed")
        assert client.list()[0].failure.reason == "RANK_MISSING"
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            # Other tensors than it asked for; whoever of them comes first.
            loads = {first: pool.submit(trainers.load, first, "bc")}
            wait_until(lambda: any(c.state == "LOADING" for c in other.list()), "the first one")
            loads.update((rank, pool.submit(trainers.load, rank, "bc")) for rank in range(3) if rank != first)
            assert len({load.result(PATIENCE).name for load in loads.values()}) == 1
