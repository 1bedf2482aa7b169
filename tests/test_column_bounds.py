"""Bounds of the columns of a data file, beside those that PyIceberg makes of the same statistics."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import (
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from trinitylake.iceberg_storage.extended_pyiceberg.column_bounds import flat_columns, serialized, told

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
    found = serialized(_statistics({1: text}))
    assert (found["lower_bounds"], found["upper_bounds"]) == ({1: b"abcd"}, {1: b"abce"})


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


_FIELDS = [
    (BooleanType(), st.booleans()),
    (IntegerType(), _NUMBERS),
    (LongType(), _NUMBERS),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats()),
    (DateType(), st.dates(date(1900, 1, 1))),
    (TimeType(), st.times()),
    (TimestampType(), st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))),
    (TimestamptzType(), st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))),
    (StringType(), st.text(max_size=24) | st.just("\U0010ffff" * 20)),
    (BinaryType(), st.binary(max_size=24) | st.just(b"\xff" * 20)),
]
_MODES = ["none", "counts", "full", "truncate(1)", "truncate(16)"]


@st.composite
def _files(draw: st.DrawFn) -> tuple[Schema, dict[str, str], pq.FileMetaData]:
    columns = draw(st.lists(st.sampled_from(_FIELDS), min_size=1, max_size=4))
    schema = Schema(*(NestedField(7 + number, f"c{number}", kind) for number, (kind, _) in enumerate(columns)))
    rows = draw(st.integers(1, 6))
    fields = schema_to_pyarrow(schema, include_field_ids=False)
    arrays = [
        pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), field.type)
        for field, (_, values) in zip(fields, columns, strict=True)
    ]
    sink = pa.BufferOutputStream()
    dictionary = draw(st.booleans())
    group = draw(st.integers(1, 6))
    pq.write_table(pa.Table.from_arrays(arrays, schema=fields), sink, use_dictionary=dictionary, row_group_size=group)
    modes = {
        f"write.metadata.metrics.column.c{number}": draw(st.sampled_from(_MODES)) for number in range(len(columns))
    }
    return schema, modes, pq.read_metadata(pa.BufferReader(sink.getvalue()))


@given(_files())
def test_what_is_told_of_a_file_the_short_way_is_what_pyiceberg_tells(
    file: tuple[Schema, dict[str, str], pq.FileMetaData],
) -> None:
    """Of one row group or of many, with and without a dictionary, and in all that a table may want to be told."""
    schema, properties, metadata = file
    plan, leaves = compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
    columns = flat_columns(schema, plan)
    assert columns is not None
    expected = data_file_statistics_from_parquet_metadata(metadata, plan, leaves).to_serialized_dict()
    assert told(metadata, columns, plan, leaves) == expected


def test_the_short_way_leaves_to_pyiceberg_what_it_cannot_tell() -> None:
    decimal = Schema(NestedField(1, "d", DecimalType(9, 2)))
    parts = Schema(NestedField(1, "l", ListType(2, LongType())))
    number = Schema(NestedField(1, "n", LongType()))
    assert flat_columns(decimal, compute_statistics_plan(decimal, {})) is None
    assert flat_columns(parts, compute_statistics_plan(parts, {})) is None
    plan = compute_statistics_plan(number, {})
    columns = flat_columns(number, plan)
    assert columns == [(1, LongType(), True, True, None)]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2]}), sink, write_statistics=False)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    expected = data_file_statistics_from_parquet_metadata(metadata, plan, {"n": 1}).to_serialized_dict()
    assert told(metadata, columns, plan, {"n": 1}) == expected
    assert expected["lower_bounds"] == {}
