"""Rows as the page shows them: a text for each value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.tables.first_rows import FirstRows
from trinitylake.tables.row_values import json_text, python_values

#: Characters of a value that are sent, and of all values.
MAX_VALUE, MAX_VALUES = 1000, 2_000_000


def document_of(found: FirstRows, types: Sequence[str]) -> dict[str, Any]:
    """Rows as they are sent: text, each value up to a length, and no more than a page can show."""
    room = MAX_VALUES
    columns = [texts_of(column) for column in found.rows.columns]
    lines: list[list[str | None]] = []
    problem = found.problem
    for line in zip(*columns, strict=True):
        room -= sum(len(value or "") + 1 for value in line)
        if room < 0:
            problem = "the rows are longer than what a page shows"
            break
        lines.append(list(line))
    return {
        "columns": [{"name": name, "type": type} for name, type in zip(found.rows.column_names, types, strict=True)],
        "rows": lines,
        "omitted-columns": found.omitted_columns,
        "problem": problem,
    }


def texts_of(column: pa.ChunkedArray) -> list[str | None]:
    """The values of a column as text, each cut at `MAX_VALUE` characters, with a mark where it was."""
    type = column.type
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        texts = pc.utf8_slice_codeunits(column, 0, MAX_VALUE + 1).to_pylist()
    elif pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        column = column.cast(pa.large_binary())
        texts = [None if one is None else one[: MAX_VALUE // 2 + 1].hex() for one in column.to_pylist()]
    elif pa.types.is_nested(type):
        texts = [json_text(one) for one in python_values(column)]
    elif pa.types.is_floating(type):
        texts = [None if one is None else _float_text(one) for one in column.to_pylist()]
    else:  # Arrow's own words: Python has no dates beyond the year 9999 and no nanoseconds
        texts = column.cast(pa.string()).to_pylist()
    return [one if one is None or len(one) <= MAX_VALUE else f"{one[:MAX_VALUE]}…" for one in texts]


def _float_text(number: float) -> str:
    if math.isfinite(number) and number == int(number) and abs(number) < 1e15:
        return f"{number:.1f}"
    return repr(number)
