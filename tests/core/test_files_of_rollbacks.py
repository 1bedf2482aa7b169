"""Files of transactions without effect are deleted, except files that another process could still reference."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.iceberg import TrinityLakeCatalog
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from waiting import PATIENCE_SECONDS, wait_until

PARTS = 16
ROWS = {"key": list(range(PARTS)), "part": list(range(PARTS))}


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """The table `a.t` with 16 partitions of one file each."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"key": "bigint", "part": "bigint"}, partition_spec=["part"]).append(ROWS)
    return lake


def files(lake: tl.Lakehouse) -> set[str]:
    """Paths of the data files, manifests and metadata files of tables."""
    root = Path(lake.uri.removeprefix("file://"))
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".parquet", ".avro", ".json")}


def staged(lake: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.table("a.t").append(ROWS)
    txn.table("a.t").delete("key < 4")


def created_and_dropped(lake: tl.Lakehouse, txn: tl.Transaction) -> None:
    table = txn.create_table("a.u", pa.table(ROWS), partition_spec=["part"])
    table.append(ROWS)
    table.count()  # the read writes the waiting rows first
    txn.rename_table("a.u", "a.v")
    txn.drop_table("a.v")


def through_pyiceberg(lake: tl.Lakehouse, txn: tl.Transaction) -> None:
    TrinityLakeCatalog(transaction=txn).load_table("a.t").append(pa.table(ROWS))


def in_the_middle_of_pyiceberg(lake: tl.Lakehouse, txn: tl.Transaction) -> None:
    with TrinityLakeCatalog(transaction=txn).load_table("a.t").transaction() as change:
        change.append(pa.table(ROWS))
        raise RuntimeError("in the middle")


def handed_over(lake: tl.Lakehouse, txn: tl.Transaction) -> None:
    txn.table("a.t").append(ROWS)
    txn.save()
    resumed = lake.resume(txn.id)
    resumed.table("a.t").append(ROWS)
    resumed.rollback()


@pytest.mark.parametrize(
    "work", [staged, created_and_dropped, through_pyiceberg, in_the_middle_of_pyiceberg, handed_over]
)
def test_an_exception_in_the_block_leaves_no_file(
    lake: tl.Lakehouse, work: Callable[[tl.Lakehouse, tl.Transaction], None]
) -> None:
    before, version = files(lake), lake.version
    written: set[str] = set()

    def failing() -> None:
        nonlocal written
        with lake.transaction() as txn:
            try:
                work(lake, txn)
            finally:
                written = files(lake) - before
            raise RuntimeError("after it")

    with pytest.raises((RuntimeError, tl.CommitConflict)):
        failing()
    assert len(written) >= PARTS or work in (handed_over, in_the_middle_of_pyiceberg)
    wait_until(lambda: files(lake) == before)
    assert lake.version == version + (work is handed_over)  # such a rollback creates a version


class Failing:
    """A storage on which one write fails while others are in progress; these continue after the failure."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.put = LakehouseFileIO.put
        self.puts = itertools.count(1)
        self.others_are_under_way = threading.Semaphore(0)
        self.has_failed = threading.Event()
        monkeypatch.setattr("trinitylake.tables.table.FEW_ROWS_SIZE_BYTES", 0)  # few rows are written by one thread
        monkeypatch.setattr(LakehouseFileIO, "put", lambda *args: self(*args))

    def __call__(self, io: LakehouseFileIO, *args: Any) -> None:
        if next(self.puts) == 1:
            for _ in range(3):
                assert self.others_are_under_way.acquire(timeout=PATIENCE_SECONDS)
            self.has_failed.set()
            raise OSError("a disk is full")
        self.others_are_under_way.release()
        assert self.has_failed.wait(timeout=PATIENCE_SECONDS)
        time.sleep(0.1)
        self.put(io, *args)


def settled(lake: tl.Lakehouse) -> set[str]:
    """The files after all writers have ended."""
    before: set[str] = set()
    while (now := files(lake)) != before:
        before = now
        time.sleep(0.5)
    return now


def in_a_transaction(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.table("a.t").append(ROWS)


def in_a_statement(lake: tl.Lakehouse) -> None:
    lake.table("a.t").append(ROWS)


def in_a_catalog(lake: tl.Lakehouse) -> None:
    TrinityLakeCatalog(lakehouse=lake).load_table("a.t").append(pa.table(ROWS))


@pytest.mark.parametrize("append", [in_a_transaction, in_a_statement, in_a_catalog])
def test_threads_that_still_write_after_a_rollback_leave_no_file(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, append: Callable[[tl.Lakehouse], None]
) -> None:
    """If one of PyIceberg's threads fails, the others continue during the rollback."""
    before = settled(lake)
    Failing(monkeypatch)
    with pytest.raises(OSError, match="full"):
        append(lake)
    settled(lake)
    wait_until(lambda: files(lake) == before)
    assert lake.table("a.t").scan().count() == PARTS


@pytest.mark.parametrize("append", [in_a_transaction, in_a_statement])
def test_few_rows_that_cannot_all_be_written_leave_no_file(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, append: Callable[[tl.Lakehouse], None]
) -> None:
    """Also files that threads finish later are deleted."""
    before, put, puts = files(lake), LakehouseFileIO.put, itertools.count(1)

    def failing(io: LakehouseFileIO, *args: Any) -> None:
        if next(puts) == PARTS // 2:
            assert len(files(lake)) > len(before)
            raise OSError("a disk is full")
        put(io, *args)

    monkeypatch.setattr(LakehouseFileIO, "put", failing)
    with pytest.raises(OSError, match="full"):
        append(lake)
    wait_until(lambda: files(lake) == before)
    assert lake.table("a.t").scan().count() == PARTS


def test_a_pyiceberg_transaction_that_ends_in_an_exception_leaves_no_file(lake: tl.Lakehouse) -> None:
    before = files(lake)

    def failing() -> None:
        with TrinityLakeCatalog(lakehouse=lake).load_table("a.t").transaction() as change:
            change.append(pa.table(ROWS))
            assert len(files(lake)) > len(before)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    wait_until(lambda: files(lake) == before)


def test_commit_inside_of_a_block_that_fails_later_is_kept(lake: tl.Lakehouse) -> None:
    def failing() -> None:
        with TrinityLakeCatalog(lakehouse=lake).load_table("a.t").transaction() as change:
            change.append(pa.table(ROWS))
            change.commit_transaction()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert lake.table("a.t").scan().to_arrow().num_rows == 2 * PARTS


def test_rebase_for_a_check_deletes_files_of_a_failed_statement(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a failed statement are deleted, also if a rebase for a check replaces the state of the table."""
    before = settled(lake)
    txn = lake.begin()
    Failing(monkeypatch)
    with pytest.raises(OSError, match="full"):
        txn.table("a.t").append(ROWS)
    txn.create_namespace("b")
    lake.alter_table("a.t", {"comment": "new"})
    txn.add_check(lambda one: "comment" not in one.table("a.t").properties)
    with pytest.raises(tl.CheckFailed):
        txn.commit()
    left = settled(lake) - before
    assert {Path(path).suffix for path in left} <= {".json"}
    assert len(left) == 1  # the metadata file with the comment


def test_nothing_is_written_for_a_transaction_that_was_rolled_back(lake: tl.Lakehouse) -> None:
    txn = lake.begin()
    table = txn.table("a.t").iceberg
    before = files(lake)
    txn.rollback()
    with pytest.raises(tl.TransactionClosed, match="rolled back"):
        table.append(pa.table(ROWS))
    assert settled(lake) == before
