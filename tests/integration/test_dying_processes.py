"""Daemons that die or stand still in each stage of a load: who hears what, and what is left."""

import contextlib
import os
import signal
import time

import ckptd
import pytest
from faults import (
    MARK,
    Loading,
    assert_loads,
    assert_nothing_is_left,
    held_at,
    resources,
    sockets,
    sparse,
    stage_of,
    stopped,
)
from group import Group, wait_until

STAGES = ["OPENING", "PLANNING", "ALLOCATING", "TRANSFERRING"]
HEARTBEATS = ("--heartbeat-interval", "0.25", "--heartbeat-timeout", "1.5")
# Longest that anybody may wait once something has died.
LIMIT = 10


def places(*stages):
    """All stages in host memory; of GPUs some of those in which the driver is at work."""
    chosen = [("host", stage) for stage in STAGES] + [("cuda", stage) for stage in stages]
    return pytest.mark.parametrize("memory, stage", chosen, indirect=["memory"])


def names(error, rank):
    return isinstance(error, ckptd.Error) and (
        f"rank {rank}" in error.message or error.facts.get("rank") == str(rank)
    )


def heard(results, rank):
    """All heard whom they lost, but those whose request came so late that it was carried out."""
    late = [
        result
        for result in results
        if isinstance(result, ckptd.Checkpoint) and result.state == "ACTIVE"
    ]
    return len(late) < len(results) and all(
        names(result, rank) or result in late for result in results
    )


def summary(result):
    return result.reason if isinstance(result, ckptd.Error) else result.state


@pytest.fixture
def outcome(record_property):
    """outcome(stage, who, what, loads, since): checks how long they waited; a row of the table."""

    def add(stage, who, what, loads, since):
        results = [loading.outcome(max(0.0, since + LIMIT - time.monotonic())) for loading in loads]
        longest = max(loading.ended for loading in loads) - since
        record_property(
            "fault", (stage, who, what, " ".join(sorted({summary(r) for r in results})), longest)
        )
        return results

    return add


def assert_heals(group, path):
    """The group re-forms, the next load works, and afterwards nothing is left of either."""
    group.wait_ready()
    assert_loads(group, path)
    assert_nothing_is_left(group)


@places("ALLOCATING", "TRANSFERRING")
def test_killing_a_member_ends_the_load_on_all_ranks_with_its_name(start, tmp_path, outcome, stage):
    group = start(3, *HEARTBEATS)
    victim = group.pid(2)
    with held_at(group, stage, tmp_path) as (path, loads, _):
        os.kill(victim, signal.SIGKILL)
        since = time.monotonic()
    results = outcome(stage, "member", "killed", loads, since)
    assert heard(results, 2), results
    assert_heals(group, path)


@places("TRANSFERRING")
def test_a_member_that_stands_still_ends_the_load_on_the_other_ranks(
    start, tmp_path, outcome, stage
):
    group = start(3, *HEARTBEATS)
    victim = group.pid(2)
    with contextlib.ExitStack() as still:
        with held_at(group, stage, tmp_path) as (path, loads, _):
            still.enter_context(stopped(victim))
            since = time.monotonic()
        results = outcome(stage, "member", "stopped", loads[:2], since)
        assert heard(results, 2), results
    loads[2].outcome(LIMIT)
    assert_heals(group, path)


@places("TRANSFERRING")
def test_killing_the_leader_ends_the_load_on_all_ranks_with_its_name(
    start, tmp_path, outcome, stage
):
    group = start(3, *HEARTBEATS)
    with held_at(group, stage, tmp_path) as (path, loads, leader):
        os.kill(leader, signal.SIGKILL)
        since = time.monotonic()
        results = outcome(stage, "leader", "killed", loads, since)
    assert heard(results, 0), results
    assert_heals(group, path)


@places("ALLOCATING")
def test_a_leader_that_stands_still_ends_the_load_on_the_other_ranks(
    start, tmp_path, outcome, stage
):
    group = start(3, *HEARTBEATS)
    with held_at(group, stage, tmp_path) as (path, loads, _):
        since = time.monotonic()
        results = outcome(stage, "leader", "stopped", loads[1:], since)
        assert heard(results, 0), results
    assert isinstance(loads[0].outcome(LIMIT), ckptd.Error)
    assert_heals(group, path)


