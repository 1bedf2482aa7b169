"""Metrics of data files from their footers agree with PyIceberg's metrics from the same footers."""

from __future__ import annotations

import io
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema

from trinitylake.iceberg_storage.data_files.parquet_statistics import FileMetrics

#: Types, each with a strategy for its values.
COLUMNS: list[tuple[types.IcebergType, st.SearchStrategy[Any]]] = [
    (types.BooleanType(), st.booleans()),
    (types.IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (types.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (types.FloatType(), st.floats(width=32, allow_nan=False)),
    (types.DoubleType(), st.floats(allow_nan=False)),
    (types.DateType(), st.dates()),
    (types.TimeType(), st.times()),
    (types.TimestampType(), st.datetimes()),
    (types.TimestamptzType(), st.datetimes(timezones=st.just(UTC))),
    (types.DecimalType(9, 2), st.integers(-(10**8), 10**8).map(lambda number: Decimal(number).scaleb(-2))),
    (types.FixedType(4), st.binary(min_size=4, max_size=4)),
    (types.StringType(), st.text(st.characters(codec="utf-8", max_codepoint=0xFFF), max_size=24)),
    (types.BinaryType(), st.binary(max_size=24)),
    (types.ListType(90, types.LongType()), st.lists(st.integers(0, 9), max_size=3)),
    (
        types.StructType(types.NestedField(91, "x", types.DoubleType())),
        st.fixed_dictionaries({"x": st.floats(allow_nan=False)}),
    ),
]
SCHEMA = Schema(*(types.NestedField(id, f"c{id}", kind) for id, (kind, _) in enumerate(COLUMNS, 1)))
ROWS = st.lists(
    st.fixed_dictionaries({f"c{id}": st.none() | values for id, (_, values) in enumerate(COLUMNS, 1)}), max_size=6
)
MODES = ["none", "counts", "full", "truncate(16)", "truncate(3)"]


def footer_of(rows: pa.Table, **options: Any) -> pq.FileMetaData:
    file = io.BytesIO()
    pq.write_table(rows, file, store_decimal_as_integer=True, **options)
    return pq.read_metadata(file)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=15)
@given(rows=ROWS)
def test_metrics_are_those_of_pyiceberg(rows: list[dict[str, Any]], mode: str) -> None:
    properties = {"write.metadata.metrics.default": mode}
    table = pa.Table.from_pylist(rows, schema_to_pyarrow(SCHEMA))
    footer = footer_of(table, row_group_size=2)
    theirs = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(SCHEMA, properties), parquet_path_to_id_mapping(SCHEMA)
    ).to_serialized_dict()
    ours = FileMetrics(SCHEMA, properties).of(footer)
    for name in ("lower_bounds", "upper_bounds"):  # a zero has two signs, of which either is a bound
        for id in (4, 5):
            if ours[name].get(id, b"\1").strip(b"\0\x80") == b"":
                theirs[name].pop(id), ours[name].pop(id)
    assert ours == theirs


@pytest.mark.parametrize(
    ("kind", "arrow", "number", "size"),
    [(types.DateType(), pa.date32(), -(2**31), 4), (types.TimestampType(), pa.timestamp("us"), 2**62, 8)],
    ids=str,
)
def test_values_that_python_has_not_have_bounds(kind: Any, arrow: pa.DataType, number: int, size: int) -> None:
    stored = pa.array([number], pa.int32() if size == 4 else pa.int64()).cast(arrow)
    found = FileMetrics(Schema(types.NestedField(1, "c", kind)), {}).of(footer_of(pa.table({"c": stored})))
    assert found["lower_bounds"] == {1: number.to_bytes(size, "little", signed=True)} == found["upper_bounds"]


def test_a_column_without_statistics_in_a_row_group_has_no_bounds() -> None:
    """Strings that are too long have none. Bounds of the other row groups do not include all rows."""
    rows = pa.table({"c": ["a", "b" * 5000]})
    schema = Schema(types.NestedField(1, "c", types.StringType()))
    found = FileMetrics(schema, {}).of(footer_of(rows, row_group_size=1))
    assert found["lower_bounds"] == {} == found["upper_bounds"]
    assert found["value_counts"] == {1: 2}


def test_nan_is_counted() -> None:
    schema = Schema(types.NestedField(1, "f", types.DoubleType()), types.NestedField(2, "n", types.IntegerType()))
    rows = pa.table({"f": [1.0, float("nan"), None], "n": pa.array([1, 2, 3], pa.int32())})
    assert FileMetrics(schema, {}).nan_counts(rows) == {1: 1}
    assert FileMetrics(schema, {"write.metadata.metrics.default": "none"}).nan_counts(rows) == {}
