"""`lake.maintenance.run()` and `trinitylake upkeep` run all steps of the lakehouse's policy."""

from __future__ import annotations

import json
import time
from datetime import datetime, tzinfo
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import trinitylake as tl
from conformance.reachable import Reachable, files_below
from local_files import age
from trinitylake.cli.app import app

ROWS = pa.table({"id": list(range(10))})
APPENDS = 8


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(root: Path) -> tl.Lakehouse:
    """A table of many small files, one with maintenance turned off, one of few files, and a tree with sparse leaves."""
    small = {"root.buffer-size-bytes": "900", "inner.buffer-size-bytes": "500", "maintenance.grace": "1 minute"}
    settings = {"maximum_version_age_millis": 60_000, "minimum_versions_to_keep": 1, "txn_ttl_millis": 1}
    lake = tl.create(root, durability="none", order=4, properties=small, **settings)  # type: ignore[arg-type]
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    lake.create_table("shop.as_it_is", ROWS.schema, properties={"maintenance.compact": "false"})
    lake.create_table("shop.few", ROWS.schema)
    for _ in range(APPENDS):
        lake.table("shop.orders").append(ROWS)
        lake.table("shop.as_it_is").append(ROWS)
    lake.table("shop.few").append(ROWS)
    for number in range(60):
        lake.create_namespace(f"n{number:02}")
    for number in range(60):
        if number % 3:
            lake.drop_namespace(f"n{number:02}")
    return lake


class Tomorrow(datetime):
    """A clock that is a day ahead, so that all snapshots are old."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Tomorrow:
        return cls.fromtimestamp(time.time() + 86400, tz)


def test_snapshots_within_table_retention_survive_maintenance(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.alter_table("shop.as_it_is", {"history.expire.min-snapshots-to-keep": "100"})
    with lake.table("shop.orders")._writing() as iceberg:
        first = iceberg.metadata.snapshots[0].snapshot_id
        iceberg.manage_snapshots().create_tag(first, "kept").commit()
    monkeypatch.setattr("trinitylake.tables.maintenance.datetime", Tomorrow)
    lake.alter({"maintenance.expire-snapshots": "false"})
    assert lake.maintenance.run().snapshots_expired == {}
    lake.alter({"maintenance.expire-snapshots": "true"})
    taken_out = lake.maintenance.run().snapshots_expired
    assert taken_out == {"shop.orders": APPENDS - 1}
    assert first in {one.snapshot_id for one in lake.table("shop.orders").snapshots()}


def data_files(lake: tl.Lakehouse, name: str) -> int:
    return len(list(lake.table(name).iceberg.scan().plan_files()))


def test_maintenance_compacts_small_files_and_expires_old_versions(
    lake: tl.Lakehouse, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance compacts small files of tables and expires snapshots in their metadata, so that reads become fast and
    the old files can be deleted."""
    age(root)
    version, files = lake.version, files_below(root)
    planned = lake.maintenance.run(dry_run=True)
    assert (lake.version, files_below(root)) == (version, files), "a dry run does nothing"
    assert (planned.compacted["shop.orders"].files_removed, planned.compacted["shop.orders"].files_added) == (8, 1)
    assert planned.tree is not None
    assert planned.tree.version is None
    assert planned.expired == list(range(version))

    words: list[tuple[str, int]] = []
    done = lake.maintenance.run(progress=lambda what, count: words.append((what, count)))
    assert ("compacted", APPENDS) in words
    assert set(done.compacted) == set(planned.compacted) == {"shop.orders"}
    assert done.compacted["shop.orders"][:2] == planned.compacted["shop.orders"][:2]
    assert done.skipped == {}
    assert done.tree is not None
    assert done.tree.version == version + 2
    assert done.tree.nodes_after < done.tree.nodes_before
    assert done.expired is not None
    assert set(planned.expired) <= set(done.expired)
    assert done.vacuumed is not None
    assert "tree nodes" in done.vacuumed.deleted
    assert [data_files(lake, f"shop.{name}") for name in ("orders", "as_it_is", "few")] == [1, APPENDS, 1]
    for name in ("orders", "as_it_is"):
        assert tl.open(root).table(f"shop.{name}").scan().count() == APPENDS * len(ROWS)

    age(root)
    with monkeypatch.context() as later_on:
        later_on.setattr("trinitylake.tables.maintenance.datetime", Tomorrow)
        assert lake.maintenance.run().snapshots_expired["shop.orders"] == APPENDS
    lake.maintenance.compact(force=True)  # a row below a change that waits in a buffer is reached, too
    age(root)
    later = lake.maintenance.run()
    assert later.vacuumed is not None
    assert later.vacuumed.deleted["data files"].files == APPENDS, "the files that were compacted"
    assert files_below(root) == Reachable(root).files
    assert tl.open(root).table("shop.orders").scan().count() == APPENDS * len(ROWS)
    again = lake.maintenance.run()
    assert again.tree is not None
    assert (again.compacted, again.tree.version) == ({}, None), "there is nothing left to do"


