"""`fsck --files` finds missing and damaged files of tables."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.table.statistics import StatisticsFile

import trinitylake as tl
import trinitylake.iceberg
from trinitylake.lakehouse.fsck import Versions

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    """A table with three snapshots, another table, and a view."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        for name in ("orders", "items"):
            txn.create_table(f"shop.{name}", ROWS).append(ROWS)
        txn.create_view("shop.top", "SELECT 1")
    lake.table("shop.orders").append(ROWS)
    lake.table("shop.orders").delete("id = 1")
    return lake


def test_a_whole_version_has_all_its_files(shop: tl.Lakehouse) -> None:
    found = shop.maintenance.fsck(files=True)
    assert found.findings == ()
    assert found.files > 10
    assert shop.maintenance.fsck().files == 0


@pytest.mark.parametrize("pattern", ["*.parquet", "*-m0.avro", "snap-*.avro", "*.metadata.json"])
def test_each_missing_file_is_reported(shop: tl.Lakehouse, pattern: str) -> None:
    root = Path(shop.uri.removeprefix("file://"))
    folder = Path(shop.table("shop.orders").location.removeprefix("file://"))
    if pattern == "*.metadata.json":
        victim = Path(shop.table("shop.orders").iceberg.metadata_location.removeprefix("file://"))
        from trinitylake.iceberg_storage.metadata import cache

        cache.clear()
    else:
        victim = sorted(folder.rglob(pattern))[0]
    victim.unlink()
    [finding] = shop.maintenance.fsck(files=True).findings
    assert (finding.kind, finding.path) == ("missing", str(victim.relative_to(root)))
    assert shop.maintenance.fsck().findings == ()


def test_damaged_manifest_list_is_reported(shop: tl.Lakehouse) -> None:
    folder = Path(shop.table("shop.items").location.removeprefix("file://"))
    [victim] = folder.rglob("snap-*.avro")
    victim.write_bytes(b"not avro")
    [finding] = shop.maintenance.fsck(files=True).findings
    assert finding.kind == "damaged"
    assert finding.path.endswith(victim.name)


def files_below(table: tl.Table, pattern: str) -> set[Path]:
    return set(Path(table.location.removeprefix("file://")).rglob(pattern))


def add_statistics(lake: tl.Lakehouse) -> Path:
    """Add a statistics file to the current snapshot of shop.t."""
    table = trinitylake.iceberg.load(lake.uri).load_table("shop.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = Path(table.location().removeprefix("file://")) / "metadata" / "one.puffin"
    path.write_bytes(b"PFA1xxxxPFA1")
    file = StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=f"file://{path}",
        file_size_in_bytes=12,
        file_footer_size_in_bytes=4,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(file)
    return path


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(tl.open(lake.uri).table("shop.t").scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("version", [None, "all"])
@pytest.mark.parametrize("lost", ["data file", "manifest list", "statistics", "tag"])
def test_repair_keeps_a_table_whose_current_rows_are_readable(shop: tl.Lakehouse, lost: str, version: Versions) -> None:
    """If only an old snapshot or statistics lack files, a rollback would remove readable rows."""
    table = shop.create_table("shop.t", {"id": "bigint"})
    table.append({"id": [1]})
    victims = files_below(table, "snap-*.avro" if lost == "manifest list" else "*.parquet")
    if lost == "statistics":
        victims = {add_statistics(shop)}
        table.refresh()  # else the next append loses a race, and leaves a definition that no version references
    if lost == "tag":
        iceberg = trinitylake.iceberg.load(shop.uri).load_table("shop.t")
        iceberg.manage_snapshots().create_tag(iceberg.current_snapshot().snapshot_id, "old").commit()
    else:
        table.append({"id": [2]})
    if lost in ("data file", "tag"):
        table.overwrite({"id": [10, 11]})
    table.append({"id": [12]})
    rows, before = ids(shop), tl.open(shop.uri).version
    for victim in victims:
        victim.unlink()
    report = tl.open(shop.uri).maintenance.fsck(version, files=True, repair=True)
    assert [(one.kind, one.affected) for one in report.findings] == [("missing", ("table shop.t",))]
    assert (report.repair.version, report.repair.saved, report.repair.lost) == (None, (), ())
    assert (ids(shop), tl.open(shop.uri).version) == (rows, before)


@pytest.mark.parametrize(
    "arguments", [{"files": True}, {"version": "all", "files": True}, {"version": "all", "data": True}]
)
def test_repair_rolls_back_a_renamed_table_in_every_scope(shop: tl.Lakehouse, arguments: dict[str, Any]) -> None:
    """An older definition names the missing file first."""
    table = shop.create_table("shop.former", {"id": "bigint"})
    table.append({"id": [1]})
    whole, present = tl.open(shop.uri).version, files_below(table, "*.parquet")
    table.append({"id": [2]})
    [victim] = files_below(table, "*.parquet") - present
    with shop.transaction() as txn:
        txn.rename_table("shop.former", "shop.t")
    shop.table("shop.t").append({"id": [3]})
    victim.unlink()
    check = tl.open(shop.uri).maintenance.fsck
    assert f"version {whole} is the newest" in check(**arguments).findings[0].message
    assert check(**arguments, repair=True).repair.saved == (f"table shop.t as of version {whole}",)
    assert ids(shop) == [1]


def test_the_command_line_looks_for_files_and_fails_if_one_is_missing(shop: tl.Lakehouse) -> None:
    command = [sys.executable, "-m", "trinitylake", "fsck", "--root", shop.uri, "--json"]
    whole = subprocess.run([*command, "--files"], capture_output=True, text=True, check=True)
    assert json.loads(whole.stdout)["findings"] == []
    assert json.loads(whole.stdout)["files"] > 10
    folder = Path(shop.table("shop.orders").location.removeprefix("file://"))
    victim = sorted(folder.rglob("*.parquet"))[0]
    victim.unlink()
    broken = subprocess.run([*command, "--files"], capture_output=True, text=True, check=False)
    assert broken.returncode == 5
    [finding] = json.loads(broken.stdout)["findings"]
    assert finding["path"].endswith(victim.name)
    without = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(without.stdout)["files"] == 0


VALUES = {
    "boolean": True,
    "int": -(2**31),
    "bigint": 2**63 - 1,
    "real": 0.5,
    "double": -0.0,
    "decimal(38, 10)": Decimal("-1.5"),
    "date": date(1, 1, 1),
    "time": time(23, 59, 59, 999999),
    "timestamp": datetime(9999, 12, 31),
    "timestamptz": datetime(1969, 1, 1, tzinfo=UTC),
    "varchar": "é\U0001f600",
    "blob": b"\x00\xff",
    "fixed(3)": b"abc",
    "uuid": UUID(int=2**128 - 1),
}


@pytest.mark.parametrize("type", VALUES)
def test_files_of_a_table_are_found_whatever_it_is_partitioned_by(lake: tl.Lakehouse, type: str) -> None:
    """One table that was partitioned by a UUID stopped vacuum, statistics and erasure of the whole lakehouse."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"id": "bigint", "p": type}, partition_spec=["p"])
    table.append([{"id": 1, "p": VALUES[type]}, {"id": 2, "p": None}])
    table.append([{"id": 3, "p": VALUES[type]}])
    table.delete("id = 1")
    lake.maintenance.vacuum(grace="0s")
    assert lake.maintenance.stats(files=True)
    assert lake.maintenance.fsck(files=True).findings == ()
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 3]
