"""Daemons that die or stand still in each stage of a load: who waits, what they hear, what is left."""

import contextlib
import os
import signal
import time

import ckptd
import pytest
from faults import (Loading, assert_loads, assert_nothing_is_left, children, expected_sockets, held_at, load_everywhere,
                    sockets, sparse, stage_of, stopped)
from group import Group, wait_until

STAGES = ["OPENING", "PLANNING", "ALLOCATING", "TRANSFERRING"]
HEARTBEATS = ("--heartbeat-interval", "0.25", "--heartbeat-timeout", "1.5")
# Longest that anybody may wait once something has died.
LIMIT = 10


def names(error, rank):
    return isinstance(error, ckptd.Error) and (f"rank {rank}" in error.message or error.facts.get("rank") == str(rank))


def summary(result):
    return result.reason if isinstance(result, ckptd.Error) else result.state


@pytest.fixture
def outcome(record_property):
    """outcome(stage, who, what, loads, since): checks the waiting time and adds a row to the table."""
    def add(stage, who, what, loads, since):
        results = [loading.outcome(max(0.0, since + LIMIT - time.monotonic())) for loading in loads]
        longest = max(loading.ended for loading in loads) - since
        record_property("fault", (stage, who, what, " ".join(sorted({summary(r) for r in results})), longest))
        return results
    return add


def assert_heals(group, path):
    group.wait_ready()
    assert_loads(group, path)
    assert_nothing_is_left(group)


@pytest.mark.parametrize("stage", STAGES)
def test_killing_a_member_ends_the_load_on_all_ranks_with_its_name(start, tmp_path, outcome, stage):
    group = start(3, *HEARTBEATS)
    victim = group.pid(2)
    with held_at(group, stage, tmp_path) as (path, loads, _):
        os.kill(victim, signal.SIGKILL)
        since = time.monotonic()
    results = outcome(stage, "member", "killed", loads, since)
    assert all(names(result, 2) for result in results), results
    assert_heals(group, path)


@pytest.mark.parametrize("stage", STAGES)
def test_a_member_that_stands_still_ends_the_load_on_the_other_ranks(start, tmp_path, outcome, stage):
    group = start(3, *HEARTBEATS)
    victim = group.pid(2)
    with contextlib.ExitStack() as still:
        with held_at(group, stage, tmp_path) as (path, loads, _):
            still.enter_context(stopped(victim))
            since = time.monotonic()
        results = outcome(stage, "member", "stopped", loads[:2], since)
        assert all(names(result, 2) for result in results), results
    assert isinstance(loads[2].outcome(LIMIT), ckptd.Error)
    assert_heals(group, path)


@pytest.mark.parametrize("stage", STAGES)
def test_killing_the_leader_ends_the_load_on_all_ranks_with_its_name(start, tmp_path, outcome, stage):
    group = start(3, *HEARTBEATS)
    with held_at(group, stage, tmp_path) as (path, loads, leader):
        os.kill(leader, signal.SIGKILL)
        since = time.monotonic()
        results = outcome(stage, "leader", "killed", loads, since)
    assert all(names(result, 0) for result in results), results
    assert_heals(group, path)


@pytest.mark.parametrize("stage", STAGES)
def test_a_leader_that_stands_still_ends_the_load_on_the_other_ranks(start, tmp_path, outcome, stage):
    group = start(3, *HEARTBEATS)
    with held_at(group, stage, tmp_path) as (path, loads, _):
        since = time.monotonic()
        results = outcome(stage, "leader", "stopped", loads[1:], since)
        assert all(names(result, 0) for result in results), results
    assert isinstance(loads[0].outcome(LIMIT), ckptd.Error)
    assert_heals(group, path)
