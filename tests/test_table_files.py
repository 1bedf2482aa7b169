"""Verification finds the files of tables that are gone.

An engine's housekeeping had deleted data files and manifests that a version needed. `verify` looked at nodes and
definitions alone, and called that version whole.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake.lakehouse.verification import verify

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


def test_progress_ends_where_the_work_does(shop: tl.Lakehouse) -> None:
    """Of a lakehouse of many tables nobody could tell whether `verify` went on."""
    seen: list[tuple[int, int]] = []
    verify(shop.uri, files=True, durability="none", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_the_command_line_looks_for_files_and_fails_if_one_is_gone(shop: tl.Lakehouse) -> None:
    """What was gone could only be found from Python, where PySpark is installed: an operator had no command for it."""
    command = [sys.executable, "-m", "trinitylake", "verify", "--files", "--root", shop.uri]
    whole = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(whole.stdout)
    assert document["problems"] == []
    assert document["files"] > 10
    assert document["version"] == shop.version
    folder = Path(shop.table("shop.orders").location.removeprefix("file://"))
    victim = sorted(folder.rglob("*.parquet"))[0]
    victim.unlink()
    broken = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert broken.returncode == 5
    assert [problem["message"] for problem in json.loads(broken.stdout)["problems"]] == ["it is missing"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, victim.name in told.stdout, "1 problem" in told.stdout) == (5, True, True)
    without = subprocess.run([*command[:4], *command[5:], "--json"], capture_output=True, text=True, check=True)
    assert json.loads(without.stdout)["files"] == 0
