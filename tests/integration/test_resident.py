"""A load by rule answers when every rank can attach: ranks that lack their shard are filled again."""

import os
import signal

import ckptd
import pytest
import torch
from faults import MARK, MIB, Loading, sparse
from group import save, wait_until
from slices import as_bytes, rows

RANKS = 3


@pytest.fixture
def model(tmp_path):
    """(path, tensors) of a checkpoint whose rows differ."""
    generator = torch.Generator().manual_seed(9)
    tensors = {f"w{i}": torch.randn(33, 10_900, generator=generator) for i in range(4)}
    return save(tmp_path / "m.safetensors", tensors), tensors


def load(group, rank, path, **options):
    with ckptd.connect(group.address(rank)) as client:
        return client.load(path, layout=f"fsdp:{group.ranks}", **options)


def attached(group, rank, checkpoint):
    with ckptd.connect(group.address(rank)) as client:
        with client.acquire(checkpoint) as shard:
            return {name: bytes(view.buffer) for name, view in shard.tensors.items()}


def on_ranks(group, name):
    """On how many ranks each daemon says that the checkpoint is; 0 where it holds none."""
    told = []
    for rank in range(group.ranks):
        found = [c for c in group.json("list", rank=rank)["checkpoints"] if c["name"] == name]
        told.append(found[0]["resident_ranks"] if found else 0)
    return told


def kill(group, rank, loaded):
    os.kill(group.pid(rank), signal.SIGKILL)


def restart(group, rank, loaded):
    group.kill(rank)


def unload(group, rank, loaded):
    group.unload(loaded.name, rank)


def large_on(group, rank):
    """(Loads of the other ranks, client and checkpoint of this one): it needs all memory of `rank`."""
    path = sparse(group.run_dir / "large.safetensors", 7 * MIB)
    layouts = [
        ckptd.RankLayout(other, group.ranks, shardings=[ckptd.Sharding()])
        for other in range(group.ranks)
    ]
    for other, layout in enumerate(layouts):
        layout.add(*(("hole", [7 * MIB], 0) if other == rank else ("mark", [len(MARK)], 0)))
    loads = [
        Loading(group, other, path, layouts[other]) for other in range(group.ranks) if other != rank
    ]
    client = ckptd.connect(group.address(rank))
    checkpoint = client.load(path, layout=layouts[rank])
    for one in loads:
        assert isinstance(one.outcome(60), ckptd.Checkpoint), one.result
    return client, checkpoint


def evict(group, rank, loaded):
    """By a load that needs memory on that rank."""
    client, large = large_on(group, rank)
    with client, client.acquire(large):
        assert loaded.name not in {one.name for one in client.list()}


@pytest.mark.parametrize("lose", [kill, restart, unload, evict], ids=lambda way: way.__name__)
def test_a_load_is_not_resident_before_every_rank_can_attach(start, model, lose):
    path, tensors = model
    group = start(RANKS, "--memory-budget", "8MiB")
    loaded = load(group, 0, path)
    before = [group.json("get", loaded.name, rank=rank) for rank in range(2)]
    lose(group, 2, loaded)
    again = load(group, 1, path)
    assert again.name == loaded.name and not again.resident
    group.wait_ready()
    for rank in range(RANKS):
        expected = {name: as_bytes(rows(tensor, rank, RANKS)) for name, tensor in tensors.items()}
        assert attached(group, rank, again) == expected
    # The others keep theirs, and the files are read for the third rank alone.
    for rank, was in enumerate(before):
        now = group.json("get", loaded.name, rank=rank)
        assert (now["active_time"], now["state"]) == (was["active_time"], "STATE_ACTIVE")
    filled = group.json("get", loaded.name, rank=2)["progress"]
    assert int(filled["read"]["storage_bytes"]) == sum(
        len(as_bytes(rows(t, 2, RANKS))) for t in tensors.values()
    )
    for rank in range(RANKS):
        assert load(group, rank, path).resident


def test_all_who_ask_for_a_checkpoint_that_one_rank_lost_wait_for_one_load(start, model):
    path, tensors = model
    group = start(RANKS)
    loaded = load(group, 0, path)
    unload(group, 2, loaded)
    loads = [Loading(group, rank, path, f"fsdp:{RANKS}") for rank in range(RANKS) for _ in range(2)]
    for one in loads:
        assert one.outcome(60).name == loaded.name
        assert set(attached(group, one.rank, loaded)) == set(tensors)
    assert [len(group.json("list", rank=rank)["checkpoints"]) for rank in range(RANKS)] == [
        1
    ] * RANKS


def test_every_daemon_says_on_how_many_ranks_a_checkpoint_is(start, model):
    path, _ = model
    group = start(RANKS)
    loaded = load(group, 0, path)
    unload(group, 1, loaded)
    wait_until(lambda: on_ranks(group, loaded.name) == [2, 0, 2], "the count to go around")
    load(group, 0, path)
    wait_until(
        lambda: on_ranks(group, loaded.name) == [RANKS] * RANKS, "the count to go around"
    )


def test_a_rank_that_cannot_be_filled_fails_the_load_and_costs_the_others_nothing(start, model):
    path, tensors = model
    group = start(2, "--memory-budget", "8MiB")
    with ckptd.connect(group.address(0)) as client:
        loaded = client.load(path, layout="fsdp:2")
        unload(group, 1, loaded)
        other, large = large_on(group, 1)
        with other:
            with other.acquire(large):
                with pytest.raises(ckptd.ResourceExhausted, match="rank 1") as refused:
                    client.load(path, layout="fsdp:2")
                assert refused.value.reason == "NO_MEMORY"
                assert client.get(loaded).state == "ACTIVE"
                assert set(attached(group, 0, loaded)) == set(tensors)
        wait_until(lambda: not group.json("leases", rank=1)["leases"], "the lease to end")
        client.load(path, layout="fsdp:2", wait_memory=60)
        assert set(attached(group, 1, loaded)) == set(tensors)
