"""Text table of rows for a terminal; control characters of values cannot leave their cell."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trinitylake.printable import printable

#: The types, as they begin, whose values are set to the right.
NUMBERS = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
)
#: A text that is longer is cut.
CELL_MAX_WIDTH = 60


@dataclass
class Preview:
    """The first rows of a query.

    Attributes:
        has_more: whether there are others.
    """

    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    has_more: bool

    def texts(self) -> list[list[str]]:
        """The values as text."""
        return [["NULL" if value is None else str(value) for value in row] for row in self.rows]


def text_table(preview: Preview) -> str:
    """The rows as a text table, with their number."""
    count = len(preview.rows)
    total = f"the first {count:,} rows" if preview.has_more else f"{count:,} row{'' if count == 1 else 's'}"
    lines = [[_cell(one) for one in row] for row in [preview.columns, *preview.texts()]]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    rights = [type.startswith(NUMBERS) and not type.endswith("]") for type in preview.types]

    def line(cells: Sequence[str]) -> str:
        parts = zip(cells, widths, rights, strict=True)
        return "  ".join(_padded(cell, width, is_right) for cell, width, is_right in parts).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:]), f"({total})"])


def _cell(text: str) -> str:
    shown = printable(text[: CELL_MAX_WIDTH + 1])
    return shown if len(shown) <= CELL_MAX_WIDTH else f"{shown[: CELL_MAX_WIDTH - 1]}…"


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def _padded(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_right else text + space
