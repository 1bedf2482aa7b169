"""Schema evolution by appended data: `append(…, evolve_schema=True)`.

Columns that the table lacks are added at the end, as optional columns. A column is widened as Iceberg allows: int to
long, float to double, more digits of a decimal, `unknown` to any type. Fields of structs are added and widened in the
same way, also within lists and the values of maps. For all other differences the rules for rows apply
(`input_rows.py`): values that the column can hold are accepted, others are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg import types as iceberg

from trinitylake.definitions.schema import to_iceberg_schema
from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.iceberg_storage.schema_compatibility import can_read

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.update.schema import UpdateSchema


def follow(update: UpdateSchema, schema: Schema, data: pa.Schema, format_version: int) -> None:
    """Add the columns and wider types of `data` that a table with `schema` and a format version lacks.

    Raises `InvalidArgument` that names every column of a type that no table can have.
    """
    known = _types(schema.fields)
    problems: list[str] = []
    for field in data:
        try:
            wanted = _wanted(field, format_version)
        except TrinityLakeError as error:
            if field.name not in known:  # an existing column may still be able to hold the values
                problems.append(f"column {field.name} cannot be added: {error}")
            continue
        _follow_field(update, (), known, wanted)
    if problems:
        raise InvalidArgument("; ".join(problems))


def _wanted(field: pa.Field, format_version: int) -> iceberg.NestedField:
    type = field.type
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_null(type):
        raise InvalidArgument("all of its values are null, so its type is not known")
    return to_iceberg_schema(pa.schema([pa.field(field.name, type)]), format_version).fields[0]


def _follow_field(
    update: UpdateSchema, parents: tuple[str, ...], known: dict[str, iceberg.IcebergType], field: iceberg.NestedField
) -> None:
    path, present = (*parents, field.name), known.get(field.name)
    if present is None:
        update.add_column(path, field.field_type)
    elif _is_wider(field.field_type, present):
        update.update_column(path, field.field_type)
    else:
        _follow_fields(update, path, present, field.field_type)


def _follow_fields(
    update: UpdateSchema, path: tuple[str, ...], present: iceberg.IcebergType, wanted: iceberg.IcebergType
) -> None:
    """The fields of a struct, or of the structs in a list or a map."""
    match present, wanted:
        case iceberg.ListType(), iceberg.ListType():
            _follow_part(update, path, "element", present.element_type, wanted.element_type)
        case iceberg.MapType(), iceberg.MapType():
            _follow_part(update, path, "value", present.value_type, wanted.value_type)
        case iceberg.StructType(), iceberg.StructType():
            known = _types(present.fields)
            for field in wanted.fields:
                _follow_field(update, path, known, field)


def _follow_part(
    update: UpdateSchema, path: tuple[str, ...], name: str, present: iceberg.IcebergType, wanted: iceberg.IcebergType
) -> None:
    if _is_wider(wanted, present):
        update.update_column((*path, name), wanted)
    else:
        # Fields are added by the path of the list or map that has the structs.
        _follow_fields(update, path if isinstance(present, iceberg.StructType) else (*path, name), present, wanted)


def _types(fields: Iterable[iceberg.NestedField]) -> dict[str, iceberg.IcebergType]:
    return {field.name: field.field_type for field in fields}


def _is_wider(wanted: iceberg.IcebergType, present: iceberg.IcebergType) -> bool:
    return present.is_primitive and wanted != present and can_read(present, wanted)
