"""Finds rows that a writer probably copied from removed files to added files, in the same order.

One pass over one column finds candidates. The caller compares each candidate only with its counterpart, which is many
times faster than a look-up of each row. A candidate may differ from its counterpart, because the column need not
identify rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

#: Maximum number of rows that are searched for the next common row.
_WINDOW_ROWS = 1024
#: Number of rows from which the compared column is chosen.
_SAMPLE_ROWS = 1024
#: The pass ends after this number of mismatches per row, because then a look-up of each row is faster.
_MAX_BREAKS_PER_ROW = 1 / 64


class CopiedRun(NamedTuple):
    """Consecutive rows that are probably equal: number of the first row on each side, and number of rows."""

    removed: int
    added: int
    length: int


def copied_runs(removed: pa.Table, added: pa.Table, columns: list[str]) -> list[CopiedRun]:
    """Runs of rows that are probably equal, in ascending order on both sides.

    Args:
        removed, added: rows with the same columns.
        columns: candidates for the compared column, beginning with the column that most likely identifies rows.
    """
    name = _most_distinct(removed, columns)
    if name is None:
        return []
    then, now = (_numbers(side.column(name)) for side in (removed, added))
    runs: list[CopiedRun] = []
    at, to = 0, 0
    breaks_left = 1000 + int(len(then) * _MAX_BREAKS_PER_ROW)
    while at < len(then) and to < len(now) and breaks_left:
        if count := _equal_count(then[at:], now[to:]):
            runs.append(CopiedRun(at, to, count))
            at, to = at + count, to + count
            continue
        breaks_left -= 1
        skipped_then = np.flatnonzero(then[at : at + _WINDOW_ROWS] == now[to])
        skipped_now = np.flatnonzero(now[to : to + _WINDOW_ROWS] == then[at])
        if len(skipped_then) and (not len(skipped_now) or skipped_then[0] <= skipped_now[0]):
            at += int(skipped_then[0])
        elif len(skipped_now):
            to += int(skipped_now[0])
        else:
            at, to = at + 1, to + 1
    return runs


def _most_distinct(rows: pa.Table, columns: list[str]) -> str | None:
    """The column of numbers with the most different values among the first rows."""
    best, most = None, 0
    for name in columns:
        if _is_number(rows.schema.field(name).type):
            distinct = len(np.unique(_numbers(rows.column(name).slice(0, _SAMPLE_ROWS))))
            if distinct > most:
                best, most = name, distinct
    return best


def _is_number(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_integer(kind) or is_.is_floating(kind) or is_.is_temporal(kind)) and kind.bit_width in (32, 64)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The values as integers with the same bits. The integer of NULL is arbitrary."""
    width = pa.int32() if column.type.bit_width == 32 else pa.int64()
    parts = [
        np.frombuffer(chunk.buffers()[1], width.to_pandas_dtype())[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.empty(0, width.to_pandas_dtype())


def _equal_count(then: np.ndarray, now: np.ndarray) -> int:
    """Number of equal rows at the beginning."""
    limit, begin, width = min(len(then), len(now)), 0, 64
    while begin < limit:
        differs = then[begin : min(begin + width, limit)] != now[begin : min(begin + width, limit)]
        first = int(differs.argmax())
        if differs[first]:
            return begin + first
        begin, width = begin + width, min(width * 4, 1 << 18)
    return limit
