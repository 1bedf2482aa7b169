"""Splits rows by partition.

Transforms are computed on the numbers that Iceberg stores, so they work for dates and timestamps that Python cannot
represent. Floating-point numbers are compared by their bits: NaN is one partition, and 0.0 and -0.0 are two.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, EqualTo, IsNaN, IsNull, Or, Reference
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    NestedField,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    UUIDType,
)
from pyiceberg.utils.decimal import decimal_to_unscaled

from trinitylake.iceberg_storage.column_summary import scaled

#: Name of the column with the row numbers, and prefix of the columns with values of partition fields.
_ROW = "row"
#: Maximum length of one segment of a path; file systems allow 255 bytes.
_MAX_NAME_LENGTH = 200
_MICROSECONDS_OF_DAY = 86_400_000_000
#: Size of the rows that are copied at a time, in the order of their partitions.
_COPY_SIZE_BYTES = 64 << 20


@dataclass(frozen=True)
class Partition:
    """A partition that files are written to. `values` has one value per field of the spec."""

    values: Record
    spec: PartitionSpec
    schema: Schema

    def to_path(self) -> str:
        """The folder of the files. PyIceberg's location providers call this method."""
        return partition_path(self.spec, self.schema, self.values)


def rows_by_partition(spec: PartitionSpec, schema: Schema, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Split rows by partition; the rows of a partition follow each other in their order, in one or more parts.

    Args:
        spec: with at least one field.
        schema: of the table; the rows have its column names.

    Raises `KeyError` and `ValueError` for a field without its source column.
    """
    values: list[pa.ChunkedArray] = []
    types: list[IcebergType | None] = []
    for field in spec.fields:
        if field.source_id not in schema.field_ids:  # a void field of a column that was dropped
            values.append(pa.chunked_array([pa.nulls(rows.num_rows, pa.int32())]))
            types.append(None)
            continue
        kind = schema.find_field(field.source_id).field_type
        source = column_of(rows, schema, field.source_id)
        values.append(transformed(source, field.transform, kind))
        types.append(kind if isinstance(field.transform, IdentityTransform) else None)
    names = [str(number) for number in range(len(values))]
    keys = pa.table([*map(comparable, values), np.arange(rows.num_rows)], names=[*names, _ROW])
    groups = keys.group_by(names, use_threads=False).aggregate([(_ROW, "list"), (_ROW, "min")])
    partitions = [
        Partition(
            Record(*(_value(column[first].as_py(), kind) for column, kind in zip(values, types, strict=True))),
            spec,
            schema,
        )
        for first in groups[f"{_ROW}_min"].to_pylist()
    ]
    if len(partitions) == 1:
        yield partitions[0], rows.combine_chunks()
        return
    members = groups[f"{_ROW}_list"].combine_chunks()
    bounds = members.offsets.to_numpy()
    # A filter of all rows for each partition took 28 % of the time of a write into 12 partitions.
    n_rows = max(1, rows.num_rows * _COPY_SIZE_BYTES // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, n_rows):
        copy = rows.take(members.values.slice(start, n_rows)).combine_chunks()
        stop = start + copy.num_rows
        for number in range(np.searchsorted(bounds, start, "right") - 1, np.searchsorted(bounds, stop, "left")):
            begin, end = max(bounds[number], start), min(bounds[number + 1], stop)
            yield partitions[number], copy.slice(begin - start, end - begin)


def _value(value: Any, identity_of: IcebergType | None) -> Any:
    return UUID(bytes=value) if isinstance(identity_of, UUIDType) and value is not None else value


def transformed(column: pa.ChunkedArray, transform: Transform[Any, Any], type: IcebergType) -> pa.ChunkedArray:
    """The partition values of a column: numbers for dates and times, bytes for UUIDs."""
    plain = plain_column(column)
    match transform:
        case IdentityTransform():
            return plain
        case TruncateTransform(width=width):
            if pa.types.is_integer(plain.type):
                return _truncated_numbers(plain, width)
            if isinstance(type, DecimalType):
                return _by_value(plain, lambda value: _truncated_decimal(value, width, type), plain.type)
            if pa.types.is_string(plain.type) or pa.types.is_large_string(plain.type):
                return pc.utf8_slice_codeunits(plain, 0, width)
            return pc.binary_slice(plain, 0, width)
        case BucketTransform():
            return transform.pyarrow_transform(type)(aligned(column) if isinstance(type, DecimalType) else column)
        case YearTransform() | MonthTransform() | DayTransform() | HourTransform():
            return _units(plain, transform, type)
    return pa.chunked_array([pa.nulls(len(plain), pa.int32())])


def aligned(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """A copy with memory aligned to 64 bytes.

    Arrow data from other processes may be aligned to only 8 bytes. PyIceberg's Rust code reads decimals 16 bytes at a
    time, and panics for such data.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    empty = pa.array([], column.type)
    return pa.chunked_array([pa.concat_arrays([*chunks, empty])])  # Arrow does not copy a single array


def plain_column(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """A column with numbers for dates and times, and bytes for UUIDs."""
    column = _storage(column)
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column


def _units(plain: pa.ChunkedArray, transform: Transform[Any, Any], type: IcebergType) -> pa.ChunkedArray:
    """Converts days, microseconds or nanoseconds since 1970 to years, months, days or hours since 1970."""
    is_null = plain.is_null().to_numpy()
    numbers = plain.fill_null(0).to_numpy().astype(np.int64)
    if not pa.types.is_int32(plain.type):
        is_nano = isinstance(type, TimestampNanoType | TimestamptzNanoType)
        per_day = _MICROSECONDS_OF_DAY * (1000 if is_nano else 1)
        if isinstance(transform, HourTransform):
            return pa.chunked_array([pa.array(np.floor_divide(numbers, per_day // 24).astype(np.int32), mask=is_null)])
        numbers = np.floor_divide(numbers, per_day)
    if not isinstance(transform, DayTransform):
        numbers = numbers.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        if isinstance(transform, YearTransform):
            numbers = np.floor_divide(numbers, 12)
    return pa.chunked_array([pa.array(numbers.astype(np.int32), mask=is_null)])


def _truncated_numbers(plain: pa.ChunkedArray, width: int) -> pa.ChunkedArray:
    """Integers rounded down to a multiple of the width, but not below the smallest number of their type."""
    is_null = plain.is_null().to_numpy()
    numbers = plain.fill_null(0).to_numpy()
    least = np.iinfo(numbers.dtype).min
    rest = np.mod(numbers, numbers.dtype.type(width))
    found = np.where(numbers < least + rest, least, numbers - rest)
    return pa.chunked_array([pa.array(found, plain.type, mask=is_null)])


def _truncated_decimal(value: Decimal | None, width: int, type: DecimalType) -> Decimal | None:
    if value is None:
        return None
    digits = decimal_to_unscaled(value)  # `scaleb` rounds to 28 digits
    return scaled(max(digits - digits % width, 1 - 10**type.precision), type.scale)


def _by_value(plain: pa.ChunkedArray, apply: Any, type: pa.DataType) -> pa.ChunkedArray:
    """A function applied to each distinct value."""
    encoded = plain.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], plain.type).dictionary_encode()
    results = pa.array([apply(value) for value in encoded.dictionary.to_pylist()], type)
    return pa.chunked_array([results.take(encoded.indices)])


def partition_path(spec: PartitionSpec, schema: Schema, values: Record) -> str:
    """The folder of the files of a partition, such as `day=2020-01-01/city=Bern`.

    A segment that is too long for a file system is cut, and ends in a hash of the complete segment.
    """
    types = [field.field_type for field in spec.partition_type(schema).fields]
    names = []
    for field, type, value in zip(spec.fields, types, values_of(values), strict=True):
        name = f"{quote_plus(field.name, safe='')}={quote_plus(shown(field.transform, type, value), safe='')}"
        if len(name) > _MAX_NAME_LENGTH:
            digest = hashlib.sha256(name.encode()).hexdigest()[:32]
            name = f"{re.sub('%.?$', '', name[: _MAX_NAME_LENGTH - 33])}-{digest}"
        names.append(name)
    return "/".join(names)


def shown(transform: Transform[Any, Any], type: IcebergType, value: Any) -> str:
    """A partition value as a string, also for years that Python's dates do not support."""
    try:
        return transform.to_human_string(type, value)
    except (OverflowError, ValueError):
        return str(value)


def values_of(record: Record) -> list[Any]:
    return [record[position] for position in range(len(record))]


def spelled(partition: Record) -> tuple[Hashable, ...]:
    """The values of a partition as a key for comparisons: NaN equals NaN, and -0.0 differs from 0.0."""
    return tuple(_spelled(value) for value in values_of(partition))


def _spelled(value: Any) -> Hashable:
    if not isinstance(value, float):
        return value  # type: ignore[no-any-return]
    return "NaN" if math.isnan(value) else (value, math.copysign(1, value))


def share_nan(partition: Record) -> None:
    """Use one NaN object in all partitions, so that PyIceberg treats partitions with NaN as equal."""
    for number, value in enumerate(values_of(partition)):
        if isinstance(value, float) and math.isnan(value):
            partition[number] = math.nan


def in_partitions(partitions: Iterable[Record], columns: Sequence[str]) -> BooleanExpression:
    """A filter for the rows in these partitions, by the values of `columns`. Supports NaN, unlike PyIceberg."""
    if not columns:
        return AlwaysFalse()
    alternatives = [
        _joined(And, [_equals(column, value) for column, value in zip(columns, values_of(one), strict=False)])
        for one in partitions
    ]
    return _joined(Or, alternatives) if alternatives else AlwaysFalse()


def _joined(by: type[And] | type[Or], parts: list[BooleanExpression]) -> BooleanExpression:
    """Join filters into a shallow tree, because thousands of nested levels would exceed Python's recursion limit."""
    return by(*parts) if len(parts) > 1 else parts[0]


def _equals(column: str, value: Any) -> BooleanExpression:
    term = Reference(column)
    if value is None:
        return IsNull(term=term)
    return IsNaN(term=term) if _spelled(value) == "NaN" else EqualTo(term=term, value=value)


def column_of(rows: pa.Table, schema: Schema, id: int) -> pa.ChunkedArray:
    """A column, or a field of a struct, by its id. Rows have the names of the schema, which may contain dots."""
    first, *inner = _path(schema.fields, id)
    return reduce(lambda column, name: pc.struct_field(column, [name]), inner, rows[first])


def _path(fields: Iterable[NestedField], id: int) -> tuple[str, ...]:
    for field in fields:
        if field.field_id == id:
            return (field.name,)
        if isinstance(field.field_type, StructType) and (inner := _path(field.field_type.fields, id)):
            return field.name, *inner
    return ()


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values, or substitutes that are equal if and only if the values are equal."""
    column = _storage(column)
    if not pa.types.is_floating(column.type):
        return column
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    plain = pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), column)
    return pa.chunked_array([chunk.view(bits) for chunk in plain.chunks], bits)


def _storage(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """A column with bytes for UUIDs, which Arrow does not group, join or compare."""
    column = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
