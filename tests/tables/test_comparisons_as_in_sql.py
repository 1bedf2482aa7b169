"""Filters against DuckDB: random conditions over random small tables, in files and partitions of all shapes.

A scan, a stream, a count, a query in SQL and a delete have to agree on the rows.
"""

from __future__ import annotations

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
from pyiceberg.types import LongType

import trinitylake as tl

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


@settings(max_examples=200 if os.environ.get("TRINITYLAKE_DEEP") else 25)
@given(files=_files(), condition=_CONDITIONS, spec=st.sampled_from(_SPECS), late=st.booleans(), whole=st.booleans())
def test_every_statement_finds_the_rows_that_sql_finds(
    lake: tl.Lakehouse, files: list[pa.Table], condition: Condition, spec: list[str], late: bool, whole: bool
) -> None:
    """Scans, deletes and SQL find the same rows for each comparison, also with NaN, NULL, numbers beyond the column's
    type and fractions compared with integers."""
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
                    update.add_column("b", LongType())
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
