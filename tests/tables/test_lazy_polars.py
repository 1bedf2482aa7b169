"""A scan as a LazyFrame of polars equals the eager frame, and reads only what the query needs."""

from __future__ import annotations

import math
import uuid
from datetime import date
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from pyiceberg.expressions import AlwaysTrue

import trinitylake as tl
from trinitylake.tables.lazy_polars import lazy_frame, pushed_filter

SCHEMA = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("d", pa.date32()), ("b", pa.bool_())])
FLOATS = [None, math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, 2.0]
TEXTS = [None, "", "a", "ab", "B", "ä", "z\0"]
DAYS = [None, date(1969, 12, 31), date(2026, 1, 1), date(2026, 11, 22)]


def rows_of(start: int, count: int) -> pa.Table:
    columns = {
        "i": [None if n % 7 == 6 else n for n in range(start, start + count)],
        "f": [FLOATS[n % len(FLOATS)] for n in range(count)],
        "s": [TEXTS[(n * 3) % len(TEXTS)] for n in range(count)],
        "d": [DAYS[(n * 5) % len(DAYS)] for n in range(count)],
        "b": [(None, True, False)[n % 3] for n in range(count)],
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def table() -> Any:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("a")
    table = lake.create_table("a.t", SCHEMA)
    for start in (0, 20, 40):
        table.append(rows_of(start, 20))
    return table


COMPARED = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
VALUES = {
    "i": st.one_of(st.integers(-1, 61), st.sampled_from([2.5, 2**40])),
    "f": st.sampled_from([value for value in FLOATS if value is not None]),
    "s": st.sampled_from([value for value in TEXTS if value is not None]),
    "d": st.sampled_from([value for value in DAYS if value is not None]),
}


@st.composite
def simple(draw: st.DrawFn) -> pl.Expr:
    name = draw(st.sampled_from([*VALUES, "b"]))
    column = pl.col(name)
    kind = draw(st.sampled_from(["compare", "null", "in", "other", "columns"]))
    if name == "b":
        return column
    if kind == "null":
        return draw(st.sampled_from([column.is_null(), column.is_not_null()]))
    if kind == "in":
        return column.is_in(draw(st.lists(st.integers(0, 60) if name == "i" else VALUES[name], max_size=3)))
    if kind == "columns":
        return pl.col("i") > pl.col("f")
    if kind == "other":
        others = [column % 3 == 1, column.is_nan(), column.str.len_chars() > 1, column.dt.year() > 2000]
        return others[list(VALUES).index(name)]
    value = draw(VALUES[name])
    match draw(COMPARED):
        case "==":
            return column == value
        case "!=":
            return column != value
        case "<":
            return column < value
        case "<=":
            return column <= value
        case ">":
            return column > value
        case _:
            return column >= value


PREDICATES = st.recursive(
    simple(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=20)
@given(predicate=PREDICATES, columns=st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
def test_lazy_and_eager_are_equal(table: Any, predicate: pl.Expr, columns: list[str]) -> None:
    """NaN is the largest number for polars and equals nothing for Arrow, so a pushed filter could lose rows."""
    scan = table.scan("i < 55 or i is null")
    lazy = scan.to_polars(lazy=True).filter(predicate).select(columns).collect()
    eager = scan.to_polars().filter(predicate).select(columns)
    assert lazy.schema == eager.schema
    assert_frame_equal(lazy, eager, check_row_order=False)


@settings(max_examples=20)
@given(predicate=PREDICATES, limit=st.integers(0, 25), head=st.integers(0, 25))
def test_limits_count_before_conditions(table: Any, predicate: pl.Expr, limit: int, head: int) -> None:
    lazy = table.scan(limit=limit).to_polars(lazy=True)
    assert lazy.filter(predicate).collect().equals(lazy.collect().filter(predicate))
    assert lazy.head(head).collect().height == min(limit, head)
    assert lazy.head(head).filter(predicate).collect().height <= min(limit, head)
    assert lazy.filter(predicate).head(head).collect().height <= min(limit, head)


def test_rows_that_cannot_match_are_not_read(table: Any) -> None:
    opened: list[Any] = []
    scan = table.scan()
    frame = lazy_frame(scan.iceberg, lambda one: opened.append(one) or one.to_arrow_batch_reader())
    assert frame.filter((pl.col("i") == 45) & (pl.col("s").str.len_chars() > 0)).select("i", "b").collect().height <= 1
    assert opened[0].selected_fields == ("i", "s", "b")
    assert [len(list(one.plan_files())) for one in opened] == [1]
    assert frame.select(pl.len()).collect().item() == 60
    assert len(opened[1].selected_fields) == 1
    frame.head(3).collect()
    assert opened[2].limit == 3


def test_predicates_with_equal_meaning_are_pushed_down() -> None:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("a")
    iceberg = lake.create_table("a.t", SCHEMA).iceberg.metadata
    for predicate in (pl.col("i") == 3, pl.col("s").is_in(["a"]), pl.col("d") < date(2026, 1, 1)):
        assert pushed_filter(predicate, iceberg) != AlwaysTrue(), predicate
    assert pushed_filter(pl.col("i") % 2 == 0, iceberg) == AlwaysTrue()
    assert pushed_filter((pl.col("i") % 2 == 0) & (pl.col("i") > 5), iceberg) != AlwaysTrue()
    assert pushed_filter((pl.col("i") % 2 == 0) | (pl.col("i") > 5), iceberg) == AlwaysTrue()


def test_the_engine_that_streams_reads_it_too(table: Any) -> None:
    lazy = table.scan().to_polars(lazy=True)
    grouped = lazy.group_by("b").agg(pl.len().alias("n")).collect(engine="streaming")
    assert sorted(grouped["n"].to_list()) == [18, 21, 21]
    assert "TRINITYLAKE" in lazy.filter(pl.col("i") > 3).explain()


def test_a_lazy_frame_stays_at_the_rows_of_its_scan() -> None:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("a")
    table = lake.create_table("a.t", SCHEMA)
    table.append(rows_of(0, 5))
    lazy = table.scan().to_polars(lazy=True)
    table.append(rows_of(5, 5))
    assert lazy.collect().height == 5
    assert lazy.collect().height == 5
