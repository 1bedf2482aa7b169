"""One table of a query: its columns in DuckDB's types, the files that the query reads, and rows as Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.types import NestedField

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import (
    arrow_schema,
    arrow_schema_with_ids,
    no_rows,
    with_leaves,
)
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE
from trinitylake.iceberg_storage.data_files.streamed_rows import streamed_rows
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.scan import read_data_ahead
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.pyiceberg_patches import variants_in, without_variants
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE
from trinitylake.tables.merging.row_changes import FILE, POSITION
from trinitylake.tables.queries.duckdb_types import are_read_alike, duckdb_type, is_filtered_alike
from trinitylake.tables.queries.pushed_filters import Pushed
from trinitylake.tables.sql_sandbox import folded, literal, names_in_query, quoted, unfiltered

if TYPE_CHECKING:
    from trinitylake.tables.table import Table

#: Function from names of columns to record batches with these columns.
ReadColumns: TypeAlias = "Callable[[list[str]], Iterable[pa.RecordBatch]]"


class ArrowRows(ds.InMemoryDataset):  # type: ignore[misc]
    """Rows that are read each time DuckDB requests them, with the columns that it requests.

    DuckDB accepts Arrow streams and datasets, but passes the requested columns only to datasets. It calls only the
    method `scanner`, which this class overrides. The dataset itself is empty.

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
    for number, wanted in enumerate(target):
        try:
            columns.append(rows.column(number).cast(wanted.type))
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"column {wanted.name!r} of {subject()} has times with a zone and nanoseconds, which DuckDB would cut "
                "to microseconds; read them with scan(), and filter there"
            ) from error
    return pa.table(columns, schema=target)


def _in_duckdb(kind: pa.DataType) -> pa.DataType:
    """The type that DuckDB uses: microseconds for times with a zone, and lists without a fixed size."""

    def microseconds(leaf: pa.DataType) -> pa.DataType:
        is_cut = pa.types.is_timestamp(leaf) and leaf.tz is not None and leaf.unit == "ns"
        return pa.timestamp("us", leaf.tz) if is_cut else leaf

    return with_leaves(kind, microseconds)


class _Scanner:
    def __init__(self, rows: pa.RecordBatchReader) -> None:
        self._rows = rows

    def to_reader(self) -> pa.RecordBatchReader:
        return self._rows


_FLOATING = ("FLOAT", "DOUBLE")
#: Key under which Arrow stores the id of a Parquet column.
_ID = b"PARQUET:field_id"
#: Metadata key of Parquet files with geometry columns. DuckDB would read these columns as geometries, not as bytes.
_OF_SHAPES = b"geo"
#: Characters that make a path a pattern in DuckDB.
_OF_A_PATTERN = frozenset("*?[")


@dataclass
class PlannedRows:
    """Files and rows that a query reads from a table.

    Attributes:
        matched_by_nan: the numbers of columns with a predicate that NaN satisfies.
        io: access to the files of the table.
        files: the files that DuckDB reads itself: paths below the root, by path on this machine.
        rows_in_files: number of rows in these files, for DuckDB's optimizer.
        scanned_files: the files that our own scan reads.
        scanned: the rows of `scanned_files`, or None.
    """

    subject: Callable[[], str]
    matched_by_nan: Container[int]
    io: FileIO

    files: dict[str, str] = field(default_factory=dict)
    rows_in_files: int = 0
    scanned_files: list[FileScanTask] = field(default_factory=list)
    scanned: ArrowRows | None = None

    def raise_if_broken(self) -> None:
        """Raise the error that ended our own scan, if any, and `CorruptFile` or `VersionExpired` for a missing file."""
        if self.scanned is not None and self.scanned.failure is not None:
            raise self.scanned.failure
        for local, path in self.files.items():
            if not os.path.exists(local):
                assert isinstance(self.io, LakehouseFileIO)
                with translated(self.subject):
                    self.io.missed(path)


