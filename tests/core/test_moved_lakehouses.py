"""Lakehouses whose root was moved, copied, replaced, or is named in another spelling."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

import trinitylake as tl
from conformance.node_writer import forget_recorded_root
from local_files import age
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake import core
from trinitylake.definitions import parse_lakehouse_def, serialize
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests import snapshot_producer

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """The folder of a lakehouse with one table of three rows."""
    lake = tl.create(str(tmp_path / "first"), durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", ROWS.schema).append(ROWS)
    return tmp_path / "first"


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", [shutil.copytree, shutil.move])
def test_a_lakehouse_is_read_at_its_new_place(first: Path, tmp_path: Path, verb: object) -> None:
    """After `cp -a` or `mv`, managed tables can be read at the new place."""
    verb(first, tmp_path / "second")  # type: ignore[operator]
    lake = tl.open(str(tmp_path / "second"))
    assert lake.table("a.t").scan().to_arrow().num_rows == 3
    assert lake.at(3).table("a.t").scan().to_arrow().num_rows == 3


def test_the_old_place_is_never_read(first: Path, tmp_path: Path) -> None:
    """A copy would show later writes of the original, or fail after its deletion."""
    shutil.copytree(first, tmp_path / "second")
    for folder in (first / "a").iterdir():
        shutil.rmtree(folder)
    assert tl.open(str(tmp_path / "second")).table("a.t").scan().to_arrow().num_rows == 3


def test_a_copy_refuses_writes_and_leaves_no_file(first: Path, tmp_path: Path) -> None:
    """Two lakehouses with the same recorded root would name each other's files."""
    second = tmp_path / "second"
    shutil.copytree(first, second)
    before = files_below(second)
    lake = tl.open(str(second), durability="none")
    refused = [
        lambda: lake.table("a.t").append(ROWS),
        lambda: lake.table("a.t").delete("id = 1"),
        lambda: lake.create_namespace("b"),
        lambda: lake.drop_table("a.t"),
        lambda: lake.alter({"owner": "somebody"}),
        lambda: lake.rollback(1),
        lambda: lake.maintenance.expire(before=2),
        lambda: lake.begin(id="job").save(),
    ]
    for statement in refused:
        with pytest.raises(tl.LakehouseMoved, match="relocate"):
            statement()
    assert files_below(second) == before


