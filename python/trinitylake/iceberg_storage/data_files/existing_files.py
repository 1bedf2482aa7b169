"""Parquet files that exist already, as data files of a table (`add_files`)."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from trinitylake.iceberg_storage.column_summary import value_of_bytes
from trinitylake.iceberg_storage.data_files.parquet_statistics import FileMetrics
from trinitylake.iceberg_storage.pyiceberg_patches.functions import check_columns_fit


def existing_data_file(io: FileIO, metadata: TableMetadata, path: str) -> DataFile:
    """Manifest entry of an existing file in the current partition spec, from its footer.

    Raises `ValueError` for columns that do not fit the table, and for rows of more than one partition.
    """
    file = io.new_input(path)
    with file.open() as stream:
        footer = pq.read_metadata(stream)
    schema, spec = metadata.schema(), metadata.spec()
    check_columns_fit(schema, footer.schema.to_arrow_schema(), metadata.format_version)
    found = FileMetrics(schema, metadata.properties).of(footer)
    every = FileMetrics(schema, {"write.metadata.metrics.default": "full"}).of(footer)
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
    return added


def _partition_value(field: PartitionField, schema: Schema, metrics: dict[str, Any]) -> Any:
    """Partition value of all rows of a file. Raises `ValueError` if there are several, or it is unknown."""
    id = field.source_id
    if id not in schema.field_ids:  # a void field of a column that was dropped
        return None
    if id not in metrics["value_counts"] or metrics["null_value_counts"].get(id) == metrics["value_counts"][id]:
        return None
    type = schema.find_type(id)
    if not field.transform.preserves_order:
        raise ValueError(
            f"Cannot infer partition value from parquet metadata for a non-linear Partition Field: {field.name} with "
            f"transform {field.transform}"
        )
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
