"""Rollback of single objects, and the history of one object."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake.cli.app import app
from trinitylake.lakehouse.object_history import ObjectChange

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Version 1 has the namespace `shop` with the table `shop.t` and the view `shop.v`. Versions 2 and 3 append three
    rows each."""
    with lake.transaction(message="one", author="ann") as txn:
        txn.create_namespace("shop", {"owner": "ops"})
        txn.create_table("shop.t", ROWS)
        txn.create_view("shop.v", "SELECT 1")
    lake.table("shop.t").append(ROWS)
    lake.table("shop.t").append(ROWS)
    return lake


def _rows(lake: tl.Lakehouse, name: str = "shop.t") -> int:
    return int(lake.table(name).scan().count())


def _summaries(changes: list[ObjectChange]) -> list[tuple[int, str, str]]:
    return [(change.version, change.action, change.name) for change in changes]


def test_a_dropped_table_comes_back_with_its_id_and_its_rows(shop: tl.Lakehouse) -> None:
    id = shop.table("shop.t").id
    shop.drop_table("shop.t")
    shop.create_namespace("other")
    done = shop.rollback(2, objects=["shop.t"], message="undrop", author="bob")
    assert (done.version, done.as_of, done.names, done.copies) == (6, 2, ("shop.t",), ())
    assert (_rows(shop), shop.table("shop.t").id) == (3, id)
    assert shop.exists("other"), "all other objects stay as they are"
    assert (shop.log(1)[0].message, shop.log(1)[0].author) == ("undrop", "bob")
    shop.table("shop.t").append(ROWS)
    assert _rows(shop) == 6


def test_rollback_of_an_existing_table_restores_its_state(shop: tl.Lakehouse) -> None:
    done = shop.rollback(1, objects=["shop.t"])
    assert (_rows(shop), done.version) == (0, 4)
    again = shop.rollback(1, objects=["shop.t"])
    assert (again.version, again.names) == (4, ()), "there is nothing to do, and no version is made"
    assert shop.rollback(shop.at(3).created_at, objects=["shop.t"]).names == ("shop.t",)
    assert _rows(shop) == 6


def test_views_and_namespaces_come_back_too(shop: tl.Lakehouse) -> None:
    shop.replace_view("shop.v", "SELECT 2")
    shop.alter_namespace("shop", {"owner": "dev"})
    shop.rollback(3, objects=["shop.v"])
    assert shop.view("shop.v").sql == "SELECT 1"
    shop.create_table("shop.new", ROWS)
    shop.rollback(2, objects=["shop"])
    assert shop.namespace("shop").properties == {"owner": "ops"}
    assert shop.tables("shop") == ["shop.new", "shop.t"], "objects that were created later stay"
    assert _rows(shop) == 3


def test_a_namespace_comes_back_with_all_that_was_in_it(shop: tl.Lakehouse) -> None:
    shop.create_namespace("shop.back")
    shop.create_table("shop.back.t", ROWS)
    before = shop.version
    shop.drop_namespace("shop", cascade=True)
    assert shop.rollback(before, objects=["shop"]).names == ("shop", "shop.back", "shop.back.t", "shop.t", "shop.v")
    assert shop.diff(before, shop.version).__bool__() is False


def test_rollback_under_another_name_restores_a_dropped_object_and_copies_a_present_one(shop: tl.Lakehouse) -> None:
    copied = shop.rollback(2, objects={"shop.t": "shop.copy"})
    assert copied.copies == ("shop.copy",)
    assert shop.table("shop.copy").id != shop.table("shop.t").id
    assert shop.table("shop.copy").iceberg.metadata.table_uuid != shop.table("shop.t").iceberg.metadata.table_uuid
    shop.table("shop.copy").append(ROWS)
    assert (_rows(shop), _rows(shop, "shop.copy")) == (6, 6)
    assert shop.table("shop.copy").location != shop.table("shop.t").location
    id = shop.table("shop.t").id
    shop.drop_table("shop.t")
    moved = shop.rollback(3, objects={"shop.t": "shop.moved"})
    assert (moved.copies, shop.table("shop.moved").id) == ((), id)


