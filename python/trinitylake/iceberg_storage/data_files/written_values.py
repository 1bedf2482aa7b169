"""Checks of written rows: values that an Iceberg column cannot hold, variants, and columns with a `write-default`.

PyIceberg would fill missing columns with the `initial-default`, which is meant for rows that are older than the column
and may differ. So columns are filled before PyIceberg gets the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, no_rows
from trinitylake.iceberg_storage.identity_cache import IdentityCache
from trinitylake.iceberg_storage.pyiceberg_patches import variants_in


def leaf_arrays(values: pa.Array) -> Iterator[pa.Array]:
    """The arrays of primitive values in a nested array."""
    kind = values.type
    if pa.types.is_struct(kind):
        for part in values.flatten():
            yield from leaf_arrays(part)
    elif isinstance(values, pa.ListArray | pa.LargeListArray):  # a map is a list; Arrow cannot flatten lists of UUIDs
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        for part in (values.keys, values.items) if pa.types.is_map(kind) else (values.values,):
            yield from leaf_arrays(part.slice(start, end - start))
    elif pa.types.is_fixed_size_list(kind):
        yield from leaf_arrays(values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size))
    else:
        yield values


def check_values(column: pa.ChunkedArray | pa.Array, name: str) -> None:
    """Raise `InvalidArgument` for values that a column cannot hold.

    Such values are the date and timestamp `infinity`, which DuckDB stores as the largest number, times of day outside
    of 24 hours, and strings that are not UTF-8.
    """
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        for leaf in leaf_arrays(chunk):
            leaf = leaf.dictionary if isinstance(leaf, pa.DictionaryArray) else leaf
            if pa.types.is_timestamp(leaf.type) or pa.types.is_date32(leaf.type):
                bits = leaf.type.bit_width
                bounds = pc.min_max(leaf.view(pa.int32() if bits == 32 else pa.int64())).as_py()
                largest = (1 << (bits - 1)) - 1
                if bounds["max"] == largest or bounds["min"] == -largest:
                    raise InvalidArgument(
                        f"column {name}: the value infinity does not exist in Iceberg: use NULL, or a last day such as "
                        "9999-12-31"
                    )
            elif pa.types.is_time64(leaf.type):  # in microseconds
                bounds = pc.min_max(leaf.view(pa.int64())).as_py()
                if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < 86_400_000_000:
                    raise InvalidArgument(f"column {name}: a time of day is at least 00:00 and before 24:00")
            elif leaf.type in (pa.string(), pa.large_string(), pa.string_view()):
                try:
                    leaf.validate(full=True)
                except pa.ArrowInvalid as error:
                    raise InvalidArgument(f"column {name}: a string is not UTF-8: {error}") from None


def filled(rows: pa.Table | pa.RecordBatchReader, schema: Schema) -> pa.Table | pa.RecordBatchReader:
    """Add each missing column that has a `write-default` to the rows.

    Raises `InvalidArgument` if a struct lacks a field with a `write-default`, or if the schema has a variant column.
    """
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
    if not pa.types.is_struct(given):
        return
    there = {given.field(position).name: given.field(position).type for position in range(given.num_fields)}
    for field in type.fields:
        path = f"{name}.{field.name}"
        if field.name not in there and field.write_default is not None:
            raise InvalidArgument(f"column {path} is missing from the data and has a default value: give its values")
        if isinstance(field.field_type, StructType) and field.name in there:
            _check_struct(path, field.field_type, there[field.name])
