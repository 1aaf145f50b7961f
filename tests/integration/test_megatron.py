"""LoadStrategy on every rank of a group of real daemons; beside megatron-core's own where it is installed."""

import pytest

pytest.importorskip("torch")
import megatron_cases  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    found = {}

    def of(world):
        if world not in found:
            found[world] = outcome_of(tmp_path_factory.mktemp, world, "megatron_cases")
        return found[world]

    return of


@pytest.mark.parametrize("world, case", [(world, case.__name__) for world, cases in sorted(megatron_cases.CASES.items())
                                         for case in cases])
def test_what_is_loaded_is_what_was_saved(world, case, outcomes):
    assert_passed(outcomes(world), case, world)
