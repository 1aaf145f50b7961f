"""What was loaded is there for who waited for it, and who needs its memory can wait for that."""

import os
import threading
import time

import ckptd
import ckptd.torch
import pytest
import torch
from faults import MARK, MIB, Loading, content, sparse, stage_of
from group import save, wait_until

ONE = ("--memory-budget", "8MiB")  # for one checkpoint of 5 MiB


def files(folder, *names):
    return [sparse(folder / f"{name}.safetensors", 5 * MIB) for name in names]


def load(client, path, **options):
    return client.load(path, layout="replicate:1", **options)


def marked(client, checkpoint):
    with client.acquire(checkpoint) as shard:
        return content(shard.tensors["mark"]) == MARK


def test_a_checkpoint_is_kept_for_who_waited_for_it_until_that_acquires_it(start, tmp_path):
    first, second = files(tmp_path, "a", "b")
    group = start(1, *ONE)
    with ckptd.connect(group.address(0)) as client, ckptd.connect(group.address(0)) as other:
        loaded = load(client, first)
        with pytest.raises(ckptd.ResourceExhausted, match=f"{loaded.name} is kept") as refused:
            load(other, second)
        assert refused.value.reason == "NO_MEMORY"
        assert marked(client, loaded)
        assert marked(other, load(other, second, wait_memory=60))


def test_nothing_is_kept_for_a_ckptctl_that_has_ended(start, tmp_path):
    group = start(1, *ONE)
    for path in files(tmp_path, "a", "b", "c"):
        group.json("load", path, "--layout", "replicate:1")


def test_a_refusal_names_the_checkpoint_who_holds_it_and_where_that_is_seen(start, tmp_path):
    first, second = files(tmp_path, "a", "b")
    group = start(1, *ONE)
    with ckptd.connect(group.address(0)) as client:
        loaded = load(client, first)
        with client.acquire(loaded):
            for patience in (0, 0.5):
                with pytest.raises(ckptd.ResourceExhausted) as refused:
                    load(client, second, wait_memory=patience)
                assert f"{loaded.name} is leased by process {os.getpid()}" in refused.value.message
                assert "`ckptctl leases --rank 0`" in refused.value.message
            error = group.error("load", second, "--layout", "replicate:1", "--quiet", "--wait-memory", "500ms")
            assert error["reason"] == "NO_MEMORY"
            assert "has waited for memory of rank 0" in error["message"]


def test_a_load_waits_for_memory_that_a_client_holds_and_others_do_not_wait_for_it(start, tmp_path):
    first, second = files(tmp_path, "a", "b")
    small = sparse(tmp_path / "small.safetensors", MIB)
    group = start(2, *ONE)
    with ckptd.connect(group.address(0)) as client:
        loaded = client.load(first, layout="replicate:2")
        with client.acquire(loaded):
            waiting = Loading(group, 1, second, "replicate:2", wait_memory=110, timeout=120)
            wait_until(
                lambda: stage_of(client, second) == "WAITING_FOR_MEMORY", "the load to wait"
            )
            (shown,) = [c for c in client.list() if c.source == second]
            assert shown.progress.waiting_ranks == (0,)
            assert f"process {os.getpid()}" in shown.waits_for
            assert marked(client, client.load(small, layout="replicate:2"))
            assert waiting.is_alive()
        assert isinstance(waiting.outcome(120), ckptd.Checkpoint), waiting.result
        for rank in range(2):
            with ckptd.connect(group.address(rank)) as own:
                assert marked(own, waiting.result)


def test_what_can_never_fit_is_refused_though_it_would_wait(start, tmp_path):
    (first,) = files(tmp_path, "a")
    group = start(1, *ONE)
    with ckptd.connect(group.address(0)) as client:
        with client.acquire(load(client, first)):
            began = time.monotonic()
            with pytest.raises(ckptd.ResourceExhausted):
                load(client, sparse(tmp_path / "large.safetensors", 9 * MIB), wait_memory=60)
            assert time.monotonic() - began < 30


class Job(threading.Thread):
    """One rank of a job that does the same again and again: `errors` are what it got."""

    def __init__(self, step, times):
        super().__init__(daemon=True)
        self.step, self.times, self.errors = step, times, []
        self.start()

    def run(self):
        for turn in range(self.times):
            try:
                self.step(turn)
            except Exception as error:
                self.errors.append(error)


def assert_all_well(jobs, seconds=120):
    deadline = time.monotonic() + seconds
    for job in jobs:
        job.join(max(0, deadline - time.monotonic()))
        assert not job.is_alive(), "a job has not come to its end"
    assert [job.errors for job in jobs] == [[] for _ in jobs]


def test_two_trainers_that_load_again_and_again_take_turns_with_memory_for_one(start, tmp_path):
    group = start(1, *ONE)
    values = [torch.full((5 * MIB // 4,), float(number)) for number in range(2)]
    paths = [save(tmp_path / f"{n}.safetensors", {"w": value}) for n, value in enumerate(values)]

    def trains(number):
        def step(_):
            model = torch.nn.Module()
            model.w = torch.nn.Parameter(torch.empty_like(values[number], device="meta"))
            ckptd.torch.load_into(model, paths[number], address=group.address(0), timeout=60)
            assert torch.equal(model.w, values[number])

        return step

    assert_all_well([Job(trains(number), 8) for number in range(2)])


def test_jobs_of_several_ranks_take_turns_with_memory_for_one(start, tmp_path):
    paths = files(tmp_path, "a", "b", "c")
    group = start(2, *ONE)

    def trains(path, rank, step_of_both):
        layout = ckptd.RankLayout(rank, 2, shardings=[ckptd.Sharding()])
        layout.add("hole", [5 * MIB], 0)

        def step(_):
            with ckptd.connect(group.address(rank)) as client:
                loaded = client.load(path, layout=layout, timeout=100, wait_memory=100)
                with client.acquire(loaded) as shard:
                    assert content(shard.tensors["hole"], 64) == bytes(64)
                    step_of_both.wait(100)  # as in a collective

        return step

    jobs = []
    for path in paths:
        step_of_both = threading.Barrier(2)
        jobs += [Job(trains(path, rank, step_of_both), 5) for rank in range(2)]
    assert_all_well(jobs)
