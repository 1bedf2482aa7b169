"""Row filters agree with DuckDB, and no row matches a filter that the column summary excludes."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.manifest import PartitionFieldSummary
from pyiceberg.partitioning import PartitionField
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
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimeType,
)

from trinitylake.iceberg_storage.column_summary import ANYTHING, ColumnSummary, of_manifest, of_partition, successor
from trinitylake.iceberg_storage.data_files.partitioned_rows import plain_column, transformed
from trinitylake.iceberg_storage.row_filter import FALSE, NULL, TRUE, RowFilter

SCHEMA = Schema(
    NestedField(1, "i", IntegerType()),
    NestedField(2, "l", LongType()),
    NestedField(3, "f", FloatType()),
    NestedField(4, "d", DoubleType()),
    NestedField(5, "m", DecimalType(9, 2)),
    NestedField(6, "t", StringType()),
    NestedField(7, "a", DateType()),
    NestedField(8, "s", StructType(NestedField(9, "x", DoubleType()))),
)
ARROW = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("m", pa.decimal128(9, 2)),
        ("t", pa.string()),
        ("a", pa.date32()),
        ("s", pa.struct([("x", pa.float64())])),
    ]
)
DOUBLES = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, 2.0, 1e300]
VALUES: dict[str, list[Any]] = {
    "i": [None, -(2**31), 2**31 - 1, 0, 1, 2],
    "l": [None, -(2**63), 2**63 - 1, 0, 1, 2, 2**31],
    "f": [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, 2.0],
    "d": DOUBLES,
    "m": [None, Decimal("-9999999.99"), Decimal("9999999.99"), Decimal("0.00"), Decimal("1.50"), Decimal("2.00")],
    "t": [None, "", "a", "ab", "abc", "b", "\U0010ffff", "\ud7ff"],
    "a": [None, dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(1969, 12, 31)],
    "s": [None, *({"x": one} for one in DOUBLES)],
}
#: Numbers that columns are compared with, also numbers that a column cannot hold.
NUMBERS: list[Any] = [0, 1, 2, 2.5, -7, 2**31, 2**63 - 1, -(2**63), 1e300, Decimal("1.5"), Decimal("1.505"), 10**8]
CONNECTION = duckdb.connect()
SQL = {EqualTo: "=", NotEqualTo: "<>", LessThan: "<", LessThanOrEqual: "<=", GreaterThan: ">", GreaterThanOrEqual: ">="}


def literals(column: str) -> list[Any]:
    if column in "ilfm" or column == "d":
        return NUMBERS
    if column == "s":
        return [one for one in DOUBLES if one is not None and not math.isnan(one)]
    return [one for one in VALUES[column] if one is not None]


@st.composite
def predicates(draw: st.DrawFn) -> tuple[BooleanExpression, str]:
    """A predicate, and the same predicate in SQL."""
    column = draw(st.sampled_from(sorted(VALUES)))
    name, sql = ("s.x", "s.x") if column == "s" else (column, column)
    is_floating = column in "fds"
    kinds: list[Any] = [IsNull, NotNull, *SQL, In, NotIn]
    if is_floating:
        kinds += [IsNaN, NotNaN]
    if column == "t":
        kinds += [StartsWith, NotStartsWith]
    kind = draw(st.sampled_from(kinds))
    if kind in (IsNull, NotNull):
        return kind(name), f"{sql} IS {'NOT ' if kind is NotNull else ''}NULL"
    if kind in (IsNaN, NotNaN):
        return kind(name), f"{'NOT ' if kind is NotNaN else ''}isnan({sql})"
    values = st.sampled_from(literals(column))
    if kind in (In, NotIn):
        found = draw(st.lists(values, min_size=2, max_size=4, unique_by=repr))
        alternatives = " OR ".join(f"{sql} = {_sql(one, column)}" for one in found)
        return kind(name, found), f"{'NOT ' if kind is NotIn else ''}({alternatives})"
    value = draw(values)
    if kind in (StartsWith, NotStartsWith):
        return kind(name, value), f"{'NOT ' if kind is NotStartsWith else ''}starts_with({sql}, {_sql(value, column)})"
    return kind(name, value), f"{sql} {SQL[kind]} {_sql(value, column)}"


def _sql(value: Any, column: str) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if column == "f":
        number = f"'{float(value)!r}'::DOUBLE"
        return f"CAST({number} AS FLOAT)" if abs(value) < 1e38 else number
    if column in "ds" or isinstance(value, float):
        return f"'{float(value)!r}'::DOUBLE"
    return f"({value})::DECIMAL(38, 5)"


def trees() -> st.SearchStrategy[tuple[BooleanExpression, str]]:
    def joined(inner: st.SearchStrategy[tuple[BooleanExpression, str]]) -> st.SearchStrategy[Any]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda two: (And(two[0][0], two[1][0]), f"({two[0][1]}) AND ({two[1][1]})")),
            pairs.map(lambda two: (Or(two[0][0], two[1][0]), f"({two[0][1]}) OR ({two[1][1]})")),
            inner.map(lambda one: (Not(one[0]), f"NOT ({one[1]})")),
        )

    return st.recursive(predicates(), joined, max_leaves=5)


rows_of_values = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}), min_size=1, max_size=12
).map(lambda rows: pa.Table.from_pylist(rows, ARROW))


def outcomes(filter: RowFilter, rows: pa.Table) -> list[bool | None]:
    found: list[bool | None] = filter.matches(rows).to_pylist()
    return found


@settings(max_examples=200, deadline=None)
@given(trees(), rows_of_values)
def test_rows_match_as_in_duckdb(tree: tuple[BooleanExpression, str], rows: pa.Table) -> None:
    filter, sql = tree
    CONNECTION.register("r", rows)
    answered = [one for (one,) in CONNECTION.execute(f"SELECT ({sql})::BOOLEAN FROM r").fetchall()]
    assert outcomes(RowFilter.of(filter, SCHEMA), rows) == answered, sql


def summary_of(column: pa.ChunkedArray) -> ColumnSummary:
    values = [one for one in plain_column(column).to_pylist() if one is not None]
    numbers = [one for one in values if not (isinstance(one, float) and math.isnan(one))]
    lower, upper = (min(numbers), max(numbers)) if numbers else (None, None)
    return ColumnSummary(column.null_count > 0, len(numbers) < len(values), bool(numbers), lower, upper)


@settings(max_examples=200, deadline=None)
@given(trees(), rows_of_values, st.booleans())
def test_a_summary_rules_out_no_outcome_of_a_row(
    tree: tuple[BooleanExpression, str], rows: pa.Table, knows_all: bool
) -> None:
    filter = RowFilter.of(tree[0], SCHEMA)

    def summary(id: int) -> ColumnSummary:
        if not knows_all and id % 2:
            return ANYTHING
        return ANYTHING if id == 9 else summary_of(rows.column(SCHEMA.find_column_name(id) or ""))

    possible = filter.outcomes(summary)
    for found in outcomes(filter, rows):
        assert possible & {True: TRUE, False: FALSE, None: NULL}[found], tree[1]


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 0, -1, 17])
def test_one_value_is_decided(value: int) -> None:
    def summary(id: int) -> ColumnSummary:
        return ColumnSummary(False, False, True, value, value)

    assert RowFilter.of(EqualTo("l", value), SCHEMA).outcomes(summary) == TRUE
    assert RowFilter.of(NotEqualTo("l", value), SCHEMA).outcomes(summary) == FALSE
    assert RowFilter.of(In("l", [value, 5]), SCHEMA).outcomes(summary) == TRUE
    assert RowFilter.of(GreaterThan("l", value), SCHEMA).outcomes(summary) == FALSE


TRANSFORMED: list[tuple[IcebergType, pa.DataType, list[Transform[Any, Any]], st.SearchStrategy[Any]]] = [
    (IntegerType(), pa.int32(), [TruncateTransform(10), BucketTransform(5)], st.integers(-(2**31), 2**31 - 1)),
    (LongType(), pa.int64(), [TruncateTransform(7), BucketTransform(5)], st.integers(-(2**63), 2**63 - 1)),
    (
        DecimalType(9, 2),
        pa.decimal128(9, 2),
        [TruncateTransform(50), BucketTransform(5)],
        st.integers(1 - 10**9, 10**9 - 1).map(lambda one: Decimal(one).scaleb(-2)),
    ),
    (StringType(), pa.large_string(), [TruncateTransform(2), BucketTransform(5)], st.text(max_size=4)),
    (BinaryType(), pa.large_binary(), [TruncateTransform(2), BucketTransform(5)], st.binary(max_size=4)),
    (BooleanType(), pa.bool_(), [], st.booleans()),
    (TimeType(), pa.time64("us"), [BucketTransform(5)], st.integers(0, 86_399_999_999)),
    (
        DateType(),
        pa.date32(),
        [YearTransform(), MonthTransform(), DayTransform(), BucketTransform(5)],
        st.integers(-(2**31), 2**31 - 1),
    ),
    (
        TimestampType(),
        pa.timestamp("us"),
        [YearTransform(), MonthTransform(), DayTransform(), HourTransform(), BucketTransform(5)],
        st.integers(-(2**62), 2**62),
    ),
    (
        TimestampNanoType(),
        pa.timestamp("ns"),
        [YearTransform(), MonthTransform(), DayTransform(), HourTransform()],
        st.integers(-(2**62), 2**62),
    ),
]


@pytest.mark.parametrize(("kind", "arrow", "transforms", "values"), TRANSFORMED, ids=lambda one: str(one)[:20])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_partition_value_covers_its_source_values(
    kind: IcebergType, arrow: pa.DataType, transforms: list[Transform[Any, Any]], values: Any, data: st.DataObject
) -> None:
    """The range of source values of a truncated partition value contains the lowest number, too. If it wrapped to a
    positive number, no filter would find the row."""
    given = data.draw(st.lists(values, min_size=1, max_size=4))
    stored = pa.array(given, pa.int64() if pa.types.is_temporal(arrow) and arrow != pa.date32() else None)
    if arrow == pa.date32():
        stored = pa.array(given, pa.int32())
    column = pa.chunked_array([stored.cast(arrow)])
    for transform in [IdentityTransform(), *transforms]:
        field = PartitionField(1, 1000, transform, "p")
        partitions = transformed(column, transform, kind).to_pylist()
        for value, partition in zip(plain_column(column).to_pylist(), partitions, strict=True):
            found = of_partition(field, kind, partition)
            assert (found.values, found.nulls) == (True, False)
            assert found.lower is None or found.lower <= value
            assert found.upper is None or value <= found.upper
            assert found.has_bucket_of(value)
        if kind == StringType() or transform.result_type(kind) != IntegerType():
            continue
        lower, upper = (one.to_bytes(4, "little", signed=True) for one in (min(partitions), max(partitions)))
        found = of_manifest(field, kind, PartitionFieldSummary(False, False, lower, upper))
        for value in plain_column(column).to_pylist():
            assert found.lower is None or found.lower <= value
            assert found.upper is None or value <= found.upper
            assert found.has_bucket_of(value)


@pytest.mark.parametrize(
    ("prefix", "following"),
    [
        ("a", "b"),
        ("\ud7ff", "\ue000"),
        ("a\U0010ffff", "b"),
        ("\U0010ffff", None),
        (b"\x01\xff", b"\x02"),
        (b"\xff", None),
    ],
)
def test_a_successor_is_greater_than_all_that_begin_with_a_prefix(prefix: Any, following: Any) -> None:
    """The upper bound of a truncated string is a valid string that is greater than all strings with the prefix, also
    behind U+D7FF, where the next number is half of a surrogate pair."""
    assert successor(prefix) == following


@pytest.mark.parametrize("filter", ["t", "s"])
def test_a_comparison_with_a_value_outside_of_the_type_is_constant(filter: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        RowFilter.of(EqualTo(filter, 1.5) if filter == "s" else LessThan("a", "no date"), SCHEMA)
