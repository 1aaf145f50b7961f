"""A rank that fails in load_into: what the others hear, and that the next load works."""

import json
import pathlib

import failing_load_cases
import pytest
from group import SOON, Group
from ranks import assert_passed, outcome_of, run_ranks, said

WORLD = 3
PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "cases/killed_in_load.py"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "failing_load_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in failing_load_cases.CASES[WORLD]])
def test_every_rank_hears_of_it_in_time_and_the_next_load_works(case, outcome):
    assert_passed(outcome, case, WORLD)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("k"), 2) as group:
        yield group


@pytest.mark.parametrize("moment", ["before it asks", "while it waits", "while it places"])
def test_a_rank_that_is_killed_in_the_call_ends_the_others_and_loads_again_with_them(moment, daemons, tmp_path):
    run_ranks(daemons, tmp_path, 2, PROGRAM, [moment])
    file = tmp_path / "heard.json"
    assert file.exists(), said(tmp_path, 2)
    kind, reason, message, seconds, pid, again = json.loads(file.read_text())
    assert (kind, reason) == ("Aborted", "RANK_LOST"), message
    assert f"rank 1: loading {tmp_path}" in message and f"its process {pid} has ended" in message
    assert seconds < SOON
    assert again < SOON, "a load with a new process of that rank"
