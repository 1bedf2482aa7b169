"""Rows of input files that are rejected, and errors of libraries about an input file in one line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from trinitylake.definitions.sql_types import Type
from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files.text_sources import Source, TextOptions, records, text_lines

_JSON_ERROR = re.compile(
    r"Malformed JSON in file .*, at byte (?P<byte>\d+) in (?P<kind>line|record/value) (?P<number>\d+): (?P<why>.*)"
)
_CSV_ERROR = re.compile(r".*?CSV Error on Line: (?P<line>\d+); Original Line: (?P<text>.*); (?P<why>[^;]+(?:; .*)?)")
#: Parts of messages of DuckDB and Arrow, and the hint that is appended to the message.
_WAYS_OUT = {
    "not utf-8 encoded": "; name its --encoding, such as latin-1",
    "Expected Number of Columns": "; use --delimiter, --skip or --bad-rows FILE",
    "unterminated quote": "; use --bad-rows FILE",
    "Maximum line size": "; use --bad-rows FILE",
    "incompatible types": ": load the files one by one, with --select",
    "not in range": ": load the files one by one, with --select",
}
_SHOWN_TEXT_MAX = 200


@contextmanager
def translated(name: str, path: Path) -> Iterator[None]:
    """Convert errors of DuckDB, Arrow and Python's csv module about a file to `InvalidArgument` with one line."""
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, csv.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system. Arrow raises DuckDB's errors as `OSError` without `errno`.
        if (found := _JSON_ERROR.search(str(error))) is not None:
            raise InvalidArgument(f"{name}, {_damage_of_json(path, found)}") from error
        raise InvalidArgument(f"{name}: {_first_lines(str(error))}") from error


def _damage_of_json(path: Path, error: re.Match[str]) -> str:
    """The place of damaged JSON. DuckDB counts values from 2, and calls them lines if each is on its own line."""
    number, why = int(error["number"]) - 1, error["why"].rstrip(". ")
    if error["kind"] != "line":
        return f"value {number}: damaged JSON at byte {error['byte']} of the value: {why}"
    with text_lines(path) as lines:
        values = ((place, line) for place, line in enumerate(lines, 1) if line.strip())
        place, line = next(islice(values, number - 1, None), (number, ""))
    return f"line {place}: damaged JSON at byte {error['byte']}: {why}: {shortened(line.rstrip())}"


def _first_lines(message: str) -> str:
    """The lines of a DuckDB error before its hints, joined to one line."""
    lines = message.partition("\nPossible ")[0].partition("\nTry ")[0].partition("\nLINE ")[0].splitlines()
    text = "; ".join(line.strip() for line in lines if line.strip())
    if "Parquet magic bytes not found" in text or "Is this a 'parquet' file?" in text:
        return "it is no Parquet file, or its end is missing"
    if "duplicate field names" in text:
        return "two of its columns have the same name"
    way_out = next((way for words, way in _WAYS_OUT.items() if words in text), "")
    if (found := _CSV_ERROR.match(text)) is not None:
        return f"line {found['line']}: {found['why'].rstrip('.')}{way_out}: {shortened(found['text'])}"
    return (text.partition("Error: ")[2] or text) + way_out


def shortened(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_TEXT_MAX else value[:_SHOWN_TEXT_MAX] + "…")


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
        faults: JSON of rows with values that do not fit the types, by the number of the row, from 0.
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
    """The lines, from 1, in which rows and rejected records of a CSV file end, by the numbers of rows and records."""
    # Rows are numbered from 0. All records are numbered from 1, including blank lines and lines before the header.
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
