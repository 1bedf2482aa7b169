"""Errors of DuckDB, Arrow and Python's csv module about an input file, in one line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files.text_files import text_lines

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
    import pyarrow as pa

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
