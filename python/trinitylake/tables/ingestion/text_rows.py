"""Parsers of JSON lines and CSV that arrive in parts: from a pipe, a growing file, or a request.

Numbers stay strings until they are converted to the type of their column. So decimals lose no digits, because they are
never converted through floating-point numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from trinitylake.errors import InvalidArgument
from trinitylake.tables.ingestion.rejected_rows import TextRows

#: A row as a dictionary, or the error that explains why a record is not a row.
_Row: TypeAlias = "Mapping[str, Any] | InvalidArgument"
#: Maximum size of the text of one row.
MAX_ROW_SIZE_BYTES = 16 << 20


def json_rows(lines: Iterable[bytes], first_line: int = 1) -> TextRows:
    """Parse JSON lines and skip blank lines. A line that is not a JSON object becomes an `InvalidArgument`.

    `first_line` is the number of the first line, for errors.
    """
    return _text_rows(((line, line.strip()) for line in lines), _json_row, first_line)


def _text_rows(records: Iterable[tuple[bytes, bytes]], parse: Callable[[bytes], _Row], line: int) -> TextRows:
    """Parse records, given with and without their line breaks. Empty records are skipped."""
    rows: list[_Row] = []
    texts: list[str] = []
    lines: list[int] = []
    for record, text in records:
        if text:
            rows.append(parse(text))
            texts.append(text.decode(errors="replace"))
            lines.append(line)
        line += max(1, record.count(b"\n"))
    return TextRows(rows, texts, lines)


def _json_row(text: bytes) -> _Row:
    try:
        row = _JSON.decode(text.decode())
        if b"\\ud" in text.lower():  # an escaped surrogate, which is invalid without its pair
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError:
        return InvalidArgument("the line is not UTF-8")
    except RecursionError:
        return InvalidArgument("the line is nested too deeply")
    except ValueError as error:
        return InvalidArgument(f"the line is not JSON: {error}")
    if not isinstance(row, dict) or not row:
        return InvalidArgument("the line is not a JSON object with fields")
    return row


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("an object has two fields of the same name")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"JSON has no number {text}")


#: `json.loads` with these arguments would create a decoder for each line.
_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=_no_number)


class CsvRows:
    """Converts records of CSV to rows.

    Args:
        columns: names of the columns, in the order of the fields.
        nulls: fields that mean NULL if they are not quoted, in addition to the empty field.
    """

    def __init__(self, columns: Sequence[str], delimiter: str, nulls: Iterable[str] = ()) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise InvalidArgument(f"the delimiter must be one character, but not a quote or line break: {delimiter!r}")
        other = re.escape(delimiter)
        self._field = re.compile(rf'(?:"((?:[^"]|"")*)"|([^"{other}]*))({other}|\Z)')
        self._nulls = {"", *nulls}
        self._columns = columns

    def read_header(self, record: bytes) -> None:
        """Take the columns from the header. Raises `InvalidArgument` for a missing or repeated name."""
        names = self._fields(record.decode("utf-8-sig", errors="replace").rstrip("\r\n"))
        if None in names or len(set(names)) < len(names):
            raise InvalidArgument("the header has a column without a name, or two columns of the same name")
        self._columns = [name for name in names if name is not None]

    def __call__(self, records: Iterable[bytes], first_line: int = 1) -> TextRows:
        """Parse records and skip blank records. A malformed record becomes an `InvalidArgument`.

        `first_line` is the number of the line where the first record begins, for errors.
        """
        return _text_rows(((record, record.rstrip(b"\r\n")) for record in records), self._row, first_line)

    def _row(self, text: bytes) -> _Row:
        try:
            fields = self._fields(text.decode(errors="replace"))
        except InvalidArgument as error:
            return error
        if len(fields) != len(self._columns):
            return InvalidArgument(f"the row has {len(fields)} fields, but there are {len(self._columns)} columns")
        return dict(zip(self._columns, fields, strict=True))

    def _fields(self, text: str) -> list[str | None]:
        if "\ufffd" in text:
            raise InvalidArgument("the row is not UTF-8 text")
        fields: list[str | None] = []
        at = 0
        while (found := self._field.match(text, at)) is not None:
            quoted, plain, delimiter = found.groups()
            fields.append(quoted.replace('""', '"') if quoted is not None else None if plain in self._nulls else plain)
            if not delimiter:
                return fields
            at = found.end()
        raise InvalidArgument(f"the row is not CSV: field {len(fields) + 1} has a quote that does not begin or end it")


class Records:
    """Splits bytes that arrive in parts into records, which include their line breaks.

    Args:
        has_quotes: whether a line break between quotes belongs to the record, as in CSV.

    Attributes:
        rest: the bytes after the last complete record.
    """

    def __init__(self, has_quotes: bool) -> None:
        self._has_quotes = has_quotes
        self.rest = b""

    def __call__(self, part: bytes) -> list[bytes]:
        """The records that a part completes. Raises `InvalidArgument` if an incomplete record is too large."""
        records = list(self._records(self.rest + part))
        self.rest = records.pop()
        if len(self.rest) > MAX_ROW_SIZE_BYTES:
            raise InvalidArgument(
                f"a row exceeds the limit of {MAX_ROW_SIZE_BYTES >> 20} MiB: check that each row is on its own "
                "line, and that quotes are closed"
            )
        return records

    def _records(self, text: bytes) -> Iterator[bytes]:
        """Yield all complete records, and then the rest."""
        lines = text.split(b"\n")
        record = b""
        for line in lines[:-1]:
            record += line + b"\n"
            if not self._has_quotes or record.count(b'"') % 2 == 0:
                yield record
                record = b""
        yield record + lines[-1]
