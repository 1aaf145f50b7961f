"""The table of a source's tensors, page by page, as daemons tell it."""

import pytest

import ckptd
from ckptd import _proto, _types


def source():
    return _types.Source("/m", [("/m/a", 100), ("/m/b", 50)], 2, 12, {}, "1")


def page(**columns):
    table = _proto.message("SourceTable")(
        names=["w", "x"], dtypes=[5, 5], ranks_of_shape=[1, 2], dims=[4, 2, 4], bytes=[4, 8],
        files=[0, 1], offsets=[8, 16])
    for name, values in columns.items():
        table.ClearField(name)
        getattr(table, name).extend(values)
    return table


def added(table):
    found = source()
    _types.add_page(found, table)
    return found.tensors


def test_tensors_are_parameters_of_one_piece_where_nothing_else_is_said():
    tensors = added(page())
    assert tensors["x"] == ckptd.SourceTensor("x", "U8", (2, 4), "/m/b", 16, 8, 1, "parameter", "")


def test_of_several_pieces_the_first_one_says_where_a_tensor_begins():
    tensors = added(page(files=[1, 0, 0], offsets=[4, 8, 90], piece_counts=[2, 1]))
    assert (tensors["w"].file, tensors["w"].offset, tensors["w"].pieces) == ("/m/b", 4, 2)
    assert (tensors["x"].file, tensors["x"].offset, tensors["x"].pieces) == ("/m/a", 90, 1)


def test_kinds_and_groups_have_names():
    tensors = added(page(kinds=[3, 1], groups=["optimizer", ""], group_of=[0, 1]))
    assert (tensors["w"].kind, tensors["w"].group) == ("optimizer", "optimizer")
    assert (tensors["x"].kind, tensors["x"].group) == ("parameter", "")


@pytest.mark.parametrize("columns", [
    {"files": [0]}, {"offsets": [8]}, {"files": [0, 2]}, {"bytes": [4]}, {"dims": [4, 2]},
    {"piece_counts": [1]}, {"piece_counts": [2, 1]}, {"piece_counts": [0, 2]}, {"kinds": [1]},
    {"group_of": [0]}, {"group_of": [0, 1]}])
def test_columns_that_do_not_fit_together_are_refused(columns):
    with pytest.raises(ckptd.DataLoss) as refused:
        added(page(**columns))
    assert refused.value.reason == "INVALID_REPLY"
