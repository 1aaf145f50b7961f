"""Functions that take a path, over files of every format: the outcome is the original function's."""

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("peft")
import format_client_cases  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402

WORLD = format_client_cases.WORLD


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "format_client_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in format_client_cases.CASES[WORLD]])
def test_what_is_loaded_is_what_the_original_function_makes_of_it(case, outcome):
    assert_passed(outcome, case, WORLD)
