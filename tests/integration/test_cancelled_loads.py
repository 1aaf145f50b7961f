"""Loads that an operator gives up: `ckptctl unload --force` of what is still loading."""

import threading

import ckptd
import pytest
from faults import (
    Loading,
    assert_loads,
    assert_nothing_is_left,
    sparse,
    statement,
    wait_gathered,
)
from group import PATIENCE, SOON, wait_until
from holds import Hold


def name_of(group, path, rank):
    (name,) = [c["name"] for c in group.json("list", rank=rank)["checkpoints"] if c["source"] == path]
    return name


def assert_cancelled(loads, rank):
    for loading in loads:
        error = loading.outcome(SOON)
        assert isinstance(error, ckptd.Aborted), error
        assert (error.reason, error.facts["rank"]) == ("LOAD_CANCELLED", str(rank)), error
        assert f"unloaded at rank {rank} while it was loading" in error.message


@pytest.mark.parametrize("rank", [0, 1])
def test_a_load_that_waits_for_a_trainer_is_cancelled_for_all_who_wait_with_it(start, tmp_path, rank):
    group, path = start(3), sparse(tmp_path / "m.safetensors")
    loads = [Loading(group, r, path, statement(r, 3)) for r in range(2)]
    wait_gathered(group, path, loads)
    name = name_of(group, path, rank)
    refused = group.error("unload", name, rank=rank)
    assert refused["reason"] == "NOT_ACTIVE" and "force it, which cancels the load" in refused["message"]
    assert group.json("unload", "--force", name, rank=rank)["cancelled"] is True
    assert_cancelled(loads, rank)
    assert_loads(group, path)
    assert_nothing_is_left(group)


def test_a_load_is_cancelled_by_a_member_while_the_leader_reads(start, tmp_path):
    group = start(2)
    # Reading it takes far longer than the leader needs to hear the member.
    with Hold(group, "TRANSFERRING", tmp_path, make=lambda f: sparse(f / "m.safetensors", 1 << 30)) as held:
        name, answers = name_of(group, held.path, 1), []
        asking = threading.Thread(
            target=lambda: answers.append(group.json("unload", "--force", name, rank=1)))
        asking.start()
        wait_until(lambda: f"{name}: its load is being cancelled" in group.log(), "the member to be asked")
    asking.join(PATIENCE)
    assert answers[0]["cancelled"] is True, answers
    assert_cancelled(held.loads, 1)
    assert_loads(group, sparse(tmp_path / "next.safetensors", 1 << 20))
    assert_nothing_is_left(group)
