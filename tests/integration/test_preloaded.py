"""What is resident by rule serves what trainers state, where it comes to the same; and loads at the start."""

import concurrent.futures
import sys

import ckptd
import grpc
import preloaded_cases
import pytest
from faults import sparse
from group import Daemon, Group, wait_until
from ranks import assert_passed
from slices import as_bytes, rows

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
# Ends well where every rank's daemon has loaded something.
ALL_LOADED = """
import os, sys, ckptd
for rank in range(2):
    with ckptd.connect(rank=rank) as client:
        assert [one.state for one in client.list()] == ["ACTIVE"], client.list()
sys.exit(7)
"""


@pytest.mark.parametrize("case", [case.__name__ for case in preloaded_cases.CASES[2]])
def test_what_was_loaded_by_rule_serves_trainers_for_whom_it_is_the_same(case, outcomes):
    assert_passed(outcomes(preloaded_cases, 2), case, 2)


def test_what_is_asked_for_while_it_is_read_by_rule_is_read_once(start, tmp_path):
    path = sparse(tmp_path / "m.safetensors", 128 << 20)
    group = start(2)

    def load(rank):
        layout = ckptd.RankLayout(rank, 2, shardings=[ckptd.Sharding()])
        layout.add("hole", (128 << 20,), 0)
        with ckptd.connect(group.address(rank)) as client:
            return client.load(path, layout=layout, timeout=60)

    ruled = group.json("load", path, "--layout", "replicate:2", "--no-wait")["checkpoint"]
    assert ruled["state"] == "STATE_LOADING"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        stated = list(pool.map(load, range(2)))
    assert [(one.resident, one.served_from) for one in stated] == [(True, ruled["name"])] * 2
    assert [one["name"] for one in group.json("list")["checkpoints"]] == [ruled["name"]]


def health(socket):
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)


def loaded(group, rank):
    with ckptd.connect(group.address(rank)) as client:
        return [one for one in client.list() if one.state == "ACTIVE"]


def test_launch_loads_what_it_is_given_while_trainers_start(start, source):
    path, tensors = source
    group = start(2, "--load", path, "--dtype", "bf16")
    for rank in range(2):
        (one,) = wait_until(lambda: loaded(group, rank), "the load at the start")
        assert one.source == path and one.layout == "fsdp:2"
        with ckptd.connect(group.address(rank)) as client:
            with client.acquire(one) as shard:
                theirs = rows(tensors["large"].bfloat16(), rank, 2)
                assert bytes(shard.tensors["large"].buffer) == as_bytes(theirs)
            assert client.load(path, layout="fsdp:2", dtype="BF16").name == one.name


def test_a_daemon_that_comes_back_loads_its_shard_again(start, source):
    group = start(2, "--load", source[0])
    for rank in range(2):
        wait_until(lambda: loaded(group, rank), "the load at the start")
    group.kill(1)
    wait_until(lambda: loaded(group, 1), "the shard of the new daemon")
    assert len(loaded(group, 0)) == 1


def test_a_command_that_is_to_find_it_loaded_starts_when_it_is(tmp_path, tmp_path_factory):
    path = sparse(tmp_path / "m.safetensors", 64 << 20)
    group = Group(tmp_path_factory.mktemp("g"), 2, "--load", path, "--ready-when", "loaded",
                  command=(sys.executable, "-c", ALL_LOADED))
    assert group.process.wait(60) == 7, group.log()


def test_health_says_serving_when_it_is_loaded(tmp_path, tmp_path_factory):
    path = sparse(tmp_path / "m.safetensors", 1 << 20)
    with Daemon(tmp_path_factory.mktemp("g"), "--load", path, "--ready-when", "loaded") as daemon:
        socket = daemon.run_dir / daemon.job / "rank-0.sock"
        wait_until(lambda: health(socket) == SERVING, "a daemon that is ready")
        assert loaded(daemon, 0)
    missing = Daemon(tmp_path_factory.mktemp("g"), "--load", tmp_path / "none", "--ready-when", "loaded")
    with missing as daemon:
        wait_until(lambda: "at the start failed" in daemon.log(), "the failure")
        assert health(daemon.run_dir / daemon.job / "rank-0.sock") == NOT_SERVING


def test_a_load_at_the_start_that_fails_is_said_and_leaves_the_command_alone(tmp_path, tmp_path_factory):
    told = tmp_path / "failed"
    waits = f"import os, sys, time\nwhile not os.path.exists({str(told)!r}): time.sleep(.02)\nsys.exit(7)"
    group = Group(tmp_path_factory.mktemp("g"), 2, "--load", tmp_path / "none",
                  command=(sys.executable, "-c", waits))
    try:
        wait_until(lambda: "at the start failed; trainers that need it request it again" in group.log(),
                   "the failure in the log")
        assert group.process.poll() is None
        told.touch()
        assert group.process.wait(60) == 7, group.log()
    finally:
        group.end()


def test_a_command_that_waits_for_a_load_that_fails_is_not_started(tmp_path, tmp_path_factory):
    group = Group(tmp_path_factory.mktemp("g"), 2, "--load", tmp_path / "none", "--ready-when", "loaded",
                  command=(sys.executable, "-c", "raise SystemExit(7)"))
    assert group.process.wait(60) == 1, group.log()
    assert f"{tmp_path / 'none'} could not be loaded" in group.log() and "[LOAD_FAILED]" in group.log()


def test_a_layout_for_another_number_of_ranks_is_a_mistake_before_anything_starts(tmp_path_factory):
    group = Group(tmp_path_factory.mktemp("g"), 2, "--load", "/m", "--layout", "fsdp:4")
    assert group.process.wait(60) == 2, group.log()
    assert "it is for 4 ranks, and the group has 2" in group.log()
