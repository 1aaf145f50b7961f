"""Bytes that travel by NCCL between two hosts: network namespaces with a cable, over the fake NCCL."""

import os
import signal
import time

import fake_nccl
import pytest
from group import wait_until
from hosts import SpreadGroup, why_not
from nccl_bench import HEARTBEATS, LIMIT, NCCL, SLOW, begin, exchanged, failure, holding, load, sample, tensor_bytes

pytest.importorskip("cuda.bindings.driver")
WHY_NOT = why_not() or fake_nccl.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

HOSTS = (0, 0, 1, 1)


@pytest.fixture
def spread(cuda, network):
    """spread(*options, of rank 2 alone, fake NCCL's options) -> a Bench of four ranks on two hosts."""
    def make(*options, comm=NCCL, rank_2=(), **nccl):
        def group(run_dir, ranks, *arguments, environment):
            own = {rank: ("--device", rank, *(rank_2 if rank == 2 else ())) for rank in range(ranks)}
            return SpreadGroup(run_dir, network, HOSTS[:ranks], *arguments, per_rank=own, budget="128MiB",
                               environment=environment)
        return cuda(len(HOSTS), daemon=(*comm, *HEARTBEATS, *options), nccl={"interface": "eth0", **nccl}, group=group,
                    files=5)
    return make


@pytest.mark.parametrize("reader", ["rank0", "per_node", "all"])
def test_trainers_of_both_hosts_get_the_bytes_that_pytorch_would_have_given_them(spread, reader):
    bench = spread("--reader", reader)
    with bench.trainers("exclusive") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))
        assert all(answer["same"] for answer in trainers.ask("train"))
        trainers.ask("drop")
        assert trainers.end() == [0] * len(HOSTS)
    assert exchanged(bench), "nothing travelled by NCCL"


def test_communicators_that_the_leader_is_not_in_are_kept_too_until_somebody_comes_back_without(spread, tmp_path):
    bench = spread("--reader", "per_node")
    source, _ = sample(tmp_path, count=2)
    for _ in range(3):
        load(bench, source, "fsdp:4")
        bench.unload()
    assert len(exchanged(bench, "ncclCommInitRankConfig")) == 4  # two on each host
    bench.group.restart(3)
    load(bench, source, "fsdp:4")
    assert len(exchanged(bench, "ncclCommInitRankConfig")) == 8  # the group has changed


# Each reader would have to reach every rank, and cannot map those of the other host.
@pytest.mark.parametrize("reader, taken", [("rank0", True), ("per_node", False), ("all", True)])
def test_left_to_themselves_daemons_of_two_hosts_take_nccl_for_what_they_cannot_map(spread, reader, taken):
    bench = spread("--reader", reader, comm=())
    with bench.trainers("exclusive") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))
        trainers.ask("drop")
        assert trainers.end() == [0] * len(HOSTS)
    assert bool(exchanged(bench)) == taken


@pytest.mark.parametrize("reader", ["rank0", "all"])
def test_left_to_themselves_daemons_put_no_collective_beside_what_trainers_do_with_their_shards(spread, tmp_path, reader):
    bench = spread("--reader", reader, comm=())
    source, _ = sample(tmp_path, count=2)
    with bench.trainers("shared") as trainers:
        before = len(exchanged(bench))
        assert before, "nobody held a shard yet"
        load(bench, source, "fsdp:4")
        assert len(exchanged(bench)) == before
        assert "in streams: " in bench.group.log() and "a client holds a shard of rank 0, and NCCL" in bench.group.log()
        assert trainers.end() == [0] * len(HOSTS)
    wait_until(lambda: bench.leases() == 0, "all leases to end")
    bench.unload()
    load(bench, source, "fsdp:4")
    assert len(exchanged(bench)) > before


