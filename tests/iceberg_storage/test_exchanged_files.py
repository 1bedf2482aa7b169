"""A file of a table that was replaced by one of another table is corrupt for every reader."""

from __future__ import annotations

import json
import shutil
import urllib.parse
from collections.abc import Callable
from pathlib import Path

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
    """Two tables of the same columns, `n.a` with one row and `n.b` with two."""
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
    """A restore from a backup put the metadata file of one table in the place of another's.

    Scans gave the rows of the other table, and fsck found the lakehouse sound.
    """
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
    """The manifest list or the manifest of one table in the place of another's gave the rows of the other table."""

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
    with pytest.raises(tl.CorruptFile, match=r"is that of snapshot|is another manifest than its list names") as caught:
        READERS[reader](tl.open(str(root)), tmp_path)
    assert exchanged.name in str(caught.value.path)
    findings = tl.open(str(root)).maintenance.fsck("all", files=True).findings
    assert exchanged.name in " ".join(one.path for one in findings)


def test_metadata_whose_current_snapshot_is_not_main_is_corrupt(root: Path) -> None:
    """One flipped bit in the key `current-snapshot-id` made a table empty, and fsck found it sound."""
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
    """The data file of another table gave its rows, also one of as many rows when only their number was compared. For a
    cut file the caller got Arrow's own error."""

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
    """DuckDB verifies no checksums: a flipped bit gave a wrong value in SQL, and no command found it."""
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
