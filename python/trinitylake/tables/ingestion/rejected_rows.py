"""Converts the rows of writes to Arrow, and finds the rows that do not fit the table.

The thread that calls `write` converts the rows to Arrow. The thread that commits converts them to the columns of the
table. It converts all writes with the same Arrow schema together, with the same result as one by one. If this fails, it
converts halves recursively until it has found the single writes or rows that do not fit.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyiceberg.schema import Schema

from trinitylake.errors import InvalidArgument
from trinitylake.tables import input_rows
from trinitylake.tables.append_batch import of_ipc, to_ipc


class TextRows(NamedTuple):
    """Rows that were parsed from lines or records of text.

    Attributes:
        rows: for each record a dictionary, or the error that explains why the record is not a row.
        texts: the records as text, without line breaks.
        lines: number of the line, from 1, where each record begins.
        checksum: of the input up to the end of the records, stored with the sequence number of the producer.
    """

    rows: Sequence[Mapping[str, Any] | InvalidArgument]
    texts: Sequence[str]
    lines: Sequence[int]
    checksum: str = ""


class RejectedRow(NamedTuple):
    """A row that does not fit the table.

    Attributes:
        number: position of the row in the data of its write.
        text: the row as JSON, or the text from which the row was parsed.
        error: why the row does not fit.
    """

    number: int
    text: str
    error: InvalidArgument


class EventRows:
    """The rows of one write.

    Args:
        data: as for `Table.append`, or `TextRows`.
        schema: returns the schema of the table, which distinguishes maps from structs among dictionaries.
        fits: returns whether rows with an Arrow schema may fit the table. With this function, rows that cannot be
            converted are rejected, and rows with unknown fields are converted separately. If `fits` is None, the whole
            write fails with the error of the first row that cannot be converted.

    Attributes:
        error: why the whole write fails; None if it does not fail.
        parts: Arrow tables, each with the positions of its rows in the data.
        count: the number of rows, without those in `rejected`.
        size_bytes: the memory of the rows.
        rejected: rows that cannot be converted to Arrow.
        checksum: that of `TextRows`; else empty.
    """

    __slots__ = ("_lines", "_texts", "checksum", "count", "error", "parts", "rejected", "size_bytes")

    def __init__(self, data: Any, schema: Callable[[], Schema], fits: Callable[[pa.Schema], bool] | None) -> None:
        self._texts: Sequence[str] | None = None
        self._lines: Sequence[int] = ()
        self.checksum = ""
        self.rejected: list[RejectedRow] = []
        self.error: InvalidArgument | None = None
        self.parts: list[tuple[Sequence[int], pa.Table]] = []
        rows: Any = data
        numbers: Sequence[int] = ()
        if isinstance(data, TextRows):
            self._texts, self._lines, self.checksum = data.texts, data.lines, data.checksum
            rows, numbers = self._of_texts(data, fits is not None)
        elif isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__"):
            rows = list(data)
        if isinstance(rows, list | tuple) and not numbers:
            numbers = range(len(rows))
        if self.error is None:
            try:
                self.parts = list(self._converted(rows, numbers, schema, fits))
            except InvalidArgument as error:
                self.error = error
        self.count = sum(table.num_rows for _, table in self.parts)
        self.size_bytes = sum(table.nbytes for _, table in self.parts)

    def _of_texts(self, data: TextRows, rejects: bool) -> tuple[list[Any], Sequence[int]]:
        bad = {number: row for number, row in enumerate(data.rows) if isinstance(row, InvalidArgument)}
        self.rejected += [RejectedRow(number, data.texts[number], error) for number, error in bad.items()]
        if bad and not rejects:
            self.error = self.located(self.rejected[0])
        numbers = [number for number in range(len(data.rows)) if number not in bad]
        return [data.rows[number] for number in numbers], numbers

    def _converted(
        self, rows: Any, numbers: Sequence[int], schema: Callable[[], Schema], fits: Callable[[pa.Schema], bool] | None
    ) -> Iterator[tuple[Sequence[int], pa.Table]]:
        can_split = fits is not None and len(numbers) > 1
        try:
            table = input_rows.read_all(rows, schema)
            if not (isinstance(rows, list | tuple) and rows and isinstance(rows[0], dict)):
                # Arrow shares the memory of arrays, which the caller may change after the call.
                table = of_ipc(to_ipc(table))
        except InvalidArgument as error:
            if fits is None and self.has_lines:
                number = numbers[_first_bad(len(rows), lambda count: input_rows.read_all(rows[:count], schema))]
                raise self.located(RejectedRow(number, "", error)) from None
            if fits is None or not numbers:
                raise
            if not can_split:
                self.rejected.append(RejectedRow(numbers[0], self._text(numbers[0], rows[0]), error))
                return
        else:
            if not can_split or len(numbers) != table.num_rows or (fits is not None and fits(table.schema)):
                if table.num_rows:
                    yield (numbers if len(numbers) == table.num_rows else range(table.num_rows)), table
                return
        half = len(numbers) // 2
        yield from self._converted(rows[:half], numbers[:half], schema, fits)
        yield from self._converted(rows[half:], numbers[half:], schema, fits)

    def _text(self, number: int, row: Any) -> str:
        if self._texts is not None:
            return self._texts[number]
        text = json.dumps(row, ensure_ascii=False, default=str)
        return json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False)  # JSON has no NaN

    @property
    def has_lines(self) -> bool:
        """Whether the rows were parsed from lines, whose numbers errors include."""
        return bool(self._lines)

    def located(self, row: RejectedRow) -> InvalidArgument:
        """The error of a row, with its line number if it has one."""
        return InvalidArgument(f"line {self._lines[row.number]:,}: {row.error}") if self.has_lines else row.error

    def rejected_row(self, number: int, table: pa.Table, error: InvalidArgument) -> RejectedRow:
        """The only row of a table as a rejected row. `number` is the position of the row in the data."""
        return RejectedRow(number, self._text(number, _python_row(table)), error)


def _python_row(table: pa.Table) -> Any:
    """The only row of a table as Python values. A string that is not UTF-8 is replaced by the decoding error."""
    row = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            row[name] = column[0].as_py()
        except UnicodeDecodeError as error:
            row[name] = str(error)
    return row


#: A write, the positions of some of its rows, and an Arrow table of these.
_Part = tuple[EventRows, Sequence[int], pa.Table]


class Fitted(NamedTuple):
    """Result of `fit_rows`: Arrow tables with the columns of the table, and the rows that do not fit, by write."""

    tables: list[pa.Table]
    rejected: dict[EventRows, list[RejectedRow]]


def fit_rows(events: Iterable[EventRows], conform: Callable[[pa.Table], pa.Table], splits: bool) -> Fitted:
    """Convert the rows of many writes to the columns of the table.

    Args:
        conform: converts an Arrow table; raises `InvalidArgument` if a row does not fit.
        splits: whether to reject single rows. Otherwise the first row that does not fit rejects its whole write.
    """
    alike: dict[pa.Schema, list[_Part]] = {}
    result = Fitted([], {})
    for rows in events:
        if rows.rejected:
            result.rejected[rows] = list(rows.rejected)
        for numbers, table in rows.parts:
            alike.setdefault(table.schema, []).append((rows, numbers, table))
    for schema, parts in alike.items():
        try:
            conform(schema.empty_table())
        except InvalidArgument as error:
            for rows, numbers, table in parts:
                places = range(table.num_rows) if splits else [_first_bad_row(rows, table, conform)]
                bad = [rows.rejected_row(numbers[at], table.slice(at, 1), error) for at in places]
                result.rejected.setdefault(rows, []).extend(bad)
        else:
            _fit(parts, conform, splits, result)
    return result


def _fit(parts: list[_Part], conform: Callable[[pa.Table], pa.Table], splits: bool, result: Fitted) -> None:
    try:
        result.tables.append(conform(pa.concat_tables([table for *_, table in parts]).combine_chunks()))
    except InvalidArgument as error:
        rows, numbers, table = parts[0]
        if len(parts) == 1 and (table.num_rows == 1 or not splits):
            at = _first_bad_row(rows, table, conform)
            bad = rows.rejected_row(numbers[at], table.slice(at, 1), error)
            result.rejected.setdefault(rows, []).append(bad)
            return
        if len(parts) == 1:
            half = table.num_rows // 2
            parts = [(rows, numbers[:half], table.slice(0, half)), (rows, numbers[half:], table.slice(half))]
        half = len(parts) // 2
        _fit(parts[:half], conform, splits, result)
        _fit(parts[half:], conform, splits, result)


def _first_bad_row(rows: EventRows, table: pa.Table, conform: Callable[[pa.Table], pa.Table]) -> int:
    """Position of the first row of a table that does not fit, if errors include its line; otherwise 0."""

    def convert(count: int) -> None:
        first = table.slice(0, count)
        conform(first.select([name for name in first.column_names if first[name].null_count < count]))

    return _first_bad(table.num_rows, convert) if rows.has_lines else 0


def _first_bad(count: int, convert: Callable[[int], object]) -> int:
    """Position of the first row for which `convert` fails, by binary search. `convert(count)` must fail."""

    def fails(number: int) -> bool:
        try:
            convert(number)
        except InvalidArgument:
            return True
        return False

    return bisect_left(range(1, count), True, key=fails)