def test_a_leader_whose_client_holds_the_shard_sends_it_to_a_rank_that_came_back_in_streams(spread, tmp_path):
    bench = spread(comm=())
    source, _ = sample(tmp_path, count=2)
    with holding(bench, 0, source, "fsdp:4"):
        before = len(exchanged(bench))
        assert before, "nobody held a shard yet"
        bench.group.restart(3)
        loaded = bench.group.json("load", source, "--layout", "fsdp:4", rank=3)
        name = loaded.get("checkpoint", loaded)["name"]
        assert bench.group.json("verify", name, rank=3)["mismatched"] == []
        assert len(exchanged(bench)) == before
    assert "a client holds a shard of rank 0, and NCCL" in bench.group.log()


def test_readers_that_share_the_work_send_in_streams_where_a_rank_has_no_nccl(spread, tmp_path):
    bench = spread("--reader", "all", comm=(), rank_2=("--comm", "host"))
    source, state = sample(tmp_path)
    checkpoint = load(bench, source, "fsdp:4")
    assert int(checkpoint["progress"]["read"]["storage_bytes"]) == tensor_bytes(state)
    assert not exchanged(bench)
    assert "send in streams: rank 2 has" in bench.group.log()


@pytest.mark.parametrize("reader", ["rank0", "all"])
@pytest.mark.parametrize("fault", ["ncclCommInitRankConfig rank=2 nth=1 error=2", "ncclCommInitRankConfig rank=0 nth=1 error=5"])
def test_left_to_themselves_daemons_send_in_streams_once_nccl_could_not_begin(spread, tmp_path, reader, fault):
    bench = spread("--reader", reader, comm=(), faults=(fault,))
    source, state = sample(tmp_path)
    answer = bench.group.ctl("load", source, "--layout", "fsdp:4")
    assert answer.returncode == 1 and "NCCL" in answer.stderr, answer.stderr
    bench.nccl.script()
    assert int(load(bench, source, "fsdp:4")["progress"]["read"]["storage_bytes"]) == tensor_bytes(state)
    assert not exchanged(bench)
    assert "nothing was exchanged by NCCL; until the group changes, loads go in streams" in bench.group.log()
    bench.group.restart(3)
    load(bench, sample(tmp_path, count=1)[0], "fsdp:4")
    assert exchanged(bench), "the group has changed"


def test_ranks_that_nccl_never_joins_though_their_daemons_answer_hear_so_and_send_in_streams(spread, tmp_path):
    bench = spread(comm=(), faults=("ncclCommInitRankConfig nth=1 hang=1",))
    source, state = sample(tmp_path)
    answer = bench.group.ctl("load", source, "--layout", "fsdp:4")
    assert answer.returncode == 1 and '"reason":"NCCL_FAILED"' in answer.stderr, answer.stderr
    assert "all daemons answer rank 0" in answer.stderr and "CKPTD_NCCL_SOCKET_IFNAME" in answer.stderr
    bench.nccl.script()
    assert int(load(bench, source, "fsdp:4")["progress"]["read"]["storage_bytes"]) == tensor_bytes(state)
    assert not exchanged(bench)


# One exchange each, which has ended everywhere else before the next heartbeat; also under a leader that holds its
# shard and takes no part: rank 2 is the second of the others.
@pytest.mark.parametrize("files, holds, rank", [(4, False, 2), (1, True, 1), (4, True, 1), (9, True, 1)])
def test_a_link_that_stands_still_once_all_else_is_done_is_given_up_and_the_next_load_works(
        spread, tmp_path, files, holds, rank):
    fault = f"ncclRecv rank={rank} nth=1 after_bytes=1000 hang=1"
    bench = spread("--reader", "all", comm=(), faults=() if holds else (fault,))
    source, _ = sample(tmp_path, files=files)
    if holds:
        load(bench, source, "fsdp:4")
        bench.nccl.script(fault)
        for other in (1, 2, 3):
            bench.group.restart(other)
    since = time.monotonic()
    answer = bench.group.ctl("load", source, "--layout", "fsdp:4", rank=1)
    assert answer.returncode == 4 and '"reason":"DEADLINE"' in answer.stderr, answer.stderr
    if files < 9:
        # Who waits for rank 2 before it has done more than that has not ended either.
        assert '"rank":"2"' in answer.stderr or "ranks 1, 2" in answer.stderr, answer.stderr
    else:  # all wait for it in the first of three turns, and what comes later is read by none
        assert "no rank has read or received anything" in answer.stderr, answer.stderr
    assert time.monotonic() - since < LIMIT
    load(bench, sample(tmp_path / "next", count=1)[0], "fsdp:4")