def test_a_namespace_can_come_back_under_another_name(shop: tl.Lakehouse) -> None:
    done = shop.rollback(2, objects={"shop": "old.shop"})
    assert done.names == ("old.shop", "old.shop.t", "old.shop.v")
    assert (_rows(shop, "old.shop.t"), _rows(shop)) == (3, 6)


def test_a_renamed_object_goes_back_under_its_present_name(shop: tl.Lakehouse) -> None:
    """A renamed object is rolled back under its present name. It is not restored under its old name as well, because
    two tables with one id would share caches."""
    shop.rename_table("shop.t", "shop.u")
    assert shop.rollback(2, objects=["shop.t"]).names == ("shop.u",)
    assert (_rows(shop, "shop.u"), shop.tables("shop")) == (3, ["shop.u"])


def test_a_name_that_another_object_has_is_refused(shop: tl.Lakehouse) -> None:
    shop.drop_table("shop.t")
    shop.create_table("shop.t", pa.table({"x": ["a"]}))
    with pytest.raises(tl.ObjectAlreadyExists, match="another object"):
        shop.rollback(3, objects=["shop.t"])
    shop.rollback(3, objects={"shop.t": "shop.first"})
    assert _rows(shop, "shop.first") == 6
    with pytest.raises(tl.ObjectAlreadyExists):
        shop.rollback(3, objects={"shop.t": "shop.v"})
    with pytest.raises(tl.ObjectNotFound, match="version 3 has no"):
        shop.rollback(3, objects=["shop.x"])
    shop.drop_namespace("shop", cascade=True)
    with pytest.raises(tl.ObjectNotFound, match="namespace shop"):
        shop.rollback(3, objects=["shop.t"])
    with pytest.raises(tl.VersionNotFound):
        shop.rollback(99, objects=["shop.t"])


def test_rollback_of_an_object_to_an_expired_version_fails(shop: tl.Lakehouse) -> None:
    """Neither a rollback nor a restore uses a cached version that has expired, because its files may be deleted."""
    rival = tl.open(shop.uri) if not shop.uri.startswith("memory") else shop
    past = shop.at(2)
    shop.drop_table("shop.t")
    rival.maintenance.expire(before=4)
    assert past.exists("shop.t")
    with pytest.raises(tl.VersionExpired):
        shop.rollback(2, objects=["shop.t"])
    with pytest.raises(tl.VersionExpired):
        shop.rollback(2)
    assert not shop.exists("shop.t")


def test_objects_of_a_tagged_version_are_restored_after_expiry(shop: tl.Lakehouse) -> None:
    shop.tags.create("opening", version=2)
    shop.drop_table("shop.t")
    shop.maintenance.expire(before=shop.version)
    assert shop.rollback("tag:opening", objects=["shop.t"]).names == ("shop.t",)
    assert _rows(shop) == 3


