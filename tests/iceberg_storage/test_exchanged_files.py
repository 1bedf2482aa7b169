"""A file that was replaced by a file of another table is corrupt for every reader."""

from __future__ import annotations

import json
import shutil
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from trinitylake.iceberg_storage import metadata

Read = Callable[[tl.Lakehouse, Path], object]

#: Readers of the table `n.b`.
READERS: dict[str, Read] = {
    "scan": lambda lake, _: lake.table("n.b").scan().to_arrow(),
    "sql": lambda lake, _: lake.sql("SELECT * FROM n.b").fetchall(),
    "delete": lambda lake, _: lake.table("n.b").delete("id = 1"),
    "compact": lambda lake, _: lake.table("n.b").maintenance.compact(),
    "pyiceberg": lambda lake, _: tl.iceberg.load(lake.uri).load_table("n.b").scan().to_arrow(),
    "export": lambda lake, other: lake.export(str(other), mode="minimal"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two tables with equal columns: `n.a` with one row and `n.b` with two rows."""
    lake = tl.create(str(tmp_path / "lake"))
    lake.create_namespace("n")
    for name, ids in (("n.a", [1]), ("n.b", [1, 2])):
        lake.create_table(name, {"id": "bigint"}).append({"id": ids})
    return tmp_path / "lake"


def local(uri: str) -> Path:
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(uri).path))


def metadata_file(table: tl.Table) -> Path:
    location = table.iceberg.metadata_location
    metadata.cache.clear()  # the test asks what other processes read
    return local(location)


@pytest.mark.parametrize("reader", READERS)
def test_metadata_file_of_another_table_is_corrupt_for_every_reader(root: Path, tmp_path: Path, reader: str) -> None:
    """Otherwise scans would return rows of the other table."""
    lake = tl.open(str(root))
    exchanged = metadata_file(lake.table("n.b"))
    shutil.copyfile(metadata_file(lake.table("n.a")), exchanged)
    with pytest.raises(tl.CorruptFile, match="it is the metadata of table") as caught:
        READERS[reader](tl.open(str(root)), tmp_path / "export")
    assert caught.value.path is not None
    assert exchanged.name in caught.value.path
    findings = tl.open(str(root)).maintenance.fsck("all", files=True).findings
    assert exchanged.name in " ".join(one.path for one in findings)


@pytest.mark.parametrize("kind", ["manifest list", "manifest"])
@pytest.mark.parametrize("reader", ["scan", "sql", "delete", "pyiceberg"])
def test_manifest_of_another_table_is_corrupt_for_every_reader(
    root: Path, tmp_path: Path, reader: str, kind: str
) -> None:
    def file(name: str) -> Path:
        iceberg = tl.open(str(root)).table(name).iceberg
        snapshot = iceberg.current_snapshot()
        assert snapshot is not None
        location = (
            snapshot.manifest_list if kind == "manifest list" else snapshot.manifests(iceberg.io)[0].manifest_path
        )
        return local(location)

    exchanged = file("n.b")
    shutil.copyfile(file("n.a"), exchanged)
    with pytest.raises(tl.CorruptFile, match=r"belongs to snapshot|is another manifest than its list names") as caught:
        READERS[reader](tl.open(str(root)), tmp_path)
    assert exchanged.name in str(caught.value.path)
    findings = tl.open(str(root)).maintenance.fsck("all", files=True).findings
    assert exchanged.name in " ".join(one.path for one in findings)


def test_metadata_whose_current_snapshot_is_not_main_is_corrupt(root: Path) -> None:
    """One flipped bit in the key `current-snapshot-id` would make the table empty."""
    damaged = metadata_file(tl.open(str(root)).table("n.b"))
    text = damaged.read_text()
    assert json.loads(text)["current-snapshot-id"]
    damaged.write_text(text.replace("current-snapshot-id", "currentMsnapshot-id"))
    with pytest.raises(tl.CorruptFile, match="another snapshot than current-snapshot-id"):
        tl.open(str(root)).table("n.b").scan().to_arrow()
    assert not tl.open(str(root)).maintenance.fsck("all", files=True).is_sound


@pytest.mark.parametrize("reader", ["scan", "sql", "delete"])
@pytest.mark.parametrize("damage", ["another table's", "of as many rows", "cut", "no Parquet"])
def test_damaged_data_file_is_corrupt_for_every_reader(root: Path, tmp_path: Path, reader: str, damage: str) -> None:
    """Truncated, or of another table with the same number of rows."""

    def file(name: str) -> Path:
        (task,) = tl.open(str(root)).table(name).iceberg.scan().plan_files()
        return local(task.file.file_path)

    damaged = file("n.b")
    whole = damaged.read_bytes()
    tl.open(str(root)).create_table("n.c", {"id": "bigint", "note": "text"}).append({"id": [1, 8], "note": ["a", "b"]})
    contents = {
        "another table's": file("n.a").read_bytes(),
        "of as many rows": file("n.c").read_bytes(),
        "cut": whole[:-9],
    }
    damaged.write_bytes(contents.get(damage, bytes(99)))
    with pytest.raises(tl.CorruptFile, match=r"bytes, and its manifest|is damaged, or is no Parquet file") as caught:
        READERS[reader](tl.open(str(root)), tmp_path)
    assert damaged.name in str(caught.value.path)


def test_fsck_of_data_finds_a_flipped_bit_in_a_data_file(root: Path) -> None:
    """DuckDB does not notice it, because it verifies no checksums."""
    lake = tl.open(str(root))
    (task,) = lake.table("n.b").iceberg.scan().plan_files()
    file = local(task.file.file_path)
    data = bytearray(file.read_bytes())
    assert lake.maintenance.fsck(data=True).is_sound
    data[8] ^= 1  # in the first page
    file.write_bytes(data)
    assert lake.maintenance.fsck(files=True).is_sound
    (finding,) = lake.maintenance.fsck(data=True).findings
    assert (finding.kind, Path(finding.path).name) == ("damaged", file.name)


@pytest.mark.parametrize("format_version", [2, 3])
def test_flipped_bit_in_deletes_is_corrupt_and_found_by_fsck(tmp_path: Path, format_version: int) -> None:
    """Deleted rows would come back, and a compaction would make this permanent."""
    modes = {f"write.{one}.mode": "merge-on-read" for one in ("delete", "update", "merge")}
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    properties = {**modes, "format-version": str(format_version)}
    for name in ("n.a", "n.b"):
        lake.create_table(name, {"k": "bigint", "v": "text"}, properties=properties).append(
            {"k": [1, 2, 3], "v": ["a", "b", "c"]}
        )
    table = lake.table("n.a")
    table.upsert({"k": [2], "v": ["new"]}, on="k")
    table.delete("k = 3")
    lake.table("n.b").delete("k = 1")
    expected = [(1, "a"), (2, "new")]
    (file,) = {Path(local(one.file_path)) for task in table.iceberg.scan().plan_files() for one in task.delete_files}
    whole = file.read_bytes()
    assert lake.maintenance.fsck("all", data=True).is_sound

    def rows() -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in tl.open(lake.uri).table("n.a").to_arrow().to_pylist())

    damaged = 0
    for position in range(0, len(whole), 11):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with suppress(tl.CorruptFile):
            assert rows() == expected, position
            continue
        damaged += 1
        if damaged % 10 == 1:
            (finding,) = lake.maintenance.fsck(data=True).findings
            assert (finding.kind, Path(finding.path).name) == ("damaged", file.name)
    assert damaged > 5


def test_exchanged_deletion_vectors_are_corrupt_and_found_by_fsck(tmp_path: Path) -> None:
    """Each has a valid checksum, and would be applied to the other's data file."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("n")
    properties = {"format-version": "3", "write.delete.mode": "merge-on-read"}
    table = lake.create_table("n.t", {"k": "bigint"}, properties=properties)
    for start in (0, 50):
        table.append({"k": range(start, start + 50)})
    for key in (7, 70):
        table.delete(f"k = {key}")
    vectors = {one.file_path for task in table.iceberg.scan().plan_files() for one in task.delete_files}
    first, second = (local(location) for location in sorted(vectors))
    kept = first.read_bytes()
    assert len(kept) == second.stat().st_size
    assert lake.maintenance.fsck(data=True).is_sound
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    with pytest.raises(tl.CorruptFile, match="are not of"):
        tl.open(lake.uri).table("n.t").to_arrow()
    findings = lake.maintenance.fsck(data=True).findings
    assert {Path(finding.path).name for finding in findings} == {first.name, second.name}
