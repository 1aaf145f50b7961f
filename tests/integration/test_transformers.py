"""from_pretrained natively and from the daemons: every tensor, report and result, to the last bit.

The same with the last transformers 4: tests/python/older_transformers.sh.
"""

import json

import pytest
from group import Group

pytest.importorskip("transformers")
import warm  # noqa: E402
from ranks import HERE, assert_passed, found_by_case, run_ranks, said  # noqa: E402
from transformers_cases import CASES  # noqa: E402

WORKER = HERE.parent / "cases/transformers_worker.py"
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """world -> case -> {rank: None or what differs}, each size of group run once."""
    cache = {}

    def get(world):
        if world not in cache:
            folder = tmp_path_factory.mktemp("w")
            with Group(tmp_path_factory.mktemp("m"), world) as group:
                run_ranks(group, folder, world, WORKER, environment=OFFLINE, patience=900,
                          modules=warm.TRANSFORMERS)
                log = group.log()
            held = [json.loads(file.read_text()) for file in sorted(folder.glob("held-*.json"))]
            cache[world] = {**found_by_case(folder, world), "held": held, "log": log, "stderr": said(folder, world)}
        return cache[world]

    return get


@pytest.mark.parametrize("world,case", [(w, c.name) for w, cases in CASES.items() for c in cases])
def test_the_model_is_the_one_that_transformers_loads_natively(world, case, outcomes):
    assert_passed(outcomes(world), case, world)


@pytest.mark.parametrize("world,case", [(w, c.name) for w, cases in CASES.items() if w > 1 for c in cases])
def test_daemons_hold_only_what_their_ranks_keep_and_read_it_once(world, case, outcomes):
    found = [held.get(case) for held in outcomes(world)["held"]]
    assert len(found) == world and all(held and held["tensors"] for held in found), f"it was not loaded: {found}"
    for rank, held in enumerate(found):
        # Each tensor begins at a multiple of 512 bytes.
        assert 0 <= held["slab"] - held["kept"] < 512 * held["tensors"], f"rank {rank}: {held}"
    assert found[0]["read"] == found[0]["stored"] > 0, found[0]
