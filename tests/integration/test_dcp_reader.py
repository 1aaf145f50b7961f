"""dcp.load by ckptd's StorageReader over real daemons: the outcome is that of torch's own readers."""

import pytest

torch = pytest.importorskip("torch")
import ckptd.torch  # noqa: E402
import dcp_cases  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from group import Group  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402

WORLD = dcp_cases.WORLD


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "dcp_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in dcp_cases.CASES[WORLD]])
def test_the_reader_does_what_torch_s_own_does(case, outcome):
    assert_passed(outcome, case, WORLD)


def test_a_process_outside_of_the_job_loads_for_itself(tmp_path):
    saved = {"w": torch.randn(6, 4), "list": [torch.arange(3), 2], "step": 3}
    dcp.save(saved, checkpoint_id=tmp_path / "d", no_dist=True)
    with Group(tmp_path, 2) as group:
        state = {"w": torch.zeros(6, 4), "list": [torch.zeros(3, dtype=torch.int64), 0], "step": 0}
        dcp.load(state, storage_reader=ckptd.torch.StorageReader(tmp_path / "d", address=group.address(1)))
        assert state["w"].equal(saved["w"]) and state["list"][0].equal(saved["list"][0])
        assert (state["list"][1], state["step"]) == (2, 3)
        assert [group.json("list", rank=rank)["checkpoints"][0]["slab_bytes"] > 0 for rank in (0, 1)] == [False, True]
