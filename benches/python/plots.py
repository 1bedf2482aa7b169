"""The figures of a run as a picture, in SVG: how far each is from its goal, as bars against a line, and below that what
statements cost at so many objects, as curves on logarithmic axes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape

from benches.python.measure import Figure, Unit
from benches.python.report import amount, cells

#: Of the picture, in pixels.
TEXT_WIDTH, BAR_WIDTH, ROW_HEIGHT, MARGIN = 560, 420, 22, 30
#: A bar that is this many times better or worse than its goal reaches the edge.
MOST = 30.0
MET, MISSED = "#2f7d4f", "#b3402f"
#: Of the curves of one unit: a chart, its inner part, and the colours, one after the other.
CHART_HEIGHT, CHART_LEFT, CHART_WIDTH = 260, 90, 400
COLORS = ("#1f5fa8", "#b3402f", "#2f7d4f", "#7a4fa3", "#a06a00")
AXES: dict[Unit, str] = {"s": "time", "bytes": "bytes", "count": "number", "1/s": "rate", "bytes/s": "bandwidth"}


def distance(figure: Figure) -> float:
    """How many times better than its goal a figure is; below 1 the goal is missed. 1 where nothing can be divided."""
    if figure.goal is None or figure.value <= 0 or figure.goal.limit <= 0:
        return 1.0
    better = figure.value / figure.goal.limit
    return better if figure.goal.relation == ">=" else 1 / better


def as_svg(figures: Sequence[Figure], machine: dict[str, object]) -> str:
    """A bar for each figure with a goal, on a logarithmic axis: to the right of the line the goal is met.

    Below, a chart for the curves of each unit.
    """
    shown = [figure for figure in figures if figure.goal is not None]
    middle, bars_height = TEXT_WIDTH + BAR_WIDTH / 2, 2 * MARGIN + ROW_HEIGHT * len(shown)
    points = [figure for figure in figures if figure.curve and figure.value > 0]
    units = list(dict.fromkeys(figure.unit for figure in points))
    height = bars_height + CHART_HEIGHT * len(units)
    where = ", ".join(f"{key} {machine[key]}" for key in list(machine)[:5])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{TEXT_WIDTH + BAR_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="{height}" fill="white"/>',
        f'<text x="4" y="18" fill="#555">{escape(where)}</text>',
    ]
    for row, figure in enumerate(shown):
        top = MARGIN + row * ROW_HEIGHT
        reach = max(-1.0, min(1.0, math.log(distance(figure)) / math.log(MOST))) * BAR_WIDTH / 2
        _, what, ours, peer, _, ratio, goal, _ = cells(figure)
        told = f"{what}: {ratio or ours}, {goal}"
        title = escape(f"{told}{f', beside {peer}' if peer else ''}")
        parts.append(
            f'<g><title>{title}</title><text x="4" y="{top + 15}">{escape(shortened(what))}</text>'
            f'<rect x="{min(middle, middle + reach):.1f}" y="{top + 4}" width="{max(abs(reach), 1):.1f}" '
            f'height="{ROW_HEIGHT - 8}" fill="{MET if figure.met else MISSED}"/></g>'
        )
    parts.append(f'<line x1="{middle}" x2="{middle}" y1="{MARGIN}" y2="{bars_height - MARGIN}" stroke="black"/>')
    for times in (MOST, MOST**0.5):
        for side, word in ((1, "better"), (-1, "worse")):
            x = middle + side * math.log(times) / math.log(MOST) * BAR_WIDTH / 2
            anchor = "middle" if times < MOST else ("end" if side > 0 else "start")
            label = f"{times:.0f} times {word}" if times == MOST else f"{times:.1f}"
            parts.append(f'<text x="{x:.1f}" y="{bars_height - 10}" text-anchor="{anchor}" fill="#555">{label}</text>')
    parts.append(f'<text x="{middle}" y="{bars_height - 10}" text-anchor="middle" fill="#555">goal</text>')
    for number, unit in enumerate(units):
        parts += chart([one for one in points if one.unit == unit], unit, bars_height + number * CHART_HEIGHT)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def chart(points: Sequence[Figure], unit: Unit, top: float) -> Iterable[str]:
    """Curves of one unit over the number of objects, both axes logarithmic: what does not grow is a level line."""
    sizes = sorted({one.objects for one in points})
    low, high = whole_powers([statistics.median(one.ours) for one in points])
    first, last = math.log10(sizes[0]), max(math.log10(sizes[-1]), math.log10(sizes[0]) + 1)
    inner_top, inner_height = top + MARGIN, CHART_HEIGHT - 2 * MARGIN

    def x(objects: int) -> float:
        return CHART_LEFT + (math.log10(objects) - first) / (last - first) * CHART_WIDTH

    def y(value: float) -> float:
        return inner_top + (high - math.log10(value)) / (high - low) * inner_height

    yield f'<text x="4" y="{top + 18}" fill="#555">{AXES[unit]}, over the number of objects</text>'
    for power in range(low, high + 1):
        level = y(10.0**power)
        yield (
            f'<line x1="{CHART_LEFT}" x2="{CHART_LEFT + CHART_WIDTH}" y1="{level:.1f}" y2="{level:.1f}" stroke="#ddd"/>'
            f'<text x="{CHART_LEFT - 6}" y="{level + 4:.1f}" text-anchor="end" fill="#555">'
            f"{escape(amount(10.0**power, unit))}</text>"
        )
    for size in sizes:
        bottom = inner_top + inner_height + 16
        yield f'<text x="{x(size):.1f}" y="{bottom}" text-anchor="middle" fill="#555">{size:,}</text>'
    for number, name in enumerate(dict.fromkeys(one.curve for one in points)):
        color = COLORS[number % len(COLORS)]
        curve = sorted((one for one in points if one.curve == name), key=lambda one: one.objects)
        places = [(x(one.objects), y(statistics.median(one.ours)), one) for one in curve]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down, _ in places)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
        for across, down, one in places:
            title = escape(f"{one.what}: {amount(statistics.median(one.ours), unit)}")
            yield f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{color}"><title>{title}</title></circle>'
        beside = CHART_LEFT + CHART_WIDTH + 20
        yield f'<text x="{beside}" y="{inner_top + 16 + 18 * number}" fill="{color}">{escape(name)}</text>'


def whole_powers(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten below the least and above the greatest."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def shortened(text: str) -> str:
    """What fits beside the bars; all of it is shown where the pointer rests."""
    return text if len(text) <= 84 else text[:83] + "…"
