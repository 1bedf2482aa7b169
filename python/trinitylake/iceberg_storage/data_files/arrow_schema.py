"""Arrow types of rows. They depend only on the Iceberg schema, and not on the types in the files.

Arrow has types with 32-bit and with 64-bit offsets for strings, bytes and lists, and a Parquet file may have either.
Rows always get the types with 64-bit offsets. The conversion does not copy the strings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.iceberg_storage.identity_cache import IdentityCache

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


_schemas: IdentityCache[pa.Schema] = IdentityCache()
_schemas_with_ids: IdentityCache[pa.Schema] = IdentityCache()


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the rows that an Iceberg schema describes."""
    return _schemas.of(schema, make=lambda: _converted(schema, with_ids=False))


def arrow_schema_with_ids(schema: Schema) -> pa.Schema:
    """The same Arrow schema with field ids, as in Parquet files."""
    return _schemas_with_ids.of(schema, make=lambda: _converted(schema, with_ids=True))


def _converted(schema: Schema, *, with_ids: bool) -> pa.Schema:
    from trinitylake.definitions import arrow_types, iceberg_types

    return arrow_types.to_arrow(iceberg_types.from_iceberg(schema)[0], with_ids=with_ids)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. Arrow's `empty_table` fails for a UUID in a struct or list."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """An array of nulls. Arrow's `nulls` also makes required fields of a struct null, which cannot be written."""
    if not requires_parts(kind):
        return pa.nulls(count, kind)
    return pa.array([None] * count, _stored(kind)).cast(kind)


def has_part(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or a part of it at any depth, passes a test."""
    return test(kind) or any(has_part(kind.field(number).type, test) for number in range(kind.num_fields))


def requires_parts(kind: pa.DataType) -> bool:
    """Whether a nested type has a required part, at any depth."""
    return any(not part.nullable or requires_parts(part.type) for part in _parts(kind))


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a nested type. For a map these are key and value; the key counts as nullable, because Arrow itself
    refuses NULL keys.
    """
    if pa.types.is_map(kind):
        return [kind.key_field.with_nullable(True), kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)]


def _stored(kind: pa.DataType) -> pa.DataType:
    """Replace UUIDs in a type by their storage type, because Arrow supports UUIDs only outside of structs."""
    return with_leaves(kind, lambda leaf: leaf.storage_type if isinstance(leaf, pa.BaseExtensionType) else leaf)


def with_leaves(
    kind: pa.DataType, replace: Callable[[pa.DataType], pa.DataType] = lambda leaf: leaf, *, optional: bool = False
) -> pa.DataType:
    """Apply `replace` to each leaf of a type. All lists become large lists, with `optional` all parts optional."""

    def replaced(field: pa.Field) -> pa.Field:
        return field.with_type(with_leaves(field.type, replace, optional=optional)).with_nullable(
            optional or field.nullable
        )

    is_ = pa.types
    if is_.is_struct(kind):
        return pa.struct([replaced(field) for field in kind])
    if is_.is_map(kind):
        return pa.map_(replaced(kind.key_field).with_nullable(False), replaced(kind.item_field))
    is_list = is_.is_large_list(kind) or is_.is_list(kind) or is_.is_fixed_size_list(kind)
    return pa.large_list(replaced(kind.value_field)) if is_list else replace(kind)


def cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast a column to another type. Raises Arrow's errors for values that do not fit the type.

    Decimals are cast through 256 bits, because Arrow rescales 128-bit decimals without a check for overflow.
    """
    is_decimal = pa.types.is_decimal128
    if column.type == kind or (is_decimal(column.type) and is_decimal(kind) and column.type.scale == kind.scale):
        return cast_parts(column, kind)
    wide = with_leaves(kind, lambda leaf: pa.decimal256(76, leaf.scale) if is_decimal(leaf) else leaf)
    return cast_parts(column if wide == kind else cast_parts(column, wide), kind)


def cast_parts(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast nested values. A null in a required part raises an Arrow error, unless the struct that contains it is null.

    Arrow's own cast refuses such nulls in null structs too, and turns a NULL list in a list into an empty list.
    """
    if not requires_parts(kind):
        return values if values.type == kind else values.cast(kind)
    values = values.cast(with_leaves(kind, optional=True))
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_with_required_parts(chunk, kind) for chunk in values.chunks], kind)
    return _with_required_parts(values, kind)


def _with_required_parts(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values with optional parts to `kind`. Required parts of a null struct get a default value."""
    if not requires_parts(kind):
        return values
    is_struct, missing = pa.types.is_struct(kind), values.null_count
    if is_struct:
        parts = values.flatten()
    else:  # drop elements that belong to null lists or are outside of the slice
        values = values.take(pc.subtract(_numbers(values), 1))
        parts = [values.keys, values.items] if pa.types.is_map(kind) else [values.values]
    made = []
    for part, field in zip(parts, _parts(kind), strict=True):
        part = _with_required_parts(part, field.type)
        if not field.nullable and part.null_count:
            if not is_struct or part.null_count > missing:
                raise pa.ArrowInvalid(f"{field.name} is required, and {part.null_count} of its values are null")
            default = nulls(1, pa.struct([field])).field(0)
            part = pa.concat_arrays([default, part]).take(pc.if_else(values.is_valid(), _numbers(values), 0))
        made.append(part)
    if is_struct:
        return pa.StructArray.from_arrays(made, fields=list(kind), mask=values.is_null())
    array = pa.MapArray if pa.types.is_map(kind) else pa.LargeListArray
    return array.from_arrays(values.offsets, *made, type=kind, mask=values.is_null())


def _numbers(values: pa.Array) -> pa.Array:
    """Row numbers from 1, one for each value."""
    return pc.cumulative_sum(pa.repeat(1, len(values)))


def typed(rows: Rows, target: pa.Schema) -> Rows:
    """Cast rows to the types of a schema.

    Args:
        rows: with the columns of the schema, in its order.
        target: from `arrow_schema`.

    Raises Arrow's errors for values that do not fit the types.
    """
    if rows.schema.equals(target, check_metadata=True):
        return rows
    columns = [cast(column, field.type) for column, field in zip(rows.columns, target, strict=True)]
    kind = pa.Table if isinstance(rows, pa.Table) else pa.RecordBatch
    if not columns:  # `from_arrays` would lose the number of rows
        return rows
    return kind.from_arrays(columns, schema=target)
