"""LoadStrategy on every rank of a group of real daemons; beside megatron-core's own where it is installed."""

import importlib.util

import pytest

pytest.importorskip("torch")
import megatron_cases  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    found = {}

    def of(world, module="megatron_cases"):
        if (world, module) not in found:
            found[world, module] = outcome_of(tmp_path_factory.mktemp, world, module)
        return found[world, module]

    return of


@pytest.mark.parametrize("world, case", [(world, case.__name__) for world, cases in sorted(megatron_cases.CASES.items())
                                         for case in cases])
def test_what_is_loaded_is_what_was_saved(world, case, outcomes):
    assert_passed(outcomes(world), case, world)


def test_it_serves_megatron_core_as_its_own_strategy(outcomes):
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed; tests/python/megatron_core.sh runs this with it")
    outcome = outcomes(2, "megatron_core_cases")
    cases = [case for case in outcome if case not in ("log", "stderr", "gpus")]
    assert cases, outcome["stderr"]
    for case in cases:
        assert_passed(outcome, case, 2)
