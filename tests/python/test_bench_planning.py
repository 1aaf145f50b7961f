"""The benchmark's judgement of plans for many ranks."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench" / "load"))
pytest.importorskip("torch")  # which the table's module imports
import planning  # noqa: E402
import report  # noqa: E402


def measured(tensors, ranks, seconds, member=0.1, memory=1_000_000):
    return {"tensors": tensors, "world_size": ranks, "leader_seconds": seconds, "scatter_seconds": seconds,
            "member_seconds": member, "scatter_member_seconds": member, "peak_memory_bytes": memory,
            "sent_bytes": 2 * tensors * planning.ROWS * planning.ROW_BYTES}


def table_of(seconds_of, **largest):
    found = {name: [measured(*point, seconds_of(*point), **largest) for point in axis]
             for name, axis in planning.points(800, 64).items()}
    table = report.Table()
    planning.judge(table, found)
    return table.lines


def verdicts(seconds_of, **largest):
    return [line[3] for line in table_of(seconds_of, **largest)]


def test_both_axes_end_at_the_largest_plan_and_halve_from_there():
    axes = planning.points(800, 64)
    assert axes == {"tensors": [(100, 64), (200, 64), (400, 64), (800, 64)],
                    "ranks": [(800, 8), (800, 16), (800, 32), (800, 64)]}


def test_what_grows_as_tensors_times_ranks_is_linear():
    assert verdicts(lambda tensors, ranks: tensors * ranks) == [True, True, True, True, None]


def test_what_grows_faster_with_tensors_or_with_ranks_is_missed():
    assert verdicts(lambda tensors, ranks: tensors**1.3 * ranks) == [True, True, False, True, None]
    assert verdicts(lambda tensors, ranks: tensors * ranks**1.3) == [True, True, True, False, None]


def test_too_much_memory_and_a_slow_member_are_missed():
    assert verdicts(lambda tensors, ranks: tensors, memory=2_100_000_000)[0] is False
    assert verdicts(lambda tensors, ranks: tensors, member=0.6)[1] is False


def test_padding_that_is_sent_along_is_shown():
    assert table_of(lambda tensors, ranks: tensors)[-1][1] == "2.00 S"
