"""Saved transactions: saved in one process, resumed in another, committed once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        txn.create_table("ns.old", ROWS).append(ROWS)
    return lake


def saved_job(lake: tl.Lakehouse) -> None:
    """A saved transaction over three tables."""
    txn = lake.begin(id="job", message="load", author="etl")
    txn.create_table("ns.new", ROWS).append(ROWS)
    txn.table("ns.old").append(ROWS)
    txn.save()


def test_a_saved_transaction_is_invisible_until_another_process_commits_it(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    assert lake.tables("ns") == ["ns.old"]
    assert [(one.id, one.message, one.times_saved) for one in lake.transactions.list()] == [("job", "load", 1)]
    program = f"""
import pyarrow as pa, trinitylake as tl
txn = tl.open({lake.uri!r}).resume("job")
assert txn.table("ns.new").scan().to_arrow().num_rows == 3
assert txn.table("ns.old").scan().to_arrow().num_rows == 6
txn.table("ns.new").append(pa.table({{"id": [9], "name": ["z"]}}))
print(txn.commit())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == lake.version == 2
    assert sorted(lake.table("ns.new").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 9]
    assert lake.table("ns.old").scan().to_arrow().num_rows == 6
    assert lake.transactions.list() == []
    assert lake.transactions.outcome("job") == ("committed", 2)
    assert lake.log(1)[0].message == "load"


def test_the_metadata_that_a_saved_transaction_names_is_there(lake: tl.Lakehouse) -> None:
    """These files are otherwise written together with the commit."""
    saved_job(lake)
    paths = json.loads(lake.resume("job")._saved_state)["metadata-paths"]
    assert len(paths) == 2
    assert all(lake._storage.exists(path) for path in paths)


