"""The wrapping cases of load_into, with real daemons: every rank states its tensors."""

import pytest
from fsdp_cases import CASES
from ranks import assert_passed, outcome_of


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """world -> the outcome of all cases for that size, run once."""
    cache = {}

    def get(world):
        if world not in cache:
            cache[world] = outcome_of(tmp_path_factory.mktemp, world)
        return cache[world]

    return get


@pytest.mark.parametrize("world,case", [(w, c.__name__) for w, cases in CASES.items() for c in cases])
def test_the_model_is_filled_in_place_and_trains_as_with_torch_s_own_loader(world, case, outcomes):
    assert_passed(outcomes(world), case, world)