class TableSource:
    """A table as it is at the creation of the query. Later writes do not change it.

    Raises `InvalidArgument` for a table without columns, and for a column type that queries do not support.
    """

    def __init__(self, table: Table) -> None:
        self.name = table.name
        scan = table._scan(AlwaysTrue())
        self._note_scan = table._note_scan
        self.schema = schema = scan.iceberg.table_metadata.schema()
        self._scan: DataScan = scan.iceberg
        #: Columns for which Arrow has no type. Only queries that read their values fail.
        self._unreadable = variants_in(schema)
        self._subject = scan._subject
        if not schema.fields:
            raise InvalidArgument(f"table {table.name} has no columns, which SQL does not support: add a column first")
        #: Names of the columns as the table spells them.
        self.names = [one.name for one in schema.fields]
        self._names = names_in_query(self.names)
        self._types = [duckdb_type(one.field_type, f"{one.name} of table {table.name}") for one in schema.fields]
        self._ids = [one.field_id for one in schema.fields]
        self._lineage: list[NestedField] = []
        #: Names for filters. None for columns on which our scan filters differently from DuckDB, and for names with a
        #: dot, which Iceberg would look for in nested columns.
        self.columns = [
            one.name if is_filtered_alike(one.field_type) and "." not in one.name else None for one in schema.fields
        ]

    def add_lineage(self, column_names: Container[str]) -> None:
        """Add the lineage columns that a query names, in format version 3. Then `*` also returns them."""
        metadata = self._scan.table_metadata
        if metadata.format_version < ROW_IDS_SINCE:
            return
        own = {folded(name) for name in self.names}
        self._lineage = [one for one in LINEAGE if one.name in column_names and one.name not in own]
        for one in self._lineage:
            self.names.append(one.name)
            self._names.append(one.name)
            self._types.append(duckdb_type(one.field_type, one.name))
            self._ids.append(one.field_id)
            self.columns.append(None)

    def column_definitions(self) -> str:
        """The columns for `CREATE TABLE`."""
        columns = zip(self._names, self._types, strict=True)
        return ", ".join(f"{quoted(name)} {type}" for name, type in columns)

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns for DuckDB, by their names in the table."""
        return dict(zip(self.names, self._types, strict=True))

    def placed(self, relation: str) -> str:
        """A query for the rows of `relation`, with the columns of the table and their positions."""
        columns = ", ".join(
            f"CAST({self._value(name)} AS {type}) AS {quoted(name)}"
            for name, type in zip(self._names, self._types, strict=True)
        )
        return f"SELECT {columns}, {quoted(FILE)}, {quoted(POSITION)} FROM {relation}"

    def _value(self, name: str) -> str:
        """SQL for a column of our own scan. For a variant it raises an error if the query needs the column."""
        if name not in self._unreadable:
            return unfiltered(quoted(name))
        text = f"column {name} of table {self.name} is a variant, which SQL queries do not read: name other columns"
        return f"error({literal(text)})"

    def planned(self, pushed: Pushed | None) -> PlannedRows:
        """The files that may contain matching rows; all files without a filter."""
        filter = AlwaysTrue() if pushed is None else pushed.filter
        self._note_scan(filter, None)
        scan = self._scan.filter(filter)
        with translated(self._subject):
            tasks = list(scan.plan_files())
        planned = PlannedRows(
            self._subject, range(len(self._names)) if pushed is None else pushed.matched_by_nan, scan.io
        )
        is_direct = isinstance(scan.io, LakehouseFileIO) and not scan.io.is_remote
        is_direct = is_direct and are_read_alike(scan.table_metadata) and not self._lineage
        for task in tasks:
            if is_direct and (paths := self._paths_of(task)) is not None:
                planned.files[paths[0]] = paths[1]
                planned.rows_in_files += task.file.record_count
            else:
                planned.scanned_files.append(task)
        if planned.scanned_files:
            planned.scanned = scanned_rows(scan, planned.scanned_files, self._subject, self._lineage)
        return planned

    def _paths_of(self, task: FileScanTask) -> tuple[str, str] | None:
        """The path of a task's file on this machine and below the root; None if DuckDB cannot read the file itself."""
        # Also None for a file whose size is not the recorded size. Our own scan reports the damage.
        if task.delete_files or task.file.file_format != FileFormat.PARQUET:
            return None
        io = self._scan.io
        assert isinstance(io, LakehouseFileIO)
        path = io.path_of(task.file.file_path)
        local = io.local_path(path)
        if local is None or _OF_A_PATTERN & set(local):
            return None
        try:
            is_as_recorded = os.path.getsize(local) == task.file.file_size_in_bytes
        except FileNotFoundError:  # reported when the query fails
            is_as_recorded = True
        return (local, path) if is_as_recorded else None

    def rows(self, planned: PlannedRows, registered: str) -> str:
        """A query for the planned rows. `registered` is the name of the rows that our own scan reads."""
        columns = list(zip(map(quoted, self._names), self._types, strict=True))
        # DuckDB must not skip row groups for predicates that NaN satisfies, because bounds in Parquet ignore NaN.
        in_files = [
            unfiltered(name) if type in _FLOATING and number in planned.matched_by_nan else name
            for number, (name, type) in enumerate(columns)
        ]

        def select(values: Sequence[str]) -> str:
            return "SELECT " + ", ".join(
                f"CAST({value} AS {type}) AS {name}" for value, (name, type) in zip(values, columns, strict=True)
            )

        parts = []
        if planned.files:
            parts.append(f"{select(in_files)} FROM {self._read_parquet(planned)}")
        if planned.scanned is not None:
            parts.append(f"{select([self._value(name) for name in self._names])} FROM {registered}")
        if not parts:
            parts.append(f"{select(['NULL'] * len(columns))} WHERE false")
        return " UNION ALL ".join(parts)

    def _read_parquet(self, planned: PlannedRows) -> str:
        files = ", ".join(map(literal, planned.files))
        # Bounds in Parquet ignore NaN, but filters that DuckDB derives from joins may match it.
        options = "hive_partitioning = false, can_have_nan = true"
        if len(planned.files) == 1 and has_columns_by_name(next(iter(planned.files)), self._in_parquet):
            return f"read_parquet([{files}], {options})"
        columns = ", ".join(
            f"{id}: {{name: {literal(name)}, type: {literal(type)}, default_value: NULL}}"
            for id, name, type in zip(self._ids, self._names, self._types, strict=True)
        )
        # With a schema, DuckDB opens no file before planning, so without this number it would assume a small table.
        options += f", explicit_cardinality = {planned.rows_in_files}"
        return f"read_parquet([{files}], schema = MAP {{{columns}}}, {options})"

    @property
    def _in_parquet(self) -> pa.Schema:
        return arrow_schema_with_ids(self._scan.table_metadata.schema())


def has_columns_by_name(path: str, columns: pa.Schema) -> bool:
    """Whether reading a file by column names finds the same columns as reading it by ids.

    Iceberg finds columns by id. DuckDB does so if it gets a schema with ids, but then it does not use the bounds of
    columns to order joins. So files are read by name if possible. False for a file that cannot be read, and for nested
    columns.

    Args:
        path: of a file on this machine.
        columns: of the table, with Arrow's metadata for ids.
    """
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            found = file.schema_arrow
    except (OSError, pa.ArrowException):
        return False
    if len({folded(name) for name in found.names}) < len(found) or _OF_SHAPES in (found.metadata or {}):
        return False
    there = {field.name: _known_by(field) for field in found}
    return all(not pa.types.is_nested(one.type) and there.get(one.name) == _known_by(one) for one in columns)


def _known_by(field: pa.Field) -> tuple[bytes | None, pa.DataType]:
    """Id and type of a column. Strings and bytes with 32-bit and 64-bit offsets have the same type."""
    type = field.type
    if pa.types.is_large_string(type):
        type = pa.string()
    elif pa.types.is_large_binary(type):
        type = pa.binary()
    return (field.metadata or {}).get(_ID), type
