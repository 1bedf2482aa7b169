"""Fills missing columns with their `write-default`, and refuses variants (format version 3).

PyIceberg would fill missing columns with the `initial-default`, which is meant for rows that are older than the column
and may differ. So columns are filled before PyIceberg gets the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows
from trinitylake.iceberg_storage.identity_cache import IdentityCache
from trinitylake.iceberg_storage.pyiceberg_patches.variant import variants_in

if TYPE_CHECKING:
    import pyarrow as pa


def filled(rows: pa.Table | pa.RecordBatchReader, schema: Schema) -> pa.Table | pa.RecordBatchReader:
    """Add each missing column that has a `write-default` to the rows.

    Raises `InvalidArgument` if a struct lacks a field with a `write-default`, or if the schema has a variant column.
    """
    import pyarrow as pa

    check_columns(schema)
    known = _known(schema)
    for field in known.structs:
        if field.name in rows.schema.names:
            assert isinstance(field.field_type, StructType)
            _check_struct(field.name, field.field_type, rows.schema.field(field.name).type)
    if not known.defaulted or not (missing := [one for one in known.defaulted if one.name not in rows.schema.names]):
        return rows
    target = arrow_schema(Schema(*missing))
    scalars = [pa.scalar(one.write_default, column.type) for one, column in zip(missing, target, strict=True)]

    def add(table: pa.Table) -> pa.Table:
        for column, scalar in zip(target, scalars, strict=True):
            table = table.append_column(column, pa.repeat(scalar, table.num_rows))
        return table

    if isinstance(rows, pa.Table):
        return add(rows)
    wider = add(no_rows(rows.schema)).schema
    batches = (part for batch in rows for part in add(pa.Table.from_batches([batch])).to_batches())
    return pa.RecordBatchReader.from_batches(wider, batches)


def check_columns(schema: Schema) -> None:
    """Raise `InvalidArgument` for a table with variant columns, which this library does not write."""
    if names := _known(schema).variants:
        raise InvalidArgument(
            f"column {names[0]} is a variant, which is not written here: let an engine that knows the type write the "
            "rows, for instance Spark"
        )


def defaulted(schema: Schema) -> set[str]:
    """The columns that rows may lack, because they have a write-default."""
    return {field.name for field in _known(schema).defaulted}


class _Known(NamedTuple):
    """Cached facts about a schema: names of variant columns, columns with a `write-default`, and struct columns."""

    variants: list[str]
    defaulted: list[NestedField]
    structs: list[NestedField]


_schemas: IdentityCache[_Known] = IdentityCache()


def _known(schema: Schema) -> _Known:
    return _schemas.of(
        schema,
        make=lambda: _Known(
            variants_in(schema),
            [field for field in schema.fields if field.write_default is not None],
            [field for field in schema.fields if isinstance(field.field_type, StructType)],
        ),
    )


def _check_struct(name: str, type: StructType, given: pa.DataType) -> None:
    import pyarrow as pa

    if not pa.types.is_struct(given):
        return
    there = {given.field(position).name: given.field(position).type for position in range(given.num_fields)}
    for field in type.fields:
        path = f"{name}.{field.name}"
        if field.name not in there and field.write_default is not None:
            raise InvalidArgument(f"column {path} is missing from the data and has a default value: give its values")
        if isinstance(field.field_type, StructType) and field.name in there:
            _check_struct(path, field.field_type, there[field.name])
