"""Rows of data files that DuckDB does not read itself: our own scan, which it asks for columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import DataScan, FileScanTask

from trinitylake.iceberg_storage.arrow_rows import no_rows
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.scan import read_data_ahead
from trinitylake.tables.streamed_rows import streamed_rows


class ScannedRows(ds.InMemoryDataset):  # type: ignore[misc]
    """The rows of some files of a table, as often as DuckDB asks for them.

    DuckDB takes Arrow streams and datasets, and tells only datasets which columns it wants. It calls one
    method of theirs, which is replaced here; the dataset itself is empty.

    Args:
        scan: of the table, with the filter that the files were planned by.
        tasks: the files.
        subject: what errors are about.

    Attributes:
        failure: what broke a scan off; DuckDB only passes its words on.
    """

    def __init__(self, scan: DataScan, tasks: Sequence[FileScanTask], subject: Callable[[], str]) -> None:
        self._of = scan
        self._tasks = list(tasks)
        self._named = subject
        self.failure: Exception | None = None
        columns = schema_to_pyarrow(scan.table_metadata.schema(), include_field_ids=False)
        self._columns = pa.schema([_as_in_duckdb(column) for column in columns])
        super().__init__(no_rows(self._columns))

    def scanner(self, columns: Sequence[str] | None = None, **_: Any) -> Any:
        """The rows with these columns, as DuckDB takes them."""
        names = self._columns.names if columns is None else list(columns)
        target = pa.schema([self._columns.field(name) for name in names])
        return _Scanner(pa.RecordBatchReader.from_batches(target, self._batches(target)))

    def _batches(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        scan = self._of
        try:
            with translated(self._named):
                wanted = scan.table_metadata.schema().select(*target.names)
                read_data_ahead(scan.io, self._tasks)
                for batch in streamed_rows(scan, self._tasks, wanted):
                    # Nanoseconds are all that can get lost.
                    table = pa.Table.from_batches([batch]).select(target.names).cast(target, safe=False)
                    yield from table.to_batches()
        except Exception as error:
            self.failure = error
            raise


def _as_in_duckdb(column: pa.Field) -> pa.Field:
    """The column without the nanoseconds of times with a zone, which DuckDB does not have."""
    is_finer = pa.types.is_timestamp(column.type) and column.type.tz is not None and column.type.unit == "ns"
    return column.with_type(pa.timestamp("us", column.type.tz)) if is_finer else column


class _Scanner:
    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows

    def to_reader(self) -> pa.RecordBatchReader:
        return self._rows
