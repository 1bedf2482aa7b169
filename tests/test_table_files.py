"""Verification finds the files of tables that are gone.

An engine's housekeeping had deleted data files and manifests that a version needed. `verify` looked at nodes and
definitions alone, and called that version whole.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.spark.verification import verify

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
    found = verify(shop.uri, files=True, durability="none")
    assert found.problems == ()
    assert found.files > 10
    assert verify(shop.uri, durability="none").files == 0


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
    found = verify(shop.uri, files=True, durability="none")
    assert [problem.path for problem in found.problems] == [str(victim.relative_to(root))]
    assert "missing" in found.problems[0].message
    assert verify(shop.uri, durability="none").problems == ()


def test_a_damaged_manifest_list_is_named(shop: tl.Lakehouse) -> None:
    folder = Path(shop.table("shop.items").location.removeprefix("file://"))
    [victim] = folder.rglob("snap-*.avro")
    victim.write_bytes(b"not avro")
    [problem] = verify(shop.uri, files=True, durability="none").problems
    assert problem.path.endswith(victim.name)
    assert "cannot be read" in problem.message
