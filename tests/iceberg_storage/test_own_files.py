"""Maintenance and previews read only files of the table itself."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile

import trinitylake as tl
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.table_file_io import TableFileIO

ROWS = pa.table({"id": [1]})
SECRET = pa.table({"id": [4711]})
N_FILES = 6


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """The table `secret.pay` of one user, the table `shop.direct` of another user that names its data files, and an
    unrelated table.
    """
    lake = tl.create(tmp_path / "lake", durability="none", properties={"maintenance.vacuum": "false"})
    for namespace in ("secret", "shop"):
        lake.create_namespace(namespace)
    for name in ("secret.pay", "shop.direct", "shop.orders"):
        lake.create_table(name, ROWS.schema)
    for _ in range(N_FILES):
        lake.table("secret.pay").append(SECRET)
        lake.table("shop.orders").append(ROWS)
    add(lake, "shop.direct", data_files(lake, "secret.pay"))
    return lake


def data_files(lake: tl.Lakehouse, name: str) -> list[DataFile]:
    return [task.file for task in lake.table(name).iceberg.scan().plan_files()]


def add(lake: tl.Lakehouse, name: str, files: list[DataFile]) -> None:
    with lake.table(name)._writing() as iceberg, iceberg.transaction() as change:
        change.append_files(files)  # type: ignore[attr-defined]


def is_below(lake: tl.Lakehouse, name: str) -> bool:
    location = lake.table(name).iceberg.location()
    return any(file.file_path.startswith(f"{location}/") for file in data_files(lake, name))


def test_maintenance_skips_a_table_with_files_of_another_one(lake: tl.Lakehouse) -> None:
    """Maintenance skips a table that names data files of another table. Otherwise it would read the other table's rows
    with the server's rights, and write them into the folder of a writer without these rights."""
    done = lake.maintenance.run()
    assert "outside of the table" in done.skipped["shop.direct"].message
    assert set(done.compacted) == {"secret.pay", "shop.orders"}
    assert not is_below(lake, "shop.direct")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("sort_by", [None, "id"])
def test_compaction_refuses_files_of_another_table(lake: tl.Lakehouse, dry_run: bool, sort_by: str | None) -> None:
    with pytest.raises(tl.InvalidLocation, match="outside of the table"):
        lake.table("shop.direct").maintenance.compact(min_files=1, sort_by=sort_by, dry_run=dry_run)
    assert not is_below(lake, "shop.direct")


def test_a_file_behind_a_link_is_not_one_of_the_table(lake: tl.Lakehouse) -> None:
    """A file behind a link that leads out of the table's folder is not a file of the table."""
    iceberg = lake.table("shop.orders").iceberg
    folder = iceberg.location().removeprefix("file://")
    secret = data_files(lake, "secret.pay")[0].file_path.removeprefix("file://")
    os.symlink(secret, f"{folder}/data/linked.parquet")
    assert isinstance(iceberg.io, LakehouseFileIO)
    io = TableFileIO(iceberg.io, iceberg.io.path_of(iceberg.location()))
    with pytest.raises(tl.InvalidLocation, match="outside of the table"):
        io.new_input(f"{iceberg.location()}/data/linked.parquet")


def test_restricted_file_access_is_pickled(lake: tl.Lakehouse) -> None:
    """File access that is restricted to a table stays restricted in a pickle and in its parts."""
    io = lake.table("shop.orders").iceberg.io
    assert isinstance(io, LakehouseFileIO)
    narrow = TableFileIO(io, io.path_of(lake.table("shop.orders").iceberg.location()))
    for one in (narrow, narrow.part(), narrow.scoped(), pickle.loads(pickle.dumps(narrow))):
        assert one.new_input(data_files(lake, "shop.orders")[0].file_path).exists()
        with pytest.raises(tl.InvalidLocation, match="outside of the table"):
            one.new_input(data_files(lake, "secret.pay")[0].file_path)


def test_manifests_of_another_table_are_not_copied(lake: tl.Lakehouse) -> None:
    """Manifests of another table are not copied, because they contain bounds and counts of its files."""
    from pyiceberg.manifest import write_manifest_list
    from pyiceberg.table.snapshots import Operation, Snapshot, Summary
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

    secret = lake.table("secret.pay").iceberg
    snapshot = secret.current_snapshot()
    assert snapshot is not None
    with lake.table("shop.orders")._writing() as iceberg:
        metadata = iceberg.metadata
        uri, id = f"{iceberg.location()}/metadata/list.avro", metadata.new_snapshot_id()
        parent, number = metadata.current_snapshot_id, metadata.next_sequence_number()
        with write_manifest_list(2, iceberg.io.new_output(uri), id, parent, number, "null") as writer:
            writer.add_manifests(snapshot.manifests(secret.io))
        made = Snapshot(
            snapshot_id=id,
            parent_snapshot_id=parent,
            sequence_number=number,
            timestamp_ms=metadata.last_updated_ms + 1,
            manifest_list=uri,
            summary=Summary(Operation.APPEND),
            schema_id=metadata.current_schema_id,
        )
        updates = (
            AddSnapshotUpdate(snapshot=made),
            SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=id),
        )
        iceberg.catalog.commit_table(iceberg, (), updates)
    for tidy_up in (lambda one: one.rewrite_manifests(), lambda one: one.compact(min_files=1)):
        with pytest.raises(tl.InvalidLocation, match="outside of the table"):
            tidy_up(lake.table("shop.orders").maintenance)


def test_a_table_that_was_renamed_is_its_own(lake: tl.Lakehouse) -> None:
    """A renamed table owns the files in its folder, which keeps the earlier name."""
    lake.rename_table("shop.orders", "secret.orders")
    assert lake.table("secret.orders").maintenance.compact(min_files=2).files_removed == N_FILES
