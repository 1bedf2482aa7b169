"""Transactions: atomicity, visibility of their own writes, conflicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import trinitylake as tl
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from waiting import in_threads

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    """`nyc.t` with three rows, at version 1."""
    with lake.transaction(message="set up") as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.t", ROWS).append(ROWS)
    return lake.table("nyc.t")


def ids(reader: tl.Lakehouse | tl.Transaction | tl.LakehouseVersion, name: str = "nyc.t") -> list[int]:
    return sorted(reader.table(name).scan().to_arrow()["id"].to_pylist())


def data_files(root: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in Path(root).rglob("*") if path.suffix in (".parquet", ".avro"))


def test_many_statements_become_one_version(lake: tl.Lakehouse) -> None:
    with lake.transaction(message="load", author="etl", properties={"job": "7"}) as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.t", ROWS).append(ROWS)
        txn.create_table("nyc.u", ROWS).append(ROWS.slice(0, 1))
        txn.create_view("nyc.v", "SELECT 1")
        assert txn.version is None
        assert lake.namespaces() == [], "nothing is visible before the commit"
    assert txn.version == lake.version == 1
    assert (lake.tables("nyc"), lake.views("nyc")) == (["nyc.t", "nyc.u"], ["nyc.v"])
    (transaction,) = lake.log()[0].transactions
    assert (transaction.message, transaction.author, transaction.properties) == ("load", "etl", {"job": "7"})
    assert (transaction.id, transaction.began_at_version) == (txn.id, 0)


def test_a_transaction_reads_its_own_writes_and_its_base_version(lake: tl.Lakehouse, table: tl.Table) -> None:
    with lake.transaction() as txn:
        txn.table("nyc.t").delete("id = 1")
        txn.create_namespace("own")
        with pytest.warns(UserWarning, match="commits alone"):
            lake.create_namespace("other")
        assert ids(txn) == [2, 3]
        assert txn.namespaces() == ["nyc", "own"]
        assert ids(lake) == [1, 2, 3]
    assert lake.namespaces() == ["nyc", "other", "own"]
    assert ids(lake) == [2, 3]


def test_rows_of_a_small_append_survive_a_failed_statement(
    lake: tl.Lakehouse, table: tl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction keeps a few appended rows until its next read or its commit. If a read could not write them, for
    example to a full disk, they were lost, and the commit succeeded without them.
    """
    txn = lake.begin()
    changed = txn.table("nyc.t")
    changed.append(ROWS.slice(0, 1))

    def fail(*_: object) -> None:
        raise tl.StorageError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(StagedTransaction, "append_rows", fail)
        with pytest.raises(tl.StorageError):
            changed.to_arrow()
        with pytest.raises(tl.StorageError):
            changed.append(pa.concat_tables([ROWS.slice(1, 1)] * 100_000))
    txn.commit()
    assert ids(lake) == sorted(ROWS["id"].to_pylist() + ROWS["id"].to_pylist()[:1])


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_an_exception_rolls_back_and_reaches_the_caller(
    lake: tl.Lakehouse, table: tl.Table, error: BaseException
) -> None:
    txn = lake.transaction()

    def fail() -> None:
        with txn:
            txn.table("nyc.t").append(ROWS)
            txn.create_namespace("never")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert txn.version is None
    assert (lake.version, lake.namespaces(), ids(lake)) == (1, ["nyc"], [1, 2, 3])