def test_killing_every_daemon_in_the_middle_of_a_load_leaves_nobody_waiting(
    start, tmp_path, outcome
):
    group = start(3, *HEARTBEATS)
    pids = [group.pid(rank) for rank in range(3)]
    with held_at(group, "TRANSFERRING", tmp_path) as (path, loads, _):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        since = time.monotonic()
    results = outcome("TRANSFERRING", "all daemons", "killed", loads, since)
    # Each client's own daemon has died: that is what it can know.
    assert all(names(result, rank) for rank, result in enumerate(results)), results
    assert_heals(group, path)


def test_killing_launch_in_the_middle_of_a_load_ends_everything(tmp_path, outcome):
    (tmp_path / "g").mkdir()
    with Group(tmp_path / "g", 3, *HEARTBEATS) as group:
        pids = [group.pid(rank) for rank in range(3)]
        with held_at(group, "TRANSFERRING", tmp_path) as (_, loads, _):
            group.process.kill()
            group.process.wait()
            since = time.monotonic()
        results = outcome("TRANSFERRING", "launch", "killed", loads, since)
        assert all(isinstance(result, ckptd.Error) for result in results), results
        wait_until(
            lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids),
            "the daemons to end",
            LIMIT,
        )
        assert sockets(group) == []


def test_a_launch_that_stands_still_disturbs_no_load(start, tmp_path, outcome):
    group = start(3, *HEARTBEATS)
    with stopped(group.process.pid):
        with held_at(group, "TRANSFERRING", tmp_path) as (path, loads, _):
            since = time.monotonic()
        results = outcome("TRANSFERRING", "launch", "stopped", loads, since)
    assert [result.state for result in results] == ["ACTIVE"] * 3
    assert_heals(group, path)


def test_a_client_gives_up_a_daemon_that_stands_still(start, tmp_path, outcome):
    group = start(1)
    with held_at(group, "TRANSFERRING", tmp_path) as (path, loads, _):
        since = time.monotonic()
        (result,) = outcome("TRANSFERRING", "the client's own daemon", "stopped", loads, since)
        assert result.reason == "DAEMON_UNREACHABLE" and "rank-0.sock" in result.message, result
    assert_heals(group, path)


def statement(rank, ranks):
    """What a trainer states in rank form: all of MARK."""
    layout = ckptd.RankLayout(rank, ranks, shardings=[ckptd.Sharding()])
    layout.add("mark", [len(MARK)], 0)
    return layout


def test_a_gathering_load_outlives_a_member_that_is_restarted(start, tmp_path, outcome):
    group = start(3, *HEARTBEATS)
    path = sparse(tmp_path / "s.safetensors")
    loads = [Loading(group, rank, path, statement(rank, 3)) for rank in range(2)]
    with ckptd.connect(group.address(1)) as client:
        wait_until(lambda: stage_of(client, path) == "GATHERING", "the load to gather")
    group.kill(2)
    since = time.monotonic()
    loads.append(Loading(group, 2, path, statement(2, 3)))
    results = outcome("GATHERING", "member", "killed", loads, since)
    assert [result.state for result in results] == ["ACTIVE"] * 3, results
    assert_nothing_is_left(group)


def test_a_gathering_load_ends_with_its_leader(start, tmp_path, outcome):
    group = start(3, *HEARTBEATS)
    path = sparse(tmp_path / "s.safetensors")
    loads = [Loading(group, rank, path, statement(rank, 3)) for rank in range(2)]
    with ckptd.connect(group.address(1)) as client:
        wait_until(lambda: stage_of(client, path) == "GATHERING", "the load to gather")
    os.kill(group.pid(0), signal.SIGKILL)
    results = outcome("GATHERING", "leader", "killed", loads, time.monotonic())
    assert all(names(result, 0) for result in results), results
    group.wait_ready()
    assert_nothing_is_left(group)


def test_faults_in_a_row_leave_the_survivors_flat(start, tmp_path):
    group = start(2, *HEARTBEATS)
    leader, counts = group.pid(0), []
    for turn in range(4):  # launch waits longer from restart to restart
        (tmp_path / str(turn)).mkdir()
        victim = group.pid(1)
        with held_at(group, "TRANSFERRING", tmp_path / str(turn)) as (path, loads, _):
            os.kill(victim, signal.SIGKILL)
        assert all(isinstance(loading.outcome(LIMIT), ckptd.Error) for loading in loads)
        wait_until(
            lambda: (group.info(1) or {}).get("pid", victim) != victim, "rank 1 to be back", LIMIT
        )
        assert_heals(group, path)
        counts.append(resources(leader))
    # The first turns fill what gRPC keeps in reserve.
    for key, slack in (("memfds", 0), ("fds", 6), ("threads", 4)):
        assert counts[-1][key] <= counts[1][key] + slack, counts
