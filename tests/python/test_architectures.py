"""Models of transformers compute their buffers under FSDP2 as they do without. The cases are in architecture_cases."""

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import architecture_cases  # noqa: E402


@pytest.mark.parametrize("case", [
    architecture_cases.CASES[1][0].__name__,
    pytest.param(architecture_cases.CASES[1][1].__name__, marks=pytest.mark.skipif(
        "CKPTD_TEST_EVERY_ARCHITECTURE" not in os.environ, reason="takes minutes")),
])
def test_an_architecture_does_alike_plain_with_wrapped_layers_and_with_a_wrapped_root(case, tmp_path):
    from worker_group import run_group

    outcome = run_group(tmp_path, 1, [case], 600, "architecture_cases")
    assert outcome.get(case) == {0: None}, outcome
