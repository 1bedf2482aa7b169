"""The figures of a run as a picture: how far each is from its goal, as bars against a line, in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benches.python.measure import Figure
from benches.python.report import cells

#: Of the picture, in pixels.
TEXT_WIDTH, BAR_WIDTH, ROW_HEIGHT, MARGIN = 560, 420, 22, 30
#: A bar that is this many times better or worse than its goal reaches the edge.
MOST = 30.0
MET, MISSED = "#2f7d4f", "#b3402f"


def distance(figure: Figure) -> float:
    """How many times better than its goal a figure is; below 1 the goal is missed. 1 where nothing can be divided."""
    if figure.goal is None or figure.value <= 0 or figure.goal.limit <= 0:
        return 1.0
    better = figure.value / figure.goal.limit
    return better if figure.goal.relation == ">=" else 1 / better


def as_svg(figures: Sequence[Figure], machine: dict[str, object]) -> str:
    """A bar for each figure with a goal, on a logarithmic axis: to the right of the line the goal is met."""
    shown = [figure for figure in figures if figure.goal is not None]
    middle, height = TEXT_WIDTH + BAR_WIDTH / 2, 2 * MARGIN + ROW_HEIGHT * len(shown)
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
    parts.append(f'<line x1="{middle}" x2="{middle}" y1="{MARGIN}" y2="{height - MARGIN}" stroke="black"/>')
    for times in (MOST, MOST**0.5):
        for side, word in ((1, "better"), (-1, "worse")):
            x = middle + side * math.log(times) / math.log(MOST) * BAR_WIDTH / 2
            anchor = "middle" if times < MOST else ("end" if side > 0 else "start")
            label = f"{times:.0f} times {word}" if times == MOST else f"{times:.1f}"
            parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="{anchor}" fill="#555">{label}</text>')
    parts.append(f'<text x="{middle}" y="{height - 10}" text-anchor="middle" fill="#555">goal</text></svg>')
    return "\n".join(parts) + "\n"


def shortened(text: str) -> str:
    """What fits beside the bars; all of it is shown where the pointer rests."""
    return text if len(text) <= 84 else text[:83] + "…"