def test_rolling_back_removes_the_data_files_that_were_written(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.t", ROWS).append(ROWS)
    before = data_files(root)
    txn = lake.begin()
    txn.table("nyc.t").append(ROWS)
    new = txn.create_table("nyc.new", ROWS)
    new.append(ROWS)
    assert txn.table("nyc.t").count() == 2 * new.count(), "a read writes the waiting rows first"
    assert data_files(root) != before
    txn.rollback()
    assert data_files(root) == before


def test_a_transaction_without_writes_makes_no_version(lake: tl.Lakehouse, table: tl.Table) -> None:
    with lake.transaction() as txn:
        assert ids(txn) == [1, 2, 3]
    assert txn.version == lake.version == 1


def test_a_finished_transaction_refuses_everything(lake: tl.Lakehouse, table: tl.Table) -> None:
    committed, rolled_back = lake.begin(), lake.begin()
    handle = committed.table("nyc.t")
    committed.commit()
    rolled_back.rollback()
    rolled_back.rollback()
    for call in (
        committed.commit,
        committed.namespaces,
        rolled_back.commit,
        lambda: committed.create_namespace("x"),
        lambda: committed.table("nyc.t"),
        lambda: handle.append(ROWS),
    ):
        with pytest.raises(tl.TransactionClosed):
            call()


def test_a_transaction_committed_inside_its_block_is_not_committed_again(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.commit()
    assert lake.version == 1


def test_two_transactions_on_the_same_name_conflict_and_the_loser_is_told_who_won(lake: tl.Lakehouse) -> None:
    first = lake.begin(message="first", author="ann")
    second = lake.begin(message="second", author="bob")
    lake.create_namespace("unrelated")
    first.create_namespace("nyc")
    second.create_namespace("nyc")
    first.commit()
    with pytest.raises(tl.CommitConflict) as caught:
        second.commit()
    assert caught.value.keys == ["namespace nyc"]
    (winner,) = caught.value.winners
    assert (winner.version, winner.transaction_id, winner.message, winner.author) == (2, first.id, "first", "ann")
    assert not second.is_open
    assert lake.version == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda txn: txn.table("nyc.t").delete("id = 1"),
        lambda txn: txn.alter_table("nyc.t", {"owner": txn.id}),
        lambda txn: txn.drop_table("nyc.t"),
        lambda txn: (txn.drop_table("nyc.t"), txn.create_table("nyc.t", {"x": "int"})),
        lambda txn: txn.rename_table("nyc.t", "nyc.u"),
    ],
)
@pytest.mark.parametrize("isolation", ["snapshot", "serializable"])
def test_a_conflict_names_winner_and_table_first(
    lake: tl.Lakehouse,
    table: tl.Table,
    change: Callable[[tl.Transaction], object],
    isolation: Literal["snapshot", "serializable"],
) -> None:
    """The message of a conflict began with the id of the losing transaction, which does not help a user, and did not
    name the author of the winner.
    """
    first, second = lake.begin(message="clean-up", author="ann"), lake.begin(isolation=isolation)
    change(first)
    if isolation == "serializable":
        second.table("nyc.t").to_arrow()
    change(second)
    version = first.commit()
    winner = rf"version {version} by ann \(clean-up\)"
    with pytest.raises(tl.CommitConflict, match=rf"^conflict on .*table nyc\.t\b.* with {winner}"):
        second.commit()


def test_transactions_on_different_names_both_commit(lake: tl.Lakehouse) -> None:
    first, second = lake.begin(), lake.begin()
    first.create_namespace("a")
    second.create_namespace("b")
    assert (first.commit(), second.commit()) == (1, 2)
    assert lake.namespaces() == ["a", "b"]


def test_two_appends_to_one_table_both_land(lake: tl.Lakehouse, table: tl.Table) -> None:
    first, second = lake.begin(), lake.begin()
    first.table("nyc.t").append({"id": [10], "name": ["x"]})
    second.table("nyc.t").append({"id": [20], "name": ["y"]})
    assert (first.commit(), second.commit()) == (2, 3)
    assert ids(lake) == [1, 2, 3, 10, 20]


def test_two_deletes_from_one_table_conflict_and_name_the_table(lake: tl.Lakehouse, table: tl.Table) -> None:
    first, second = lake.begin(message="first"), lake.begin()
    first.table("nyc.t").delete("id = 1")
    second.table("nyc.t").delete("id = 2")
    first.commit()
    with pytest.raises(tl.CommitConflict) as caught:
        second.commit()
    assert caught.value.keys == ["table nyc.t"]
    assert [winner.message for winner in caught.value.winners] == ["first"]
    assert ids(lake) == [2, 3]


