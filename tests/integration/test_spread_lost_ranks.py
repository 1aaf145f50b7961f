"""What ranks hear that wait for one which will never come: its reason, long before their deadline."""

import json
import pathlib

import pytest
from group import SOON
from ranks import run_ranks, said

HERE = pathlib.Path(__file__).resolve().parent
WORLD = 3
FUNCTIONS = ("fsdp2_load_full_state_dict", "DistModule", "broadcast_and_shard_state_dict", "set_model_state_dict")


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    from group import Group
    with Group(tmp_path_factory.mktemp("l"), WORLD) as group:
        yield group


def heard(folder, daemons, how, *functions):
    """What each rank that lives on heard of each function, when one was lost."""
    run_ranks(daemons, folder, WORLD, HERE.parent / "cases/lost_rank.py", [how, *functions])
    lost = 0 if how in ("its store goes with it", "it is rank 0 and late") else WORLD - 1
    files = [folder / f"rank-{rank}.json" for rank in range(WORLD) if rank != lost]
    assert all(file.exists() for file in files), said(folder, WORLD)
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("how,says,functions", [
    ("it is killed", "has ended", FUNCTIONS),
    ("it raises", "a mistake of the trainer", ("DistModule",)),
    ("it raises before its first call", "its process has ended", ("broadcast_and_shard_state_dict",)),
    ("its store goes with it", "store is gone", ("set_model_state_dict", "fsdp2_load_full_state_dict")),
])
def test_ranks_that_wait_for_a_lost_one_hear_why_long_before_their_deadline(how, says, functions, daemons, tmp_path):
    for calls in heard(tmp_path, daemons, how, *functions):
        assert len(calls) == len(functions)
        for function, (kind, reason, sentence, seconds) in zip(functions, calls):
            assert (kind, reason) == ("Aborted", "RANK_LOST"), f"{function}: {sentence}"
            assert says in sentence and "start the job again" in sentence, function
            assert seconds < SOON, function


@pytest.mark.parametrize("how,lost,function", [
    ("it is late", WORLD - 1, "DistModule"),
    ("it is rank 0 and late", 0, "set_model_state_dict"),
])
def test_ranks_that_wait_for_a_late_one_hear_for_whom_long_before_their_deadline(how, lost, function, daemons, tmp_path):
    for ((kind, _, sentence, seconds),) in heard(tmp_path, daemons, how, function):
        assert kind == "", f"{kind}: {sentence}"
        assert f"s, for rank {lost}, which must make the same call; it gives up after 60 s" in sentence
        assert seconds < SOON


def test_in_a_group_that_is_made_anew_calls_are_in_step_and_a_lost_rank_is_named(daemons, tmp_path):
    run_ranks(daemons, tmp_path, WORLD, HERE.parent / "cases/regrouped.py")
    for rank in range(WORLD - 1):
        apart, loaded, lost = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert apart[0] == "ValueError" and loaded[:2] == ["", ""], (apart, loaded)
        assert lost[0] == "Aborted" and f"waiting for rank {WORLD - 1}: its process" in lost[1] and lost[2] < SOON, lost
