"""load_into on sharded models, two and four ranks over gloo. The cases are in fsdp_cases."""

import pytest

pytest.importorskip("torch")

from fsdp_cases import CASES  # noqa: E402


@pytest.mark.parametrize(
    "world,case", [(w, c.__name__) for w, cases in CASES.items() for c in cases]
)
def test_the_model_is_filled_in_place_and_trains_as_with_torch_s_own_loader(
    world, case, group_outcomes
):
    outcome = group_outcomes(world)
    per_rank = outcome.get(case, {})
    for rank in range(world):
        failure = per_rank.get(
            rank, f"rank {rank} did not finish it:\n{outcome['stderr'].get(rank)}"
        )
        assert failure is None, f"rank {rank}:\n{failure}"
