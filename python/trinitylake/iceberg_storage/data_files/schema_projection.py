"""Converts rows from one Iceberg schema to another. Columns are matched by field id.

The result has the Arrow types of the target schema (`arrow_schema.py`). Values are widened and never narrowed. NULL
stays NULL, also for lists, maps and structures with required parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, index_by_id, promote
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, cast, nulls

_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def has_plain_part_names(type: IcebergType) -> bool:
    """Whether the fields of a nested column have the same names in files of all engines.

    In files, Iceberg's writers replace a name like `A b` by `A_x20b`. DuckDB and Spark find nested fields by name, and
    would read NULL.
    """
    match type:
        case StructType():
            return all(_PLAIN_NAME.fullmatch(one.name) and has_plain_part_names(one.field_type) for one in type.fields)
        case ListType():
            return has_plain_part_names(type.element_type)
        case MapType():
            return has_plain_part_names(type.key_type) and has_plain_part_names(type.value_type)
    return True


def with_wider_types(schema: Schema, other: Schema) -> Schema:
    """Replace the type of each primitive column, also in nested ones, by its type in `other` if that is wider."""
    others = index_by_id(other)

    def wider(kind: IcebergType, id: int) -> IcebergType:
        match kind:
            case StructType():
                return StructType(*(widened(field) for field in kind.fields))
            case ListType():
                return ListType(kind.element_id, wider(kind.element_type, kind.element_id), kind.element_required)
            case MapType():
                key, value = wider(kind.key_type, kind.key_id), wider(kind.value_type, kind.value_id)
                return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
        found = others[id].field_type if id in others else kind
        return found if found != kind and _is_promoted(kind, found) else kind

    def widened(field: NestedField) -> NestedField:
        return field.model_copy(update={"field_type": wider(field.field_type, field.field_id)})

    fields = [widened(field) for field in schema.fields]
    if fields == list(schema.fields):
        return schema
    return Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def _is_promoted(has: IcebergType, wants: IcebergType) -> bool:
    """Whether Iceberg promotes a primitive type to another one."""
    try:
        promote(has, wants)
    except ResolveError:
        return False
    return True


def project(
    rows: pa.RecordBatch,
    present: Schema,
    wanted: Schema,
    constants: Mapping[int, Any] = EMPTY_DICT,
    target: pa.Schema | None = None,
) -> pa.RecordBatch:
    """Convert rows from the columns `present` to the columns `wanted`.

    Args:
        rows: the rows. They may have columns that `present` lacks.
        constants: values of columns that are not in `present`, by field id.
        target: the Arrow schema of the result, by default `arrow_schema(wanted)`.

    Raises `ResolveError` for a required column that is missing, and for a type that cannot be widened as wanted.
    """
    target = arrow_schema(wanted) if target is None else target
    if not wanted.fields:
        return rows.select([])
    there = {field.field_id: field for field in present.fields}
    arrays = []
    for field, column in zip(wanted.fields, target, strict=True):
        if (source := there.get(field.field_id)) is not None:
            arrays.append(_converted(rows.column(source.name), source.field_type, field.field_type, column.type))
        else:
            arrays.append(_missing(field, column.type, rows.num_rows, constants))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _missing(field: NestedField, kind: pa.DataType, count: int, constants: Mapping[int, Any] = EMPTY_DICT) -> pa.Array:
    value = constants.get(field.field_id)
    value = field.initial_default if value is None else value
    if value is not None:
        return pa.repeat(pa.scalar(value, kind), count)
    if field.required:
        raise ResolveError(f"Field is required, and could not be found in the file: {field}")
    return nulls(count, kind)


def _converted(values: pa.Array, has: IcebergType, wants: IcebergType, kind: pa.DataType) -> pa.Array:
    """Convert values from one Iceberg type to another."""
    # A NULL list or map may have elements in Arrow, so lists and maps are built with a mask of their NULLs. Arrow does
    # not accept a mask with sliced offsets, so `add(offsets, 0)` copies the offsets.
    match has, wants:
        case StructType(), StructType():
            there = {field.field_id: field for field in has.fields}
            parts = []
            for field, part in zip(wants.fields, kind, strict=True):
                if (source := there.get(field.field_id)) is not None:
                    parts.append(_converted(values.field(source.name), source.field_type, field.field_type, part.type))
                else:
                    parts.append(_missing(field, part.type, len(values)))
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
        case ListType(), ListType():
            if pa.types.is_fixed_size_list(values.type):
                values = values.cast(pa.large_list(values.type.value_field))
            elements = _converted(values.values, has.element_type, wants.element_type, kind.value_type)
            array = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
            offsets = pc.add(values.offsets, 0).cast(pa.int64() if pa.types.is_large_list(kind) else pa.int32())
            return array.from_arrays(offsets, elements, type=kind, mask=values.is_null())
        case MapType(), MapType():
            keys = _converted(values.keys, has.key_type, wants.key_type, kind.key_type)
            items = _converted(values.items, has.value_type, wants.value_type, kind.item_type)
            return pa.MapArray.from_arrays(pc.add(values.offsets, 0), keys, items, type=kind, mask=values.is_null())
    if has != wants:
        promote(has, wants)
    if values.type == kind:
        return values
    if pa.types.is_decimal(kind):
        return cast(values, kind)
    # Nanoseconds are truncated if the table has microseconds.
    is_cut = pa.types.is_timestamp(kind) and pa.types.is_timestamp(values.type) and values.type.unit == "ns"
    return values.cast(kind, safe=not is_cut)
