"""Rows of input files that are rejected."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trinitylake.definitions.sql_types import Type
from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files.csv_source import records
from trinitylake.tables.input_files.file_errors import shortened
from trinitylake.tables.input_files.text_files import Source, TextOptions, text_lines

#: DuckDB has one entry for each superfluous field of a row.
_REJECTS = (
    "SELECT DISTINCT ON (line_byte_position) line, column_name, error_message, csv_line FROM reject_errors "
    "ORDER BY line_byte_position, byte_position"
)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A rejected row: the line at which a CSV row ends, or the number of a JSON value, from 1."""

    file: str
    line: int | None
    row: int | None
    column: str | None
    error: str
    text: str


def rejected_records(cursor: Any) -> list[tuple[int, str | None, str, str]]:
    """CSV records that DuckDB rejected: number of the record (DuckDB's `line`), column, error, and text."""
    rejected: list[tuple[int, str | None, str, str]] = cursor.execute(_REJECTS).fetchall()
    return rejected


def bad_rows_of(
    name: str,
    path: Path,
    source: Source,
    options: TextOptions,
    types: Mapping[str, Type | str],
    faults: Mapping[int, str],
    rejected: Sequence[tuple[int, str | None, str, str]],
) -> list[BadRow]:
    """The rejected rows of a file, in order.

    Args:
        name: name of the file, for messages.
        path: path of the file.
        source: how DuckDB reads the file.
        options: options for reading the file.
        types: types of the columns.
        faults: JSON of rows with values that do not fit the types, by the number of the row, from 0.
        rejected: see `rejected_records`.
    """
    lines: dict[int, int] = {}
    record_lines: dict[int, int] = {}
    is_csv = bool(source.delimiter)
    if is_csv and (faults or rejected):
        lines, record_lines = _lines(path, source, options, faults, [record for record, *_ in rejected])
    bad = [
        BadRow(name, record_lines.get(record), None, column, error, text) for record, column, error, text in rejected
    ]
    for row, text in faults.items():
        found = json.loads(text)
        column, value = found["fault"]["column"], found["fault"]["value"]
        error = f"column {column} is required, and its value is NULL"
        if value is not None:
            error = f"{shortened(value)} in column {column} is not a valid {types[column]}"
        shown = json.dumps(found["row"], ensure_ascii=False)
        bad.append(BadRow(name, lines.get(row), None if is_csv else row + 1, column, error, shown))
    return sorted(bad, key=lambda one: one.line or one.row or 0)


def check_number(bad_rows: Sequence[BadRow], bad_rows_max: int) -> None:
    """Raise `InvalidArgument` for the first bad row that is not allowed."""
    if len(bad_rows) <= bad_rows_max:
        return
    last = bad_rows[bad_rows_max]
    message = f"{last.file}, {f'row {last.row}' if last.row is not None else f'line {last.line}'}: {last.error}"
    if bad_rows_max:
        raise InvalidArgument(f"more than {bad_rows_max:,} rows do not fit: {message}")
    raise InvalidArgument(f"{message}; use --type {last.column}=VARCHAR, --null, --select or --bad-rows FILE")


def _lines(
    path: Path, source: Source, options: TextOptions, rows: Container[int], numbers: Container[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """The lines, from 1, in which rows and rejected records of a CSV file end, by the numbers of rows and records.

    Rows are numbered from 0. All records are numbered from 1, including blank lines and lines before the header.
    """
    found: tuple[dict[int, int], dict[int, int]] = {}, {}
    columns, skip, row = len(source.columns), options.skip, -int(options.has_header)
    with text_lines(path) as lines:
        reader = records(lines, skip, source.delimiter)
        for record, fields in enumerate(reader, skip + 1):
            if record in numbers:
                found[1][record] = reader.line_num + skip
            elif len(fields) == columns or (not fields and columns == 1):  # a blank line is a row of one column
                if row in rows:
                    found[0][row] = reader.line_num + skip
                row += 1
    return found
