"""Formats rows as a text table for a terminal. Control characters in values are escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from trinitylake.printable import printable
from trinitylake.tables.display_values import shown_text

#: Maximum width of a cell. Longer text is cut.
CELL_MAX_WIDTH = 60
#: Cells are cut to at least this width so that a row fits into a line. If rows do not fit, they are printed one by one.
_CELL_MIN_WIDTH = 10
#: Maximum width of a value in the layout with one value per line.
_VALUE_MAX_WIDTH = 1000
_GAP = "  "


@dataclass
class Preview:
    """The first rows of a result.

    Attributes:
        has_more: whether the result has more rows.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    has_more: bool = False

    def texts(self) -> list[list[str]]:
        return [list(map(shown_text, row)) for row in self.rows]

    @property
    def numbers(self) -> list[int]:
        """The positions of the columns with numbers, which are aligned to the right."""
        columns = [[value for value in column if value is not None] for column in zip(*self.rows, strict=True)]
        return [place for place, values in enumerate(columns) if values and all(map(_is_number, values))]

    @property
    def size_text(self) -> str:
        """The number of rows."""
        count = len(self.rows)
        return f"the first {count:,} rows" if self.has_more else f"{count:,} row{'' if count == 1 else 's'}"


def text_table(preview: Preview, width: int | None = None, *, one_by_one: bool = False) -> str:
    """The rows as a text table, with their number.

    Args:
        width: maximum width of a line. Cells are cut so that rows fit. If rows still do not fit, each value is printed
            on its own line.
        one_by_one: whether to print each value on its own line in any case.
    """
    texts = preview.texts()
    if not one_by_one:
        lines = [[_cut(one, CELL_MAX_WIDTH) for one in row] for row in [preview.columns, *texts]]
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        if width is not None:
            widths = _narrowed(widths, width)
        one_by_one = width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width
    if one_by_one:
        return _one_by_one(preview, texts)
    rights = [place in preview.numbers for place in range(len(widths))]

    def line(cells: Sequence[str]) -> str:
        parts = zip(cells, widths, rights, strict=True)
        return _GAP.join(_padded(_cut(cell, width), width, is_right) for cell, width, is_right in parts).rstrip()

    rule = _GAP.join("─" * width for width in widths)
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:]), f"({preview.size_text})"])


def _one_by_one(preview: Preview, texts: Sequence[Sequence[str]]) -> str:
    names = [_cut(name, CELL_MAX_WIDTH) for name in preview.columns]
    width = max(map(_width, names), default=0)
    lines = []
    for number, row in enumerate(texts, 1):
        lines.append(f"── row {number}")
        for name, text in zip(names, row, strict=True):
            lines.append(f"{_padded(name, width, False)}{_GAP}{_cut(text, _VALUE_MAX_WIDTH)}".rstrip())
    return "\n".join([*lines, f"({preview.size_text})"])


def _narrowed(widths: list[int], available: int) -> list[int]:
    """Reduce the widest columns so that a row fits, but not below `_CELL_MIN_WIDTH`. If that fails, change nothing."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - available
    if excess <= 0 or sum(max(0, one - _CELL_MIN_WIDTH) for one in widths) < excess:
        return widths
    limit = max(widths)
    while sum(min(one, limit) for one in widths) > sum(widths) - excess:
        limit -= 1
    return [min(one, limit) for one in widths]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _cut(text: str, width: int) -> str:
    shown = printable(text[: width + 1])
    while _width(shown) > width:
        shown = f"{shown[: min(len(shown), width + 1) - 2]}…"
    return shown


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _padded(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_right else text + space