def test_a_lost_transaction_leaves_no_data_files_behind(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.t", ROWS).append(ROWS)
    winner, loser = lake.begin(), lake.begin()
    winner.table("nyc.t").delete("id = 1")
    winner.commit()
    before = data_files(root)
    loser.table("nyc.t").overwrite(ROWS)
    with pytest.raises(tl.CommitConflict):
        loser.commit()
    assert data_files(root) == before


class Interrupted:
    """A core transaction whose commit sends a root and raises an error with an unknown outcome."""

    def __init__(self, core: object, error: BaseException) -> None:
        self._core = core
        self._error = error

    def __getattr__(self, name: str) -> object:
        return getattr(self._core, name)

    def commit(self, *limits: object) -> int:
        raise self._error

    @property
    def is_unknown(self) -> bool:
        return True

    @property
    def files_are_unreachable(self) -> bool:
        return False


@pytest.mark.parametrize("error", [tl.CommitStateUnknown("no reply"), tl.StorageError("reset"), KeyboardInterrupt()])
def test_nothing_is_deleted_when_it_is_not_known_whether_the_commit_happened(
    tmp_path: Path, error: BaseException
) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    txn = lake.begin()
    txn.create_namespace("nyc")
    table = txn.create_table("nyc.t", ROWS)
    table.append(ROWS)
    assert table.count() > 0, "a read writes the waiting rows first"
    before = data_files(root)
    txn._core = Interrupted(txn._core, error)  # type: ignore[assignment]
    with pytest.raises(type(error)):
        txn.commit()
    assert before
    assert data_files(root) == before
    with pytest.raises(tl.TransactionClosed, match="unknown"):
        txn.commit()


def test_write_skew_passes_under_snapshot_and_fails_under_serializable(lake: tl.Lakehouse) -> None:
    """Each transaction reads the table that the other one writes."""
    lake.create_namespace("a", {"on_call": "yes"})
    lake.create_namespace("b", {"on_call": "yes"})
    for isolation in ("snapshot", "serializable"):
        lake.alter_namespace("a", {"on_call": "yes"})
        lake.alter_namespace("b", {"on_call": "yes"})
        first, second = lake.begin(isolation=isolation), lake.begin(isolation=isolation)
        for txn, mine, other in ((first, "a", "b"), (second, "b", "a")):
            if txn.namespace(other).properties["on_call"] == "yes":
                txn.alter_namespace(mine, {"on_call": "no"})
        first.commit()
        if isolation == "snapshot":
            second.commit()
        else:
            with pytest.raises(tl.CommitConflict) as caught:
                second.commit()
            assert "namespace a" in caught.value.keys


def test_a_phantom_in_a_listing_fails_under_serializable(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    txn = lake.begin(isolation="serializable")
    assert txn.views("nyc") == []
    txn.create_namespace("no_views_seen")
    lake.create_view("nyc.v", "SELECT 1")
    with pytest.raises(tl.CommitConflict):
        txn.commit()


def test_a_namespace_dropped_meanwhile_takes_no_new_table(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    txn = lake.begin()
    txn.create_table("nyc.t", ROWS).append(ROWS)
    lake.drop_namespace("nyc")
    with pytest.raises((tl.CommitConflict, tl.ObjectNotFound)):
        txn.commit()
    assert lake.tables() == []


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.append(ROWS),
        lambda table: table.overwrite(ROWS),
        lambda table: table.delete("id > 0"),
        lambda table: table.upsert(ROWS, on=["id"]),
    ],
)
def test_a_handle_does_not_write_to_another_table_of_that_name(
    lake: tl.Lakehouse, table: tl.Table, write: Callable[[tl.Table], object]
) -> None:
    name = table.name
    lake.drop_table(name)
    lake.create_table(name, ROWS)
    before = lake.version
    with pytest.raises(tl.CommitConflict, match="another table has its name") as raised:
        write(table)
    assert raised.value.keys == [f"table {name}"]
    with pytest.raises(tl.CommitConflict), table.update_schema() as update:
        update.add_column("more", LongType())
    assert (lake.version, len(lake.table(name).scan().to_arrow())) == (before, 0)
    table.refresh()
    table.append(ROWS)
    assert len(lake.table(name).scan().to_arrow()) == len(ROWS)


def test_a_dropped_and_recreated_table_is_another_table(lake: tl.Lakehouse, table: tl.Table) -> None:
    txn = lake.begin()
    txn.table("nyc.t").append(ROWS)
    lake.drop_table("nyc.t")
    lake.create_table("nyc.t", ROWS)
    with pytest.raises(tl.CommitConflict):
        txn.commit()
    assert ids(lake) == []


def test_single_statements_on_the_lakehouse_start_again_when_they_lose(lake: tl.Lakehouse, table: tl.Table) -> None:
    def overwrite(value: int) -> None:
        for _ in range(3):
            lake.table("nyc.t").overwrite({"id": [value], "name": ["w"]}, filter=f"id = {value}")

    in_threads(overwrite, (1, 2, 3, 4))
    assert ids(lake) == [1, 2, 3, 4]
    assert sum(len(entry.transactions) for entry in lake.log(None)) == 1 + 12


def test_a_chosen_id_commits_exactly_once(lake: tl.Lakehouse) -> None:
    with lake.transaction(id="etl-42") as first:
        first.create_namespace("a")
    again = lake.begin(id="etl-42")
    again.create_namespace("b")
    assert again.commit() == first.version
    assert lake.namespaces() == ["a"]
    assert lake.version == 1


def test_a_second_handle_sees_what_the_first_committed(root: str, lake: tl.Lakehouse) -> None:
    other = tl.open(root)
    lake.create_namespace("a")
    assert other.namespaces() == ["a"]
    other.create_namespace("b")
    assert lake.namespaces() == ["a", "b"]


def test_many_threads_commit_without_losing_one(lake: tl.Lakehouse) -> None:
    def work(worker: int) -> None:
        for number in range(10):
            lake.create_namespace(f"w{worker}.n{number}")

    in_threads(work, range(4))
    assert lake.namespaces() == sorted(f"w{worker}.n{number}" for worker in range(4) for number in range(10))
    committed = [transaction.id for entry in lake.log(None) for transaction in entry.transactions]
    assert len(committed) == len(set(committed)) == 40


def test_transactions_that_changed_the_same_two_tables_do_not_wait_for_each_other_in_a_circle(
    lake: tl.Lakehouse, table: tl.Table
) -> None:
    lake.create_table("nyc.u", ROWS)

    def work(names: tuple[str, str]) -> None:
        for _ in range(5):
            with lake.transaction() as txn:
                for name in names:
                    txn.table(name).append(ROWS)

    in_threads(work, (("nyc.t", "nyc.u"), ("nyc.u", "nyc.t")))
    assert len(ids(lake, "nyc.t")) == len(ids(lake, "nyc.u")) + 3 == 3 + 10 * 3
