"""The picture of a run of the benchmarks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benches.python.measure import Figure, Goal, Unit
from benches.python.plots import MET, MISSED, as_svg, distance

SVG = "{http://www.w3.org/2000/svg}"


def figure(what: str, value: float, goal: Goal | None) -> Figure:
    return Figure("bench", 1, what, "s", [value], goal)


def test_a_bar_lies_on_the_side_of_the_line_where_its_goal_is() -> None:
    """A figure with the goal "at least" was drawn as missed when it was met."""
    figures = [
        figure("quick & cheap", 0.5, Goal("<=", 2)),
        figure("slow <b>", 9, Goal("<=", 3)),
        figure("much", 9, Goal(">=", 3)),
        figure("for orientation", 9, None),
    ]
    drawing = ElementTree.fromstring(as_svg(figures, {"date": "today"}))
    line = float(drawing.findall(f"{SVG}line")[0].attrib["x1"])
    bars = {
        group.findtext(f"{SVG}text"): group.find(f"{SVG}rect").attrib  # type: ignore[union-attr]
        for group in drawing.findall(f"{SVG}g")
    }
    assert list(bars) == ["quick & cheap", "slow <b>", "much"]
    for name, is_met in (("quick & cheap", True), ("slow <b>", False), ("much", True)):
        start, width = float(bars[name]["x"]), float(bars[name]["width"])
        assert start == pytest.approx(line if is_met else line - width, abs=0.2), name
        assert bars[name]["fill"] == (MET if is_met else MISSED)
    assert float(bars["quick & cheap"]["width"]) > float(bars["much"]["width"])


def test_a_figure_of_nothing_has_no_distance() -> None:
    """The import starts no thread, and the goal is at most none: that was a division by nothing."""
    assert distance(figure("threads", 0, Goal("<=", 0))) == 1
    assert distance(figure("twice as good", 1, Goal("<=", 2))) == 2


def points(curve: str, unit: Unit, values: dict[int, float]) -> list[Figure]:
    return [
        Figure("sizes", None, f"{curve}, {objects:,} objects", unit, [value], objects=objects, curve=curve)
        for objects, value in values.items()
    ]


def test_a_cost_that_does_not_grow_is_a_level_line_and_one_that_grows_with_the_objects_is_a_straight_one() -> None:
    level = points("level", "bytes", {1_000: 500.0, 10_000: 500.0, 1_000_000: 500.0})
    growing = points("growing", "bytes", {1_000: 10.0, 10_000: 100.0, 1_000_000: 10_000.0})
    picture = as_svg(level + growing, {})
    lines = [
        [tuple(map(float, point.split(","))) for point in line.split()]
        for line in re.findall(r'<polyline points="([^"]*)"', picture)
    ]
    assert [len(line) for line in lines] == [3, 3]
    assert len({down for _, down in lines[0]}) == 1
    (x0, y0), (x1, y1), (x2, y2) = lines[1]
    assert y0 > y1 > y2  # more is higher
    assert abs((y1 - y0) / (x1 - x0) - (y2 - y0) / (x2 - x0)) < 0.01


def test_each_unit_has_a_chart_of_its_own_below_the_bars() -> None:
    picture = as_svg(points("a commit", "s", {1_000: 1e-3}) + points("a commit: <bytes>", "bytes", {1_000: 9e3}), {})
    ElementTree.fromstring(picture)  # one size alone, and markup in names, make a picture as well
    assert [picture.count(f"{word}, over the number of objects") for word in ("time", "bytes", "number")] == [1, 1, 0]
    without = as_svg(points("nothing", "bytes", {1_000: 0.0}), {})
    assert "<polyline" not in without  # a logarithm has no place for it
