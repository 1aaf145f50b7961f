"""Shapes x meshes x placements with real daemons: each cell is what torch's own sharding makes of the values."""

import placement_table_cases
import pytest
from ranks import assert_passed


@pytest.mark.parametrize("world,case", [
    (w, c.__name__) for w, cases in placement_table_cases.CASES.items() for c in cases])
def test_every_cell_is_filled_as_torch_shards_it(world, case, outcomes):
    assert_passed(outcomes(placement_table_cases, world), case, world)
