"""Scan of a table: a filter, columns, a limit. No row is read before one of the `to_…` methods is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO

from trinitylake.base.arguments import checked
from trinitylake.base.markup import shown
from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.base.tracing import Span, begin, span
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan
from trinitylake.iceberg_storage.filter_text import filter_text
from trinitylake.iceberg_storage.pyiceberg_patches import variants_in
from trinitylake.iceberg_storage.table_file_io import PickledIO, pickled, unpickled
from trinitylake.tables.row_result import RowResult
from trinitylake.tables.table_html import scan_html

if TYPE_CHECKING:
    from polars import DataFrame as PolarsFrame
    from polars import LazyFrame as PolarsLazyFrame

#: Arguments of a PyIceberg scan, without its file access and its catalog.
_PARTS = (
    "table_metadata",
    "row_filter",
    "selected_fields",
    "case_sensitive",
    "snapshot_id",
    "options",
    "limit",
    "table_identifier",
)


class Scan(RowResult):
    """A scan of one table in one state: later commits do not change what it returns.

    It is an Arrow stream (`__arrow_c_stream__`), which polars, duckdb and pandas can read, and an iterable of rows as
    dicts. Methods that read raise `CorruptFile`, with the table, the version and the path, for a missing file.
    """

    def __init__(self, scan: ReadAheadScan, subject: Callable[[], str], table_name: str) -> None:
        self._scan = scan
        self._subject = subject
        self._table_name = table_name

    @property
    def iceberg(self) -> ReadAheadScan:
        """The PyIceberg scan, for its plan of files and its other methods."""
        return self._scan

    @checked
    def to_arrow(self) -> pa.Table:
        """All matching rows, in no particular order."""
        with self._reading():
            reader = self.to_arrow_batch_reader()
            batches = list(reader)
        return pa.Table.from_batches(batches, reader.schema) if batches else no_rows(reader.schema)

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """The matching rows as a stream of record batches, for more than fits in memory."""
        tracing_span = begin("scan", self._table_name)
        try:
            with self._reading():
                schema, rows = arrow_schema(self._scan.projection()), self._scan.batches()
        except BaseException as error:
            tracing_span.end(error)
            raise
        return pa.RecordBatchReader.from_batches(schema, self._batches(rows, tracing_span))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterates over the matching rows as dicts of columns."""
        for batch in self.to_arrow_batch_reader():
            yield from batch.to_pylist()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with translated(self._subject):
            if names := variants_in(self._scan.projection()):
                raise InvalidArgument(
                    f"{self._subject()}: column {names[0]} is a variant, which is not read here: name other columns, "
                    "or let an engine that knows the type read the table, for instance Spark"
                )
            yield

    def _batches(self, rows: Iterator[pa.RecordBatch], tracing_span: Span) -> Iterator[pa.RecordBatch]:
        returned, failed = 0, None
        try:
            with translated(self._subject):
                for batch in rows:
                    returned += batch.num_rows
                    yield batch
        except Exception as error:
            failed = error
            raise
        finally:
            tracing_span.set("db.response.returned_rows", returned)
            tracing_span.end(failed)

    @overload
    def to_polars(self, *, lazy: Literal[False] = False) -> PolarsFrame: ...
    @overload
    def to_polars(self, *, lazy: Literal[True]) -> PolarsLazyFrame: ...
    @checked
    def to_polars(self, *, lazy: bool = False) -> PolarsFrame | PolarsLazyFrame:
        """The matching rows as a polars frame.

        Args:
            lazy: return a `LazyFrame`, which reads each time it is collected. It streams, and reads only the columns
                that the query uses and the files whose rows its conditions may keep.
        """
        if not lazy:
            return self._to_polars()
        with optional_dependency("a polars frame"):
            from trinitylake.tables.lazy_polars import lazy_frame
        return lazy_frame(self._scan, lambda scan: Scan(scan, self._subject, self._table_name).to_arrow_batch_reader())

    @checked
    def count(self) -> int:
        """The number of matching rows, computed from metadata if the filter allows it."""
        with span("count", self._table_name), translated(self._subject):
            total = self._scan.count()
        return total if self._scan.limit is None else min(total, self._scan.limit)

    @shown
    def _repr_html_(self) -> str:
        return scan_html(self._scan, self._subject())

    def __reduce__(self) -> tuple[Callable[..., Scan], tuple[Any, ...]]:
        """Pickle the scan with the state of its table. Raises `InvalidArgument` in an open transaction."""
        parts = {name: getattr(self._scan, name) for name in _PARTS}
        return _unpickled_scan, (self._subject, self._table_name, type(self._scan), pickled(self._scan.io), parts)

    def __repr__(self) -> str:
        parts = [repr(filter_text(self._scan.row_filter))] if self._scan.row_filter != AlwaysTrue() else []
        parts += [f"columns={list(self._scan.selected_fields)}"] if self._scan.selected_fields != ("*",) else []
        parts += [f"limit={self._scan.limit}"] if self._scan.limit is not None else []
        return f"Scan({', '.join(parts)})"


def _unpickled_scan(
    subject: Callable[[], str],
    table_name: str,
    kind: type[ReadAheadScan],
    io: FileIO | PickledIO,
    parts: Mapping[str, Any],
) -> Scan:
    return Scan(kind(io=unpickled(io), **parts), subject, table_name)
