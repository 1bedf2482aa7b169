"""Private functions of PyIceberg that the package needs, under public names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import _ENV_CONFIG, MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import ListType, MapType

from trinitylake.iceberg_storage.extended_pyiceberg.null_values import keep_nulls_here

if TYPE_CHECKING:
    import pyarrow as pa


def position_deletes_of(io: FileIO, delete_file: DataFile) -> dict[str, pa.ChunkedArray]:
    """The positions that a file of position deletes takes out, by the path of the data file as it is written there."""
    from pyiceberg.io.pyarrow import _read_deletes

    return _read_deletes(io, delete_file)


def columns_of_file(metadata: TableMetadata, written: pa.Schema) -> Schema:
    """The columns of a data file with the ids that they have in the table."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    return pyarrow_to_schema(
        written,
        metadata.name_mapping(),
        downcast_ns_timestamp_to_us=_is_downcast(metadata),
        format_version=metadata.format_version,
    )


def _is_downcast(metadata: TableMetadata) -> bool:
    """Whether nanoseconds are read as microseconds, which only format version 3 has types for."""
    return metadata.format_version <= 2


def fitting_columns(
    metadata: TableMetadata, projected: Schema, task: FileScanTask, written: pa.Schema
) -> tuple[list[str], Callable[[pa.RecordBatch], pa.RecordBatch]]:
    """How the columns of a data file become those of the table as they are now.

    Args:
        projected: the columns that are asked for.
        written: the columns of the file.

    Returns which of them are needed, and what makes a batch of them what is asked for.
    """
    from pyiceberg.io.pyarrow import _to_requested_schema

    keep_nulls_here()
    found = columns_of_file(metadata, written)
    missing = _values_of_partition(metadata, task, projected, found)
    wanted = {id for id in projected.field_ids if not isinstance(projected.find_type(id), ListType | MapType)}
    needed = prune_columns(found, wanted, select_full_types=False)
    if not needed.fields and projected.fields:
        needed = Schema(found.fields[0])  # which tells how many rows there are

    def fitted(batch: pa.RecordBatch) -> pa.RecordBatch:
        return _to_requested_schema(
            projected,
            needed,
            batch,
            downcast_ns_timestamp_to_us=_is_downcast(metadata),
            projected_missing_fields=missing,
            allow_timestamp_tz_mismatch=True,
        )

    return [column.name for column in needed.columns], fitted


def reduced(batch: pa.RecordBatch, has: Schema, wanted: Schema) -> pa.RecordBatch:
    """A batch without the columns, or parts of them, that are not wanted."""
    from pyiceberg.io.pyarrow import _to_requested_schema

    if all(field in has.fields for field in wanted.fields):
        return batch.select([has.fields.index(field) for field in wanted.fields])
    return _to_requested_schema(wanted, has, batch)


def _values_of_partition(
    metadata: TableMetadata, task: FileScanTask, projected: Schema, found: Schema
) -> dict[int, Any]:
    """Columns that a file does not have because its partition has their value, as files taken over from Hive."""
    spec = metadata.specs().get(task.file.spec_id)
    fields = () if spec is None else spec.fields
    return {
        field.source_id: task.file.partition[position]
        for position, field in enumerate(fields)
        if isinstance(field.transform, IdentityTransform)
        and field.source_id in projected.field_ids
        and field.source_id not in found.field_ids
    }


def copy_of(row: Record) -> Record:
    """A copy that stays as it is when the row, or a record in it, is changed in place."""
    return Record(*(Record(*value._data) if isinstance(value, Record) else value for value in row._data))


def configuration_at_start(catalog_name: str) -> dict[str, Any]:
    """PyIceberg's configuration of a catalog as it was read when the process started, which `load_catalog` uses."""
    return dict(_ENV_CONFIG.get_catalog_config(catalog_name) or {})


def empty_table_metadata() -> TableMetadata:
    """What updates that create a table are applied to."""
    return MetastoreCatalog._empty_table_metadata()
