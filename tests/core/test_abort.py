"""Rollback against a concurrent commit: files of a committed transaction are never deleted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake.cli.app import app
from trinitylake.tables.staged_tables import StagedTables

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("nyc")
    lake.create_table("nyc.t", ROWS)
    return lake


def saved(lake: tl.Lakehouse, id: str) -> tl.Transaction:
    txn = lake.begin(id=id)
    txn.table("nyc.t").append(ROWS)
    txn.save()
    return txn


def data_files(lake: tl.Lakehouse) -> list[str]:
    return sorted(path.name for path in Path(lake.uri.removeprefix("file://")).rglob("*.parquet"))


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("nyc.t").scan().to_arrow()["id"].to_pylist())


def test_what_one_worker_committed_the_other_cannot_roll_back(lake: tl.Lakehouse) -> None:
    """The rollback would delete data files of the committed table."""
    first = saved(lake, "load")
    other = tl.open(lake.uri)
    rolls_back, commits, goes_on = other.resume("load"), other.resume("load"), other.resume("load")
    goes_on.table("nyc.t").append({"id": [4]})
    version = first.commit()
    for late in (rolls_back, goes_on):
        with pytest.raises(tl.CommitConflict):
            late.rollback()
    with pytest.raises(tl.CommitConflict, match="another process"):
        commits.commit()
    with pytest.raises(tl.CommitConflict, match="another process"):
        goes_on.commit()
    with pytest.raises(tl.CommitConflict, match=f"was committed as version {version}"):
        other.resume("load").rollback()
    assert lake.transactions.outcome("load") == ("committed", version)
    assert ids(other) == [1, 2, 3]


def test_what_one_worker_rolled_back_the_other_cannot_commit(lake: tl.Lakehouse) -> None:
    first = saved(lake, "load")
    assert len(data_files(lake)) == 1
    tl.open(lake.uri).resume("load").rollback()
    assert (lake.transactions.outcome("load"), data_files(lake)) == (("rolled back", None), [])
    with pytest.raises(tl.CommitConflict, match="rolled back already"):
        first.commit()
    assert (first._is_unknown, first._files_are_unreachable, ids(lake)) == (False, True, [])
    with pytest.raises(tl.CommitConflict):
        lake.begin(id="load").commit()
    [record] = [one for entry in lake.log() for one in entry.transactions if one.message.startswith("roll back")]
    assert record.properties["trinitylake.rolled-back"] == "load"


def test_the_command_line_does_not_say_that_a_committed_transaction_was_rolled_back(lake: tl.Lakehouse) -> None:
    """`txn rollback` of a committed transaction fails, instead of printing "was rolled back"."""
    saved(lake, "load").commit()
    result = CliRunner().invoke(app, ["txn", "rollback", "load", "--root", lake.uri])
    assert (result.exit_code, "was rolled back" in result.output) == (3, False)
    assert ids(lake) == [1, 2, 3]
    saved(lake, "other")
    result = CliRunner().invoke(app, ["txn", "rollback", "other", "--root", lake.uri])
    assert (result.exit_code, "was rolled back" in result.output) == (0, True)
    shown = CliRunner().invoke(app, ["txn", "show", "other", "--root", lake.uri])
    assert (shown.exit_code, "rolled back" in shown.output) == (0, True)


def test_a_conflict_deletes_the_files_of_the_loser_and_no_others(lake: tl.Lakehouse) -> None:
    first, second = lake.begin(), lake.begin()
    for txn in (first, second):
        txn.table("nyc.t").append(ROWS)
        assert txn.table("nyc.t").count() > 0, "a read writes the waiting rows first"
        txn.alter_namespace("nyc", {"by": txn.id})
    first.commit()
    kept = data_files(lake)
    assert len(kept) == 2
    with pytest.raises(tl.CommitConflict):
        second.commit()
    assert len(data_files(lake)) == 1
    assert (second._files_are_unreachable, first._files_are_unreachable, ids(lake)) == (True, False, [1, 2, 3])


@pytest.mark.parametrize(
    ("limits", "least", "most"), [({"max_attempts": 3}, 1, 4), ({"timeout_seconds": 0}, 0, 2)], ids=["attempts", "time"]
)
def test_the_limits_bound_how_often_a_table_is_redone(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], least: int, most: int
) -> None:
    """`max_attempts=3` rebased sixty times. One root is always attempted, so a table is rebased at least once."""
    rival, redone = tl.open(lake.uri), 0
    reapply = StagedTables.rebase

    def overtaken(tables: StagedTables, clashes: Any) -> bool:
        nonlocal redone
        redone += 1
        is_new = reapply(tables, clashes)
        with monkeypatch.context() as patch:
            patch.setattr(StagedTables, "rebase", reapply)
            worker = threading.Thread(target=rival_appends)
            worker.start()
            worker.join()
        return is_new

    def rival_appends() -> None:
        core = rival._core.begin()  # this commit does not take turns in this process
        name = ("table", "nyc", "t")
        core.replace(*name, core.read(*name))
        assert isinstance(core.commit(), int)

    txn = lake.begin()
    txn.table("nyc.t").append(ROWS)
    rival_appends()
    monkeypatch.setattr(StagedTables, "rebase", overtaken)
    with pytest.raises(tl.CommitConflict, match="gave up"):
        txn.commit(**limits)  # type: ignore[arg-type]
    assert least <= redone <= most
    assert (txn._files_are_unreachable, data_files(lake)) == (True, [])
