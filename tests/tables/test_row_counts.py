"""Row counts: append, overwrite and delete return how many rows they inserted and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue

import trinitylake as tl
from position_deletes import delete_positions

ROWS = pa.table({"id": range(10), "part": [n % 2 for n in range(10)]})


@pytest.fixture(params=["plain", "partitioned", "federated"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tl.Table:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("n")
    if request.param == "federated":
        properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
        other = SqlCatalog("federated", **properties)
        other.create_namespace("n")
        other.create_table("n.t", ROWS.schema)
        lake.create_table("n.t", catalog=properties)
    else:
        lake.create_table("n.t", ROWS.schema, partition_spec=["part"] if request.param == "partitioned" else None)
    table = lake.table("n.t")
    assert table.append(ROWS) == (0, 0, 10)
    return table


def stream() -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches(max_chunksize=3))


def dicts() -> Iterator[dict[str, Any]]:
    return iter(ROWS.to_pylist())


@pytest.mark.parametrize(
    ("data", "count"),
    [(lambda: ROWS, 10), (stream, 10), (dicts, 10), (lambda: ROWS.slice(0, 0), 0)],
    ids=["table", "stream", "dicts", "empty"],
)
def test_append_and_overwrite_count_rows(table: tl.Table, data: Callable[[], Any], count: int) -> None:
    assert table.append(data()) == (0, 0, count)
    before = len([one for one in table.scan().to_arrow()["id"].to_pylist() if one < 3])
    assert table.overwrite(data(), "id < 3") == (0, before, count)
    assert table.overwrite(ROWS) == (0, 10 + 2 * count - before, 10)


@pytest.mark.parametrize(
    ("filter", "expected"), [("id < 3", 3), ("part = 1", 5), ("id = 100", 0), ("id >= 0", 10), (AlwaysTrue(), 10)]
)
def test_delete_counts_rows(table: tl.Table, filter: Any, expected: int) -> None:
    assert table.delete(filter) == (0, expected, 0)
    assert table.count() == 10 - expected
    assert table.delete(filter) == (0, 0, 0)


def test_statements_of_a_transaction_count_their_own_rows(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("n")
        table = txn.create_table("n.t", ROWS.schema)
        assert table.append(ROWS).rows_inserted == 10
        assert table.delete("id < 3").rows_deleted == 3
        assert table.overwrite(ROWS, "id < 5") == (0, 2, 10)
        assert table.delete(AlwaysTrue()).rows_deleted == 15


def test_results_name_the_version_and_statements_without_rows_make_none(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", ROWS.schema, partition_spec=["part"])
    large = pa.concat_tables([ROWS] * 10_000)  # more than `FEW_ROWS_SIZE_BYTES`
    changes: list[Callable[[tl.Table], Any]] = [
        lambda table: table.append(ROWS),
        lambda table: table.append(large),
        lambda table: table.append(stream()),
        lambda table: table.overwrite(ROWS, "id < 5"),
        lambda table: table.upsert(ROWS.slice(0, 1).set_column(0, "id", pa.array([77])), on="id"),
        lambda table: table.merge({"id": [77]}, on="id").when_matched_delete().execute(),
        lambda table: table.delete("id = 9"),
    ]
    for change in changes:
        before = lake.version
        assert change(table).version == lake.version == before + 1
    none: list[Callable[[tl.Table], Any]] = [
        lambda table: table.append(ROWS.slice(0, 0)),
        lambda table: table.append(ROWS.slice(0, 0).to_reader()),
        lambda table: table.append([], evolve_schema=True),
        lambda table: table.overwrite(ROWS.slice(0, 0), "id = 100"),
        lambda table: table.upsert(ROWS.slice(0, 1), on="id"),
        lambda table: table.merge({"id": [100]}, on="id").when_matched_delete().execute(),
        lambda table: table.delete("id = 100"),
    ]
    for nothing in none:
        assert nothing(table).version is None
    with lake.transaction() as txn:
        assert all(change(txn.table("n.t")).version is None for change in none + changes)
        txn.rollback()
    assert lake.version == before + 1


def test_rows_of_delete_files_are_not_counted_again(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.t", ROWS.schema)
    table.append(ROWS)
    (task,) = table.iceberg.scan().plan_files()
    delete_positions(table, task, [0, 9])
    assert lake.table("n.t").delete("id < 3").rows_deleted == 2
    assert lake.table("n.t").delete(AlwaysTrue()).rows_deleted == 6
