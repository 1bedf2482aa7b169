"""Comparisons in filters follow SQL for any distribution of rows to files: NULL, NaN, and numbers of other types."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import (
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
)

import trinitylake as tl
from local_files import lake_on_disk

FILTERS = {
    "k != 'x'": [4],
    "k <> 'x' or n = 1": [1, 4],
    "k not in ('x', 'z')": [4],
    "not (k = 'x')": [4],
    "not (k in ('x', 'z') or n = 4)": [],
    "k not like 'x%'": [4],
    "not (k < 'y')": [4],
    "k is null": [1, 2],
    "not (k is null)": [3, 4],
    "not (f is nan)": [3],
}


@pytest.fixture(params=["unpartitioned", "partitioned"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> tl.Table:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    spec = ["k"] if request.param == "partitioned" else None
    table = lake.create_table("a.t", {"k": "text", "f": "double", "n": "int"}, partition_spec=spec)
    table.append([{"k": None, "f": None, "n": 1}])
    table.append([{"k": None, "f": None, "n": 2}, {"k": "x", "f": 2.0, "n": 3}])
    table.append([{"k": "y", "f": float("nan"), "n": 4}])
    return table


@pytest.mark.parametrize("filter", FILTERS)
def test_a_scan_and_a_delete_match_the_same_rows(table: tl.Table, filter: str) -> None:
    shown = sorted(row["n"] for row in table.scan(filter).to_arrow().to_pylist())
    assert shown == FILTERS[filter]
    assert table.scan(filter).count() == len(shown)
    table.delete(filter)
    left = sorted(row["n"] for row in table.scan().to_arrow().to_pylist())
    assert left == [number for number in (1, 2, 3, 4) if number not in shown]


@pytest.mark.parametrize("filter", [NotEqualTo("k", "x"), NotIn("k", {"x", "z"})])
def test_expressions_mean_the_same_also_in_a_transaction_of_pyiceberg(table: tl.Table, filter: object) -> None:
    assert [row["n"] for row in table.scan(filter).to_arrow().to_pylist()] == [4]  # type: ignore[arg-type]
    table.iceberg.delete(filter)  # type: ignore[arg-type]
    assert sorted(row["n"] for row in table.scan().to_arrow().to_pylist()) == [1, 2, 3]


def test_an_overwrite_replaces_what_the_filter_shows(table: tl.Table) -> None:
    table.overwrite([{"k": "z", "f": 1.0, "n": 9}], "k != 'x'")
    assert sorted(row["n"] for row in table.scan().to_arrow().to_pylist()) == [1, 2, 3, 9]


NAN, INF = math.nan, math.inf


def _numbers(table: tl.Table, filter: Any = None) -> list[int]:
    found = sorted(row["n"] for row in table.scan(filter).to_arrow().to_pylist())
    assert table.scan(filter).count() == len(found)
    assert sorted(table.scan(filter).to_arrow_batch_reader().read_all().column("n").to_pylist()) == found
    return found


lake = lake_on_disk("a")


@pytest.mark.parametrize("column", ["d", "f", "s.d"])
@pytest.mark.parametrize("partitioned", [False, True])
def test_nan_is_larger_than_all_numbers(lake: tl.Lakehouse, column: str, partitioned: bool) -> None:
    """NaN is larger than all numbers in every filter and in SQL, whatever the bounds of its file or row group are."""
    table = lake.create_table(
        "a.t",
        {"n": "int", "d": "double", "f": "float", "s": "struct<d: double>"},
        partition_spec=["d"] if partitioned else None,
        properties={"write.parquet.row-group-limit": "2"},
    )
    files = [[2.0, NAN, 1.0, 3.0], [NAN, NAN], [2.0, 2.0], [None, -0.0, INF], [-INF, None]]
    number = 0
    for values in files:
        table.append([{"n": number + i, "d": one, "f": one, "s": {"d": one}} for i, one in enumerate(values)])
        number += len(values)
    values = [one for some in files for one in some]
    nan = {n for n, one in enumerate(values) if one is not None and one != one}

    def of(*those: float) -> list[int]:
        return sorted(n for n, one in enumerate(values) if one in those)

    assert _numbers(table, f"{column} != 2.0") == sorted({*of(1.0, 3.0, 0.0, INF, -INF), *nan})
    assert _numbers(table, f"{column} > 2.0") == sorted({*of(3.0, INF), *nan})
    assert _numbers(table, f"{column} >= 2.0") == sorted({*of(2.0, 3.0, INF), *nan})
    assert _numbers(table, f"not ({column} < 2.0)") == sorted({*of(2.0, 3.0, INF), *nan})
    assert _numbers(table, f"{column} <= 2.0") == of(1.0, 2.0, 0.0, -INF)
    assert _numbers(table, f"{column} in (2.0, 0.0)") == of(2.0, 0.0)
    assert _numbers(table, f"{column} not in (2.0, 0.0)") == sorted({*of(1.0, 3.0, INF, -INF), *nan})
    assert _numbers(table, f"{column} is nan") == sorted(nan)
    assert _numbers(table, f"not ({column} is nan)") == sorted({*of(1.0, 2.0, 3.0, 0.0, INF, -INF)})
    assert _numbers(table, f"{column} > 1.0 and {column} < 3.0") == of(2.0)
    for condition in ("!= 2.0", "> 2.0", ">= 2.0", "< 2.0", "<= 2.0", "= 2.0", "not in (2.0, 0.0)"):
        found = lake.sql(f"SELECT n FROM a.t WHERE {column} {condition} ORDER BY n").to_arrow().column("n").to_pylist()
        assert found == _numbers(table, f"{column} {condition}")
    table.delete(f"{column} != 2.0")
    assert _numbers(table) == sorted({*of(2.0), *(n for n, one in enumerate(values) if one is None)})


def test_files_without_nan_are_left_out_by_their_bounds(lake: tl.Lakehouse) -> None:
    """A file with the count of NaN 0 is excluded by its bounds, as for `f > 10`."""
    table = lake.create_table("a.t", {"n": "int", "f": "double"})
    table.append([{"n": 0, "f": 1.0}, {"n": 1, "f": None}])
    table.append([{"n": 2, "f": 2.0}, {"n": 3, "f": NAN}])
    (task,) = table.scan("f > 10").iceberg.plan_files()
    assert dict(task.file.nan_value_counts) == {2: 1}
    assert _numbers(table, "f > 10") == [3]


def test_a_file_that_did_not_count_nan_is_not_deleted_for_its_bounds(lake: tl.Lakehouse) -> None:
    """A file without a count of NaN is not deleted as a whole because of its bounds: `f < 5` must keep a row
    with NaN."""
    table = lake.create_table("a.t", {"n": "int", "f": "double"})
    path = f"{table.location}/data/uncounted.parquet"
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir()
    pq.write_table(pa.table({"n": pa.array([0, 1, 2], pa.int32()), "f": [1.0, NAN, 2.0]}), local)
    with table._writing() as iceberg:  # Parquet does not count NaN
        iceberg.add_files([path])
    (task,) = table.scan().iceberg.plan_files()
    assert not task.file.nan_value_counts
    assert _numbers(table, "f < 5.0") == [0, 2]
    table.delete("f < 5.0")
    assert _numbers(table) == [1]


def test_delete_removes_the_rows_with_null_that_match(lake: tl.Lakehouse) -> None:
    """A delete removes a row with NULL that matches another part of the filter, such as `f is nan or b = 2`."""
    table = lake.create_table("a.t", {"n": "int", "b": "int", "f": "double"})
    table.append([{"n": 0, "b": 2, "f": None}, {"n": 1, "b": None, "f": NAN}, {"n": 2, "b": 3, "f": NAN}, {"n": 3}])
    assert _numbers(table, "f is null or b = 3") == [0, 2, 3]
    assert _numbers(table, "f is nan or b = 2") == [0, 1, 2]
    table.delete("f is nan or b = 2")
    assert _numbers(table) == [3]
    table.append([{"n": 4, "b": 3, "f": NAN}, {"n": 5, "b": 4, "f": NAN}])
    table.delete("f is null or b = 3")
    assert _numbers(table) == [5]


def test_null_partitions_are_compared(lake: tl.Lakehouse) -> None:
    """`k < 'x' or n = 1` works in a table that is partitioned by k and has rows without k."""
    table = lake.create_table("a.t", {"n": "int", "k": "text"}, partition_spec=["k"])
    table.append([{"n": 1, "k": None}, {"n": 2, "k": "a"}, {"n": 3, "k": "y"}, {"n": 4, "k": None}])
    assert _numbers(table, "k < 'x' or n = 1") == [1, 2]
    table.delete("k >= 'x' or n = 4")
    assert _numbers(table) == [1, 2]


BESIDE: list[tuple[BooleanExpression, list[int]]] = [
    (LessThan("i", 2**40), [0, 1]),
    (GreaterThan("i", -(2**40)), [0, 1]),
    (In("i", {1, 2**40}), []),
    (NotIn("i", {2, 2**40}), [1]),
    (LessThan("i", Decimal("2.5")), [0]),
    (GreaterThan("i", Decimal("1.5")), [0, 1]),
    (EqualTo("i", Decimal("1.5")), []),
    (NotEqualTo("i", Decimal("1.5")), [0, 1]),
    (GreaterThan("m", Decimal("1.235")), [1]),
    (LessThanOrEqual("m", Decimal("1.2")), []),
    (EqualTo("f", 0.1), [0]),
    (LessThan("f", 1e300), [0]),
    (GreaterThanOrEqual("f", 1e300), [1]),
    (LessThan("f", INF), [0]),
    (EqualTo("f", INF), [1]),
]


@pytest.mark.parametrize(("filter", "shown"), BESIDE, ids=lambda one: str(one))
def test_numbers_are_compared_without_conversion(
    lake: tl.Lakehouse, filter: BooleanExpression, shown: list[int]
) -> None:
    """Numbers in filters are compared exactly: beyond the type of the column, as fractions with integers, and 0.1 with
    a 32-bit float."""
    table = lake.create_table("a.t", {"n": "int", "i": "int", "m": "decimal(5, 2)", "f": "float"})
    table.append([{"n": 0, "i": 2, "m": Decimal("1.23"), "f": 0.1}])
    table.append([{"n": 1, "i": 2**31 - 1, "m": Decimal("1.24"), "f": INF}, {"n": 2}])
    assert _numbers(table, filter) == shown
    table.delete(filter)
    assert _numbers(table) == [n for n in (0, 1, 2) if n not in shown]
