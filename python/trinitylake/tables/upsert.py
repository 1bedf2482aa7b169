"""Completes the rows of an upsert that lack columns: an updated row keeps the values it has in them.

PyIceberg compares and replaces whole rows, so they are completed first, from the state that the upsert works on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import key_filter
from trinitylake.tables.input_rows import arrow_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

_GIVEN, _FOUND = "__trinitylake_given", "__trinitylake_found"


def completed(rows: pa.Table, iceberg: IcebergTable, keys: Sequence[str]) -> pa.Table:
    """`rows` with all columns of the table, in its order.

    A missing column has the value of the row that has the same key, null if there is none. `keys` are columns of
    `rows`, or else PyIceberg is left to refuse them.
    """
    target = arrow_schema(iceberg.schema())
    missing = [field for field in target if field.name not in rows.column_names]
    if not missing or not keys or not set(keys) <= set(rows.column_names):
        return rows
    names = [field.name for field in missing]
    found = iceberg.scan(row_filter=key_filter(rows, keys), selected_fields=(*keys, *names)).to_arrow()
    # By position, because Arrow joins no nested values.
    given = rows.select(keys).append_column(_GIVEN, pa.array(range(rows.num_rows), pa.int64()))
    known = found.select(keys).cast(given.drop_columns(_GIVEN).schema)
    known = known.append_column(_FOUND, pa.array(range(found.num_rows), pa.int64()))
    joined = given.join(known, keys=list(keys), join_type="left outer")
    positions: list[int | None] = [None] * rows.num_rows
    for row, position in zip(joined[_GIVEN].to_pylist(), joined[_FOUND].to_pylist(), strict=True):
        positions[row] = position
    indices = pa.array(positions, pa.int64())
    columns = [
        found[field.name].take(indices).cast(field.type) if field.name in names else rows[field.name]
        for field in target
    ]
    fields = [field.with_type(column.type) for field, column in zip(target, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
