"""A shard's table: what is checked column by column is what each row must hold."""

import random

import ckptd
import pytest
from ckptd import _dtypes, _proto
from ckptd._table import Table

SLAB = 1 << 20
DTYPES = [1, 2, 14, 18, 20]  # of 8, 4, 16, 32 and 64 bits


def rows(dice, count):
    """(dtype, shape, offset, bytes, padded bytes) of tensors that lie one behind the other."""
    found, at = [], 0
    for _ in range(count):
        dtype = dice.choice(DTYPES)
        shape = tuple(2 * dice.randrange(4) for _ in range(dice.randrange(1, 4)))
        size = _dtypes.BY_NUMBER[dtype].bits
        for extent in shape:
            size *= extent
        found.append([dtype, shape, at, size // 8, size // 8 + 8 * dice.randrange(3)])
        at += -(-found[-1][4] // 512) * 512
    return found


def bend(dice, table):
    """One figure of one row, often to something that cannot be; or nothing."""
    column = dice.choice([None, 0, 2, 3, 4])
    if column is not None:
        row = dice.choice(table)
        step = dice.choice([1, 2, 4, 8, SLAB, -row[column]])
        row[column] = max(0, row[column] + dice.choice([-1, 1]) * step)


def page_of(table):
    dtypes, shapes, offsets, sizes, padded = zip(*table)
    return _proto.message("TensorTable")(
        names=[f"t{i}" for i in range(len(table))],
        dtypes=dtypes,
        ranks_of_shape=[len(shape) for shape in shapes],
        dims=[extent for shape in shapes for extent in shape],
        offsets=offsets,
        bytes=sizes,
        padded_bytes=padded,
    )


def fits(row):
    dtype, shape, offset, size, padded = row
    known = _dtypes.BY_NUMBER.get(dtype)
    if known is None:
        return False
    bits = known.bits
    for extent in shape:
        bits *= extent
    return (
        bits == 8 * size <= 8 * padded
        and offset % max(known.bits // 8, 1) == 0
        and offset + padded <= SLAB
    )


@pytest.mark.parametrize("seed", range(300))
def test_a_page_is_refused_exactly_when_one_of_its_rows_is_wrong(seed):
    dice = random.Random(seed)
    told = rows(dice, dice.randrange(1, 9))
    bend(dice, told)
    table = Table("a table", SLAB)
    wrong = [f"t{i}" for i, row in enumerate(told) if not fits(row)]
    if wrong:
        with pytest.raises(ckptd.DataLoss, match=f"'{wrong[0]}'"):
            table.add_page(page_of(told))
        return
    table.add_page(page_of(told))
    assert table.shapes == [tuple(shape) for _, shape, *_ in told]
    assert [row.number for row in table.dtypes] == [dtype for dtype, *_ in told]


def test_both_kinds_of_pages_are_tried():
    refused = 0
    for seed in range(300):
        dice = random.Random(seed)
        told = rows(dice, dice.randrange(1, 9))
        bend(dice, told)
        refused += not all(map(fits, told))
    assert 50 < refused < 250
