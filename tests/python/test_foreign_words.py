"""What another program writes to the process group's store: never run, never believed."""

import pytest

pytest.importorskip("torch")

import foreign_word_cases  # noqa: E402
from worker_group import run_group  # noqa: E402

WORLD = 2


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return run_group(tmp_path_factory.mktemp("w"), WORLD, module="foreign_word_cases")


@pytest.mark.parametrize("case", [case.__name__ for case in foreign_word_cases.CASES[WORLD]])
def test_words_of_others_are_never_run_and_never_believed(case, outcome):
    for rank in range(WORLD):
        failure = outcome.get(case, {}).get(rank, f"it did not finish: {outcome['stderr'][rank]}")
        assert failure is None, f"rank {rank}: {failure}"
