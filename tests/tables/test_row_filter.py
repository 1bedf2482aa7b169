"""Row filters and statements agree with DuckDB, and no row matches a filter that the column summary excludes."""

from __future__ import annotations

import datetime as dt
import math
import os
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from pyiceberg import expressions as ib
from pyiceberg import types
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

import trinitylake as tl
from trinitylake.iceberg_storage.column_summary import ANYTHING, ColumnSummary, of_manifest, of_partition, successor
from trinitylake.iceberg_storage.data_files.partitioned_rows import plain_column, transformed
from trinitylake.iceberg_storage.row_filter import FALSE, NULL, TRUE, RowFilter

SCHEMA = Schema(
    types.NestedField(1, "i", types.IntegerType()),
    types.NestedField(2, "l", types.LongType()),
    types.NestedField(3, "f", types.FloatType()),
    types.NestedField(4, "d", types.DoubleType()),
    types.NestedField(5, "m", types.DecimalType(9, 2)),
    types.NestedField(6, "t", types.StringType()),
    types.NestedField(7, "a", types.DateType()),
    types.NestedField(8, "s", types.StructType(types.NestedField(9, "x", types.DoubleType()))),
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
SQL = {
    ib.EqualTo: "=",
    ib.NotEqualTo: "<>",
    ib.LessThan: "<",
    ib.LessThanOrEqual: "<=",
    ib.GreaterThan: ">",
    ib.GreaterThanOrEqual: ">=",
}


def literals(column: str) -> list[Any]:
    if column in "ilfm" or column == "d":
        return NUMBERS
    if column == "s":
        return [one for one in DOUBLES if one is not None and not math.isnan(one)]
    return [one for one in VALUES[column] if one is not None]


@st.composite
def predicates(draw: st.DrawFn) -> tuple[ib.BooleanExpression, str]:
    """A predicate, and the same predicate in SQL."""
    column = draw(st.sampled_from(sorted(VALUES)))
    name, sql = ("s.x", "s.x") if column == "s" else (column, column)
    is_floating = column in "fds"
    kinds: list[Any] = [ib.IsNull, ib.NotNull, *SQL, ib.In, ib.NotIn]
    if is_floating:
        kinds += [ib.IsNaN, ib.NotNaN]
    if column == "t":
        kinds += [ib.StartsWith, ib.NotStartsWith]
    kind = draw(st.sampled_from(kinds))
    no = "NOT " if kind in (ib.NotNull, ib.NotNaN, ib.NotIn, ib.NotStartsWith) else ""
    if kind in (ib.IsNull, ib.NotNull):
        return kind(name), f"{sql} IS {no}NULL"
    if kind in (ib.IsNaN, ib.NotNaN):
        return kind(name), f"{no}isnan({sql})"
    values = st.sampled_from(literals(column))
    if kind in (ib.In, ib.NotIn):
        found = draw(st.lists(values, min_size=2, max_size=4, unique_by=repr))
        alternatives = " OR ".join(f"{sql} = {_sql(one, column)}" for one in found)
        return kind(name, found), f"{no}({alternatives})"
    value = draw(values)
    if kind in (ib.StartsWith, ib.NotStartsWith):
        return kind(name, value), f"{no}starts_with({sql}, {_sql(value, column)})"
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


def trees() -> st.SearchStrategy[tuple[ib.BooleanExpression, str]]:
    def joined(inner: st.SearchStrategy[tuple[ib.BooleanExpression, str]]) -> st.SearchStrategy[Any]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda two: (ib.And(two[0][0], two[1][0]), f"({two[0][1]}) AND ({two[1][1]})")),
            pairs.map(lambda two: (ib.Or(two[0][0], two[1][0]), f"({two[0][1]}) OR ({two[1][1]})")),
            inner.map(lambda one: (ib.Not(one[0]), f"NOT ({one[1]})")),
        )

    return st.recursive(predicates(), joined, max_leaves=5)


rows_of_values = st.lists(
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}), min_size=1, max_size=12
).map(lambda rows: pa.Table.from_pylist(rows, ARROW))


def outcomes(filter: RowFilter, rows: pa.Table) -> list[bool | None]:
    found: list[bool | None] = filter.matches(rows).to_pylist()
    return found


@settings(max_examples=60)
@given(trees(), rows_of_values)
def test_rows_match_as_in_duckdb(tree: tuple[ib.BooleanExpression, str], rows: pa.Table) -> None:
    filter, sql = tree
    CONNECTION.register("r", rows)
    answered = [one for (one,) in CONNECTION.execute(f"SELECT ({sql})::BOOLEAN FROM r").fetchall()]
    assert outcomes(RowFilter.of(filter, SCHEMA), rows) == answered, sql


