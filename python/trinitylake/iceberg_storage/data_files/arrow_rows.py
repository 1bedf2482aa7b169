"""Arrow types of rows: those of the Iceberg schema, whatever the types in the files.

Arrow has two widths of offsets for texts, bytes and lists, and a Parquet file may have either. Rows always have the
wide offsets here, so their types do not depend on the files. Widening offsets does not copy texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from trinitylake.iceberg_storage.identity_cache import IdentityCache

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyiceberg.schema import Schema

    Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


_schemas: IdentityCache[pa.Schema] = IdentityCache()
_schemas_with_ids: IdentityCache[pa.Schema] = IdentityCache()


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of the rows that an Iceberg schema describes."""
    return _schemas.of(schema, make=lambda: _converted(schema, with_ids=False))


def arrow_schema_with_ids(schema: Schema) -> pa.Schema:
    """The same with field ids, as in Parquet files."""
    return _schemas_with_ids.of(schema, make=lambda: _converted(schema, with_ids=True))


def _converted(schema: Schema, *, with_ids: bool) -> pa.Schema:
    from trinitylake.definitions import arrow_types, iceberg_types

    return arrow_types.to_arrow(iceberg_types.from_iceberg(schema)[0], with_ids=with_ids)


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. Arrow's `empty_table` fails for a UUID in a struct or list."""
    import pyarrow as pa

    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """An array of nulls. In Arrow's `nulls` the required fields of a struct are null, too, which cannot be written."""
    import pyarrow as pa

    if not requires_parts(kind):
        return pa.nulls(count, kind)
    return pa.array([None] * count, _stored(kind)).cast(kind)


def requires_parts(kind: pa.DataType) -> bool:
    """Whether a type is a struct with required fields, at any depth."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and any(not field.nullable or requires_parts(field.type) for field in kind)


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type with the storage type of UUIDs, which Arrow also supports in structs."""
    import pyarrow as pa

    return _with_leaves(kind, lambda leaf: leaf.storage_type if isinstance(leaf, pa.BaseExtensionType) else leaf)


def _with_leaves(kind: pa.DataType, replace: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type in which types without parts are replaced."""
    import pyarrow as pa

    def replaced(field: pa.Field) -> pa.Field:
        return field.with_type(_with_leaves(field.type, replace))

    is_ = pa.types
    if is_.is_struct(kind):
        return pa.struct([replaced(field) for field in kind])
    if is_.is_map(kind):
        return pa.map_(replaced(kind.key_field), replaced(kind.item_field))
    return pa.large_list(replaced(kind.value_field)) if is_.is_large_list(kind) else replace(kind)


def cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A column with another type. Raises Arrow's errors for values that do not fit the type.

    Arrow adds digits to a decimal of 128 bits without a check for overflow.
    """
    import pyarrow as pa

    if column.type == kind:
        return column
    if pa.types.is_decimal128(column.type) and pa.types.is_decimal128(kind) and column.type.scale == kind.scale:
        return column.cast(kind)
    wide = _with_leaves(kind, lambda leaf: pa.decimal256(76, leaf.scale) if pa.types.is_decimal128(leaf) else leaf)
    return column.cast(kind) if wide == kind else column.cast(wide).cast(kind)


def typed(rows: Rows, target: pa.Schema) -> Rows:
    """The same rows with the types of a schema.

    Args:
        rows: with the columns of the schema, in its order.
        target: as `arrow_schema` gives it.

    Raises Arrow's errors for values that do not fit the types.
    """
    import pyarrow as pa

    if rows.schema.equals(target, check_metadata=True):
        return rows
    columns = [cast(column, field.type) for column, field in zip(rows.columns, target, strict=True)]
    kind = pa.Table if isinstance(rows, pa.Table) else pa.RecordBatch
    if not columns:  # keeps the number of rows
        return rows
    return kind.from_arrays(columns, schema=target)