def test_appends_are_redone_after_a_resume(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    lake.table("ns.old").append(pa.table({"id": [7], "name": ["meanwhile"]}))
    with lake.resume("job"):
        pass
    assert sorted(lake.table("ns.old").scan().to_arrow()["id"].to_pylist()) == [1, 1, 2, 2, 3, 3, 7]
    names = [entry["snapshot_id"] for entry in lake.table("ns.old").iceberg.inspect.snapshots().to_pylist()]
    assert len(names) == 3


def test_reads_of_rows_conflict_after_a_resume(lake: tl.Lakehouse) -> None:
    txn = lake.begin(id="job")
    txn.table("ns.old").delete("id = 1")
    txn.save()
    lake.table("ns.old").append(ROWS)
    with pytest.raises(tl.CommitConflict, match="depends on the rows"):
        lake.resume("job").commit()
    assert lake.table("ns.old").scan().to_arrow().num_rows == 6


def test_the_second_of_two_resumers_gets_a_conflict(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    one, two = lake.resume("job"), lake.resume("job")
    two.table("ns.new").append(ROWS)
    one.commit()
    with pytest.raises(tl.CommitConflict, match="another process"):
        two.commit()
    assert lake.table("ns.new").scan().to_arrow().num_rows == 3
    # Another resume and commit returns the same version.
    assert lake.resume("job").commit() == 2


def test_the_loser_leaves_the_files_of_the_winner_alone(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    one, two = lake.resume("job"), lake.resume("job")
    one.save()
    with pytest.raises(tl.CommitConflict, match="another process"):
        two.rollback()
    one.commit()
    assert lake.table("ns.new").scan().to_arrow().num_rows == 3


def test_rolled_back_for_everybody_with_its_files(lake: tl.Lakehouse) -> None:
    before = {file for file in Path(lake.uri.removeprefix("file://")).rglob("*.parquet")}
    saved_job(lake)
    lake.resume("job").rollback()
    assert lake.transactions.list() == []
    with pytest.raises(tl.ObjectNotFound):
        lake.resume("job")
    assert {file for file in Path(lake.uri.removeprefix("file://")).rglob("*.parquet")} == before
    assert lake.transactions.outcome("job") == ("rolled back", None)


def test_saved_again_with_more_and_a_schema_change(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    txn = lake.resume("job")
    with txn.table("ns.new").iceberg.update_schema() as update:
        from pyiceberg.types import LongType

        update.add_column("more", LongType())
    txn.create_view("ns.v", "SELECT 1", dialect="spark")
    txn.save()
    again = lake.resume("job")
    assert [column.name for column in again.table("ns.new").schema.columns] == ["id", "name", "more"]
    again.commit()
    assert lake.views("ns") == ["ns.v"]
    assert lake.table("ns.new").scan().to_arrow().column_names == ["id", "name", "more"]


def test_resume_of_an_undone_transaction_raises_commit_conflict(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    assert lake.resume("job").commit() == 2
    assert lake.rollback(1, message="bad load") == 3
    assert lake.transactions.outcome("job") == ("undone", 2)
    assert lake.transactions.list() == []
    again = lake.begin(id="job")
    again.table("ns.old").append(ROWS)
    for attempt in (lambda: lake.resume("job"), again.commit):
        with pytest.raises(tl.CommitConflict, match="in version 2 and undone by the rollback in version 3") as raised:
            attempt()
        assert [(winner.version, winner.message) for winner in raised.value.winners] == [(3, "bad load")]
    assert lake.version == 3
    assert lake.tables("ns") == ["ns.old"]
    # A rollback to the version of the transaction makes it committed again.
    lake.rollback(2, message="the load was good")
    assert lake.transactions.outcome("job") == ("committed", 2)
    assert lake.resume("job").commit() == 2
    assert lake.table("ns.old").scan().to_arrow().num_rows == 6


def test_expiry_spares_what_a_saved_transaction_rests_on(lake: tl.Lakehouse) -> None:
    saved_job(lake)
    for number in range(3):
        lake.create_namespace(f"n{number}")
    assert lake.maintenance.expire(before=4) == [0]
    assert [one.base_version for one in lake.transactions.list()] == [1]
    assert lake.resume("job").commit() == 5
    assert lake.maintenance.expire(before=5) == [1, 2, 3, 4]


def test_expiry_forgets_ids_with_the_versions_that_they_committed(lake: tl.Lakehouse) -> None:
    def commit(id: str, namespace: str) -> int:
        txn = lake.begin(id=id)
        txn.create_namespace(namespace)
        return txn.commit()

    assert (commit("monday", "a"), commit("tuesday", "b")) == (2, 3)
    assert lake.maintenance.expire(before=3) == [0, 1, 2]
    assert lake.transactions.outcome("monday") == ("unknown", None)
    assert commit("tuesday", "c") == 3  # a repeated commit has no effect
    assert commit("monday", "c") == 5  # version 4 removed the expired id
    assert lake.namespaces() == ["a", "b", "c", "ns"]
    assert lake.at(4).entry.transactions[0].message == "forget expired transaction ids"


def no_duplicates(txn: tl.Transaction) -> bool:
    ids = txn.table("ns.old").scan().to_arrow()["id"].to_pylist()
    return len(ids) == len(set(ids))


def test_checks_stop_a_commit(lake: tl.Lakehouse) -> None:
    txn = lake.begin()
    txn.table("ns.old").append(ROWS)
    txn.add_check(no_duplicates)
    with pytest.raises(tl.CheckFailed, match="no_duplicates"):
        txn.commit()
    assert lake.version == 1

    txn = lake.begin()
    txn.table("ns.old").append(pa.table({"id": [4], "name": ["d"]}))
    txn.add_check("SELECT count(*) = 4 FROM ns.old")
    txn.add_check(no_duplicates)
    assert txn.commit() == 2

    txn = lake.begin()
    txn.table("ns.old").delete("id = 4")
    txn.add_check("SELECT max(id) > 3 FROM ns.old")
    with pytest.raises(tl.CheckFailed, match="max"):
        txn.commit()


def test_checks_run_again_after_a_rebase(lake: tl.Lakehouse) -> None:
    txn = lake.begin()
    txn.table("ns.old").append(pa.table({"id": [4], "name": ["d"]}))
    txn.add_check(no_duplicates)
    lake.table("ns.old").append(pa.table({"id": [4], "name": ["the other d"]}))
    with pytest.raises(tl.CheckFailed):
        txn.commit()
    assert lake.table("ns.old").scan().to_arrow().num_rows == 4


def test_checks_are_saved_by_name(lake: tl.Lakehouse) -> None:
    txn = lake.begin(id="job")
    txn.table("ns.old").append(ROWS)
    txn.add_check("SELECT count(*) = 3 FROM ns.old")
    txn.save()
    with pytest.raises(tl.CheckFailed):
        lake.resume("job").commit()
    txn = lake.begin(id="job-2")
    txn.add_check(lambda txn: True)
    with pytest.raises(tl.errors.InvalidArgument, match="cannot be saved"):
        txn.save()


def test_the_feed_of_changes(lake: tl.Lakehouse) -> None:
    with lake.transaction(message="two") as txn:
        txn.create_namespace("b")
        txn.create_view("b.v", "SELECT 1", dialect="spark")
    lake.table("ns.old").append(ROWS)
    lake.rollback(2, message="back")
    feed = list(lake.changes(since=1))
    assert [(one.version, one.transaction.message, str(one.diff)) for one in feed] == [
        (2, "two", "+ namespace b\n+ view b.v"),
        (3, "", "~ table ns.old"),
        (4, "back", "~ table ns.old"),
    ]
    assert list(lake.changes(since=4)) == []


def test_the_command_line_ends_saved_transactions(lake: tl.Lakehouse) -> None:
    from typer.testing import CliRunner

    from trinitylake.cli.app import app

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--root", lake.uri])
        assert result.exit_code == 0, result.output
        return result.output

    saved_job(lake)
    assert "job" in run("txn", "ls")
    assert " ago" in run("txn", "ls")
    assert "in 23 h" in run("txn", "ls")
    assert '"times_saved": 1' in run("txn", "show", "job", "--json")
    assert "version 2" in run("txn", "commit", "job")
    assert "committed" in run("txn", "show", "job")
    assert "load" in run("changes", "1")
    with lake.begin(id="other") as txn:
        txn.create_namespace("x")
        txn.save()
        run("txn", "rollback", "other")
        with pytest.raises(tl.CommitConflict):
            txn.commit()
    assert CliRunner().invoke(app, ["txn", "show", "nobody", "--root", lake.uri]).exit_code == 4


def test_asyncio_tasks_commit_together(lake: tl.Lakehouse) -> None:
    import asyncio

    # All transactions are complete before the first one commits, so that their commits overlap on a slow machine, too.
    ready = [lake.begin() for _ in range(200)]
    for number, txn in enumerate(ready):
        txn.create_namespace(f"n{number:03}")

    async def crowd() -> list[int]:
        return await asyncio.gather(*(txn.aio.commit() for txn in ready))

    versions = asyncio.run(crowd())
    assert len(lake.namespaces()) == 201
    assert len(set(versions)) < 200  # the transactions shared versions
    assert sum(len(entry.transactions) for entry in lake.log(None)) == 201

    async def conflict() -> None:
        one, two = lake.begin(), lake.begin()
        one.create_namespace("same")
        two.create_namespace("same")
        await one.aio.commit()
        with pytest.raises(tl.CommitConflict):
            await two.aio.commit()
        table = lake.begin()
        table.table("ns.old").append(ROWS)
        await table.aio.commit()

    asyncio.run(conflict())
    assert lake.table("ns.old").scan().to_arrow().num_rows == 6
