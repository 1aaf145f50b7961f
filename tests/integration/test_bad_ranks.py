"""One rank whose daemon is not there, or that raises: what the others make of it, long before their deadline."""

import os
import signal
import time

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
import bad_rank_cases  # noqa: E402
import ckptd  # noqa: E402
import out_of_step_cases  # noqa: E402
from group import SOON, wait_until  # noqa: E402
from holds import HEARTBEATS  # noqa: E402
from ranks import assert_passed, outcome_of  # noqa: E402
from transformers_cases import Case, difference, facts_of  # noqa: E402

WORLD = 2


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "bad_rank_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in bad_rank_cases.CASES[WORLD]])
def test_every_rank_hears_why_or_all_go_natively(case, outcome):
    assert_passed(outcome, case, WORLD)


@pytest.fixture(scope="module")
def out_of_step(tmp_path_factory):
    return outcome_of(tmp_path_factory.mktemp, WORLD, "out_of_step_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in out_of_step_cases.CASES[WORLD]])
def test_ranks_that_are_out_of_step_hear_why_and_are_in_step_again(case, out_of_step):
    assert_passed(out_of_step, case, WORLD)


def test_a_model_that_is_not_distributed_goes_natively_past_a_daemon_that_stands_still(start, tmp_path, monkeypatch, caplog):
    """Its rank loads for itself, but every load needs every daemon of the group."""
    case = Case("llama", "llama")
    group, path = start(WORLD, *HEARTBEATS), case.save(tmp_path)
    native, _ = case.load(path, 1)
    monkeypatch.setenv("WORLD_SIZE", str(WORLD))
    monkeypatch.setenv("RANK", "0")
    pid = group.info(1)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not group.info(0)["members"][1]["joined"], "rank 1 to be missed")
        began = time.monotonic()
        with ckptd.patch(address=group.address(0), timeout=60, fallback="native"):
            mine, _ = case.load(path, 1)
        assert time.monotonic() - began < SOON
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "waiting for rank 1" in caplog.text
    assert difference(facts_of(native), facts_of(mine), "model") is None
