"""load_into where one rank fails before it takes part: those that wait for it hear so."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from ckptd.torch import _parts  # noqa: E402
from worker_group import run_group  # noqa: E402
from failing_rank_cases import CASES  # noqa: E402


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return run_group(tmp_path_factory.mktemp("failing"), 2, module="failing_rank_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in CASES[2]])
def test_failing_rank(outcomes, case):
    assert outcomes.get(case) == {0: None, 1: None}, (outcomes.get(case), outcomes["stderr"])


def test_a_store_that_stands_still_is_left_alone(monkeypatch):
    monkeypatch.setattr(_parts, "_STORE", 0.01)
    monkeypatch.setattr(_parts, "_LOOK_EACH", 0.0)
    end, asked = threading.Event(), []
    loads = SimpleNamespace(calls={}, told=False, read=lambda: (asked.append(1), end.wait(30)))
    part = _parts.Part("/m", loads)
    try:
        for _ in range(3):
            part.look(SimpleNamespace(waiting_ranks=(1,)))
        assert asked == [1]
    finally:
        end.set()


def test_the_store_is_not_asked_at_each_step_of_a_load():
    asked = []
    part = _parts.Part("/m", SimpleNamespace(calls={}, told=False, read=lambda: asked.append(1) or (0, {}, {})))
    for _ in range(100):
        part.look(SimpleNamespace(waiting_ranks=(1,)))
    assert len(asked) < 10
