"""Consumers of change feeds: each change is processed exactly once, whatever fails, conflicts or is rolled back."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from trinitylake.tables.change_feed import consumers


@pytest.fixture
def shop() -> tl.Lakehouse:
    lake = tl.create(f"memory://{uuid.uuid4()}")
    lake.create_namespace("n")
    lake.create_table("n.orders", {"id": "bigint", "k": "bigint", "x": "bigint"}, primary_key=["id"])
    lake.create_table("n.sums", {"k": "bigint", "x": "bigint"}, primary_key=["k"])
    lake.table("n.orders").append({"id": [1, 2], "k": [0, 1], "x": [10, 20]})
    return lake


def consumed(lake: tl.Lakehouse, **options: Any) -> list[tuple[int, str]]:
    with lake.transaction() as txn:
        rows = txn.table("n.orders").consume("billing", **options).read_all().to_pylist()
    return [(row["id"], row["_change_type"]) for row in rows]


def aggregate(txn: tl.Transaction) -> None:
    """Add the consumed changes to the sums of `x` by `k`."""
    changed = txn.table("n.orders").consume("sums")
    sums = {row["k"]: row["x"] for row in txn.table("n.sums").scan().to_arrow().to_pylist()}
    touched = set()
    for row in changed.read_all().to_pylist():
        sign = 1 if row["_change_type"] in ("insert", "update_postimage") else -1
        sums[row["k"]] = sums.get(row["k"], 0) + sign * row["x"]
        touched.add(row["k"])
    if touched:
        txn.table("n.sums").upsert([{"k": k, "x": sums[k]} for k in sorted(touched)])


def test_position_advances_with_the_commit_only(shop: tl.Lakehouse) -> None:
    txn = shop.begin()
    assert txn.table("n.orders").consume("billing").read_all().num_rows == 2
    txn.rollback()
    assert consumed(shop) == [(1, "insert"), (2, "insert")]
    assert consumed(shop) == []
    shop.table("n.orders").append({"id": [3], "k": [0], "x": [1]})
    shop.table("n.orders").upsert({"id": [3], "k": [0], "x": [2]})
    assert consumed(shop, net=True) == [(3, "insert")]
    shop.rename_table("n.orders", "n.old")
    shop.create_table("n.orders", {"id": "bigint"}).append({"id": [7]})
    assert consumed(shop) == [(7, "insert")], "another table with this name has its own position"
    with pytest.raises(tl.InvalidArgument, match="consumed in a transaction"):
        shop.table("n.orders").consume("billing")


def test_consumer_without_changes_commits_no_version(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    consumed(shop)
    version = shop.version
    consumed(shop)
    assert shop.version == version
    monkeypatch.setattr(consumers, "IDLE_MILLIS", 0)  # so that the position does not expire
    shop.create_namespace("other")
    consumed(shop)
    assert shop.version == version + 2


def test_two_transactions_of_one_consumer_conflict(shop: tl.Lakehouse) -> None:
    for _ in range(2):  # the first consumption creates the consumer, the second advances it
        first, second, other = shop.begin(), shop.begin(), shop.begin()
        for txn in (first, second):
            txn.table("n.orders").consume("billing")
        other.table("n.orders").consume("another")
        first.commit()
        other.commit()
        with pytest.raises(tl.CommitConflict):
            second.commit()
        shop.table("n.orders").append({"id": [shop.version], "k": [1], "x": [1]})


def test_rollback_takes_position_and_result_back(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        aggregate(txn)
    before = shop.version
    shop.table("n.orders").append({"id": [3], "k": [1], "x": [5]})
    with shop.transaction() as txn:
        aggregate(txn)
    shop.rollback(before)
    with shop.transaction() as txn:
        aggregate(txn)
    assert shop.sql("SELECT k, x FROM n.sums ORDER BY k").fetchall() == [(0, 10), (1, 20)]


def test_aggregate_equals_the_query_after_random_histories(shop: tl.Lakehouse) -> None:
    chance = random.Random(7)
    orders = shop.table("n.orders")
    for step in range(40):
        id = chance.randrange(12)
        match chance.randrange(5):
            case 0 | 1:
                shop.table("n.orders").upsert({"id": [id], "k": [id % 3], "x": [chance.randrange(9)]})
            case 2:
                shop.table("n.orders").delete(f"id = {id}")
            case 3:
                shop.rollback(chance.randrange(5, shop.version), objects=["n.orders"])
            case 4:
                orders.maintenance.compact()
        if step % 3 == 0:
            with shop.transaction() as txn:
                aggregate(txn)
    with shop.transaction() as txn:
        aggregate(txn)
    expected = shop.sql("SELECT k, sum(x) FROM n.orders GROUP BY k HAVING sum(x) <> 0 ORDER BY k").fetchall()
    assert shop.sql("SELECT k, x FROM n.sums WHERE x <> 0 ORDER BY k").fetchall() == expected


def test_position_of_another_lakehouse_is_refused(tmp_path: Path) -> None:
    """`consume` refuses the position of another lakehouse, such as the original of an export, whose version numbers
    mean other states."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    table = lake.create_table("n.orders", {"id": "bigint"})
    for number in range(5):
        table.append({"id": [number]})
    consumed(lake)
    lake.export(str(tmp_path / "copy"), mode="minimal")
    copy = tl.open(str(tmp_path / "copy"))
    for number in range(10):
        with pytest.raises(tl.InvalidArgument, match="of another lakehouse"):
            consumed(copy)
        copy.table("n.orders").append({"id": [number]})
    copy.drop_namespace("_consumers.billing")
    assert len(consumed(copy)) == 15


def test_expired_position_raises_version_expired(shop: tl.Lakehouse) -> None:
    consumed(shop)
    for number in range(3):
        shop.table("n.orders").append({"id": [10 + number], "k": [0], "x": [0]})
    shop.maintenance.expire(before=shop.version)
    with pytest.raises(tl.VersionExpired):
        consumed(shop)


@pytest.mark.parametrize("rows", [2, 0])
def test_an_expired_position_in_an_unchanged_table_advances(shop: tl.Lakehouse, rows: int) -> None:
    """A consumer whose position has expired continues if the table has not changed since then, also if the table never
    had rows."""
    if not rows:
        shop.drop_table("n.orders")
        shop.create_table("n.orders", {"id": "bigint", "k": "bigint", "x": "bigint"}, primary_key=["id"])
    assert len(consumed(shop)) == rows
    for number in range(3):
        shop.create_namespace(f"n{number}")
    shop.maintenance.expire(before=shop.version)
    assert consumed(shop) == []
    shop.table("n.orders").append({"id": [7], "k": [0], "x": [0]})
    assert consumed(shop) == [(7, "insert")]


def test_changes_that_a_rollback_undid_are_not_consumed_again(shop: tl.Lakehouse) -> None:
    """After a rollback to the version of a consumer's position, later transactions do not get the undone changes."""
    assert len(consumed(shop)) == 2
    stood = shop.version
    shop.table("n.orders").append({"id": [3], "k": [0], "x": [1]})
    assert consumed(shop) == [(3, "insert")]
    shop.rollback(stood)
    assert consumed(shop) == consumed(shop) == []
    shop.table("n.orders").append({"id": [4], "k": [0], "x": [1]})
    found = consumed(shop)
    assert found[-1] == (4, "insert")
    assert sorted(found[:-1]) == [(3, "delete"), (3, "insert")]
    assert consumed(shop) == []
