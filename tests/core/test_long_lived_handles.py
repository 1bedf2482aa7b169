"""PyIceberg tables that are used after the end of their transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

import trinitylake as tl

ROWS = pa.table({"id": [1, 2]})

WRITES: dict[str, Callable[[Any], object]] = {
    "append": lambda table: table.append(ROWS),
    "overwrite": lambda table: table.overwrite(ROWS),
    "delete": lambda table: table.delete("id = 1"),
    "schema": lambda table: table.update_schema().add_column("more", LongType()).commit(),
    "partitions": lambda table: table.update_spec().add_identity("id").commit(),
    "order": lambda table: table.update_sort_order().asc("id", IdentityTransform()).commit(),
    "tag": lambda table: table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "tag").commit(),
    "transaction": lambda table: table.transaction().set_properties(a="b").commit_transaction(),
}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", ROWS.schema)
    lake.table("a.t").append(ROWS)
    return lake


def state(lake: tl.Lakehouse) -> tuple[object, ...]:
    files = sorted(Path(lake.uri.removeprefix("file://")).rglob("*.parquet"))
    return tl.open(lake.uri).version, lake.table("a.t").scan().to_arrow().to_pylist(), files


def ended(lake: tl.Lakehouse, end: str, has_written: bool) -> tuple[Any, tl.Transaction]:
    """A PyIceberg table, and its transaction, which has ended."""
    txn = lake.begin()
    table = txn.table("a.t").iceberg
    if has_written:
        table.append(ROWS)
    getattr(txn, end)()
    return table, txn


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("has_written", [False, True])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_nothing_is_written_to_a_transaction_that_has_ended(
    lake: tl.Lakehouse, end: str, has_written: bool, write: str
) -> None:
    table, txn = ended(lake, end, has_written)
    before = state(lake)
    with pytest.raises(tl.errors.TransactionClosed, match="begin another one"):
        WRITES[write](table)
    del txn  # no other reference exists
    with pytest.raises(tl.errors.TransactionClosed, match="begin another one"):
        WRITES[write](table)
    assert state(lake) == before


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_to_a_table_that_the_transaction_dropped(lake: tl.Lakehouse, write: str) -> None:
    txn = lake.begin()
    table = txn.table("a.t").iceberg
    txn.drop_table("a.t")
    before = state(lake)
    with pytest.raises(tl.errors.ObjectNotFound, match="was dropped by this transaction"):
        WRITES[write](table)
    assert state(lake) == before
    txn.rollback()


def test_changes_that_were_begun_before_the_end_are_refused_after_it(lake: tl.Lakehouse) -> None:
    """A change checks at its commit, and not only at its start, that the transaction is open."""
    txn = lake.begin()
    change = txn.table("a.t").iceberg.transaction()
    change.append(ROWS)
    schema = txn.table("a.t").iceberg.update_schema().add_column("more", LongType())
    txn.commit()
    version = lake.version
    for late in (change.commit_transaction, schema.commit):
        with pytest.raises(tl.errors.TransactionClosed, match="begin another one"):
            late()
    assert tl.open(lake.uri).version == version
    assert lake.table("a.t").scan().to_arrow().num_rows == 2


def test_a_kept_table_can_still_be_read(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        table = txn.table("a.t").iceberg
        table.append(ROWS)
    assert table.scan().to_arrow().num_rows == 4


def test_a_table_of_a_resumed_transaction_can_be_written(lake: tl.Lakehouse) -> None:
    txn = lake.begin(id="night")
    txn.table("a.t").append(ROWS)
    txn.save()
    resumed = lake.resume("night")
    resumed.table("a.t").iceberg.append(ROWS)
    resumed.commit()
    assert lake.table("a.t").scan().to_arrow().num_rows == 6
    with pytest.raises(tl.errors.TransactionClosed):
        resumed.table("a.t").iceberg.append(ROWS)


def test_a_renamed_table_is_written_under_its_new_name(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        table = txn.table("a.t").iceberg
        txn.rename_table("a.t", "a.u")
        table.append(ROWS)
    assert lake.table("a.u").scan().to_arrow().num_rows == 4
