"""Rows by the partitions that they belong to, each row in exactly one.

PyIceberg looks for the rows of each partition by comparing values: NaN equals nothing, so those rows would be in no
partition, and 0.0 equals -0.0, so those would be in two. Here floating-point numbers are compared by their bits.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, EqualTo, IsNaN, IsNull, Or, Reference
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from trinitylake.iceberg_storage.extended_pyiceberg.null_values import keep_nulls_here

if TYPE_CHECKING:
    import pyarrow as pa

#: Of a column with the numbers of the rows, and before it those of the values of the partition fields.
_ROW = "row"


class RowsOfPartition(NamedTuple):
    """Rows of one partition, under the names that PyIceberg has for them."""

    partition_key: PartitionKey
    arrow_table_partition: pa.Table


def rows_by_partition(spec: PartitionSpec, schema: Schema, arrow_table: pa.Table) -> Iterator[RowsOfPartition]:
    """Rows of a table, partition by partition, in their order.

    Args:
        spec: with at least one field.
        schema: of the table; the names of the rows' columns are its.
        arrow_table: the rows.

    Raises `KeyError` and `ValueError` for a field whose column is not there.
    """
    import numpy as np
    import pyarrow as pa

    values = []
    for field in spec.fields:
        kind = schema.find_field(field.source_id).field_type
        source = _column(arrow_table, schema.find_column_name(field.source_id) or "")
        values.append(field.transform.pyarrow_transform(kind)(source))
    names = [str(number) for number in range(len(values))]
    keys = pa.table([*map(_comparable, values), np.arange(arrow_table.num_rows)], names=[*names, _ROW])
    groups = keys.group_by(names, use_threads=False).aggregate([(_ROW, "list"), (_ROW, "min")])
    numbers = np.empty(arrow_table.num_rows, np.int64)
    for number, rows in enumerate(groups[f"{_ROW}_list"]):
        numbers[rows.values.to_numpy()] = number
    for number, first in enumerate(groups[f"{_ROW}_min"].to_pylist()):
        found = [
            PartitionFieldValue(field=field, value=column[first].as_py())
            for field, column in zip(spec.fields, values, strict=True)
        ]
        rows = arrow_table if len(groups) == 1 else arrow_table.filter(pa.array(numbers == number))
        yield RowsOfPartition(PartitionKey(found, spec, schema), rows.combine_chunks())


def spelled(partition: Record) -> tuple[Hashable, ...]:
    """The values of a partition, equal to those of the same partition only: NaN is NaN, and -0.0 is not 0.0."""
    return tuple(_spelled(value) for value in partition._data)


def _spelled(value: Any) -> Hashable:
    if not isinstance(value, float):
        return value  # type: ignore[no-any-return]
    return "NaN" if math.isnan(value) else (value, math.copysign(1, value))


def share_nan(partition: Record) -> None:
    """Have NaN be one and the same object in all partitions, so that PyIceberg finds two of them equal."""
    for number, value in enumerate(partition._data):
        if isinstance(value, float) and math.isnan(value):
            partition[number] = math.nan


def in_partitions(partitions: Iterable[Record], columns: Sequence[str]) -> BooleanExpression:
    """A filter that holds in all of these partitions, by the values of the columns. PyIceberg's own takes no NaN."""
    if not columns:
        return AlwaysFalse()
    alternatives = [
        _joined(And, [_equals(column, value) for column, value in zip(columns, one._data, strict=False)])
        for one in partitions
    ]
    return _joined(Or, alternatives) if alternatives else AlwaysFalse()


def _joined(by: type[And] | type[Or], parts: list[BooleanExpression]) -> BooleanExpression:
    """A shallow tree: of thousands of partitions, one in the other would be too deep for Python."""
    return by(*parts) if len(parts) > 1 else parts[0]


def _equals(column: str, value: Any) -> BooleanExpression:
    term = Reference(column)
    if value is None:
        return IsNull(term=term)
    return IsNaN(term=term) if _spelled(value) == "NaN" else EqualTo(term=term, value=value)


def split_partitions_here() -> None:
    """Have PyIceberg find the rows of a partition as is done here, wherever it writes, and keep nulls."""
    import pyiceberg.io.pyarrow

    keep_nulls_here()
    pyiceberg.io.pyarrow._determine_partitions = rows_by_partition  # type: ignore[assignment]


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    """A column, or the part of one whose name has dots."""
    import pyarrow.compute as pc

    if name in rows.column_names:
        return rows[name]
    first, *inner = name.split(".")
    return reduce(lambda column, part: pc.struct_field(column, [part]), inner, rows[first])


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values, or others that are equal where these are the same."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if not pa.types.is_floating(column.type):
        return column
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    plain = pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), column)
    return pa.chunked_array([chunk.view(bits) for chunk in plain.chunks], bits)
