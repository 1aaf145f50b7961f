"""Models of which each rank has a stage, or a replica, with real daemons."""

import pipeline_cases
import pytest
from ranks import assert_passed


@pytest.mark.parametrize("world,case", [(w, c.__name__) for w, cases in pipeline_cases.CASES.items() for c in cases])
def test_a_part_of_a_model_is_filled_and_trains_as_with_torch(world, case, outcomes):
    assert_passed(outcomes(pipeline_cases, world), case, world)
