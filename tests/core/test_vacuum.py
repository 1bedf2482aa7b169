"""Vacuum deletes unreferenced files and keeps referenced ones. Transactions whose files were deleted raise
`TransactionExpired`.
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate
from typer.testing import CliRunner

import trinitylake as tl
from conformance.reachable import Reachable, files_below
from local_files import age
from trinitylake.cli.app import app

ROWS = pa.table({"id": list(range(10)), "day": ["a", "b"] * 5})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def lake(root: Path) -> tl.Lakehouse:
    """A lakehouse with two tables, three appends to one of them, deletes, a view, a dropped table and a rollback."""
    small = {"root.buffer-size-bytes": "900", "inner.buffer-size-bytes": "500"}
    lake = tl.create(str(root), durability="none", txn_ttl_millis=1, order=4, properties=small)
    lake.create_namespace("shop")
    for name in ("orders", "items", "gone"):
        lake.create_table(f"shop.{name}", ROWS, partition_spec=["day"]).append(ROWS)
    lake.table("shop.orders").append(ROWS)
    lake.table("shop.orders").delete("id < 3")
    lake.create_view("shop.v", "SELECT 1")
    lake.drop_table("shop.gone")
    before = lake.version
    lake.table("shop.items").overwrite(ROWS.slice(0, 2))
    lake.rollback(before)
    for number in range(20):
        lake.create_namespace(f"n{number}")
    return lake


def rows(reader: tl.Lakehouse, name: str) -> int:
    return reader.table(name).scan().to_arrow().num_rows


def test_files_after_vacuum_equal_those_of_an_independent_walker(lake: tl.Lakehouse, root: Path) -> None:
    lake.tags.create("early", version=4)
    orders, items = rows(lake, "shop.orders"), rows(lake, "shop.items")
    lake.maintenance.expire(keep=3)
    age(root)
    reachable = Reachable(root).files
    garbage = files_below(root) - reachable
    assert garbage
    looked = lake.maintenance.vacuum(dry_run=True, paths=True)
    assert set(looked.deleted_paths) == garbage
    assert looked.version is None
    assert files_below(root) == reachable | garbage, "a dry run deletes nothing"

    done = lake.maintenance.vacuum(paths=True)
    assert set(done.deleted_paths) == garbage
    assert done.version == lake.version
    assert done.total_deleted == looked.total_deleted
    assert {"data files", "table metadata", "definitions", "tree nodes"} <= set(done.deleted)
    assert any(folder.startswith("shop/gone-") for folder in done.deleted_by_table)
    assert not done.unknown_paths
    assert reachable <= files_below(root)
    assert files_below(root) == Reachable(root).files
    for reader in (lake, tl.open(str(root))):
        assert (rows(reader, "shop.orders"), rows(reader, "shop.items")) == (orders, items)
        assert reader.at("tag:early").tables() == ["shop.items", "shop.orders"]
        assert len(reader.at("tag:early").table("shop.items").scan().to_arrow()) == 0
    age(root)
    assert lake.maintenance.vacuum().total_deleted.files == 0
    assert lake.maintenance.vacuum().version is None, "a vacuum that deletes nothing creates no version"


def test_statistics_branches_and_tags_are_reachable_for_vacuum(lake: tl.Lakehouse, root: Path, tmp_path: Path) -> None:
    """Only the metadata of a table references statistics, branches and tags; for open transactions nothing does."""
    lake.create_table("shop.stats", ROWS, properties={"history.expire.min-snapshots-to-keep": "2"}).append(ROWS)
    iceberg = lake.table("shop.stats").iceberg
    first = iceberg.current_snapshot()
    assert first is not None
    iceberg.manage_snapshots().create_branch(first.snapshot_id, "audit").create_tag(first.snapshot_id, "q1").commit()
    paths = [f"{iceberg.location()}/metadata/{name}" for name in ("all.stats", "parts.stats")]
    for path in paths:
        with iceberg.io.new_output(path).create() as out:
            out.write(b"x")
    sizes = {"file-size-in-bytes": 1, "snapshot-id": first.snapshot_id}
    statistics = {**sizes, "statistics-path": paths[0], "file-footer-size-in-bytes": 1, "blob-metadata": []}
    with lake.transaction() as txn, txn.table("shop.stats").iceberg.transaction() as change:
        change._apply((SetStatisticsUpdate(statistics=StatisticsFile.model_validate(statistics)),))
        parts = PartitionStatisticsFile.model_validate({**sizes, "statistics-path": paths[1]})
        change._apply((SetPartitionStatisticsUpdate(partition_statistics=parts),))
    for _ in range(3):
        lake.table("shop.stats").overwrite(ROWS.slice(0, 3))
    lake.tags.create("early", version=4)
    lake.alter(txn_ttl_millis=3_600_000)
    lake.maintenance.expire(keep=1)
    age(root)
    before = files_below(root)
    txn = lake.begin(id="etl")
    txn.table("shop.stats").append(ROWS)
    txn.save()
    saved = files_below(root) - before
    time.sleep(2.1)  # the age of the transaction must exceed the grace period, too
    assert lake.maintenance.vacuum(grace="0 s").total_deleted.files
    reachable = Reachable(root).files
    assert {path.removeprefix(f"file://{root}/") for path in paths} <= reachable
    assert saved
    assert files_below(root) >= reachable | saved
    assert lake.maintenance.fsck("all", files=True).is_sound
    iceberg = lake.table("shop.stats").iceberg
    assert {"audit", "q1"} <= set(iceberg.metadata.refs)
    assert iceberg.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 10
    lake.resume("etl").commit()
    assert rows(lake, "shop.stats") == 13

    # A copy contains exactly the files that are referenced.
    lake.export(tmp_path / "copy", mode="full", durability="none")
    copy = tl.open(tmp_path / "copy")
    reachable = Reachable(tmp_path / "copy").files
    assert files_below(tmp_path / "copy") == {path for path in reachable if not path.startswith("_txn/")}
    assert all((tmp_path / "copy" / path).is_file() for path in reachable)
    assert copy.table("shop.stats").iceberg.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 10
    age(tmp_path / "copy")
    assert copy.maintenance.vacuum(dry_run=True).total_deleted.files == 0


def test_vacuum_deletes_unreferenced_files_with_known_names_only(lake: tl.Lakehouse, root: Path) -> None:
    """Vacuum keeps files of other programs below the root, such as `reports/daily-20240101/`."""
    id = uuid.uuid4()
    orphans = [
        f"dead/t-01234567/data/00000-0-{id}.parquet",
        f"dead/t-01234567/metadata/{id}-m0.avro",
        f"_queue/{0:020d}-{id}.binpb",
        f"_probe/{id}-clock",
        "shop/_staged#1000000001",
        f"_txn/old/{(1 << 63) + 5:020d}.binpb",
    ]
    strange = [
        "reports/daily-20240101/data/january.parquet",
        f"reports/daily-20240101/data/part-00000-{id}-c000.snappy.parquet",
        "readme.md",
        "_branches/main",
        "_txn/old/notes.txt",
    ]
    for path in orphans + strange:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")
    age(root)
    young = root / f"dead/t-01234567/data/00001-0-{id}.parquet"
    young.write_bytes(b"x")
    done = lake.maintenance.vacuum(grace="1 minute", paths=True)
    assert set(orphans) <= set(done.deleted_paths)
    assert sorted(done.unknown_paths) == sorted(strange)
    assert done.young.files == 1
    assert young.exists()
    assert all((root / path).exists() for path in strange)


def test_files_of_external_and_federated_tables_stay(lake: tl.Lakehouse, root: Path) -> None:
    """Vacuum keeps the files of an external or federated table below the root, which no managed table names."""
    orders = lake.table("shop.orders")
    folder = Path(orders.iceberg.location().removeprefix("file://"))
    elsewhere = root / "elsewhere" / "t-01234567"
    shutil.copytree(folder, elsewhere)
    metadata = next((elsewhere / "metadata").glob("*.metadata.json"))
    metadata.write_text(metadata.read_text().replace(str(folder), str(elsewhere)))
    lake.create_table("shop.theirs", metadata_location=f"file://{metadata}")
    age(root)
    before = {path for path in elsewhere.rglob("*") if path.is_file()}
    done = lake.maintenance.vacuum()
    assert done.foreign.files + done.total_kept.files >= len(before)
    assert before == {path for path in elsewhere.rglob("*") if path.is_file()}


def test_transaction_from_before_gc_commits_or_raises_expired(lake: tl.Lakehouse, root: Path) -> None:
    slow = lake.begin()
    slow.table("shop.orders").append(ROWS)
    slow.table("shop.orders").count()  # the read writes the waiting rows first
    time.sleep(4.1)
    done = lake.maintenance.vacuum(grace="0 s")
    assert done.version is not None
    with pytest.raises(tl.TransactionExpired, match="may have been deleted"):
        slow.commit()
    fresh = lake.begin()
    fresh.table("shop.orders").append(ROWS)
    fresh.commit()
    # A transaction that is younger than the grace period can commit.
    other = lake.begin()
    other.table("shop.items").append(ROWS)
    (root / "_queue").mkdir(exist_ok=True)
    (root / f"_queue/{0:020d}-{uuid.uuid4()}.binpb").write_bytes(b"x")
    age(root / "_queue")
    assert lake.maintenance.vacuum(grace="1 minute").version is not None
    other.commit()
    assert rows(lake, "shop.items") == 20


def test_files_of_an_open_saved_transaction_are_kept(lake: tl.Lakehouse, root: Path) -> None:
    lake.alter(txn_ttl_millis=60_000)
    txn = lake.begin(id="etl")
    txn.table("shop.orders").append(ROWS)
    txn.save()
    before = rows(lake, "shop.orders")
    time.sleep(2.1)  # the age of the transaction must exceed the grace period, too
    lake.maintenance.vacuum(grace="0 s")
    lake.resume("etl").commit()
    assert rows(lake, "shop.orders") == before + 10
    assert rows(tl.open(str(root)), "shop.orders") == before + 10


def test_unreadable_file_aborts_gc(lake: tl.Lakehouse, root: Path) -> None:
    """A damaged manifest ends the collection before any deletion, because its files are unknown."""
    lake.maintenance.expire(keep=1)
    metadata = Path(lake.table("shop.orders").iceberg.metadata_location.removeprefix("file://"))
    manifest = next(metadata.parent.glob("snap-*.avro"))
    for path in metadata.parent.glob("snap-*.avro"):
        path.write_bytes(path.read_bytes()[:100])
    age(root)
    before = files_below(root)
    with pytest.raises(tl.CorruptFile, match=r"\.avro"):
        lake.maintenance.vacuum()
    assert files_below(root) == before
    assert manifest.exists()


def test_vacuum_command_prints_the_deleted_files(lake: tl.Lakehouse, root: Path) -> None:
    lake.maintenance.expire(keep=1)
    age(root)
    result = CliRunner().invoke(app, ["vacuum", "--root", str(root), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "would be deleted" in result.output
    assert "shop/gone-" in result.output
    result = CliRunner().invoke(app, ["vacuum", "--root", str(root), "--grace", "1 s"])
    assert result.exit_code == 0, result.output
    assert files_below(root) == Reachable(root).files


def test_vacuum_ignores_root_rows_hidden_by_newer_messages(tmp_path: Path) -> None:
    """When the root was split later, a row that names a deleted definition made vacuum fail with a missing file."""
    lake = tl.create(tmp_path / "lake", order=5, durability="none")
    lake.create_namespace("a")
    lake.create_table("a.hot", {"id": "bigint"})
    lake.create_namespace("z")
    for number in range(6):
        lake.table("a.hot").append({"id": [number]})
    age(tmp_path / "lake", 2.1)
    lake.maintenance.expire(before=lake.version)
    assert lake.maintenance.vacuum(grace="0 seconds").deleted["definitions"].files > 0
    for number in range(12):
        with lake.transaction() as txn:
            txn.table("a.hot").append({"id": [100 + number]})
            txn.create_namespace(f"n{number}")
    assert lake.maintenance.stats().tree_nodes > 1, "the root never grew"
    assert lake.maintenance.fsck().findings == ()
    lake.maintenance.vacuum(grace="0 seconds", dry_run=True)
