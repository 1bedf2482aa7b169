"""Private functions of PyIceberg that the package needs, under public names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import _ENV_CONFIG, MetastoreCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import ROWS_MUST_MATCH, _InclusiveMetricsEvaluator, _StrictMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from trinitylake.iceberg_storage.extended_pyiceberg.null_values import keep_nulls_here
from trinitylake.iceberg_storage.extended_pyiceberg.partitioned_rows import split_partitions_here
from trinitylake.iceberg_storage.extended_pyiceberg.row_filters import compare_as_sql_here
from trinitylake.iceberg_storage.extended_pyiceberg.rows_written import filled

if TYPE_CHECKING:
    import pyarrow as pa


def data_files_of(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> Iterable[DataFile]:
    """Write rows as data files of a table, without a commit; each is written as the result is iterated."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    split_partitions_here()
    return _dataframe_to_data_files(metadata, filled(rows, metadata.schema()), io)


def position_deletes_of(io: FileIO, delete_file: DataFile) -> dict[str, pa.ChunkedArray]:
    """The positions that a file of position deletes takes out, by the path of the data file as it is written there."""
    from pyiceberg.io.pyarrow import _read_deletes

    return _read_deletes(io, delete_file)


def record_batches_of(
    metadata: TableMetadata,
    io: FileIO,
    projected: Schema,
    filter: BooleanExpression,
    tasks: Iterable[FileScanTask],
    deletes: Mapping[str, list[pa.ChunkedArray]],
    case_sensitive: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The rows of these files one batch at a time, without the positions in `deletes`, by the path of the data file."""
    from pyiceberg.io.pyarrow import ArrowScan

    compare_as_sql_here()
    scan = ArrowScan(metadata, io, projected, filter, case_sensitive)
    return scan._record_batches_from_scan_tasks_and_deletes(tasks, dict(deletes))


def fitting_columns(
    metadata: TableMetadata, io: FileIO, projected: Schema, task: FileScanTask, written: pa.Schema
) -> tuple[list[str], Callable[[pa.RecordBatch], pa.RecordBatch]]:
    """How the columns of a data file become those of the table as they are now.

    Args:
        projected: the columns that are asked for.
        written: the columns of the file.

    Returns which of them are needed, none perhaps, and what makes a batch of them what is asked for.
    """
    from pyiceberg.io.pyarrow import (
        ArrowScan,
        _get_column_projection_values,
        _to_requested_schema,
        pyarrow_to_schema,
    )

    keep_nulls_here()
    scan = ArrowScan(metadata, io, projected, AlwaysTrue())
    told = scan._downcast_ns_timestamp_to_us
    is_downcast = metadata.format_version <= 2 if told is None else told
    found = pyarrow_to_schema(
        written,
        metadata.name_mapping(),
        downcast_ns_timestamp_to_us=is_downcast,
        format_version=metadata.format_version,
    )
    spec = metadata.specs().get(task.file.spec_id)
    missing = _get_column_projection_values(task.file, projected, metadata.schema(), spec, found.field_ids)
    needed = prune_columns(found, scan._projected_field_ids, select_full_types=False)

    def fitted(batch: pa.RecordBatch) -> pa.RecordBatch:
        return _to_requested_schema(
            projected,
            needed,
            batch,
            downcast_ns_timestamp_to_us=is_downcast,
            projected_missing_fields=missing,
            allow_timestamp_tz_mismatch=True,
        )

    return [column.name for column in needed.columns], fitted


def may_hold_rows(schema: Schema, filter: BooleanExpression, case_sensitive: bool) -> Callable[[DataFile], bool]:
    """Tells of a file whether its column bounds leave room for rows that match a filter."""
    return _InclusiveMetricsEvaluator(schema, filter, case_sensitive).eval


def must_hold_only(schema: Schema, filter: BooleanExpression, case_sensitive: bool) -> Callable[[DataFile], bool]:
    """Tells of a file whether its column bounds leave room for nothing but rows that match a filter."""
    evaluate = _StrictMetricsEvaluator(schema, filter, case_sensitive).eval
    return lambda file: evaluate(file) == ROWS_MUST_MATCH


def copy_of(row: Record) -> Record:
    """A copy that stays as it is when the row, or a record in it, is changed in place."""
    return Record(*(Record(*value._data) if isinstance(value, Record) else value for value in row._data))


def configuration_at_start(catalog_name: str) -> dict[str, Any]:
    """PyIceberg's configuration of a catalog as it was read when the process started, which `load_catalog` uses."""
    return dict(_ENV_CONFIG.get_catalog_config(catalog_name) or {})


def empty_table_metadata() -> TableMetadata:
    """What updates that create a table are applied to."""
    return MetastoreCatalog._empty_table_metadata()
