"""`fsck --files` finds missing and damaged files of tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    """A table of three snapshots, another one, and a view."""
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
def test_each_file_that_is_gone_is_named(shop: tl.Lakehouse, pattern: str) -> None:
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


def test_a_damaged_manifest_list_is_named(shop: tl.Lakehouse) -> None:
    folder = Path(shop.table("shop.items").location.removeprefix("file://"))
    [victim] = folder.rglob("snap-*.avro")
    victim.write_bytes(b"not avro")
    [finding] = shop.maintenance.fsck(files=True).findings
    assert finding.kind == "damaged"
    assert finding.path.endswith(victim.name)


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
