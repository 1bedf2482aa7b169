"""Types of partition fields, also of fields whose source column was dropped.

A partition spec may name a source column that was dropped. The type of a partition value depends on the type of the
source column, so a dropped column is looked up in older schemas of the table, newest first.
"""

from __future__ import annotations

from typing import Any

from pyiceberg import partitioning
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, NestedField, UnknownType


def schema_with_sources(metadata: TableMetadata, schema: Schema | None = None) -> Schema:
    """A schema, by default the current one, with the source columns of all partition specs.

    Dropped columns are appended as optional fields under names that no column has. Only their types matter.
    """
    current = metadata.schema() if schema is None else schema
    known = set(current.field_ids)
    dropped = {field.source_id for spec in metadata.partition_specs for field in spec.fields} - known
    if not dropped:
        return current
    fields = [NestedField(id, f"dropped:{id}", _last_type(metadata, id), required=False) for id in sorted(dropped)]
    return Schema(*current.fields, *fields, schema_id=current.schema_id)


_validate_partition_name = partitioning.validate_partition_name


def _name_of_present_source(
    field_name: str, partition_transform: Any, source_id: int, schema: Schema, partition_names: set[str]
) -> None:
    """PyIceberg's check of the name of a partition field. A field whose source column was dropped is not checked.

    Another column may have the name of such a field.
    """
    if source_id in schema.field_ids:
        _validate_partition_name(field_name, partition_transform, source_id, schema, partition_names)


partitioning.validate_partition_name = _name_of_present_source


def _last_type(metadata: TableMetadata, id: int) -> IcebergType:
    for schema in sorted(metadata.schemas, key=lambda one: one.schema_id, reverse=True):
        if id in schema.field_ids:
            return schema.find_type(id)
    return UnknownType()
