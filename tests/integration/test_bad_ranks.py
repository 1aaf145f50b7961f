"""One rank whose daemon is not there, or that raises: what the others make of it, in 10 seconds."""

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
import bad_rank_cases  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402

WORLD = 2


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "bad_rank_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in bad_rank_cases.CASES[WORLD]])
def test_every_rank_hears_why_or_all_go_natively(case, outcome):
    assert_passed(outcome, case, WORLD)
