"""The functions that spread rank 0's state, with real daemons, beside the real functions."""

import accelerate_cases
import checkpoint_rank_cases
import document_cases
import pytest
import rank_unique_cases
import spread_cases
import spread_memory_cases
import state_dict_cases
from ranks import assert_passed

MODULES = (
    spread_cases, state_dict_cases, accelerate_cases, checkpoint_rank_cases, spread_memory_cases, document_cases,
    rank_unique_cases
)


@pytest.mark.parametrize("module,world,case", [
    pytest.param(module, world, case.__name__, id=f"{world}-{case.__name__}")
    for module in MODULES for world, cases in module.CASES.items() for case in cases])
def test_rank_0_s_state_reaches_every_rank_as_by_the_real_function(module, world, case, outcomes):
    assert_passed(outcomes(module, world), case, world)
