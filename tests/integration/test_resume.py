"""load_training_state with real daemons: a training goes on as if it had not been stopped."""

import pytest
import resume_cases
from ranks import assert_passed


@pytest.mark.parametrize("world,case", [(w, c.__name__) for w, cases in resume_cases.CASES.items() for c in cases])
def test_a_training_goes_on_as_if_it_had_not_been_stopped(world, case, outcomes):
    assert_passed(outcomes(resume_cases, world), case, world)