def test_a_relocated_copy_is_written_and_reads_what_was_written_before(first: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    shutil.copytree(first, second)
    lake = tl.open(str(second), durability="none")
    with lake.transaction(message="moved") as txn:
        assert txn._core.relocate()
    lake.table("a.t").append(ROWS)
    lake.alter({"owner": "somebody"})
    again = tl.open(str(second))
    assert again.table("a.t").scan().to_arrow().num_rows == 6
    definition = again._definition
    assert definition.root_uri == again.uri == f"file://{second}/"
    assert list(definition.former_root_uris) == [f"file://{first}/"]
    assert tl.open(str(first)).table("a.t").scan().to_arrow().num_rows == 3
    storage = pickle.loads(pickle.dumps(again._storage))
    assert storage.other_roots == [f"file://{first}/"]


def test_root_behind_a_symbolic_link_is_the_same_root(tmp_path: Path) -> None:
    """A table created through the link can be read at the real path."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    linked = tl.create(str(tmp_path / "link" / "lake"), durability="none")
    assert linked.uri == f"file://{tmp_path}/real/lake/"
    linked.create_namespace("a")
    linked.create_table("a.t", ROWS.schema).append(ROWS)
    real = tl.open(str(tmp_path / "real" / "lake"), durability="none")
    real.table("a.t").append(ROWS)
    assert tl.open(f"file://{tmp_path}/link/lake").table("a.t").scan().to_arrow().num_rows == 6


def test_what_an_earlier_release_wrote_through_a_link_is_read(first: Path, tmp_path: Path) -> None:
    """A lakehouse that never recorded its root; the link still exists."""
    lake = tl.open(str(first), durability="none")
    (tmp_path / "link").symlink_to("first")
    path = lake._storage.root[len("file://") :]
    io = LakehouseFileIO(lake._storage)
    assert io.path_of(f"file://{tmp_path}/link/a/x.parquet") == "a/x.parquet"
    with pytest.raises(tl.InvalidLocation):
        io.path_of(f"file://{tmp_path}/link/../a")
    os.symlink("/etc", f"{path}out")
    with pytest.raises(tl.InvalidLocation):
        io.path_of(f"file://{tmp_path}/link/out/passwd")


def test_a_lakehouse_without_a_recorded_place_is_written_anywhere(first: Path, tmp_path: Path) -> None:
    forget_recorded_root(first)
    lake = tl.open(str(first), durability="none")
    assert not lake._definition.root_uri
    lake.create_namespace("written_here")
    assert not lake._definition.root_uri
    with lake.transaction() as txn:
        assert txn._core.relocate([f"memory://{tmp_path.name}"])
        assert not txn._core.relocate()
    assert lake._definition.root_uri == lake.uri
    assert list(lake._definition.former_root_uris) == [f"memory://{tmp_path.name}/"]


def test_a_change_of_the_definition_does_not_move_the_lakehouse(first: Path) -> None:
    lake = tl.open(str(first), durability="none")
    definition = parse_lakehouse_def(lake._core.latest().definition)
    definition.root_uri = "s3://elsewhere/"
    txn = lake.begin()
    txn._core.set_lakehouse_definition(serialize(definition))
    txn.commit()
    assert lake._definition.root_uri == lake.uri


def test_a_transaction_that_was_saved_before_a_move_is_committed_after_it(first: Path, tmp_path: Path) -> None:
    txn = tl.open(str(first), durability="none").begin(id="job")
    txn.table("a.t").append(ROWS)
    txn.save()
    shutil.move(first, tmp_path / "second")
    lake = tl.open(str(tmp_path / "second"), durability="none")
    with pytest.raises(tl.errors.LakehouseMoved):
        lake.resume("job").commit()
    lake.maintenance.relocate()
    resumed = tl.open(lake.uri, durability="none").resume("job")
    resumed.table("a.t").append(ROWS)
    resumed.save()
    tl.open(lake.uri, durability="none").resume("job").commit()
    assert lake.table("a.t").scan().to_arrow()["id"].to_pylist().count(1) == 3
    assert lake.table("a.t").iceberg.metadata_location.startswith(lake.uri)


def test_moved_back_without_relocating_a_saved_transaction_is_refused(first: Path, tmp_path: Path) -> None:
    """The saved transaction began at this root, and would record another one when it commits."""
    txn = tl.open(str(first), durability="none").begin(id="job")
    txn.create_namespace("b")
    txn.save()
    shutil.move(first, tmp_path / "second")
    tl.open(str(tmp_path / "second"), durability="none").maintenance.relocate()
    shutil.move(tmp_path / "second", first)
    with pytest.raises(tl.errors.LakehouseMoved):
        tl.open(str(first), durability="none").resume("job").commit()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_moved_lakehouse_with_a_damaged_newest_root_is_repaired_and_relocated(
    first: Path, tmp_path: Path, is_deleted: bool
) -> None:
    """`relocate` refused a restored copy as damaged, and `fsck(repair=True)` refused it as moved."""
    tl.open(str(first), durability="none").table("a.t").append(ROWS)
    newest = tl.open(str(first)).version
    second = tmp_path / "second"
    shutil.move(first, second)
    root = second / core.root_path(newest)
    if is_deleted:
        root.unlink()
    else:
        root.write_bytes(root.read_bytes()[:100])
    lake = tl.open(str(second), durability="none")
    with pytest.raises(tl.CorruptFile, match="run fsck with `repair`"):
        lake.maintenance.relocate()

    repair = lake.maintenance.fsck(repair=True).repair
    assert repair is not None
    assert repair.lost[0].startswith(f"version {newest}: ")
    with pytest.raises(tl.LakehouseMoved):
        lake.create_namespace("b")
    assert lake.maintenance.relocate().tables == ("a.t",)
    lake.create_namespace("b")
    assert lake.table("a.t").scan().to_arrow().num_rows == 3
    assert tl.open(str(second)).maintenance.fsck(files=True).is_sound


def test_a_moved_lakehouse_is_relocated_before_tables_without_files_are_rolled_back(
    first: Path, tmp_path: Path
) -> None:
    """A repair raised `LakehouseMoved` instead of naming `relocate`."""
    tl.open(str(first), durability="none").table("a.t").append(ROWS)
    newest = max((first / "a").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.unlink()
    shutil.move(first, tmp_path / "second")
    lake = tl.open(str(tmp_path / "second"), durability="none")
    report = lake.maintenance.fsck(files=True, repair=True)
    assert report.repair is not None
    assert report.repair.lost == ("table a.t: relocate the moved lakehouse, then repair again",)
    lake.maintenance.relocate()
    report = lake.maintenance.fsck(files=True, repair=True)
    assert report.repair is not None
    assert report.repair.saved == ("table a.t as of version 3",)
    assert lake.table("a.t").scan().to_arrow().num_rows == 3
    assert report.is_sound


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("nowhere", path)])
def test_commit_names_a_folder_at_the_path_of_the_next_root(first: Path, make: object) -> None:
    lake = tl.open(str(first), durability="none")
    name = core.root_path(lake.version + 1)
    make(first / name)  # type: ignore[operator]
    txn = lake.begin()
    txn.create_namespace("b")
    with pytest.raises(tl.errors.StorageError, match=name):
        txn.commit()
    assert lake.transactions.outcome(txn.id).status != "unknown"
    txn.rollback()
    assert not tl.open(str(first)).exists("b")


# Spellings of the root


SPELLINGS: dict[str, Callable[[str], str]] = {
    "two slashes": lambda path: f"file://{path.replace('/data/', '//data/')}",
    "a dot": lambda path: f"file://{path.replace('/data/', '/./data/')}",
    "two dots": lambda path: f"file://{path.replace('/data/', '/data/../data/')}",
    "four slashes": lambda path: f"file:///{path}",
    "a query": lambda path: f"file://{path}?x=1",
    "a fragment": lambda path: f"file://{path}#x",
    "a link": lambda path: f"file://{path.replace('/lake/', '/link/')}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_vacuum_keeps_files_named_in_another_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Vacuum keeps a file that the latest version names in another spelling, such as with a second slash. New commits
    cannot have such names, but existing tables may, and other writers of the format commit them."""
    monkeypatch.setattr(snapshot_producer, "check_data_file", lambda io, file: None)
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS.schema)
    table = lake.table("shop.orders")
    table.append(ROWS)
    [task] = table.iceberg.scan().plan_files()
    written = task.file.file_path.removeprefix("file://")
    path, garbage = f"{os.path.dirname(written)}/f.parquet", f"{os.path.dirname(written)}/g.parquet"
    for copy in (path, garbage):
        shutil.copy(written, copy)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=SPELLINGS[spelling](path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=ROWS.num_rows,
        file_size_in_bytes=os.path.getsize(path),
        spec_id=0,
    )
    with table._writing() as iceberg, iceberg.transaction() as change:
        change.append_files([file])  # type: ignore[attr-defined]
    age(tmp_path / "lake")
    lake.maintenance.vacuum(grace="1 minute")
    assert os.path.exists(path)
    assert not os.path.exists(garbage)


