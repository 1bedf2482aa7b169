"""Adds Parquet files that another program wrote to a table as data files (`add_files`).

A file is refused if an engine could not read it as an Iceberg file, or would read other values. So its field ids must
be the field ids of the table, and its values must fit the types of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_name_by_id, sanitize_column_names
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, DoubleType, FloatType, StringType

from trinitylake.base.foreign_errors import errors_as, own_error
from trinitylake.iceberg_storage.column_summary import value_of_bytes
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet
from trinitylake.iceberg_storage.data_files.parquet_statistics import FileMetrics
from trinitylake.iceberg_storage.data_files.partitioned_rows import rows_by_partition, spelled
from trinitylake.iceberg_storage.data_files.written_values import check_values
from trinitylake.iceberg_storage.pyiceberg_patches import check_columns_fit


def existing_data_file(io: FileIO, metadata: TableMetadata, path: str) -> DataFile:
    """Manifest entry of an existing file in the current partition spec.

    Reads the columns whose values cannot be checked by the footer, such as strings. Raises `InvalidArgument` for
    columns and values that do not fit the table, and for rows of several partitions.
    """
    with errors_as(lambda error: own_error(error, path)):
        file, reader, schema, spec = io.new_input(path), LiveRows(metadata, io, ()), metadata.schema(), metadata.spec()
        with file.open() as stream:
            parquet = open_parquet(stream)
            footer, columns = parquet.metadata, parquet.schema_arrow
            check_columns_fit(schema, columns, metadata.format_version)
            present = reader.columns_in(parquet)
        _check_ids(metadata, columns, present)
        found = FileMetrics(schema, metadata.properties, present).of(footer)
        every = FileMetrics(schema, {"write.metadata.metrics.default": "full"}, present).of(footer)
        added = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*(_partition_value(field, schema, every) for field in spec.fields)),
            file_size_in_bytes=len(file),
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **found,
        )
        added.spec_id = metadata.default_spec_id
        for position, field in enumerate(spec.fields):
            if isinstance(added.partition[position], float):
                added.partition[position] = _floating_partition_value(field, schema, reader, added)
        if unproved := _unproved_columns(schema, columns, present):
            for batch in reader.batches(FileScanTask(added), unproved):
                for name, column in zip(unproved, batch.columns, strict=True):
                    check_values(column, f"{name} of {path}")
        return added


def _check_ids(metadata: TableMetadata, columns: pa.Schema, present: Schema) -> None:
    """Check that all readers find a column of a file under the same id."""
    # If only some columns of a file have ids, some readers find all columns by name, and others read the columns
    # without id as NULL. So either all columns or no column must have ids.
    ids = [field.metadata.get(b"PARQUET:field_id") if field.metadata else None for _, field in _fields(columns)]
    if not any(ids):
        if unknown := {name for name, _ in _fields(columns)}.difference(index_name_by_id(present).values()):
            raise ValueError(f"the name mapping of the table has no column {min(unknown)!r}")
        return
    if None in ids or len(set(ids)) < len(ids):
        raise ValueError("columns of the file have no field id, or the same one")
    schemas = [*metadata.schemas, *map(sanitize_column_names, metadata.schemas)]
    own = {pair for schema in schemas for pair in index_name_by_id(schema).items()}
    for id, name in index_name_by_id(present).items():
        if (id, name) not in own:
            raise ValueError(
                f"the file has the column {name!r} with field id {id}, which the table never had: write the file "
                "without field ids, so that its columns are found by name, or append its rows"
            )


def _fields(columns: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.Field]]:
    """The columns of a file and their parts, with the names that Iceberg gives them."""
    is_ = pa.types
    for field in columns:
        yield (path := f"{above}{field.name}"), field
        if is_.is_struct(field.type):
            yield from _fields(field.type, f"{path}.")
        elif is_.is_map(field.type):
            key, value = field.type.key_field, field.type.item_field
            yield from _fields([key.with_name("key"), value.with_name("value")], f"{path}.")
        elif is_.is_list(field.type) or is_.is_large_list(field.type):
            yield from _fields([field.type.value_field.with_name("element")], f"{path}.")


def _unproved_columns(schema: Schema, columns: pa.Schema, present: Schema) -> list[str]:
    """The columns whose values must be read to check that they fit the types of the table.

    Raises `ValueError` for types that Iceberg for Java cannot read, or reads as other values.
    """
    ids = {name: id for id, name in index_name_by_id(present).items()}
    unproved = []
    for column in columns:
        for name, field in _fields([column]):
            if ids.get(name) not in schema.field_ids:  # the column was dropped
                continue
            wanted, has = schema.find_type(ids[name]), present.find_type(ids[name])
            if field.type in (pa.uint32(), pa.uint64()):
                raise ValueError(
                    f"column {name!r} has the type {field.type}, and Iceberg has no unsigned integers: "
                    "append the rows of the file instead"
                )
            if isinstance(has, DecimalType) and isinstance(wanted, DecimalType) and has.scale != wanted.scale:
                raise ValueError(
                    f"column {name!r} has the type {has}, not {wanted}: append the rows of the file instead"
                )
            is_scaled = pa.types.is_timestamp(field.type) and field.type.unit in ("s", "ms")
            if is_scaled or isinstance(wanted, StringType):
                unproved.append(schema.find_field(ids[column.name]).name)
    return list(dict.fromkeys(unproved))


def _partition_value(field: PartitionField, schema: Schema, metrics: dict[str, Any]) -> Any:
    """The partition value of all rows of a file. Raises `ValueError` if it is unknown, or not the same for all rows."""
    id = field.source_id
    if isinstance(field.transform, VoidTransform) or id not in schema.field_ids:
        return None
    if id not in metrics["value_counts"] or metrics["null_value_counts"].get(id) == metrics["value_counts"][id]:
        return None
    type = schema.find_type(id)
    if not field.transform.preserves_order:
        raise ValueError(
            f"Cannot infer partition value from parquet metadata for a non-linear Partition Field: {field.name} with "
            f"transform {field.transform}"
        )
    if isinstance(type, FloatType | DoubleType):
        return math.nan  # the bounds omit NaN and have either zero, so the values are read
    transform = field.transform.transform(type)
    lower, upper = (
        transform(value_of_bytes(type, metrics[bounds].get(id))) for bounds in ("lower_bounds", "upper_bounds")
    )
    if lower is None or lower != upper or metrics["null_value_counts"].get(id) != 0:
        raise ValueError(
            "Cannot infer partition value from parquet metadata as there are more than one partition values for "
            f"Partition Field: {field.name}. lower_value={lower!r}, upper_value={upper!r}"
        )
    return lower


def _floating_partition_value(field: PartitionField, schema: Schema, reader: LiveRows, added: DataFile) -> Any:
    """The partition value of all rows of a file, for a floating-point column. Reads the column.

    Raises `ValueError` if the rows have several partition values.
    """
    name = schema.find_column_name(field.source_id) or ""
    column = next(one.name for one in schema.fields if name == one.name or name.startswith(f"{one.name}."))
    found: dict[Any, Any] = {}
    for batch in reader.batches(FileScanTask(added), [column]):
        for partition, _ in rows_by_partition(PartitionSpec(field), schema, pa.Table.from_batches([batch])):
            found[spelled(partition.values)] = partition.values[0]
        if len(found) > 1:
            raise ValueError(f"the file has rows of more than one partition: {name} is {list(found.values())[:2]}")
    return next(iter(found.values()), None)
