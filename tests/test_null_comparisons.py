"""Rows without a value in filters: no comparison with one is true, as in SQL, whatever files they lie in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.expressions import NotEqualTo, NotIn

import trinitylake as tl

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
def test_what_a_scan_shows_is_what_a_delete_takes(table: tl.Table, filter: str) -> None:
    """`delete("k != 'x'")` took a file of rows without a value as a whole, and left such rows in other files, and the
    scan of the same filter had shown none of them; of `not in` a scan showed them all."""
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
