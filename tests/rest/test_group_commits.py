"""Appends of clients to one table that commit at the same time share a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitStateUnknownException

import trinitylake as tl
from rest.client import running
from rest.shop import with_tables
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.tables.group_append import WrittenAppend, groups_of
from trinitylake.tables.table_locks import table_locks
from waiting import wait_until


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse on disk with two tables."""
    return with_tables(tl.create(str(tmp_path / "lake"), durability="none"), "shop.orders", "shop.small")


@pytest.fixture
def served(lake: tl.Lakehouse) -> Iterator[Callable[[], RestCatalog]]:
    """A function that returns a new client of a server."""
    with running(lake) as server:
        yield lambda: RestCatalog("served", uri=f"http://127.0.0.1:{server.port}")


def together(lake: tl.Lakehouse, commits: list[Callable[[], object]]) -> list[BaseException | None]:
    """Run commits of clients in one group: the first one waits for the table lock until all others wait for it."""
    table_id = lake.table("shop.orders").id
    groups = groups_of(lake._core, table_id, WrittenAppend)
    futures: list[Any] = []

    def arrived() -> int:
        done = sum(future.done() for future in futures)
        return done + len(groups._waiting) + (groups._leader is not None)

    with ThreadPoolExecutor(len(commits)) as threads, table_locks.held([table_id]):
        for commit in commits:
            futures.append(threads.submit(commit))
            wait_until(lambda: arrived() >= len(futures))
    return [future.exception() for future in futures]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_appends_of_clients_share_a_version(lake: tl.Lakehouse, served: Callable[[], RestCatalog]) -> None:
    tables = [served().load_table("shop.orders") for _ in range(4)]
    before = lake.version
    commits = [lambda table=table, n=n: table.append(rows(10 + n)) for n, table in enumerate(tables)]
    assert together(lake, commits) == [None] * 4
    assert lake.version == before + 1
    [entry] = lake.log(1)
    assert [one.summary for one in entry.transactions] == ["append +1 row shop.orders"] * 4
    assert all(lake.transactions.outcome(one.id) == ("committed", before + 1) for one in entry.transactions)
    now = lake.table("shop.orders").iceberg
    ours = {table.current_snapshot().snapshot_id for table in tables}
    assert {snapshot.snapshot_id for snapshot in now.snapshots()} >= ours, "every client finds its snapshot"
    numbers = [snapshot.sequence_number for snapshot in now.snapshots()]
    assert sorted(numbers) == list(range(1, 6))
    for table in tables:
        assert table.metadata_location == now.metadata_location
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 10, 11, 12, 13]
    assert lake.maintenance.fsck(files=True).is_sound
    tables[0].append(rows(20))
    assert lake.table("shop.orders").count() == 8


def test_a_group_is_rebased_on_commits_since_its_appends_were_staged(
    lake: tl.Lakehouse, served: Callable[[], RestCatalog]
) -> None:
    """A group is rebased if another process commits to the table while the group waits."""
    tables = [served().load_table("shop.orders") for _ in range(3)]
    other = tl.open(lake.uri, durability="none")
    txn = other.begin()
    txn.table("shop.orders").append(rows(5))
    staged = txn._staged_tables
    commits: list[Callable[[], object]] = [
        lambda table=table, n=n: table.append(rows(10 + n)) for n, table in enumerate(tables)
    ]

    def commit_at_last() -> None:
        staged.write()
        txn._core.commit(files=staged.take_metadata())  # without the table lock

    assert together(lake, [*commits, commit_at_last]) == [None] * 4
    assert len(lake.log(1)[0].transactions) == 3
    assert sorted(lake.table("shop.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 5, 10, 11, 12]
    assert lake.maintenance.fsck(files=True).is_sound


def test_an_append_that_cannot_join_is_committed_alone(
    lake: tl.Lakehouse, served: Callable[[], RestCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an append cannot join a group after its manifests were written again, it is committed alone, and the group
    does not delete the append's first manifests."""
    absorb = StagedTable.absorb
    refused: list[StagedTable] = []

    def refuse_one(self: StagedTable, other: StagedTable) -> None:
        with monkeypatch.context() as patch:
            if not refused:
                patch.setattr(self, "commit", refuse)
            refused.append(other)
            absorb(self, other)

    def refuse(*_: object) -> None:
        raise ValueError("refused")

    monkeypatch.setattr(StagedTable, "absorb", refuse_one)
    tables = [served().load_table("shop.orders") for _ in range(4)]
    before = lake.version
    commits = [lambda table=table, n=n: table.append(rows(10 + n)) for n, table in enumerate(tables)]
    assert together(lake, commits) == [None] * 4
    assert len(refused) == 3
    assert [len(entry.transactions) for entry in lake.log(2)] == [1, 3]
    assert lake.version == before + 2
    assert sorted(lake.table("shop.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 10, 11, 12, 13]
    assert lake.maintenance.fsck(files=True).is_sound


def test_an_unknown_outcome_is_unknown_to_every_client(
    lake: tl.Lakehouse, served: Callable[[], RestCatalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client of a group gets an unknown outcome if the leader does. The store executes the commit and reports a
    failure."""
    commit = Transaction.commit

    def lose(self: Transaction) -> int:
        commit(self)
        raise tl.CommitStateUnknown("no reply")

    tables = [served().load_table("shop.orders") for _ in range(2)]
    monkeypatch.setattr(Transaction, "commit", lose)
    errors = together(lake, [lambda: tables[0].append(rows(10)), lambda: tables[1].append(rows(11))])
    assert isinstance(errors[0], CommitStateUnknownException)
    assert errors[1] is None, "its own transaction is known to be committed"
    assert sorted(lake.table("shop.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 10, 11]
