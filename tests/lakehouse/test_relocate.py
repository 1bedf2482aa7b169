"""`relocate` of a lakehouse that was copied or moved, or is opened through a symbolic link."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import _SCHEMA_KEY, AvroFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record
from typer.testing import CliRunner

import trinitylake as tl
from conformance.node_writer import forget_recorded_root
from rest.test_duckdb import EXTENSIONS, extension
from trinitylake.cli.app import app
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.avro_file import avro_bytes
from trinitylake.iceberg_storage.puffin import with_data_files
from trinitylake.iceberg_storage.relocation import positions

ROWS = pa.table({"id": pa.array(range(6), pa.int64()), "part": pa.array([0, 1, 2] * 2, pa.int64())})


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A lakehouse with a partitioned table with several snapshots, an empty table, and a view."""
    lake = tl.create(str(tmp_path / "old" / "lake"), durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a.t", ROWS, partition_spec=["part"], properties={"comment": "file:///nowhere"}).append(ROWS)
        txn.create_table("a.empty", {"id": "bigint"})
        txn.create_view("a.v", "SELECT * FROM t")
    lake.table("a.t").append(ROWS)
    lake.table("a.t").delete("id = 0")
    return tmp_path / "old" / "lake"


def copied(old: Path, new: Path) -> None:
    shutil.copytree(old, new, symlinks=True)


def moved(old: Path, new: Path) -> None:
    shutil.move(old, new)


MOVES = [copied, moved]


def numbers(reader: Any) -> list[int]:
    return sorted(reader.scan().to_arrow()["id"].to_pylist())


def opened(path: Path) -> tl.Lakehouse:
    return tl.open(str(path), durability="none")


@pytest.mark.parametrize("move", MOVES)
def test_engines_read_tables_of_a_relocated_lakehouse(
    old: Path, tmp_path: Path, move: Callable[[Path, Path], None]
) -> None:
    """After a relocation engines can read managed tables, whose files name each other at the new root."""
    expected = numbers(opened(old).table("a.t"))
    move(old, tmp_path / "new")
    shutil.rmtree(old.parent)
    lake = opened(tmp_path / "new")
    version = lake.version
    assert numbers(lake.table("a.t")) == expected
    with pytest.raises(tl.errors.LakehouseMoved):
        lake.table("a.t").append(ROWS)

    done = lake.maintenance.relocate()

    assert done.version == lake.version == version + 1
    assert done.tables == ("a.empty", "a.t")
    assert done.root == lake.uri
    assert done.skipped == ()
    assert lake._definition.root_uri == lake.uri
    table = lake.table("a.t")
    assert numbers(table) == expected
    static = StaticTable.from_metadata(table.iceberg.metadata_location)
    assert numbers(static) == expected
    for snapshot in static.snapshots():
        assert static.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows in (6, 12, 10)
    assert static.properties["comment"] == "file:///nowhere"
    assert [entry.kind for entry in lake.diff(version).changed] == ["table", "table"]
    assert numbers(lake.at(version).table("a.t")) == expected
    table.append(ROWS)
    assert len(numbers(lake.table("a.t"))) == len(expected) + 6


def named_in(path: Path) -> set[str]:
    """All locations in a metadata file and in the manifest lists and manifests that it references."""
    document = json.loads(path.read_text())
    named = {document["location"], *(one["metadata-file"] for one in document["metadata-log"])}
    for snapshot in document["snapshots"]:
        named.add(snapshot["manifest-list"])
        for manifest in _rows(snapshot["manifest-list"])[0]:
            named.add(manifest[0])
            assert manifest[1] == os.path.getsize(_local(manifest[0]))
            named |= data_files(manifest[0])
    return named


def _local(uri: str) -> str:
    return uri.removeprefix("file://")


def _rows(uri: str) -> tuple[list[Record], Any, dict[str, str]]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    with AvroFile[Record](PyArrowFileIO().new_input(uri)) as file:
        return list(file), file.schema, dict(file.header.meta)


def test_no_file_names_the_old_root_and_every_named_file_exists(old: Path, tmp_path: Path) -> None:
    moved(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    lake.maintenance.relocate()
    named = named_in(Path(_local(lake.table("a.t").iceberg.metadata_location)))
    assert len(named) > 10
    assert all(uri.startswith(lake.uri) for uri in named)
    assert all(os.path.exists(_local(uri)) for uri in named)


def test_duckdb_reads_a_table_of_a_moved_lakehouse_by_its_metadata(old: Path, tmp_path: Path) -> None:
    expected = numbers(opened(old).table("a.t"))
    moved(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    lake.maintenance.relocate()
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    for name in EXTENSIONS:
        connection.execute(f"LOAD '{extension(name)}'")
    found = connection.execute(
        f"SELECT id FROM iceberg_scan('{lake.table('a.t').iceberg.metadata_location}')"
    ).fetchall()
    assert sorted(id for (id,) in found) == expected


def test_relocation_is_idempotent_and_reversible(old: Path, tmp_path: Path) -> None:
    expected = numbers(opened(old).table("a.t"))
    for place in ("b", "c", "b", "old/lake"):
        current = opened(old)
        moved(Path(_local(current.uri)), tmp_path / place)
        old = tmp_path / place
        lake = opened(old)
        done = lake.maintenance.relocate()
        assert done.tables == ("a.empty", "a.t")
        again = lake.maintenance.relocate()
        assert (again.version, again.tables, again.files) == (None, (), 0)
        assert numbers(StaticTable.from_metadata(lake.table("a.t").iceberg.metadata_location)) == expected


def test_relocation_without_rewriting_serves_own_readers_only(old: Path, tmp_path: Path) -> None:
    moved(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    before = lake.table("a.t").iceberg.metadata_location
    done = lake.maintenance.relocate(rewrite=False)
    assert (done.version, done.tables, done.files) == (lake.version, (), 0)
    assert lake.table("a.t").iceberg.metadata_location == before
    lake.table("a.t").append(ROWS)
    assert lake.maintenance.relocate().tables == ("a.empty", "a.t")  # the tables can be relocated later


def everything(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() and "_hint" not in one.name}


def test_a_dry_run_reports_changes_and_writes_nothing(old: Path, tmp_path: Path) -> None:
    copied(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    before = everything(tmp_path / "new")
    would = lake.maintenance.relocate(dry_run=True)
    assert would.version is None
    assert everything(tmp_path / "new") == before
    with pytest.raises(tl.errors.LakehouseMoved):
        lake.create_namespace("b")
    did = lake.maintenance.relocate()
    assert (did.tables, did.files) == (would.tables, would.files)
    assert did.files == len([path for path in everything(tmp_path / "new") - before if "/metadata/" in path])


def test_symbolic_link_to_a_lakehouse_is_resolved(old: Path, tmp_path: Path) -> None:
    """A table that is created through a symbolic link to the root names its files at the real path."""
    (tmp_path / "link").symlink_to(old)
    behind = opened(tmp_path / "link")
    assert behind.uri == opened(old).uri
    behind.create_table("a.new", ROWS).append(ROWS)
    assert behind.maintenance.relocate().version is None
    (tmp_path / "link").unlink()
    assert numbers(opened(old).table("a.new")) == list(range(6))
    assert numbers(StaticTable.from_metadata(opened(old).table("a.new").iceberg.metadata_location)) == list(range(6))


@pytest.mark.parametrize("fails_at", [1, 3, 7])
def test_failed_relocation_changes_nothing(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    expected = numbers(opened(old).table("a.t"))
    moved(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    before, version = everything(tmp_path / "new"), lake.version
    put, puts = LakehouseFileIO.put, 0

    def failing(*args: Any, **options: Any) -> None:
        nonlocal puts
        puts += 1
        if puts == fails_at:
            raise KeyboardInterrupt
        put(*args, **options)

    monkeypatch.setattr(LakehouseFileIO, "put", failing)
    with pytest.raises(KeyboardInterrupt):
        lake.maintenance.relocate()
    monkeypatch.undo()
    assert everything(tmp_path / "new") == before
    lake = opened(tmp_path / "new")
    assert lake.version == version
    assert numbers(lake.table("a.t")) == expected
    assert lake.maintenance.relocate().tables == ("a.empty", "a.t")


def test_relocate_reports_an_unreadable_table_and_rewrites_the_others(old: Path, tmp_path: Path) -> None:
    manifests = opened(old).table("a.t").iceberg.current_snapshot().manifest_list  # type: ignore[union-attr]
    moved(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    os.remove(_local(lake.uri) + manifests.partition("/old/lake/")[2])
    done = lake.maintenance.relocate()
    assert done.tables == ("a.empty",)
    assert [one.name for one in done.skipped] == ["a.t"]
    assert "does not exist" in done.skipped[0].reason


def with_position_deletes(lake: tl.Lakehouse) -> None:
    """Delete the row with id 5 from `a.t` by position, as merge-on-read engines do."""
    table = lake.table("a.t")
    static = StaticTable.from_metadata(table.iceberg.metadata_location)
    snapshot = static.current_snapshot()
    assert snapshot is not None
    task = next(
        task for task in static.scan().plan_files() if 5 in pq.read_table(_local(task.file.file_path))["id"].to_pylist()
    )
    data_uri = task.file.file_path
    position = pq.read_table(_local(data_uri))["id"].to_pylist().index(5)
    folder = f"{table.location}/data"
    deletes_uri = f"{folder}/{uuid.uuid4()}-deletes.parquet"
    fields = [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
    pq.write_table(pa.table([[data_uri], [position]], schema=pa.schema(fields)), _local(deletes_uri))
    lists, list_schema, list_header = _rows(snapshot.manifest_list)
    like = next(row for row in lists if data_uri in data_files(row[0]))
    entries, schema, header = _rows(like[0])
    at = positions(schema)
    entry = next(one for one in entries if one[at[2]][at[100]] == data_uri)
    file = entry[at[2]]
    file[at[134]], file[at[100]], file[at[103]] = 1, deletes_uri, 1
    file[at[104]] = os.path.getsize(_local(deletes_uri))
    for bounds in (125, 128):
        file[at[bounds]] = {2147483546: data_uri.encode()}
    for counts in (108, 109, 110, 137):
        if counts in at:
            file[at[counts]] = None
    manifest_uri = f"{table.location}/metadata/{uuid.uuid4()}-m0.avro"
    size = write_avro(manifest_uri, [entry], schema, {**header, "content": "deletes"})
    at = positions(list_schema)
    row = Record(*like._data)
    row[at[500]], row[at[501]], row[at[517]] = manifest_uri, size, 1
    write_avro(snapshot.manifest_list, [*lists, row], list_schema, list_header)


def data_files(manifest_uri: str) -> set[str]:
    rows, schema, _ = _rows(manifest_uri)
    at = positions(schema)
    return {row[at[2]][at[100]] for row in rows}


def write_avro(uri: str, rows: list[Record], schema: Any, header: dict[str, str]) -> int:
    header = dict(header)
    data = avro_bytes(header.pop(_SCHEMA_KEY), construct_writer(schema), rows, header)
    Path(_local(uri)).write_bytes(data)
    return len(data)


def test_rows_that_were_deleted_by_position_stay_deleted(old: Path, tmp_path: Path) -> None:
    """A relocation rewrites position deletes, which name data files. With only metadata rewritten, an engine would show
    deleted rows."""
    lake = opened(old)
    with_position_deletes(lake)
    before = numbers(StaticTable.from_metadata(lake.table("a.t").iceberg.metadata_location))
    assert before.count(5) == 1
    assert before.count(4) == 2
    moved(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    lake.maintenance.relocate()
    static = StaticTable.from_metadata(lake.table("a.t").iceberg.metadata_location)
    assert numbers(static) == numbers(lake.table("a.t")) == before
    (deletes,) = {file for task in static.scan().plan_files() for file in task.delete_files}
    assert deletes.file_path.startswith(lake.uri)
    assert deletes.file_size_in_bytes == os.path.getsize(_local(deletes.file_path))
    (named,) = pq.read_table(_local(deletes.file_path))["file_path"].to_pylist()
    assert named.startswith(lake.uri)
    assert deletes.lower_bounds[2147483546] == deletes.upper_bounds[2147483546] == named.encode()


def test_the_command_line_relocates(old: Path, tmp_path: Path) -> None:
    moved(old, tmp_path / "new")
    root = ["--root", str(tmp_path / "new"), "--json"]
    run = CliRunner().invoke
    assert run(app, ["txn", "ls", *root]).exit_code == 0
    would = json.loads(run(app, ["relocate", *root, "--dry-run"]).stdout)
    assert (would["version"], would["tables"]) == (None, ["a.empty", "a.t"])
    done = json.loads(run(app, ["relocate", *root, "-m", "new disk"]).stdout)
    assert done["tables"] == ["a.empty", "a.t"]
    assert done["version"] == opened(tmp_path / "new").version
    assert opened(tmp_path / "new").log(1)[0].transactions[0].message == "new disk"
    assert "nothing to do" in run(app, ["relocate", *root[:2]]).stdout


def test_relocate_takes_former_roots_of_a_lakehouse_without_a_recorded_root(old: Path, tmp_path: Path) -> None:
    expected = opened(old).table("a.t").scan().to_arrow().sort_by("id")
    forget_recorded_root(old)
    shutil.move(old, tmp_path / "new")
    lake = opened(tmp_path / "new")
    with pytest.raises((tl.InvalidLocation, tl.CorruptFile)):
        lake.table("a.t").scan().to_arrow()
    done = lake.maintenance.relocate(former=str(old))
    assert done.former_roots == (f"file://{old}/",)
    assert done.tables == ("a.empty", "a.t")
    assert done.skipped == ()
    for reader in (lake, opened(tmp_path / "new")):
        assert reader.table("a.t").scan().to_arrow().sort_by("id") == expected
    static = StaticTable.from_metadata(lake.table("a.t").iceberg.metadata_location)
    assert static.scan().to_arrow().num_rows == len(expected)


def test_relocation_rewrites_deletion_vectors(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "old"), durability="none")
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a.t", ROWS, properties={"format-version": "3"}).append(ROWS)
    lake.table("a.t").append(ROWS)
    with tl.rest.serve(lake) as url, duckdb.connect() as connection:
        for name in EXTENSIONS:
            connection.execute(f"LOAD '{extension(name)}'")
        connection.execute(f"ATTACH '@latest' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
        connection.execute("DELETE FROM lake.a.t WHERE id IN (1, 4)")
    expected = [0, 0, 2, 2, 3, 3, 5, 5]
    assert numbers(lake.table("a.t")) == expected
    shutil.move(tmp_path / "old", tmp_path / "new")
    lake = opened(tmp_path / "new")
    assert lake.maintenance.relocate().skipped == ()
    table = lake.table("a.t")
    assert numbers(table) == expected
    static = StaticTable.from_metadata(table.iceberg.metadata_location)
    assert numbers(static) == expected
    files = {file for task in static.scan().plan_files() for file in task.delete_files}
    assert {file.file_format for file in files} == {"PUFFIN"}
    for file in files:
        assert file.file_path.startswith(lake.uri)
        assert file.file_size_in_bytes == os.path.getsize(_local(file.file_path))
        assert b"/old/" not in Path(_local(file.file_path)).read_bytes()
    assert not lake.maintenance.relocate().tables


@pytest.mark.parametrize("damage", [b"", b"PFA1", b"PFA1" * 5, bytes(40)])
def test_a_damaged_puffin_file_raises_corrupt_file(damage: bytes) -> None:
    with pytest.raises(ValueError, match="not a Puffin file"):
        with_data_files(damage, str)
