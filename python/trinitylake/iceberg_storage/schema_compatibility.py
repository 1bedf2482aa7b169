"""Whether the schema of a table can read the data files that were written under its former schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyiceberg import types as iceberg

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata


def check_evolution(metadata: TableMetadata, base: TableMetadata) -> None:
    """Check that the current schema of `metadata` can read the files of its current snapshot. Raises `ValueError`.

    Readers match columns by id. So a column must keep its place and, except for promotions that our readers support,
    its type. A new required column must have a default value for the existing rows. An optional column cannot become
    required: readers that rely on it return other values for NULL, and files with NULL could not be rewritten.

    The current schema of `base` can read the current snapshot of `base`, because each commit was checked. Each other
    snapshot can be read with its own schema. The first snapshot of a replaced table has no parent, so the schema of
    such a table may change freely.
    """
    snapshot = metadata.current_snapshot()
    while snapshot is not None:
        id, is_known = snapshot.snapshot_id, base.snapshot_by_id(snapshot.snapshot_id) is not None
        schema_id = base.current_schema_id if id == base.current_snapshot_id else snapshot.schema_id
        for schema in (base if is_known else metadata).schemas:
            if schema.schema_id == schema_id or (schema_id is None and is_known):
                _check_readable(schema, metadata, base.last_column_id)
        parent = None if is_known else snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def _check_readable(written: Schema, metadata: TableMetadata, last_column_id: int) -> None:
    """Check that the current schema can read files of the schema `written`. Raises `ValueError`.

    A column with an id up to `last_column_id` that `written` lacks may be in older files, with its type in other
    schemas. A struct without fields is refused, because Parquet cannot store it.
    """
    schema, files = metadata.schema(), _columns(written)
    if schema.schema_id == written.schema_id:
        return
    columns = _columns(schema)
    is_former = any(id not in files and id <= last_column_id for id in columns)
    others = [_columns(one) for one in metadata.schemas] if is_former else []
    for id, (field, parent) in columns.items():
        if isinstance(field.field_type, iceberg.StructType) and not field.field_type.fields:
            raise ValueError(f"column {field.name!r} is a struct without fields, which a table with rows cannot have")
        for former in [files] if id in files else others:
            if id in former and not (former[id][1] == parent and can_read(former[id][0].field_type, field.field_type)):
                was, place = former[id][0].field_type, "" if former[id][1] == parent else " at another place"
                raise ValueError(
                    f"column {field.name!r} cannot have the type {field.field_type}: the files of the table have {was} "
                    f"under its id {id}{place}"
                )
            if id in former and field.required and former[id][0].optional:
                raise ValueError(
                    f"column {field.name!r} cannot become required, because rows of the table may have NULL in it: "
                    "add a required column with a default value, or replace the table"
                )
        if id not in files and (parent is None or parent in files):
            if parent is not None and not isinstance(files[parent][0].field_type, iceberg.StructType):
                raise ValueError(f"the id of {field.name!r} of column {files[parent][0].name!r} cannot become {id}")
            if field.required and field.initial_default is None:
                raise ValueError(
                    f"column {field.name!r} is required and has no default value, but the table has rows without it"
                )


def _columns(schema: Schema) -> dict[int, tuple[iceberg.NestedField, int | None]]:
    """The fields of a schema by id, each with the id of the field that contains it."""
    found: dict[int, tuple[iceberg.NestedField, int | None]] = {one.field_id: (one, None) for one in schema.fields}
    for field in all_fields(schema.as_struct()):
        found |= {part.field_id: (part, field.field_id) for part in parts_of(field.field_type)}
    return found


def can_read(written: iceberg.IcebergType, type: iceberg.IcebergType) -> bool:
    """Whether our readers convert values of `written` to `type`. The parts of nested types are compared separately."""
    match written, type:
        case (
            (iceberg.IntegerType(), iceberg.LongType())
            | (iceberg.FloatType(), iceberg.DoubleType())
            | (iceberg.UnknownType(), iceberg.PrimitiveType())
        ):
            return True
        case iceberg.DecimalType(), iceberg.DecimalType():
            return written.scale == type.scale and written.precision <= type.precision
    return written == type if written.is_primitive else written.__class__ is type.__class__


def all_fields(type: iceberg.IcebergType) -> Iterator[iceberg.NestedField]:
    """The fields of a type at any depth."""
    rest = [type]
    while rest:
        children = parts_of(rest.pop())
        yield from children
        rest += [child.field_type for child in children]


def parts_of(type: iceberg.IcebergType) -> Sequence[iceberg.NestedField]:
    """The fields directly in a type."""
    match type:
        case iceberg.StructType(fields=found):
            return found
        case iceberg.ListType():
            return [type.element_field]
        case iceberg.MapType():
            return [type.key_field, type.value_field]
    return ()
