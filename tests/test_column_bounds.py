"""Bounds of the columns of a data file, beside those that PyIceberg makes of the same statistics."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import StatsAggregator
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from trinitylake.iceberg_storage.extended_pyiceberg.column_bounds import serialized

_NUMBERS = st.integers(-(2**31), 2**31 - 1)
#: A type, how it is stored in Parquet, and its values.
_COLUMNS: list[tuple[PrimitiveType, str, st.SearchStrategy[Any]]] = [
    (BooleanType(), "BOOLEAN", st.booleans()),
    (IntegerType(), "INT32", _NUMBERS),
    (LongType(), "INT64", _NUMBERS),
    (FloatType(), "FLOAT", st.floats(width=32, allow_nan=False)),
    (DoubleType(), "DOUBLE", st.floats(allow_nan=False)),
    (DateType(), "INT32", st.dates(date(1900, 1, 1))),
    (TimeType(), "INT64", st.times()),
    (TimestampType(), "INT64", st.datetimes(datetime(1900, 1, 1))),
    (TimestamptzType(), "INT64", st.datetimes(datetime(1900, 1, 1), timezones=st.just(UTC))),
    (DecimalType(9, 2), "INT32", st.integers(-(10**8), 10**8).map(lambda number: Decimal(number).scaleb(-2))),
    (UUIDType(), "FIXED_LEN_BYTE_ARRAY", st.binary(min_size=16, max_size=16)),
    (FixedType(4), "FIXED_LEN_BYTE_ARRAY", st.binary(min_size=4, max_size=4)),
    (StringType(), "BYTE_ARRAY", st.text(max_size=24)),
    (BinaryType(), "BYTE_ARRAY", st.binary(max_size=24)),
]


def _statistics(columns: dict[int, StatsAggregator]) -> DataFileStatistics:
    counts = dict.fromkeys(columns, 3)
    return DataFileStatistics(
        record_count=3,
        column_sizes=dict.fromkeys(columns, 70),
        value_counts=counts,
        null_value_counts=dict.fromkeys(columns, 1),
        nan_value_counts={},
        column_aggregates=columns,
        split_offsets=[4],
    )


@st.composite
def _aggregators(draw: st.DrawFn) -> StatsAggregator:
    kind, stored, values = draw(st.sampled_from(_COLUMNS))
    is_text = isinstance(kind, StringType | BinaryType)
    column = StatsAggregator(kind, stored, draw(st.sampled_from([None, 1, 4, 16])) if is_text else None)
    if draw(st.integers(0, 9)) > 0:
        least, most = sorted([draw(values), draw(values)])
        column.update_min(least)
        column.update_max(most)
    return column


@given(st.lists(_aggregators(), max_size=4))
def test_bounds_are_those_of_pyiceberg(columns: list[StatsAggregator]) -> None:
    """A bound that is one byte off hides rows from every scan with a filter, in every engine."""
    statistics = _statistics(dict(enumerate(columns, 1)))
    assert serialized(statistics) == statistics.to_serialized_dict()


def test_an_upper_bound_that_is_cut_is_not_below_its_values() -> None:
    text = StatsAggregator(StringType(), "BYTE_ARRAY", 4)
    text.update_min("abcdefgh")
    text.update_max("abcdefgh")
    told = serialized(_statistics({1: text}))
    assert (told["lower_bounds"], told["upper_bounds"]) == ({1: b"abcd"}, {1: b"abce"})


def test_what_pyiceberg_refuses_is_refused() -> None:
    number = StatsAggregator(IntegerType(), "INT32", 4)
    number.update_min(1)
    number.update_max(2)
    with pytest.raises((ValueError, TypeError)):
        _statistics({1: number}).to_serialized_dict()
    with pytest.raises((ValueError, TypeError)):
        serialized(_statistics({1: number}))


def test_values_of_python_are_bytes_like_those_of_parquet() -> None:
    """Which a statistic has depends on the version of Arrow."""
    for kind, stored, value in [
        (UUIDType(), "FIXED_LEN_BYTE_ARRAY", uuid.UUID(int=7)),
        (TimeType(), "INT64", time(1, 2, 3)),
    ]:
        column = StatsAggregator(kind, stored)
        column.update_min(value)
        column.update_max(value)
        statistics = _statistics({1: column})
        assert serialized(statistics) == statistics.to_serialized_dict()
