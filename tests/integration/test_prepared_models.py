"""from_pretrained and accelerate's prepare, natively and from the daemons: one model, one training."""

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("peft")
pytest.importorskip("transformers")
import prepared_cases  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402

WORLD = 2


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "prepared_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in prepared_cases.CASES[WORLD]])
def test_models_that_accelerate_prepares_are_the_same(case, outcome):
    assert_passed(outcome, case, WORLD)
