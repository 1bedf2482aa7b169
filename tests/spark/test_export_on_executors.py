"""Exports by executors copy the same files as one machine, also if tasks fail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from dying_workers import let_workers_die
from pyspark.sql import SparkSession

import trinitylake as tl
from conformance.reachable import files_below
from trinitylake.lakehouse.export import Export
from trinitylake.spark import export

ROWS = pa.table({"id": list(range(10)), "day": ["a", "b"] * 5})
N_TABLES = 4


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """Tables with deleted rows and with branches, a view, namespaces, and a record of a transaction."""
    lake = tl.create(tmp_path / "lake", durability="none", order=4)
    lake.create_namespace("shop")
    for number in range(N_TABLES):
        lake.create_table(f"shop.t{number}", ROWS, partition_spec=["day"]).append(ROWS)
    lake.table("shop.t0").delete("id < 3")
    lake.create_view("shop.v", "SELECT 1")
    for number in range(10):
        lake.create_namespace(f"n{number}")
    with lake.transaction(id="once") as txn:
        txn.table("shop.t1").append(ROWS)
    return lake


@pytest.fixture(autouse=True)
def executors_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executors also do small steps, which the driver does itself otherwise."""
    monkeypatch.setattr(export, "FEW_FILES", 0)
    monkeypatch.setattr(export, "OBJECTS_OF_A_TASK", 2)


def contents(root: Path) -> dict[str, bytes]:
    """The content of all files except roots and lakehouse definitions, which contain times and ids."""
    return {path: (root / path).read_bytes() for path in files_below(root) if not path.startswith("_")}


def counts(done: Export) -> tuple[int, ...]:
    """All counts except requests, which count only those of the driver."""
    return done.version, done.source_version, done.files, done.size_bytes, done.present


def test_executors_copy_the_same_files_as_one_machine(spark: SparkSession, lake: tl.Lakehouse, tmp_path: Path) -> None:
    """Executors and one machine copy the same bytes. Both copies are made at the same place, one after the other."""
    copy, before = tmp_path / "copy", tmp_path / "before"
    alone = lake.export(copy, durability="none", mode="minimal")
    expected = contents(copy)
    shutil.rmtree(copy)
    steps: list[tuple[int, int]] = []
    shared = lake.export(
        copy, durability="none", engine=spark, progress=lambda *step: steps.append(step), mode="minimal"
    )
    assert counts(shared) == counts(alone)
    assert contents(copy) == expected
    assert steps[-1][0] == N_TABLES + 1 + 11
    assert tl.open(copy).table("shop.t0").scan().count() == 7
    assert tl.open(copy).maintenance.fsck(files=True).is_sound

    lake.table("shop.t2").append(ROWS)
    lake.drop_table("shop.t3")
    shutil.copytree(copy, before)
    alone = lake.export(copy, durability="none", mode="minimal")
    expected = contents(copy)
    shutil.rmtree(copy)
    before.rename(copy)
    shared = lake.export(copy, durability="none", engine=spark, mode="minimal")
    assert counts(shared) == counts(alone)
    assert shared.version == 1
    assert shared.files < 20, "only changed files are copied"
    assert contents(copy) == expected
    assert lake.export(copy, durability="none", engine=spark, mode="minimal").files == 0
    assert tl.open(copy).table("shop.t2").scan().count() == 20


def test_a_task_that_dies_is_run_again(
    spark: SparkSession, lake: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that dies is run again. Each kind of task loses its worker once, after it has written its files."""
    copy = tmp_path / "copy"
    lake.export(copy, durability="none", mode="minimal")
    expected = contents(copy)
    shutil.rmtree(copy)
    let_workers_die(monkeypatch, export, ["_described_ranges", "_copied"], tmp_path)
    lake.export(copy, durability="none", engine=spark, mode="minimal")
    assert (tmp_path / "_described_ranges").exists()
    assert (tmp_path / "_copied").exists()
    assert contents(copy) == expected
    assert tl.open(copy).maintenance.fsck(files=True).is_sound


def test_a_file_that_is_missing_leaves_the_copy_as_it_was(
    spark: SparkSession, lake: tl.Lakehouse, tmp_path: Path
) -> None:
    """A failed export leaves the copy at its old version, and the next export continues."""
    many = tmp_path / "many"
    lake.export(many, durability="none", engine=spark, mode="minimal")
    table = lake.table("shop.t1")
    table.append(ROWS)
    folder = Path(table.iceberg.location().removeprefix("file://"))
    newest = max(folder.rglob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    kept = newest.read_bytes()
    newest.unlink()
    with pytest.raises(tl.CorruptFile, match="missing"):
        lake.export(many, durability="none", engine=spark, mode="minimal")
    assert tl.open(many).version == 0
    assert tl.open(many).maintenance.fsck(files=True).is_sound
    newest.write_bytes(kept)
    assert lake.export(many, durability="none", engine=spark, mode="minimal").version == 1
    assert tl.open(many).maintenance.fsck(files=True).is_sound


def test_a_part_and_a_whole_history_go_to_executors_too(
    spark: SparkSession, lake: tl.Lakehouse, tmp_path: Path
) -> None:
    part = lake.export(tmp_path / "part", tables=["shop.t0"], durability="none", engine=spark)
    assert tl.open(tmp_path / "part").tables() == ["shop.t0"]
    assert part.files > 0
    lake.maintenance.expire(keep=3)
    lake.export(tmp_path / "full", mode="full", durability="none", engine=spark)
    assert tl.open(tmp_path / "full").version == lake.version
    assert tl.open(tmp_path / "full").maintenance.fsck("all", files=True).is_sound
    again = tl.restore(tmp_path / "part", tmp_path / "back", durability="none", engine=spark)
    assert again.table("shop.t0").scan().count() == 7
