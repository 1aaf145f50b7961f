"""load_training_state with real daemons: a training goes on as if it had not been stopped."""

import importlib
import importlib.util
import json

import pytest
import resume_cases
from group import Group
from ranks import CASES, assert_passed, run_ranks, said


@pytest.mark.parametrize("world,case", [(w, c.__name__) for w, cases in resume_cases.CASES.items() for c in cases])
def test_a_training_goes_on_as_if_it_had_not_been_stopped(world, case, outcomes):
    assert_passed(outcomes(resume_cases, world), case, world)


def test_torchtitan_goes_on_by_our_reader(outcomes):
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed; tests/python/torchtitan.sh runs this with it")
    cases = importlib.import_module("torchtitan_cases")
    assert_passed(outcomes(cases, 2), "a_training_of_torchtitan", 2)


def test_a_trainer_that_was_killed_before_its_first_step_attaches_and_goes_on(tmp_path_factory):
    folder = tmp_path_factory.mktemp("k")
    with Group(folder, 2) as group:
        for which in ("first", "next"):
            run_ranks(group, folder, 2, CASES / "killed_before_step.py", [which])
    for rank in range(2):
        files = [folder / f"{which}-{rank}.json" for which in ("first", "next")]
        assert files[1].exists(), said(folder, 2)
        first, after = [json.loads(file.read_text()) for file in files]
        assert after == {"losses": first["losses"], "resident": [True, True]}