def test_compaction_threshold_is_set_per_lakehouse_or_table(lake: tl.Lakehouse) -> None:
    lake.alter({"maintenance.compact.min-files": "9"})
    assert lake.maintenance.run(dry_run=True).compacted == {}
    lake.alter_table("shop.orders", {"maintenance.compact.min-files": "8"})
    assert set(lake.maintenance.run(dry_run=True).compacted) == {"shop.orders"}
    lake.alter({"maintenance.compact.min-files": "5", "maintenance.compact": "false"})
    lake.alter_table("shop.as_it_is", {"maintenance.compact": "true"})
    assert set(lake.maintenance.run(dry_run=True).compacted) == {"shop.as_it_is"}


def test_unreadable_table_does_not_stop_maintenance_of_others(lake: tl.Lakehouse, root: Path) -> None:
    """A table that cannot be compacted is skipped, and the other tables are maintained."""
    lake.create_table("shop.a_third", ROWS.schema, properties={"format-version": "3"}).append(ROWS)
    for _ in range(5):
        lake.table("shop.a_third").append(ROWS)
    lake.alter_table("shop.few", {"maintenance.kompact": "true"})
    done = lake.maintenance.run()
    assert set(done.compacted) == {"shop.orders", "shop.a_third"}
    assert set(done.skipped) == {"shop.few"}
    assert "maintenance.kompact" in done.skipped["shop.few"].message
    lake.alter_table("shop.orders", {"maintenance.compact": "false"})
    shown = CliRunner().invoke(app, ["maintain", "--root", str(root)]).output
    assert "skipped shop.few" in shown


def test_each_step_can_be_turned_off_and_a_misspelt_property_is_refused(lake: tl.Lakehouse, root: Path) -> None:
    """Each step can be turned off, and an unknown property is refused: with `maintenance.vaccum: false` ignored, the
    lakehouse would be vacuumed."""
    steps = ("maintenance.compact", "maintenance.compact-tree", "maintenance.expire", "maintenance.vacuum")
    lake.alter({**dict.fromkeys(steps, "false"), "maintenance.expire-snapshots": "false"})
    off = lake.maintenance.run()
    assert (off.compacted, off.tree, off.expired, off.vacuumed) == ({}, None, None, None)
    shown = CliRunner().invoke(app, ["maintain", "--root", str(root)])
    assert all(f"(property {name})" in shown.output for name in steps), shown.output
    lake.alter(dict.fromkeys(steps, "true"))
    document = json.loads(CliRunner().invoke(app, ["maintain", "--dry-run", "--json", "--root", str(root)]).stdout)
    assert document["compacted"]["shop.orders"]["files_removed"] == APPENDS
    assert document["policy"]["min_files"] == 5
    for name, value in (
        ("maintenance.grace", "soon"),
        ("maintenance.vacuum", "maybe"),
        ("maintenance.compact.min-files", "0"),
        ("maintenance.vaccum", "true"),
    ):
        lake.alter({name: value})
        with pytest.raises(tl.InvalidArgument, match=name):
            lake.maintenance.run()
        lake.alter(remove_properties=[name])


def test_maintenance_commits_have_author_and_message(lake: tl.Lakehouse, root: Path) -> None:
    with lake.begin(id="job-1") as txn:
        txn.create_namespace("by_id")
    lake.create_namespace("after")
    age(root)
    before = lake.version
    lake.maintenance.expire(keep=1, message="make room", author="ann")
    lake.maintenance.vacuum(grace="1 second", message="make room", author="ann")
    made = [entry for entry in lake.log() if entry.version > before]
    assert len(made) >= 2
    assert {(one.message, one.author) for entry in made for one in entry.transactions} == {("make room", "ann")}
    assert any("remove" in one.summary or "vacuum" in one.summary for one in made[0].transactions)

    before = lake.version
    done = CliRunner().invoke(app, ["maintain", "-m", "nightly", "--author", "cron", "--root", str(root)])
    assert done.exit_code == 0, done.output
    made = [entry for entry in lake.log() if entry.version > before]
    assert len(made) >= 2
    assert {(one.message, one.author) for entry in made for one in entry.transactions} == {("nightly", "cron")}
    for command in ("expire", "vacuum"):
        done = CliRunner().invoke(app, [command, "-m", "by hand", "--author", "bo", "--root", str(root)])
        assert done.exit_code == 0, done.output


def test_appends_without_a_message_have_a_summary(lake: tl.Lakehouse, root: Path) -> None:
    for name in list(lake.tables()):
        lake.drop_table(name)
    lake.maintenance.expire(keep=1)
    age(root)
    before = lake.version
    assert lake.maintenance.vacuum(grace="1 second").deleted
    [made] = [entry for entry in lake.log() if entry.version > before]
    assert [(one.message, one.author) for one in made.transactions] == [("collect files that no version reaches", "")]
