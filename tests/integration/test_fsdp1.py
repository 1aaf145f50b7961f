"""Models that FSDP1 has wrapped, with real daemons, beside torch's and accelerate's own loading."""

import fsdp1_cases
import fsdp1_edge_cases
import plugin_cases
import pytest
from ranks import assert_gpus_used_well, assert_passed

MODULES = (fsdp1_cases, fsdp1_edge_cases, plugin_cases)


@pytest.mark.parametrize("memory", ["host", "cuda"])
@pytest.mark.parametrize("module,world,case", [
    pytest.param(module, world, case.__name__, id=f"{world}-{case.__name__}")
    for module in MODULES for world, cases in module.CASES.items() for case in cases])
def test_a_flat_parameter_is_filled_and_trains_as_with_the_real_load(module, world, case, memory, outcomes):
    assert_passed(outcomes(module, world, memory), case, world)


@pytest.mark.parametrize("module,world", [
    pytest.param(module, world, id=f"{module.__name__}-{world}") for module in MODULES for world in module.CASES])
def test_daemons_copy_no_weight_on_a_gpu_and_its_memory_comes_back(module, world, outcomes):
    assert_gpus_used_well(outcomes(module, world, "cuda"))
