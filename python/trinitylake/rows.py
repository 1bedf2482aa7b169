"""Rows on their way into a table: anything Arrow in, exactly the table's columns and types out.

Values are cast to the column's type only where nothing is lost; columns that are missing become null if they may
be; columns that the table does not have are refused rather than dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

# Widths of Arrow offsets that Iceberg's writer takes as they are.
_ALIKE = {(pa.string(), pa.large_string()), (pa.large_string(), pa.string()), (pa.binary(), pa.large_binary())}


def is_replayable(data: Any) -> bool:
    """Whether reading `data` twice gives the same rows: not so for a stream."""
    return not isinstance(data, pa.RecordBatchReader)


def read(data: Any) -> pa.Table | pa.RecordBatchReader:
    """Any tabular object as Arrow. A `pyarrow.RecordBatchReader` stays a stream, all else becomes a table.

    Takes whatever has the Arrow C stream interface (pyarrow, polars, pandas, duckdb), a mapping of columns, or a
    list of dictionaries. Raises `InvalidArgument` for anything else.
    """
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return data
    try:
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data])
        if hasattr(data, "__arrow_c_stream__") or isinstance(data, Mapping):
            return pa.table(data)
        if isinstance(data, list) and all(isinstance(row, Mapping) for row in data):
            return pa.Table.from_pylist(data)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidArgument(f"cannot read {type(data).__name__} as Arrow: {error}") from error
    raise InvalidArgument(
        f"expected Arrow data (pyarrow, polars, pandas, duckdb, a dict of columns, a list of dicts), "
        f"got {type(data).__name__}"
    )


def conform(data: Any, schema: Schema, *, stream: bool = False) -> pa.Table | pa.RecordBatchReader:
    """`data` with the columns of an Iceberg schema, in its order.

    With `stream` a reader stays a reader; else it is read into memory. Raises `InvalidArgument` that names the
    column: for a column the table does not have, a required one that is missing or holds a null, and a value that
    does not fit the type.
    """
    # Here, because it imports pandas, which whoever only reads a table's metadata has no use for.
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    rows = read(data)
    target: pa.Schema = schema_to_pyarrow(schema, include_field_ids=False)
    if isinstance(rows, pa.RecordBatchReader):
        if stream:
            fields = _known_columns(rows.schema, target)
            return pa.RecordBatchReader.from_batches(fields, _conformed(rows, target, fields))
        rows = rows.read_all()
    return _conform_table(rows, target)


def _conformed(reader: pa.RecordBatchReader, target: pa.Schema, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield from _conform_table(pa.Table.from_batches([batch]), target).cast(fields).to_batches()


def _conform_table(rows: pa.Table, target: pa.Schema) -> pa.Table:
    fields = _known_columns(rows.schema, target)
    columns = [_column(rows.column(field.name), field) for field in fields]
    schema = pa.schema([field.with_type(column.type) for field, column in zip(fields, columns, strict=True)])
    return pa.Table.from_arrays(columns, schema=schema)


def _known_columns(given: pa.Schema, target: pa.Schema) -> pa.Schema:
    """The fields of `target` that `given` has, after checking that it has no others and all required ones."""
    names = given.names
    if len(set(names)) != len(names):
        raise InvalidArgument(f"duplicate columns in the data: {', '.join(names)}")
    if unknown := [name for name in names if target.get_field_index(name) < 0]:
        raise InvalidArgument(f"the table has no column {', '.join(unknown)}; it has {', '.join(target.names)}")
    present = set(names)
    if missing := [field.name for field in target if not field.nullable and field.name not in present]:
        raise InvalidArgument(f"required columns are missing from the data: {', '.join(missing)}")
    return pa.schema([field for field in target if field.name in present])


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if not field.nullable and column.null_count:
        raise InvalidArgument(f"column {field.name} is required, but {column.null_count} of its values are null")
    if column.type == field.type or (column.type, field.type) in _ALIKE:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidArgument(f"column {field.name}: cannot cast {column.type} to {field.type}: {error}") from error