def crosses(bench, network, source, layout):
    """Bytes that the second host receives during a load. Heartbeats are among them."""
    before = network.bytes_received(1)
    bench.group.json("load", source, "--layout", layout)
    return network.bytes_received(1) - before


# How much of what storage holds may cross the cable to the second host. Of five files that take
# turns among four readers, three are read on the first host.
@pytest.mark.parametrize("reader, least, most", [("rank0", 1 / 2, 1 / 2), ("per_node", 0, 0), ("all", 1 / 4, 0.31)])
def test_storage_is_read_once_and_only_what_a_host_needs_crosses_to_it(spread, network, tmp_path, reader, least, most):
    bench = spread("--reader", reader)
    source, state = sample(tmp_path, rows=2001)
    crossed = crosses(bench, network, source, "fsdp:4")
    checkpoint = load(bench, source, "fsdp:4")
    size = tensor_bytes(state)
    assert int(checkpoint["progress"]["read"]["storage_bytes"]) == size
    # Headers of packets, and what the daemons tell each other.
    assert size * least <= crossed <= size * most * 1.05 + 400_000


def test_a_replica_on_the_other_host_is_sent_each_shard_once(spread, network, tmp_path):
    bench = spread()
    source, state = sample(tmp_path, rows=2001)
    crossed = crosses(bench, network, source, "hsdp:2x2")
    load(bench, source, "hsdp:2x2")
    assert tensor_bytes(state) <= crossed <= tensor_bytes(state) * 1.05 + 400_000


def test_a_slow_cable_is_only_slow(spread, network, tmp_path):
    bench = spread()
    source, state = sample(tmp_path, rows=2001)
    network.limit("50mbit")
    began = time.monotonic()
    load(bench, source, "fsdp:4")
    assert time.monotonic() - began > tensor_bytes(state) / 2 * 8 / 50e6 * 0.8


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_rank_that_is_killed_on_either_host_is_named_to_all_in_time_and_the_next_load_works(spread, tmp_path, victim):
    bench = spread(link_bytes_per_second=SLOW)
    name = begin(bench, sample(tmp_path)[0])
    since = time.monotonic()
    os.kill(bench.group.pid(victim), signal.SIGKILL)
    for rank in set(range(len(HOSTS))) - {victim}:
        why = failure(bench, name, since, rank)
        assert f"rank {victim}" in why["message"], why
    bench.group.processes[victim].wait()
    bench.group.processes[victim] = bench.group.start(victim)
    bench.group.wait_ready()
    load(bench, sample(tmp_path / "next", count=1)[0], "fsdp:4")


def test_a_cut_cable_ends_the_load_in_time_names_a_rank_behind_it_and_mended_the_next_load_works(
        spread, network, tmp_path):
    bench = spread(link_bytes_per_second=SLOW)
    source, _ = sample(tmp_path)
    name = begin(bench, source)
    since = time.monotonic()
    network.cut()
    why = failure(bench, name, since)
    assert "rank 2" in why["message"] or "rank 3" in why["message"], why
    # Who is cut off sees the same from its side.
    why = failure(bench, name, since, rank=2)
    assert "rank 0" in why["message"] or "leader" in why["message"], why
    assert time.monotonic() - since < LIMIT
    network.mend()
    bench.group.wait_ready()
    load(bench, sample(tmp_path, count=1)[0], "fsdp:4")
