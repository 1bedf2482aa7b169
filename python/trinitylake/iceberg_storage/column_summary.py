"""Summaries of a column in some rows: bounds, NULL, NaN and buckets.

A summary is computed from the metrics of a data file, from a partition value, or from the partition bounds in a
manifest list. It always describes the source column; a partition value gives a range of source values. Values have
Iceberg's single-value encoding: dates, times and timestamps are numbers, UUIDs are bytes.

A summary may be wider than the rows, never narrower.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import numpy as np
from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)

_WHOLE = (
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.TimestampNanoType,
    iceberg.TimestamptzNanoType,
)
_PER_DAY: dict[type, int] = {
    iceberg.DateType: 1,
    iceberg.TimestampType: 86_400_000_000,
    iceberg.TimestamptzType: 86_400_000_000,
    iceberg.TimestampNanoType: 86_400_000_000_000,
    iceberg.TimestamptzNanoType: 86_400_000_000_000,
}
_MAX_DIGITS = 80
#: Transforms whose partition values do not bound the column. In format version 1, a removed partition field becomes a
#: void field, whose value is NULL for all rows.
_UNRELATED = (VoidTransform, UnknownTransform)


@dataclass(frozen=True)
class ColumnSummary:
    """The values that some rows may have in a column.

    Attributes:
        nulls, nans, values: whether rows may have NULL, NaN, and any other value.
        lower, upper: bounds of values other than NULL and NaN; None if unknown.
        buckets: for each partition field with a bucket transform, the transform and the least and greatest bucket.
    """

    nulls: bool = True
    nans: bool = True
    values: bool = True
    lower: Any = None
    upper: Any = None
    buckets: tuple[tuple[Callable[[Any], Any], int, int], ...] = ()

    def and_also(self, other: ColumnSummary) -> ColumnSummary:
        """The intersection with another summary of the same rows."""
        if self is ANYTHING:
            return other
        if other is ANYTHING:
            return self
        return ColumnSummary(
            self.nulls and other.nulls,
            self.nans and other.nans,
            self.values and other.values,
            _tighter(max, self.lower, other.lower),
            _tighter(min, self.upper, other.upper),
            self.buckets + other.buckets,
        )

    def has_bucket_of(self, value: Any) -> bool:
        return all(least <= bucket(value) <= most for bucket, least, most in self.buckets)

    def may_hold(self, value: Any) -> bool:
        """Whether a row may have this value; None stands for NULL. Buckets are not compared."""
        if value is None:
            return self.nulls
        if isinstance(value, float) and math.isnan(value):
            return self.nans
        return self.values and not _is_empty(self.lower, value) and not _is_empty(value, self.upper)

    def may_share(self, other: ColumnSummary) -> bool:
        """Whether a row of this summary and a row of the other may have the same value. Buckets are not compared."""
        if (self.nulls and other.nulls) or (self.nans and other.nans):
            return True
        is_apart = _is_empty(self.lower, other.upper) or _is_empty(other.lower, self.upper)
        return self.values and other.values and not is_apart


ANYTHING = ColumnSummary()


def _is_empty(lower: Any, upper: Any) -> bool:
    """Whether no value is between two bounds; False for bounds that cannot be compared."""
    try:
        return lower is not None and upper is not None and bool(lower > upper)
    except TypeError:
        return False


def _tighter(choose: Callable[..., Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    try:
        return choose(one, other)
    except TypeError:
        return None


def value_of_bytes(type: iceberg.IcebergType, data: bytes | None) -> Any:
    """Decode a bound, also if it has the type that the column had before widening; None for NaN and damaged bytes."""
    if data is None:
        return None
    try:
        match type:
            case iceberg.FloatType() | iceberg.DoubleType():
                (number,) = struct.unpack("<f" if len(data) == 4 else "<d", data)
                return None if math.isnan(number) else number
            case iceberg.DecimalType():
                return scaled(int.from_bytes(data, "big", signed=True), type.scale)
            case iceberg.StringType():
                return bytes(data).decode()
            case iceberg.BooleanType():
                return data != b"\0"
            case iceberg.BinaryType() | iceberg.FixedType() | iceberg.UUIDType():
                return bytes(data)
        if isinstance(type, _WHOLE) and data:
            number = int.from_bytes(data, "little", signed=True)
            return number if len(data) > 4 or type.__class__ not in _PER_DAY else number * _PER_DAY[type.__class__]
    except (ValueError, struct.error):
        pass
    return None


def plain_value(value: Any) -> Any:
    """A partition value in the encoding of summaries."""
    return value.bytes if isinstance(value, UUID) else value


def scaled(number: int, scale: int) -> Decimal:
    """The decimal `number` · 10^-`scale`."""
    with localcontext() as context:
        context.prec = _MAX_DIGITS
        return Decimal(number).scaleb(-scale)


def of_metrics(file: DataFile, id: int, type: iceberg.IcebergType) -> ColumnSummary:
    nulls = _count(file.null_value_counts, id)
    nans = _count(file.nan_value_counts, id)
    values = _count(file.value_counts, id)
    has_values = values is None or nulls is None or values - nulls - (nans or 0) > 0
    return ColumnSummary(
        nulls != 0,
        nans != 0 and isinstance(type, iceberg.FloatType | iceberg.DoubleType),
        has_values,
        value_of_bytes(type, (file.lower_bounds or {}).get(id)),
        value_of_bytes(type, (file.upper_bounds or {}).get(id)),
    )


def _count(counts: Mapping[int, int] | None, id: int) -> int | None:
    return None if counts is None else counts.get(id)


def of_partition(field: PartitionField, source: iceberg.IcebergType, value: Any) -> ColumnSummary:
    if isinstance(field.transform, _UNRELATED):
        return ANYTHING
    if value is None:
        return ColumnSummary(nulls=True, nans=False, values=False)
    value = plain_value(value)
    if isinstance(value, float) and math.isnan(value):
        return ColumnSummary(nulls=False, nans=True, values=False)
    return replace(_of_range(field.transform, source, value, value), nulls=False, nans=False)


def of_manifest(field: PartitionField, source: iceberg.IcebergType, bounds: PartitionFieldSummary) -> ColumnSummary:
    if isinstance(field.transform, _UNRELATED):
        return ANYTHING
    found = of_bounds(field.transform.result_type(source), bounds)
    if found.lower is None or found.upper is None:
        return found
    range = _of_range(field.transform, source, found.lower, found.upper)
    return replace(range, nulls=found.nulls, nans=found.nans)


def of_bounds(type: iceberg.IcebergType, bounds: PartitionFieldSummary) -> ColumnSummary:
    return ColumnSummary(
        nulls=bounds.contains_null,
        nans=bounds.contains_nan is not False,
        values=bounds.lower_bound is not None,
        lower=value_of_bytes(type, bounds.lower_bound),
        upper=value_of_bytes(type, bounds.upper_bound),
    )


def _of_range(transform: Transform[Any, Any], source: iceberg.IcebergType, lower: Any, upper: Any) -> ColumnSummary:
    """Summary of the source values whose transformed values are between `lower` and `upper`."""
    match transform:
        case IdentityTransform():
            return ColumnSummary(lower=lower, upper=upper)
        case BucketTransform():
            return ColumnSummary(buckets=((transform.transform(source), lower, upper),))
        case TruncateTransform(width=width):
            return ColumnSummary(lower=lower, upper=_end_of_truncated(source, upper, width))
    if (begin := _begin_of(transform, source)) is None:
        return ANYTHING
    return ColumnSummary(lower=begin(lower), upper=begin(upper + 1) - 1)


def _end_of_truncated(source: iceberg.IcebergType, upper: Any, width: int) -> Any:
    """An upper bound of the values whose truncation is `upper`."""
    match source:
        case iceberg.IntegerType() | iceberg.LongType():
            return upper + width - 1
        case iceberg.DecimalType():
            with localcontext() as context:
                context.prec = _MAX_DIGITS
                return upper + scaled(width - 1, source.scale)
        case iceberg.StringType() | iceberg.BinaryType():
            return upper if len(upper) < width else successor(upper)
    return None


def successor(prefix: Any) -> Any:
    """The smallest string or bytes above all values with a prefix, not longer than the prefix; None if none exists."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    kept_text = prefix.rstrip("\U0010ffff")
    if not kept_text:
        return None
    following = ord(kept_text[-1]) + 1
    return kept_text[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)


def _begin_of(transform: Transform[Any, Any], source: iceberg.IcebergType) -> Callable[[int], int] | None:
    """Function from a partition value (years, months, days or hours since 1970) to the smallest source value."""
    per_day = _PER_DAY.get(source.__class__)
    if per_day is None:
        return None
    match transform:
        case YearTransform():
            return lambda year: _day_of_month(12 * year) * per_day
        case MonthTransform():
            return lambda month: _day_of_month(month) * per_day
        case DayTransform():
            return lambda day: day * per_day
        case HourTransform():
            return lambda hour: hour * (per_day // 24)
    return None


def _day_of_month(month: int) -> int:
    """Days from 1970-01-01 to the first day of a month. `month` is counted from January 1970."""
    return int(np.datetime64(month, "M").astype("datetime64[D]").astype(np.int64))