def summary_of(column: pa.ChunkedArray) -> ColumnSummary:
    values = [one for one in plain_column(column).to_pylist() if one is not None]
    numbers = [one for one in values if not (isinstance(one, float) and math.isnan(one))]
    lower, upper = (min(numbers), max(numbers)) if numbers else (None, None)
    return ColumnSummary(column.null_count > 0, len(numbers) < len(values), bool(numbers), lower, upper)


@settings(max_examples=60)
@given(trees(), rows_of_values, st.booleans())
def test_a_summary_rules_out_no_outcome_of_a_row(
    tree: tuple[ib.BooleanExpression, str], rows: pa.Table, knows_all: bool
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

    assert RowFilter.of(ib.EqualTo("l", value), SCHEMA).outcomes(summary) == TRUE
    assert RowFilter.of(ib.NotEqualTo("l", value), SCHEMA).outcomes(summary) == FALSE
    assert RowFilter.of(ib.In("l", [value, 5]), SCHEMA).outcomes(summary) == TRUE
    assert RowFilter.of(ib.GreaterThan("l", value), SCHEMA).outcomes(summary) == FALSE


TRANSFORMED: list[tuple[types.IcebergType, pa.DataType, list[Transform[Any, Any]], st.SearchStrategy[Any]]] = [
    (types.IntegerType(), pa.int32(), [TruncateTransform(10), BucketTransform(5)], st.integers(-(2**31), 2**31 - 1)),
    (types.LongType(), pa.int64(), [TruncateTransform(7), BucketTransform(5)], st.integers(-(2**63), 2**63 - 1)),
    (
        types.DecimalType(9, 2),
        pa.decimal128(9, 2),
        [TruncateTransform(50), BucketTransform(5)],
        st.integers(1 - 10**9, 10**9 - 1).map(lambda one: Decimal(one).scaleb(-2)),
    ),
    (types.StringType(), pa.large_string(), [TruncateTransform(2), BucketTransform(5)], st.text(max_size=4)),
    (types.BinaryType(), pa.large_binary(), [TruncateTransform(2), BucketTransform(5)], st.binary(max_size=4)),
    (types.BooleanType(), pa.bool_(), [], st.booleans()),
    (types.TimeType(), pa.time64("us"), [BucketTransform(5)], st.integers(0, 86_399_999_999)),
    (
        types.DateType(),
        pa.date32(),
        [YearTransform(), MonthTransform(), DayTransform(), BucketTransform(5)],
        st.integers(-(2**31), 2**31 - 1),
    ),
    (
        types.TimestampType(),
        pa.timestamp("us"),
        [YearTransform(), MonthTransform(), DayTransform(), HourTransform(), BucketTransform(5)],
        st.integers(-(2**62), 2**62),
    ),
    (
        types.TimestampNanoType(),
        pa.timestamp("ns"),
        [YearTransform(), MonthTransform(), DayTransform(), HourTransform()],
        st.integers(-(2**62), 2**62),
    ),
]


@pytest.mark.parametrize(("kind", "arrow", "transforms", "values"), TRANSFORMED, ids=lambda one: str(one)[:20])
@settings(max_examples=25)
@given(data=st.data())
def test_a_partition_value_covers_its_source_values(
    kind: types.IcebergType, arrow: pa.DataType, transforms: list[Transform[Any, Any]], values: Any, data: st.DataObject
) -> None:
    """If the lowest number wrapped to a positive one, no filter would find the row."""
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
        if kind == types.StringType() or transform.result_type(kind) != types.IntegerType():
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
    """Also behind U+D7FF, where the next number is half of a surrogate pair."""
    assert successor(prefix) == following


@pytest.mark.parametrize("filter", ["t", "s"])
def test_a_comparison_with_a_value_outside_of_the_type_is_constant(filter: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        RowFilter.of(ib.EqualTo(filter, 1.5) if filter == "s" else ib.LessThan("a", "no date"), SCHEMA)


# Random conditions over random small tables: a scan, a stream, a count, a query in SQL and a delete agree


NAN, INF = math.nan, math.inf
_COLUMNS = {
    "d": "double",
    "f": "float",
    "i": "int",
    "b": "long",
    "m": "decimal(5, 2)",
    "k": "text",
    "t": "timestamp",
    "s": "struct<d: double, i: int>",
}
_IN_ARROW = {
    "d": pa.float64(),
    "f": pa.float32(),
    "i": pa.int32(),
    "b": pa.int64(),
    "m": pa.decimal128(5, 2),
    "k": pa.string(),
    "t": pa.timestamp("us"),
    "s": pa.struct([("d", pa.float64()), ("i", pa.int32())]),
}
_FLOATS = [NAN, INF, -INF, 0.0, -0.0, 1.0, 2.0, 0.1]
_TIMES = [datetime(2019, 12, 31, 23), datetime(2020, 1, 1), datetime(2020, 6, 1), datetime(1969, 12, 31, 23, 59, 59)]
_VALUES: dict[str, list[Any]] = {
    "d": [*_FLOATS, 1e300, -1e300],
    "f": [*_FLOATS, 3.4028234663852886e38],
    "i": [-1, 0, 1, 2, 2**31 - 1, -(2**31)],
    "b": [-1, 0, 2, 2**63 - 1, -(2**63)],
    "m": [Decimal("-0.01"), Decimal("0.00"), Decimal("1.23"), Decimal("1.24"), Decimal("999.99")],
    "k": ["", "a", "ab", "abc", "b", "ä"],
    "t": _TIMES,
}
_VALUES |= {"s.d": _VALUES["d"], "s.i": _VALUES["i"]}
#: Values that a column is compared with, in addition to its own values.
_OTHERS: dict[str, list[Any]] = {
    "d": [0, 2, Decimal("1.5")],
    "f": [0, 2, 1e300, -1e300, Decimal("0.1")],
    "i": [2**31, -(2**40), Decimal("1.5"), Decimal("2.0"), Decimal("-0.5"), Decimal("99999999999.5")],
    "b": [2**63, -(2**70), Decimal("1.5"), Decimal("2.00")],
    "m": [1, Decimal("1.235"), Decimal("1.2"), 2000, Decimal("-1000.005")],
    "k": ["abcdef"],
    "t": [datetime(2020, 1, 1, 0, 0, 1)],
    "s.d": [0, 2],
    "s.i": [2**31, Decimal("1.5")],
}
_SPECS = [[], ["d"], ["f"], ["k"], ["i"], ["m"], ["bucket(3, i)"], ["truncate(1, k)"], ["truncate(2, i)"], ["year(t)"]]
_SPECS += [["month(t)", "k"], ["bucket(2, k)", "d"], ["truncate(10, m)"], ["day(t)"]]


@dataclass(frozen=True)
class Condition:
    """The same condition for Iceberg and for DuckDB."""

    iceberg: ib.BooleanExpression
    sql: str


def _literal(value: Any, column: str) -> str:
    if isinstance(value, float):
        kind = "FLOAT" if column == "f" and (abs(value) <= 3.4028234663852886e38) else "DOUBLE"
        return f"'{value!r}'::{kind}"
    if isinstance(value, Decimal):
        return f"{value}::FLOAT" if column == "f" else f"{value}::DOUBLE" if column in ("d", "s.d") else str(value)
    if isinstance(value, int):
        return f"{value}::HUGEINT"
    return f"'{value}'" + ("::TIMESTAMP" if isinstance(value, datetime) else "")


_OPERATORS: dict[str, Any] = {
    "=": ib.EqualTo,
    "!=": ib.NotEqualTo,
    "<": ib.LessThan,
    "<=": ib.LessThanOrEqual,
    ">": ib.GreaterThan,
    ">=": ib.GreaterThanOrEqual,
}


@st.composite
def _leaves(draw: st.DrawFn) -> Condition:
    column = draw(st.sampled_from(sorted(_VALUES)))
    values = [value for value in (*_VALUES[column], *_OTHERS[column]) if value == value]
    kinds = ["compare"] * 4 + ["in", "not in", "null"]
    kinds += ["nan"] if column in ("d", "f", "s.d") else ["prefix"] if column == "k" else []
    match draw(st.sampled_from(kinds)):
        case "compare":
            word = draw(st.sampled_from(sorted(_OPERATORS)))
            value = draw(st.sampled_from(values))
            given = value.isoformat() if isinstance(value, datetime) else value
            return Condition(_OPERATORS[word](column, given), f"{column} {word} {_literal(value, column)}")
        case "in" | "not in" as word:
            few = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
            made = (ib.In if word == "in" else ib.NotIn)(
                column, {one.isoformat() if isinstance(one, datetime) else one for one in few}
            )
            # DuckDB gives a list one type. Separate comparisons keep a number beyond the column's type as it is.
            each = " OR ".join(f"{column} = {_literal(one, column)}" for one in few)
            return Condition(made, f"({each})" if word == "in" else f"NOT ({each})")
        case "null":
            return draw(
                st.sampled_from(
                    [
                        Condition(ib.IsNull(column), f"{column} IS NULL"),
                        Condition(ib.NotNull(column), f"{column} IS NOT NULL"),
                    ]
                )
            )
        case "nan":
            return draw(
                st.sampled_from(
                    [
                        Condition(ib.IsNaN(column), f"isnan({column})"),
                        Condition(ib.NotNaN(column), f"NOT isnan({column})"),
                    ]
                )
            )
    prefix = draw(st.sampled_from(["", "a", "ab", "abcd"]))
    return draw(
        st.sampled_from(
            [
                Condition(ib.StartsWith(column, prefix), f"starts_with({column}, '{prefix}')"),
                Condition(ib.NotStartsWith(column, prefix), f"NOT starts_with({column}, '{prefix}')"),
            ]
        )
    )


def _not(one: Condition) -> Condition:
    return Condition(ib.Not(one.iceberg), f"NOT ({one.sql})")


def _both(one: Condition, other: Condition) -> Condition:
    return Condition(ib.And(one.iceberg, other.iceberg), f"({one.sql}) AND ({other.sql})")


def _either(one: Condition, other: Condition) -> Condition:
    return Condition(ib.Or(one.iceberg, other.iceberg), f"({one.sql}) OR ({other.sql})")


_CONDITIONS = st.recursive(
    _leaves(),
    lambda inner: st.one_of(st.builds(_not, inner), st.builds(_both, inner, inner), st.builds(_either, inner, inner)),
    max_leaves=4,
)


@st.composite
def _files(draw: st.DrawFn) -> list[pa.Table]:
    """Rows of one to three files. Each column has few different values, so that many files have only one value."""
    files, number = [], 0
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        columns: dict[str, list[Any]] = {}
        for column in (*_VALUES,):
            few = [None, *draw(st.lists(st.sampled_from(_VALUES[column]), min_size=1, max_size=2))]
            if draw(st.booleans()):
                del few[0]
            columns[column] = draw(st.lists(st.sampled_from(few), min_size=count, max_size=count))
        whole = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        nested = zip(columns.pop("s.d"), columns.pop("s.i"), whole, strict=True)
        columns["s"] = [{"d": d, "i": i} if there else None for d, i, there in nested]
        arrays = {name: pa.array(values, _IN_ARROW[name]) for name, values in columns.items()}
        files.append(pa.table({"n": pa.array(range(number, number + count), pa.int32()), **arrays}))
        number += count
    return files


@pytest.fixture(scope="module")
def lake() -> tl.Lakehouse:
    lake = tl.create("memory://comparisons", durability="none")
    lake.create_namespace("a")
    return lake


def _numbers(rows: pa.Table) -> list[int]:
    return sorted(rows.column("n").to_pylist())


@settings(max_examples=200 if os.environ.get("TRINITYLAKE_DEEP") else 15)
@given(files=_files(), condition=_CONDITIONS, spec=st.sampled_from(_SPECS), late=st.booleans(), whole=st.booleans())
def test_every_statement_finds_the_rows_that_sql_finds(
    lake: tl.Lakehouse, files: list[pa.Table], condition: Condition, spec: list[str], late: bool, whole: bool
) -> None:
    """Also NaN, NULL, numbers beyond the column's type, and fractions compared with integers."""
    if late:  # the first file is older than the column b
        first = files[0]
        files = [first.set_column(first.column_names.index("b"), "b", pa.nulls(first.num_rows, pa.int64())), *files[1:]]
    rows = pa.concat_tables(files)
    with duckdb.connect() as connection:
        connection.register("given", rows)
        connection.execute("CREATE TABLE rows AS FROM given")  # a registered Arrow table would miss NaN
        expected = sorted(n for (n,) in connection.execute(f"SELECT n FROM rows WHERE {condition.sql}").fetchall())
    note(f"{condition.sql}\n{condition.iceberg}\n{[one.to_pylist() for one in files]}")
    transaction = lake.begin()
    try:
        properties = {} if whole else {"write.parquet.row-group-limit": "2"}
        columns = {"n": "int", **_COLUMNS}
        if late:
            del columns["b"]
        table = transaction.create_table("a.t", columns, partition_spec=spec or None, properties=properties)
        for number, one in enumerate(files):
            if late and number == 0:
                table.append(one.drop_columns(["b"]))
                with table.update_schema() as update:
                    update.add_column("b", types.LongType())
            else:
                table.append(one)
        scan = table.scan(condition.iceberg)
        assert _numbers(scan.to_arrow()) == expected
        assert _numbers(scan.to_arrow_batch_reader().read_all()) == expected
        assert _numbers(table.scan(condition.iceberg, columns=["n"]).to_arrow()) == expected
        assert scan.count() == len(expected)
        assert _numbers(transaction.sql(f"SELECT n FROM a.t WHERE {condition.sql}").to_arrow()) == expected
        table.delete(condition.iceberg)
        left = [n for n in range(rows.num_rows) if n not in expected]
        assert _numbers(table.scan().to_arrow()) == left
    finally:
        transaction.rollback()
