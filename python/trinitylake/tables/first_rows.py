"""Preview of a table: its first rows and profiles of its columns, at a cost that does not grow with the table.

Sizes in manifests and Parquet footers are compared with the limits before rows are read. A profile has the share of
NULL and the bounds of a column, from the metrics of data files: deleted rows are still counted, bounds of long strings
are truncated, and without metrics the profile is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import BinaryType, FixedType, NestedField, UUIDType

from trinitylake.iceberg_storage.column_summary import value_of_bytes
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows, typed
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.name_mapping import columns_with_moved_names
from trinitylake.iceberg_storage.pyiceberg_patches import variants_in

Metric = TypeVar("Metric", int, bytes)


class ColumnProfile(NamedTuple):
    """Share of NULL and bounds of one column; None if unknown.

    Attributes:
        nulls: share of rows with NULL, from 0 to 1.
        bounds: the smallest and the largest value, in the Arrow type of the column.
    """

    nulls: float | None = None
    bounds: pa.Array | None = None


def column_profiles(
    files: Sequence[DataFile], fields: Iterable[NestedField], types: pa.Schema, unknown: Collection[int] = ()
) -> list[ColumnProfile]:
    """The profile of each field. `types` are the Arrow types; `unknown` are ids of fields with unreliable metrics."""
    n_rows = sum(file.record_count for file in files)
    return [
        ColumnProfile()
        if not n_rows or field.field_id in unknown
        else _profile(files, field, types.field(field.name).type, n_rows)
        for field in fields
    ]


def _profile(files: Sequence[DataFile], field: NestedField, type: pa.DataType, n_rows: int) -> ColumnProfile:
    if not field.field_type.is_primitive:
        return ColumnProfile()
    counts = [_of(file.null_value_counts, field.field_id) for file in files]
    n_nulls = sum(count for count in counts if count is not None)
    nulls = None if None in counts else n_nulls / n_rows
    with_values = [file for file, count in zip(files, counts, strict=True) if count != file.record_count]
    return ColumnProfile(nulls, _bounds(with_values, field, type))


def _bounds(files: Sequence[DataFile], field: NestedField, type: pa.DataType) -> pa.Array | None:
    if not files or isinstance(field.field_type, BinaryType | FixedType | UUIDType):
        return None
    lower = [value_of_bytes(field.field_type, _of(file.lower_bounds, field.field_id)) for file in files]
    upper = [value_of_bytes(field.field_type, _of(file.upper_bounds, field.field_id)) for file in files]
    if None in lower or None in upper:
        return None
    found = [min(lower), max(upper)]
    try:
        if pa.types.is_temporal(type):  # dates and times are numbers in the metrics
            return pa.array(found, pa.int32() if type.bit_width == 32 else pa.int64()).cast(type)
        return pa.array(found, type)
    except pa.ArrowException:  # damaged metrics
        return None


def _of(metrics: Mapping[int, Metric] | None, id: int) -> Metric | None:
    return None if metrics is None else metrics.get(id)


#: Limits: manifests of a snapshot, uncompressed bytes of data files, and delete files.
MAX_MANIFESTS_SIZE_BYTES = 32 << 20
MAX_ROWS_SIZE_BYTES = 64 << 20
MAX_DELETES_SIZE_BYTES = 16 << 20
MAX_COLUMNS = 100
#: Maximum number of files that are opened, even if these files contain too few rows.
_MAX_FILES = 8


@dataclass(frozen=True)
class FirstRows:
    """Some rows of a table.

    Attributes:
        rows: the rows, with at most `MAX_COLUMNS` columns.
        omitted_columns: names of the other columns.
        problem: why there are fewer rows than requested although the table may have more; "" otherwise.
        profiles: of the columns of `rows`; empty if unknown.
    """

    rows: pa.Table
    omitted_columns: list[str] = field(default_factory=list)
    problem: str = ""
    profiles: list[ColumnProfile] = field(default_factory=list)


def first_rows(table: Table, limit: int, max_size_bytes: int = MAX_ROWS_SIZE_BYTES) -> FirstRows:
    """The first `limit` rows that a scan would return, with the first hundred columns.

    Raises PyIceberg's errors for files that are missing or damaged.
    """
    schema = table.schema()
    names = [one.name for one in schema.fields]
    columns, omitted = names[:MAX_COLUMNS], names[MAX_COLUMNS:]
    types = arrow_schema(schema.select(*columns) if columns else schema)
    none = no_rows(types)
    if variants := variants_in(schema):
        return FirstRows(none, omitted, f"the column {variants[0]} is a variant, which this server cannot read")
    snapshot = table.current_snapshot()
    if snapshot is None:
        return FirstRows(none, omitted)
    if sum(one.manifest_length for one in snapshot.manifests(table.io)) > MAX_MANIFESTS_SIZE_BYTES:
        return FirstRows(none, omitted, "the table has too many files to look for its first rows here")
    tasks = list(table.scan().plan_files())
    moved = columns_with_moved_names(table.metadata)
    profiles = column_profiles([task.file for task in tasks], schema.fields[: len(columns)], types, moved)
    parts: list[pa.Table] = []
    n_rows, room = 0, max_size_bytes
    for task in tasks[:_MAX_FILES]:
        if n_rows >= limit:
            break
        live, size_bytes = _opened(table, task, columns, room)
        if live is None:
            problem = "the next rows are in a file of which too much would have to be read at once"
            return FirstRows(_joined(parts, none), omitted, problem, profiles)
        room -= size_bytes
        for batch in live.batches(task, columns):
            parts.append(typed(pa.Table.from_batches([batch.slice(0, limit - n_rows)]), types))
            n_rows += len(parts[-1])
            if n_rows >= limit:
                break
    has_more = n_rows < limit and len(tasks) > _MAX_FILES
    problem = f"this preview reads the first {_MAX_FILES} files only" if has_more else ""
    return FirstRows(_joined(parts, none), omitted, problem, profiles)


def _opened(table: Table, task: FileScanTask, columns: list[str], room: int) -> tuple[LiveRows | None, int]:
    """The reader of a file and its size in memory; None if this size exceeds the limit."""
    if sum(one.file_size_in_bytes for one in task.delete_files) > MAX_DELETES_SIZE_BYTES:
        return None, 0
    live = LiveRows(table.metadata, table.io, [task])
    size_bytes = task.file.file_size_in_bytes
    if task.file.file_format == FileFormat.PARQUET:
        with table.io.new_input(task.file.file_path).open() as stream:
            file = pq.ParquetFile(stream, pre_buffer=False)
            size_bytes = 0
            if file.metadata.num_row_groups:
                group = file.metadata.row_group(0)
                has_names = set(columns) <= set(file.schema_arrow.names)  # some may be new, or renamed
                size_bytes = _size_bytes(group, columns) if has_names else group.total_byte_size
    return (None, 0) if size_bytes > room else (live, size_bytes)


def _size_bytes(group: pq.RowGroupMetaData, columns: Iterable[str]) -> int:
    """Uncompressed size of the columns of a row group."""
    names = set(columns)
    chunks = (group.column(number) for number in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema in names or chunk.path_in_schema.partition(".")[0] in names
    )


def _joined(parts: list[pa.Table], none: pa.Table) -> pa.Table:
    return pa.concat_tables(parts) if parts else none