def test_object_rollback_keeps_concurrent_commits(shop: tl.Lakehouse) -> None:
    shop.drop_table("shop.t")
    names = [f"n{number}" for number in range(8)]
    threads = [threading.Thread(target=shop.create_namespace, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    shop.rollback(3, objects=["shop.t"])
    for thread in threads:
        thread.join()
    assert set(names) < set(shop.namespaces())
    assert _rows(shop) == 6


def test_external_tables_come_back(shop: tl.Lakehouse, tmp_path: Path) -> None:
    elsewhere = tl.create(tmp_path / "elsewhere", durability="none")
    elsewhere.create_namespace("a")
    elsewhere.create_table("a.t", ROWS).append(ROWS)
    shop.create_table("shop.ext", metadata_location=elsewhere.table("a.t").iceberg.metadata_location)
    shop.drop_table("shop.ext")
    shop.rollback(shop.version - 1, objects=["shop.ext"])
    assert _rows(shop, "shop.ext") == 3


def test_the_log_of_an_object_has_each_version_that_changed_it(shop: tl.Lakehouse) -> None:
    shop.create_namespace("noise")
    shop.rename_table("shop.t", "shop.u")
    shop.create_namespace("noise2")
    shop.drop_table("shop.u")
    shop.rollback(6, objects=["shop.u"])
    assert _summaries(shop.log(of="shop.u")) == [
        (8, "restored", "shop.u"),
        (7, "dropped", "shop.u"),
        (5, "renamed", "shop.u"),
        (3, "changed", "shop.t"),
        (2, "changed", "shop.t"),
        (1, "created", "shop.t"),
    ]
    renamed = next(change for change in shop.log(of="shop.u") if change.version == 5)
    assert (renamed.former_name, renamed.name) == ("shop.t", "shop.u")
    created = shop.log(of="shop.u")[-1]
    assert created.transaction is not None
    assert (created.transaction.message, created.transaction.author) == ("one", "ann")
    assert [change.version for change in shop.log(of="shop.v")] == [1]
    assert [change.version for change in shop.log(of="shop")] == [1]
    assert _summaries(shop.log(of="shop.t"))[0] == (5, "renamed", "shop.u"), "the last change has the present name"
    shop.rollback(3)
    assert _summaries(shop.log(of="shop.t"))[0] == (9, "renamed", "shop.t")


def test_a_history_comes_in_pages(shop: tl.Lakehouse) -> None:
    for _ in range(5):
        shop.table("shop.t").append(ROWS)
    whole = shop.log(None, of="shop.t")
    assert [change.version for change in whole] == [8, 7, 6, 5, 4, 3, 2, 1]
    first = shop.log(3, of="shop.t")
    assert first + shop.log(None, before=first[-1].version, of="shop.t") == whole


def test_dropped_object_has_a_history(shop: tl.Lakehouse) -> None:
    shop.drop_table("shop.t")
    shop.create_table("shop.t", ROWS)
    assert _summaries(shop.log(of="shop.t")) == [(5, "created", "shop.t")], (
        "the history is that of the new object with this name"
    )
    shop.drop_table("shop.t")
    assert _summaries(shop.log(of="shop.t")) == [(6, "dropped", "shop.t"), (5, "created", "shop.t")]
    shop.drop_view("shop.v")
    assert _summaries(shop.log(of="shop.v")) == [(7, "dropped", "shop.v"), (1, "created", "shop.v")]
    with pytest.raises(tl.ObjectNotFound):
        shop.log(of="shop.never")


def test_rollbacks_do_not_hide_changes(tmp_path: Path) -> None:
    """A change is found although the definitions in two versions are equal, because a rollback has restored old nodes
    between them."""
    lake = tl.create(tmp_path / "lake", order=5, durability="none")
    for number in range(40):
        lake.create_namespace(f"n{number:02}")
    start = lake.version
    lake.alter_namespace("n20", {"a": "1"})
    lake.rollback(start)
    assert _summaries(lake.log(of="n20")) == [
        (start + 2, "changed", "n20"),
        (start + 1, "changed", "n20"),
        (21, "created", "n20"),
    ]
    assert lake.log(of="n20")[0].rollback_from == start + 1


def test_history_skips_versions_that_changed_other_objects(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", order=5, durability="none", properties={"root.buffer-size-bytes": "600"})
    for number in range(60):
        lake.create_namespace(f"m{number:03}")
    lake.create_namespace("a")
    for number in range(400):
        lake.alter_namespace(f"m{number % 60:03}", {"a": str(number)})
    cold = tl.open(tmp_path / "lake", durability="none")
    before = cold._storage.counters()["get"]
    assert [change.version for change in cold.log(of="a")] == [61]
    assert cold._storage.counters()["get"] - before < 150


def test_history_and_undrop_commands(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.t", ROWS)
    lake.drop_table("shop.t")
    run = CliRunner().invoke
    done = run(app, ["undrop", "shop.t", "--at", "2", "--root", root, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["names"]) == (0, ["shop.t"])
    result = run(app, ["log", "--table", "shop.t", "--root", root])
    rows = [line.split(" ago ")[1] for line in result.stdout.splitlines() if " ago " in line]
    assert [row.split()[0] for row in rows] == ["restored", "dropped", "created"]
    moment = datetime.now(UTC).isoformat()
    assert "nothing to do" in run(app, ["undrop", "shop.t", "--at", moment, "--root", root]).stdout
    assert run(app, ["log", "--table", "shop.x", "--root", root]).exit_code == 4


def test_undrop_finds_the_last_version_of_an_object(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.t", ROWS).append(ROWS)
    lake.drop_table("shop.t")
    lake.create_namespace("other")

    def undrop(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["undrop", *arguments, "--root", root])
        return result.exit_code, result.output

    assert undrop("shop.t")[0] == 0
    assert lake.table("shop.t").count() == ROWS.num_rows
    code, output = undrop("shop.t")
    assert (code, "rollback VERSION shop.t" in output) == (2, True)
    assert undrop("shop.t", "--to", "shop.copy")[0] == 0
    assert lake.table("shop.copy").count() == ROWS.num_rows
    lake.rename_table("shop.t", "shop.u")
    code, output = undrop("shop.t")
    assert (code, "its name is shop.u now" in output) == (2, True)
    assert undrop("shop.never")[0] == 4


def test_undrop_restores_an_object_that_was_restored_under_another_name_before(tmp_path: Path) -> None:
    """`undrop` ended with success and `nothing to do`, but no object had the name."""
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.t", ROWS).append(ROWS)
    lake.drop_table("shop.t")
    for arguments in (["shop.t", "--to", "shop.copy"], ["shop.t"]):
        assert CliRunner().invoke(app, ["undrop", *arguments, "--root", root]).exit_code == 0
    assert (_rows(lake), _rows(lake, "shop.copy")) == (3, 3)


def test_undrop_to_another_name_restores_the_dropped_object_not_its_successor(tmp_path: Path) -> None:
    """If a table was dropped and created again, `undrop --to` restores the dropped table, not a copy of the new one."""
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.t", ROWS).append(ROWS)
    lake.drop_table("shop.t")
    lake.create_table("shop.t", {"other": "int"}).append({"other": [1]})

    def undrop(to: str) -> int:
        result = CliRunner().invoke(app, ["undrop", "shop.t", "--to", to, "--root", root])
        assert result.exit_code == 0, result.output
        return lake.table(to).count()

    assert undrop("shop.first") == ROWS.num_rows
    with lake.transaction() as txn:
        txn.drop_table("shop.t")
        txn.create_table("shop.t", {"third": "int"})
    assert undrop("shop.second") == 1


def test_maintenance_compacts_a_copy_that_shares_files(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.t", ROWS)
    for _ in range(6):
        lake.table("shop.t").append(ROWS)
    lake.rollback(lake.version, objects={"shop.t": "shop.copy"})
    lake.table("shop.copy").append(ROWS)
    lake.rollback(lake.version, objects={"shop.copy": "shop.second"})
    rows = lake.table("shop.copy").count()
    lake.drop_table("shop.t")
    done = lake.maintenance.run()
    assert (done.skipped, set(done.compacted)) == ({}, {"shop.copy", "shop.second"})
    assert lake.table("shop.copy").maintenance.rewrite_manifests().manifests_after
    lake.maintenance.expire(keep=1)
    lake.maintenance.vacuum(grace="0 s")
    for name in ("shop.copy", "shop.second"):
        table = tl.open(tmp_path / "lake").table(name)
        assert table.to_arrow().num_rows == rows
        folder = table.iceberg.location()
        assert all(task.file.file_path.startswith(folder) for task in table.scan().iceberg.plan_files())
    assert lake.maintenance.fsck("all", data=True).is_sound
