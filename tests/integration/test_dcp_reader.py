"""dcp.load by ckptd's StorageReader over real daemons: the outcome is that of torch's own readers."""

import pytest

pytest.importorskip("torch")
import dcp_cases  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402

WORLD = dcp_cases.WORLD


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "dcp_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in dcp_cases.CASES[WORLD]])
def test_the_reader_does_what_torch_s_own_does(case, outcome):
    assert_passed(outcome, case, WORLD)
