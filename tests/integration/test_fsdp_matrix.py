"""The wrapping cases of load_into, with real daemons: every rank states its tensors."""

import fsdp_cases
import pytest
from ranks import assert_gpus_used_well, assert_passed


@pytest.mark.parametrize("memory", ["host", "cuda"])
@pytest.mark.parametrize("world,case", [(w, c.__name__) for w, cases in fsdp_cases.CASES.items() for c in cases])
def test_the_model_is_filled_in_place_and_trains_as_with_torch_s_own_loader(world, case, memory, outcomes):
    assert_passed(outcomes(fsdp_cases, world, memory), case, world)


@pytest.mark.parametrize("world", fsdp_cases.CASES)
def test_daemons_copy_no_weight_on_a_gpu_and_its_memory_comes_back(world, outcomes):
    assert_gpus_used_well(outcomes(fsdp_cases, world, "cuda"))
