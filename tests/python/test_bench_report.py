"""The benchmark's fitted exponents and its plots."""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench" / "load"))
import plot  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
LINEAR = [(10, 0.1), (100, 1.0), (1000, 10.0)]


def drawn(*arguments, **options):
    return ElementTree.fromstring(plot.svg(*arguments, **options))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def circles(root):
    return [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter(f"{SVG}circle")]


def path(root, kind):
    """The places that the first path of that class goes through."""
    found = next(p for p in root.iter(f"{SVG}path") if p.get("class") == kind)
    return [tuple(map(float, place.split())) for place in re.split("[ML]", found.get("d"))[1:]]


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_exponent_is_the_power_that_the_points_follow(power):
    points = [(x, 3 * x**power) for x in (1, 2, 4, 8, 16)]
    assert plot.exponent(points) == pytest.approx(power)


def test_the_exponent_tells_the_upper_half_and_not_the_fixed_cost_before_it():
    fixed, growing = [(1, 5), (2, 5), (4, 5)], [(8, 8), (16, 16), (32, 32)]
    assert plot.exponent(fixed + growing) == pytest.approx(1)
    assert plot.exponent(fixed[1:] + growing) == pytest.approx(1)


def test_the_exponent_does_not_depend_on_the_order_of_the_points():
    assert plot.exponent([(32, 32), (8, 8), (4, 5), (1, 5), (16, 16), (2, 5)]) == pytest.approx(1)


def test_the_exponent_of_two_points_is_of_both():
    assert plot.exponent([(1, 1), (10, 1000)]) == pytest.approx(3)


@pytest.mark.parametrize("points", [[(5, 1)], [(5, 1), (5, 2)]])
def test_points_at_one_place_have_no_exponent(points):
    with pytest.raises(ValueError, match="two places"):
        plot.exponent(points)


@pytest.mark.parametrize(
    "value, unit, expected",
    [
        (1_600_000_000, "B", "1.6 GB"),
        (50_000_000, "B", "50 MB"),
        (999_900_000, "B", "1 GB"),
        (0.00693, "s", "6.93 ms"),
        (1.0, "s", "1 s"),
        (0, "s", "0 s"),
        (20_000, "", "20k"),
        (64, "", "64"),
    ],
)
def test_values_have_three_digits_and_a_prefix(value, unit, expected):
    assert plot.si(value, unit) == expected


def test_ticks_are_one_two_and_five_of_each_decade():
    assert plot.ticks(0.9, 60) == pytest.approx([1, 2, 5, 10, 20, 50])


def test_ticks_over_many_decades_are_powers_of_ten():
    assert plot.ticks(0.9, 20_000) == pytest.approx([1, 10, 100, 1000, 10_000])


def test_a_plot_names_its_axes_its_curves_and_every_place_with_units():
    root = drawn("Time", "size", {"load": LINEAR, "attach": LINEAR}, ("B", "s"))
    assert {"Time", "size", "load", "attach", "10 B", "100 B", "1 kB", "1 s", "10 s"} <= set(texts(root))


def test_points_lie_where_both_logarithms_put_them():
    (x0, y0), (x1, y1), (x2, y2) = circles(drawn("", "", {"a": LINEAR}))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x1 > x0
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y1 < y0


def test_the_curve_goes_through_its_points_in_order_of_x():
    root = drawn("", "", {"a": LINEAR[::-1]})
    assert path(root, "line") == circles(root) == sorted(circles(root))


def test_the_dashed_line_is_linear_growth_from_the_first_point():
    root = drawn("", "", {"a": LINEAR})
    assert path(root, "linear") == [circles(root)[0], circles(root)[-1]]
    above = drawn("", "", {"a": [(10, 0.1), (1000, 0.2)]})
    assert path(above, "linear")[1][1] < circles(above)[1][1]


def test_everything_that_was_measured_lies_inside_the_frame():
    root = drawn("", "", {"a": [(1, 1e-6), (64, 3.0)], "b": [(2, 7e3)]})
    frame = next(r for r in root.iter(f"{SVG}rect") if r.get("class") == "frame")
    left, top, width, height = (float(frame.get(key)) for key in ("x", "y", "width", "height"))
    assert len(circles(root)) == 3
    assert all(left < x < left + width and top < y < top + height for x, y in circles(root))


def test_a_curve_of_equal_values_is_a_level_line():
    heights = {y for _, y in circles(drawn("", "", {"a": [(1, 5), (2, 5), (4, 5)]}))}
    assert len(heights) == 1


def test_names_are_text_whatever_they_hold():
    name = '</text><script>"&'
    root = drawn(name, name, {name: LINEAR})
    assert texts(root).count(name) == 3 and root.get("aria-label") == name


def test_a_plot_needs_nothing_from_elsewhere_and_runs_nothing():
    text = plot.svg("Time", "size", {"a": LINEAR})
    assert not re.search(r"<script|href|@import|\bon\w+=", text)
    assert set(re.findall(r"url\((.*?)\)", text)) == {"#inside"}
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_a_plot_has_colours_for_dark_pages():
    assert "prefers-color-scheme: dark" in plot.svg("Time", "size", {"a": LINEAR})


def test_a_curve_that_is_steeper_than_linear_is_shown_as_missed():
    pytest.importorskip("torch")  # the contenders' module, which the table's names come from
    import growth
    import report

    def point(x, seconds):
        samples = [{"seconds": seconds}] * 3
        return {"x": x, "load": samples, "attach": [{"seconds": 1.0}] * 3, "memory": None}

    found = {axis.name: [point(x, x) for x in (1, 2, 4, 8)] for axis in growth.AXES}
    found["ranks"] = [point(x, x**1.2) for x in (1, 2, 4, 8)]
    table = report.Table()
    growth.judge(table, found)
    assert [what for what, _, _, fine in table.lines if not fine] == ["load against ranks, exponent"]
    assert len(table.lines) == 2 * len(growth.AXES)
