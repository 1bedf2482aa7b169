"""Arrow rows that DuckDB reads column by column, with the types that DuckDB has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.types import NestedField

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows
from trinitylake.iceberg_storage.data_files.streamed_rows import streamed_rows
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.scan import read_data_ahead
from trinitylake.iceberg_storage.pyiceberg_patches.variant import without_variants

#: Function from names of columns to record batches with these columns.
ReadColumns: TypeAlias = "Callable[[list[str]], Iterable[pa.RecordBatch]]"


class ArrowRows(ds.InMemoryDataset):  # type: ignore[misc]
    """Rows that are read each time DuckDB requests them, with the columns that it requests.

    DuckDB accepts Arrow streams and datasets, but passes the requested columns only to datasets. It calls only the
    method `scanner`, which this class overrides. The dataset itself is empty.

    Args:
        schema: of the rows.
        read: reads some of the columns.
        subject: returns the name of the table for errors.

    Attributes:
        failure: the error that ended a read. DuckDB's own error only has its text.
    """

    def __init__(self, schema: pa.Schema, read: ReadColumns, subject: Callable[[], str]) -> None:
        self._columns = pa.schema([column.with_type(_in_duckdb(column.type)) for column in schema])
        self._read = read
        self._subject = subject
        self.failure: Exception | None = None
        super().__init__(no_rows(self._columns))

    def scanner(self, columns: Sequence[str] | None = None, **_: Any) -> Any:
        """The rows with these columns as a scanner for DuckDB."""
        names = self._columns.names if columns is None else list(columns)
        target = pa.schema([self._columns.field(name) for name in names])
        return _Scanner(pa.RecordBatchReader.from_batches(target, self._batches(target)))

    def _batches(self, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._read(target.names):
                yield from _cast(pa.Table.from_batches([batch]), target, self._subject).to_batches()
        except Exception as error:
            self.failure = error
            raise


def scanned_rows(
    scan: DataScan, tasks: Sequence[FileScanTask], subject: Callable[[], str], lineage: Sequence[NestedField] = ()
) -> ArrowRows:
    """The rows of some data files of a table, through our own scan, without variant columns.

    Args:
        scan: the scan for whose filter the files were planned.
        tasks: the files.
        subject: returns the name of the table for errors.
        lineage: lineage columns to read in addition.
    """
    schema = Schema(*without_variants(scan.table_metadata.schema()).fields, *lineage)

    def read(names: list[str]) -> Iterator[pa.RecordBatch]:
        with translated(subject):
            read_data_ahead(scan.io, tasks)
            for batch in streamed_rows(scan, list(tasks), schema.select(*names)):
                yield batch.select(names)

    return ArrowRows(arrow_schema(schema), read, subject)


def table_in_duckdb(rows: pa.Table, name: str) -> pa.Table:
    """Rows of a caller with DuckDB's types. Raises `InvalidArgument` for times that DuckDB would truncate."""
    target = pa.schema([column.with_type(_in_duckdb(column.type)) for column in rows.schema])
    return rows if target.equals(rows.schema) else _cast(rows, target, lambda: name)


def _cast(rows: pa.Table, target: pa.Schema, subject: Callable[[], str]) -> pa.Table:
    columns = []
    for number, field in enumerate(target):
        try:
            columns.append(rows.column(number).cast(field.type))
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"column {field.name!r} of {subject()} has times with a zone and nanoseconds, which DuckDB would cut "
                "to microseconds; read them with scan(), and filter there"
            ) from error
    return pa.table(columns, schema=target)


def _in_duckdb(kind: pa.DataType) -> pa.DataType:
    """The type that DuckDB uses: microseconds for times with a zone, and lists without a fixed size."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_duckdb(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_duckdb(key.type)), item.with_type(_in_duckdb(item.type)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        part = kind.value_field.with_type(_in_duckdb(kind.value_type))
        return pa.large_list(part) if pa.types.is_large_list(kind) else pa.list_(part)
    return kind


class _Scanner:
    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows

    def to_reader(self) -> pa.RecordBatchReader:
        return self._rows
