"""Daemons and `launch` that are killed in each stage of a load: who hears what, what is left.

Those that stand still are in test_standing_still.py, clients in test_dying_clients.py.
"""

import os
import signal
import time

import pytest
from faults import (
    Loading,
    footprints,
    sockets,
    sparse,
    stopped,
    wait_gathered,
)
from group import Group, wait_until
from holds import (
    HEARTBEATS,
    LIMIT,
    WORKING,
    Hold,
    assert_heals,
    assert_heard,
    held_at,
    names,
    needed_for,
    statement,
)
from process_state import runs


def places(*stages, host=("QUEUED", *WORKING)):
    """Stages in host memory; of GPUs some of those in which the driver is at work."""
    chosen = [("host", stage) for stage in host] + [("cuda", stage) for stage in stages]
    return pytest.mark.parametrize("memory, stage", chosen, indirect=["memory"])


@pytest.fixture
def warm(start, tmp_path):
    """warm(ranks, *options) -> (a group that has loaded once, what its daemons hold since then)."""

    def make(ranks, *options):
        group = start(ranks, *HEARTBEATS, *options)
        return group, footprints(group, sparse(tmp_path / "warm.safetensors", 1 << 20))

    return make


@places("ALLOCATING", "TRANSFERRING")
def test_killing_a_member_ends_the_load_on_all_ranks_with_its_name(warm, tmp_path, outcome, stage):
    group, before = warm(3, *needed_for(stage))
    with Hold(group, stage, tmp_path) as held:
        os.kill(held.pids[2], signal.SIGKILL)
        since = time.monotonic()
    results = outcome(stage, "member", "killed", held.loads, since)
    assert_heard(stage, results, 2)
    assert_heals(group, held.path, before)


@places("TRANSFERRING", host=("GATHERING", "QUEUED", *WORKING))
def test_killing_the_leader_ends_the_load_on_all_ranks_with_its_name(
    warm, tmp_path, outcome, stage
):
    group, before = warm(3, *needed_for(stage))
    with Hold(group, stage, tmp_path) as held:
        os.kill(held.pids[0], signal.SIGKILL)
        held.go_on()
        since = time.monotonic()
        results = outcome(stage, "leader", "killed", held.loads, since)
    assert_heard(stage, results, 0)
    assert_heals(group, held.path, before)


def test_a_gathering_load_outlives_a_member_that_is_restarted(warm, tmp_path, outcome):
    group, before = warm(3)
    path = sparse(tmp_path / "s.safetensors")
    loads = [Loading(group, rank, path, statement(rank, 3)) for rank in range(2)]
    wait_gathered(group, path, loads)
    group.kill(2)
    since = time.monotonic()
    loads.append(Loading(group, 2, path, statement(2, 3)))
    results = outcome("GATHERING", "member", "killed", loads, since)
    assert [result.state for result in results] == ["ACTIVE"] * 3, results
    assert_heals(group, path, before)


def test_killing_every_daemon_in_the_middle_of_a_load_leaves_nobody_waiting(
    warm, tmp_path, outcome
):
    group, before = warm(3)
    with Hold(group, "TRANSFERRING", tmp_path) as held:
        for pid in held.pids:
            os.kill(pid, signal.SIGKILL)
        since = time.monotonic()
    results = outcome("TRANSFERRING", "all daemons", "killed", held.loads, since)
    # Each client's own daemon has died: that is what it can know.
    assert all(names(result, rank) for rank, result in enumerate(results)), results
    assert_heals(group, held.path, before)


@pytest.mark.parametrize("stage", ["GATHERING", "ALLOCATING", "TRANSFERRING"])
def test_killing_launch_in_the_middle_of_a_load_ends_everything(tmp_path, outcome, stage):
    (tmp_path / "g").mkdir()
    with Group(tmp_path / "g", 3, *HEARTBEATS) as group:
        with Hold(group, stage, tmp_path) as held:
            group.process.kill()
            group.process.wait()
            since = time.monotonic()
        results = outcome(stage, "launch", "killed", held.loads, since)
        # Each client's own daemon ends: that is what it can know.
        assert all(names(r, loading.rank) for r, loading in zip(results, held.loads)), results
        wait_until(lambda: not any(map(runs, held.pids)), "the daemons to end", LIMIT)
        assert sockets(group) == []


def test_a_launch_that_stands_still_disturbs_no_load(warm, tmp_path, outcome):
    group, before = warm(3)
    with stopped(group.process.pid):
        with held_at(group, "TRANSFERRING", tmp_path) as (path, loads, _):
            since = time.monotonic()
        results = outcome("TRANSFERRING", "launch", "stopped", loads, since)
    assert [result.state for result in results] == ["ACTIVE"] * 3
    assert_heals(group, path, before)


def test_faults_in_a_row_leave_the_survivors_flat(warm, tmp_path):
    """What one fault leaves may hide in what gRPC keeps in reserve; not what six do."""
    group, before = warm(3)
    leader = group.pid(0)
    for turn in range(6):
        victim = 1 + turn % 2  # launch waits longer from restart to restart of one rank
        file = tmp_path / f"{turn}.safetensors"
        with Hold(group, "TRANSFERRING", tmp_path, lambda _: sparse(file, 64 << 20, 5000)) as held:
            os.kill(held.pids[victim], signal.SIGKILL)
        results = [loading.outcome(LIMIT) for loading in held.loads]
        assert_heard("TRANSFERRING", results, victim)
        assert_heals(group, held.path, before)
    assert group.pid(0) == leader
