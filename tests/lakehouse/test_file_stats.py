"""`lake.maintenance.stats(files=True)` and `trinitylake stats --files` show the purpose of each file of a lakehouse."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from test_relocate import with_position_deletes
from typer.testing import CliRunner

import trinitylake as tl
from conformance.reachable import Reachable
from local_files import age
from trinitylake.cli.app import app
from trinitylake.lakehouse.vacuum_report import Files

ROWS = pa.table({"id": list(range(10))})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(root: Path) -> tl.Lakehouse:
    """A lakehouse with a table, a renamed table whose rows were replaced, and a dropped table."""
    lake = tl.create(root, durability="none", maximum_version_age_millis=60_000, minimum_versions_to_keep=1)
    lake.create_namespace("shop")
    for name in ("orders", "items", "gone"):
        lake.create_table(f"shop.{name}", ROWS.schema).append(ROWS)
    lake.table("shop.items").overwrite(ROWS.slice(0, 5))
    lake.drop_table("shop.gone")
    lake.rename_table("shop.items", "shop.things")
    return lake


def files_and_bytes(root: Path) -> Files:
    sizes = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    return Files(len(sizes), sum(sizes))


def test_stats_count_every_file_once(lake: tl.Lakehouse, root: Path) -> None:
    """The statistics of files count every file once, by purpose, including files of old versions and files that a
    vacuum would delete."""
    lake.tags.create("early", version=7)
    folder = Path(lake.table("shop.orders").iceberg.location().removeprefix("file://"))
    (folder / "data" / f"00000-0-{uuid.uuid4()}.parquet").write_bytes(b"nobody knows me")
    (root / "readme.md").write_text("not ours")
    age(root, 48 * 3600)
    (folder / "data" / f"00001-0-{uuid.uuid4()}.parquet").write_bytes(b"not yet")
    files = lake.maintenance.stats(files=True).files
    assert files is not None
    assert files.total == files_and_bytes(root)
    assert (files.garbage, files.young.files, files.unknown.files) == (Files(1, 15), 1, 1)
    assert files.by_kind["data files"].files == files.small.files == 3, "including the file of an earlier snapshot"
    assert files.history.files > 0, "of the snapshot"
    assert files.expiring.files > 0
    tables = {table.name: table for table in files.tables}
    assert set(tables) == {"shop.orders", "shop.things", None}
    assert tables["shop.orders"].by_kind["data files"].files == 1
    assert tables["shop.orders"].garbage == Files(1, 15)
    assert tables["shop.things"].folder.startswith("shop/items-")
    gone = tables[None]
    assert gone.folder.startswith("shop/gone-")
    assert gone.by_kind == {}
    assert gone.history.files > 0, "of the snapshot"
    assert gone.total.files == gone.history.files + gone.expiring.files
    assert {"data files", "table metadata"} == set(tables["shop.things"].by_kind)

    lake.maintenance.expire()
    freed = lake.maintenance.vacuum()
    expired_roots = files.expiring.files - (freed.total_deleted.files - files.garbage.files)
    assert freed.total_deleted.size_bytes > 0
    assert 0 <= expired_roots <= 12, "expire deletes roots, and vacuum all other files"
    after = lake.maintenance.stats(files=True).files
    assert after is not None
    assert (after.garbage.files, after.expiring.files) == (0, 1), "the version before the fence of the vacuum expires"
    assert after.total == files_and_bytes(root)
    kept = sum(count.files for kind, count in after.by_kind.items() if kind != "system files")
    assert kept + after.history.files + after.expiring.files == len(Reachable(root).files)


def test_delete_files_are_distinguished_from_data_files(lake: tl.Lakehouse) -> None:
    lake.create_namespace("a")
    lake.create_table("a.t", ROWS.schema).append(ROWS)
    with_position_deletes(lake)
    files = lake.maintenance.stats(files=True).files
    assert files is not None
    (table,) = [one for one in files.tables if one.name == "a.t"]
    assert [table.by_kind[kind].files for kind in ("data files", "delete files")] == [1, 1]
    assert table.small.files == 1, "of data alone"
    assert files.by_kind["delete files"].files == 1


def test_the_command_prints_the_changes(lake: tl.Lakehouse, root: Path) -> None:
    age(root, 48 * 3600)
    plain = json.loads(CliRunner().invoke(app, ["stats", "--root", str(root), "--json"]).stdout)
    assert "files" not in plain
    document = json.loads(CliRunner().invoke(app, ["stats", "--files", "--root", str(root), "--json"]).stdout)
    assert {table["name"] for table in document["files"]["tables"]} == {"shop.orders", "shop.things", None}
    assert document["files"]["by_kind"]["data files"][0] == 3
    shown = CliRunner().invoke(app, ["stats", "--files", "--root", str(root)]).output
    assert "expire and vacuum would free" in shown
    assert "shop.things" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_missing_manifest_raises_corrupt_file(lake: tl.Lakehouse, root: Path) -> None:
    for path in root.rglob("snap-*.avro"):
        path.unlink()
    with pytest.raises(tl.CorruptFile):
        lake.maintenance.stats(files=True)
    assert lake.maintenance.stats().tables == 2