# Missing folders


CHANGE = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"note": "1"}}]}
PATH = "/v1/namespaces/shop/tables/orders"


@pytest.fixture(params=["fsync", "none"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tl.Lakehouse:
    """On a disk."""
    return with_tables(tl.create(str(tmp_path / "lake"), durability=request.param), "shop.orders")


def left_empty(root: Path) -> None:
    root.mkdir()


def left_with_an_older_copy(root: Path) -> None:
    copy(root.parent / "older", root)


def copy(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target)


@pytest.mark.parametrize("leave", [lambda root: None, left_empty, left_with_an_older_copy])
def test_no_commit_succeeds_while_the_root_is_another_folder(
    lake: tl.Lakehouse, tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    """Otherwise the log would have a gap when the disk is mounted again."""
    root, away = tmp_path / "lake", tmp_path / "away"
    copy(root, tmp_path / "older")
    lake.alter_table("shop.orders", {"newer": "yes"})
    table = lake.table("shop.orders")
    with running(lake) as server:
        client = Client(server)
        assert client("POST", PATH, CHANGE).code == 200
        version = lake.version
        root.rename(away)
        leave(root)
        files = sorted(str(path) for path in root.rglob("*.arrow"))
        for _ in range(3):
            assert client("POST", PATH, CHANGE).code >= 500
            for statement in (
                lambda: lake.create_namespace("more"),
                lambda: table.append(pa.table({"id": pa.array([7], pa.int64())})),
                lambda: lake.alter_table(table.name, {"note": "2"}),
            ):
                with pytest.raises((tl.TrinityLakeError, FileNotFoundError)):
                    statement()
        assert sorted(str(path) for path in root.rglob("*.arrow")) == files, "no version is made there"
        if root.exists():
            root.rename(tmp_path / "left")
        away.rename(root)
        assert client("POST", PATH, CHANGE).code == 200
        assert lake.version == version + 1
    again = tl.open(str(root))
    assert again.version == version + 1
    assert not again.exists("more")
    assert again.table("shop.orders").properties["newer"] == "yes"
    assert again.table("shop.orders").scan().count() == 3
    assert not again.maintenance.fsck().findings
