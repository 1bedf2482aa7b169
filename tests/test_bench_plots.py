"""The picture of a run of the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benches.python.measure import Figure, Goal
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
