"""What is resident by rule serves what trainers state, where it comes to the same."""

import preloaded_cases
import pytest
from ranks import assert_passed


@pytest.mark.parametrize("case", [case.__name__ for case in preloaded_cases.CASES[2]])
def test_what_was_loaded_by_rule_serves_trainers_for_whom_it_is_the_same(case, outcomes):
    assert_passed(outcomes(preloaded_cases, 2), case, 2)
