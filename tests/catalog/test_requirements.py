"""Requirements on tables that a transaction does not change hold at the commit, also under snapshot isolation."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AssertCreate, AssertCurrentSchemaId, AssertRefSnapshotId, TableRequirement

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog, table_writing

ROWS = pa.table({"id": pa.array([1], pa.int64())})


@pytest.fixture
def pair(lake: tl.Lakehouse) -> tl.Lakehouse:
    """The tables `a.left` and `a.right`, and `a.other`."""
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for name in ("left", "right", "other"):
            txn.create_table(f"a.{name}", {"id": "bigint"}).append(ROWS)
    return lake


def head(reader: tl.Lakehouse | tl.Transaction, name: str) -> TableRequirement:
    """The requirement that no other commit changes the main branch of a table."""
    snapshot = reader.table(name).iceberg.current_snapshot()
    assert snapshot is not None
    return AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": snapshot.snapshot_id})


def require(txn: tl.Transaction, name: str, *requirements: TableRequirement) -> None:
    catalog = TrinityLakeCatalog(transaction=txn)
    catalog.commit_table(catalog.load_table(name), requirements, ())


def excluding(lake: tl.Lakehouse, required: str, changed: str, isolation: str = "snapshot") -> tl.Transaction:
    """A transaction that appends a row to one table and requires that the other table is unchanged."""
    txn = lake.begin(isolation=isolation)
    require(txn, required, head(txn, required))
    txn.table(changed).append(ROWS)
    return txn


def counts(lake: tl.Lakehouse) -> list[int]:
    return [lake.table(f"a.{name}").scan().count() for name in ("left", "right")]


@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
@pytest.mark.parametrize("coordination", ["none", "queue"])
def test_of_two_transactions_that_exclude_each_other_one_commits(
    pair: tl.Lakehouse, isolation: str, coordination: tl.settings.Coordination
) -> None:
    """Of two transactions that each require a table which the other one changes, only one commits, because requirements
    are checked again at the commit (apache/iceberg#18552 describes the test)."""
    for number in range(2):
        first = excluding(pair, "a.left", "a.right", isolation)
        second = excluding(pair, "a.right", "a.left", isolation)
        first.commit(coordination=coordination)
        with pytest.raises(tl.CommitConflict) as caught:
            second.commit(coordination=coordination)
        assert caught.value.keys == ["table a.right"]
        assert counts(pair) == [1, 2 + number]


def test_the_conflict_names_the_failed_requirement(pair: tl.Lakehouse) -> None:
    txn = excluding(pair, "a.left", "a.right")
    pair.table("a.left").append(ROWS)
    with pytest.raises(tl.CommitConflict, match=r"a\.left .*assert-ref-snapshot-id"):
        txn.commit()
    assert not txn.is_open


def test_a_change_that_the_requirement_allows_is_no_conflict(pair: tl.Lakehouse) -> None:
    txn = excluding(pair, "a.left", "a.right")
    pair.alter_table("a.left", {"comment": "still the same rows"})
    pair.table("a.other").append(ROWS)
    txn.commit()
    assert counts(pair) == [1, 2]
    assert pair.table("a.left").properties["comment"] == "still the same rows"
    assert str(pair.diff(pair.version - 1)) == "~ table a.right"


@pytest.mark.parametrize("change", ["dropped", "created again"])
def test_a_required_table_conflicts_with_a_drop(pair: tl.Lakehouse, change: str) -> None:
    txn = excluding(pair, "a.left", "a.right")
    pair.drop_table("a.left")
    if change == "created again":
        pair.create_table("a.left", {"id": "bigint"}).append(ROWS)
    with pytest.raises(tl.CommitConflict, match=r"a\.left .*dropped"):
        txn.commit()
    assert pair.table("a.right").scan().count() == 1


def test_a_required_absence_conflicts_with_a_creation(pair: tl.Lakehouse) -> None:
    def absent(name: str, other: str) -> tl.Transaction:
        txn = pair.begin()
        table_writing.require_absent(txn, "a", name, [AssertCreate()])
        txn.create_table(f"a.{other}", {"id": "bigint"})
        return txn

    first, second = absent("x", "y"), absent("y", "x")
    first.commit()
    with pytest.raises(tl.CommitConflict, match=r"a\.y .*assert-create"):
        second.commit()
    with pytest.raises(CommitFailedException):
        absent("y", "z")
    assert not pair.exists("a.x")


def test_requirements_of_a_table_that_is_changed_later_are_checked(pair: tl.Lakehouse) -> None:
    txn = pair.begin()
    require(txn, "a.left", head(txn, "a.left"))
    txn.table("a.left").append(ROWS)
    pair.table("a.left").append(ROWS)
    with pytest.raises(tl.CommitConflict, match="assert-ref-snapshot-id"):
        txn.commit()
    assert counts(pair) == [2, 1]


def test_a_saved_transaction_keeps_what_it_requires(pair: tl.Lakehouse) -> None:
    for change, holds in (("a.left", False), ("a.other", True)):
        txn = excluding(pair, "a.left", "a.right")
        txn.save()
        resumed = pair.resume(txn.id)
        resumed.save()
        resumed = pair.resume(txn.id)
        pair.table(change).append(ROWS)
        if holds:
            resumed.commit()
        else:
            with pytest.raises(tl.CommitConflict, match=r"a\.left"):
                resumed.commit()


def test_a_requirement_alone_makes_no_version(pair: tl.Lakehouse) -> None:
    catalog = TrinityLakeCatalog(lakehouse=pair)
    table = catalog.load_table("a.left")
    version = pair.version
    catalog.commit_table(table, (head(pair, "a.left"),), ())
    with pytest.raises(CommitFailedException):
        catalog.commit_table(table, (AssertCurrentSchemaId.model_validate({"current-schema-id": 7}),), ())
    assert pair.version == version


def test_requirements_are_checked_again_up_to_max_attempts(pair: tl.Lakehouse) -> None:
    """Requirements are checked again at most `max_attempts` times if another writer changes the table each time in a
    way that the requirements allow."""
    txn = excluding(pair, "a.left", "a.right")
    changes = itertools.count()

    def change(_: tl.Transaction) -> None:
        pair.alter_table("a.left", {"comment": str(next(changes))})

    txn.add_check(change)
    with pytest.raises(tl.CommitConflict, match="gave up"):
        txn.commit(max_attempts=3)
    assert counts(pair) == [1, 1]
