"""Result of `lake.sql(…)`. Its rows are computed when they are requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trinitylake.base.arguments import checked
from trinitylake.base.markup import element, framed, shown, table
from trinitylake.tables.display_values import python_values
from trinitylake.tables.queries.prepared import PreparedQuery
from trinitylake.tables.queries.running import RunningQuery
from trinitylake.tables.queries.text_table import Preview, text_table
from trinitylake.tables.row_result import RowResult

if TYPE_CHECKING:
    from polars import DataFrame as PolarsFrame


#: Maximum number of rows that `show` prints by default.
SHOWN_ROWS = 20
#: Number of rows of a batch of a stream.
BATCH_ROWS = 131_072


class Query(RowResult):
    """The rows of a query over the tables at the time of its creation. The query runs each time that rows are read.

    It is an Arrow stream (`__arrow_c_stream__`), which polars, duckdb, pandas and `table.append` can read. Methods that
    read raise `InvalidArgument` for an error of DuckDB at run time, and `CorruptFile` for a missing file.
    """

    def __init__(self, prepared: PreparedQuery) -> None:
        self._prepared = prepared

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self._prepared.columns]

    @property
    def types(self) -> list[str]:
        """The DuckDB types of the columns, as text."""
        return [type for _, type in self._prepared.columns]

    @checked
    def to_arrow(self) -> pa.Table:
        """All rows."""
        with self._prepared.running() as rows:
            return rows.to_arrow_table()

    @checked
    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches, for more than fits in memory."""
        return self._stream(is_shown=False)

    def _stream(self, *, is_shown: bool) -> pa.RecordBatchReader:
        batches = self._batches(is_shown)
        schema: pa.Schema = next(batches)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _batches(self, is_shown: bool) -> Iterator[Any]:
        with self._prepared.running(exports="text" if is_shown else "arrow") as rows:
            reader = rows.to_arrow_reader(BATCH_ROWS)
            yield reader.schema
            yield from reader

    @checked
    def to_polars(self) -> PolarsFrame:
        """All rows as a polars frame."""
        return self._to_polars()

    @checked
    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of Python values."""
        with self._rows_for_python() as rows:
            return _arrow_rows(rows, None) if self._is_without_pytz else rows.fetchall()

    @checked
    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row, or None if there is none."""
        with self._rows_for_python() as rows:
            return next(iter(_arrow_rows(rows, 1) if self._is_without_pytz else rows.fetchmany(1)), None)

    @checked
    def show(self, limit: int = SHOWN_ROWS) -> None:
        """Print the first rows as a table."""
        print(self._text(limit))

    def _text(self, limit: int = SHOWN_ROWS, width: int | None = None, *, one_by_one: bool = False) -> str:
        """The first rows as a text table with lines of at most `width`, or with each value on its own line."""
        if self._prepared.explain:
            return "\n".join(plan.rstrip() for _, plan in self.fetchall())
        return text_table(self._preview(limit), width, one_by_one=one_by_one)

    def _preview(self, limit: int) -> Preview:
        with self._prepared.running(exports="text") as rows:
            found = _arrow_rows(rows, limit + 1)
        return Preview(self.columns, found[:limit], has_more=len(found) > limit)

    def _rows_for_python(self) -> AbstractContextManager[RunningQuery]:
        return self._prepared.running(exports="arrow" if self._is_without_pytz else "python")

    @property
    def _is_without_pytz(self) -> bool:
        """Whether DuckDB needs the package pytz to make Python values of these types, but it is not installed."""
        return any("TIMESTAMP WITH TIME ZONE" in type for type in self.types) and find_spec("pytz") is None

    def __repr__(self) -> str:
        return self._text()

    @shown
    def _repr_html_(self) -> str:
        preview = self._preview(SHOWN_ROWS)
        rows = table(preview.columns, preview.texts(), numbers=preview.numbers)
        more = [element("div", "and more rows", class_="quiet")] if preview.has_more else []
        return framed(rows, *more)


def _arrow_rows(rows: RunningQuery, limit: int | None) -> list[tuple[Any, ...]]:
    """All rows, or the first `limit` rows, as Python values."""
    # They are converted through Arrow, because DuckDB would return infinite dates as Python's last day.
    found: list[tuple[Any, ...]] = []
    for batch in rows.to_arrow_reader(limit or BATCH_ROWS):
        found += zip(*map(python_values, batch.columns), strict=True)
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]
