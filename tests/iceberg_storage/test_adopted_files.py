"""Adoption of old files that no version references, against garbage collection.

A garbage collection had classified files as garbage and was deleting them. A registration referenced some of them and
was committed, and a moment later the files were gone. The age of a file alone does not decide: a table that was
unregistered and is registered again after a vacuum has old files, too. So a collection publishes from when to when it
may delete files (format §7), and an adoption first checks this and then the files.

`WAYS` lists all ways to adopt files; new ways must be added to it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, SetStatisticsUpdate

import trinitylake as tl
from local_files import age, local_path
from manifests_by_hand import data_file, manifest_of, new_snapshot_id, snapshot_of
from rest.client import TOKEN, Client, running
from trinitylake import _core
from trinitylake.errors import RegistrationFailed
from trinitylake.iceberg import load
from trinitylake.lakehouse.bulk.definition_writer import ObjectRow
from trinitylake.lakehouse.bulk.registration import definition_writer
from trinitylake.rest import RestServer

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


class Place(NamedTuple):
    """A lakehouse after a garbage collection, with files that no version references.

    Attributes:
        metadata: metadata of an unregistered table.
        data: a data file of that table.
        statistics: a file in the folder of a table.
    """

    lake: tl.Lakehouse
    server: RestServer
    root: Path
    metadata: str
    data: str
    statistics: str

    def begin_distributed_gc(self) -> _core.DistributedGc:
        """Begin a collection that may delete files from now on, such as one with executors or one that is suspended."""
        collection = self.lake._core.begin_distributed_gc(0)
        collection.fence(False)
        return collection


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "lake"
    lake = tl.create(root, durability="none", txn_ttl_millis=1)
    lake.create_namespace("shop")
    for name in ("orders", "others"):
        lake.create_table(f"shop.{name}", ROWS).append(ROWS)
    table = lake.table("shop.orders").iceberg
    [task] = table.scan().plan_files()
    metadata = table.metadata_location
    statistics = f"{lake.table('shop.others').iceberg.location()}/metadata/{uuid.uuid4()}.stats"
    lake.drop_table("shop.orders")
    (root / "_probe").mkdir(exist_ok=True)
    (root / "_probe/left").write_text("garbage")
    age(root)
    assert lake.maintenance.vacuum(grace="1 minute").version is not None, "an older version has the table"
    lake.maintenance.expire(keep=1)
    local_path(statistics).write_bytes(b"statistics")
    age(root)
    with running(lake, token=TOKEN) as server:
        yield Place(lake, server, root, metadata, task.file.file_path, statistics)


def taken_up(place: Place) -> bool:
    """Whether a table of the newest version has the files."""
    return any(
        place.data in [task.file.file_path for task in place.lake.table(name).iceberg.scan().plan_files()]
        for name in place.lake.tables("shop")
    )


def sent(place: Place, path: str, body: Any) -> None:
    answer = Client(place.server)("POST", path, body)
    if answer.code not in (200, 204):
        assert answer.code in (400, 409, 410), answer
        raise tl.TransactionExpired(str(answer.body))


# Each function commits a table with the files in its own way, or raises `TransactionExpired`.


def by_registration(place: Place) -> None:
    load(place.lake).register_table("shop.again", place.metadata)


def by_overwriting_registration(place: Place) -> None:
    load(place.lake).register_table("shop.others", place.metadata, overwrite=True)


def by_rest_registration(place: Place) -> None:
    sent(place, "/v1/namespaces/shop/register", {"name": "again", "metadata-location": place.metadata})


def by_bulk_registration(place: Place) -> None:
    objects = pa.table(
        {"kind": ["table"], "namespace": ["shop"], "name": ["again"], "metadata_location": [place.metadata]}
    )
    try:
        place.lake.register(objects)
    except RegistrationFailed as error:
        raise tl.TransactionExpired(str(error)) from error


def by_import(place: Place) -> None:
    class Other:
        name, properties = "other", {}
        list_namespaces = staticmethod(lambda namespace=(): [] if namespace else [("shop",)])
        list_tables = staticmethod(lambda namespace: [("shop", "again")])
        list_views = staticmethod(lambda namespace: [])
        load_namespace_properties = staticmethod(lambda namespace: {})

        @staticmethod
        def load_table(identifier: Any) -> Any:
            return NamedMetadata(place.metadata)

    try:
        place.lake.import_catalog(Other())
    except RegistrationFailed as error:
        raise tl.TransactionExpired(str(error)) from error


class NamedMetadata(NamedTuple):
    metadata_location: str


def by_add_files(place: Place) -> None:
    place.lake.table("shop.others").iceberg.add_files([place.data])


def by_add_files_in_a_transaction(place: Place) -> None:
    with place.lake.transaction() as txn, txn.table("shop.others")._writing() as table:
        table.add_files([place.data])


def by_overwriting_snapshot(place: Place) -> None:
    with (
        place.lake.transaction() as txn,
        txn.table("shop.others")._writing() as table,
        table.transaction() as change,
        change.update_snapshot().overwrite() as snapshot,
    ):
        snapshot.append_data_file(file_entry(place))


def file_entry(place: Place) -> Any:
    """The data file as an entry of a manifest."""
    table = place.lake.table("shop.others").iceberg
    return parquet_file_to_data_file(table.io, table.metadata, place.data)


WAYS: dict[str, Callable[[Place], None]] = {
    "PyIceberg register": by_registration,
    "PyIceberg register with overwrite": by_overwriting_registration,
    "REST register": by_rest_registration,
    "bulk registration": by_bulk_registration,
    "import of a catalog": by_import,
    "add_files": by_add_files,
    "add_files in a transaction": by_add_files_in_a_transaction,
    "overwriting snapshot": by_overwriting_snapshot,
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[[Place], None]:
    return WAYS[request.param]


def test_old_files_are_adopted_without_a_running_collection(place: Place, way: Callable[[Place], None]) -> None:
    """Otherwise a table could not be registered again after a vacuum."""
    way(place)
    assert taken_up(place)
    age(place.root)
    place.lake.maintenance.expire(keep=1)
    place.lake.maintenance.vacuum(grace="1 minute")
    assert taken_up(place)
    assert place.lake.maintenance.fsck(files=True).is_sound


def test_adoption_of_old_files_during_a_collection_is_refused(place: Place, way: Callable[[Place], None]) -> None:
    collection = place.begin_distributed_gc()
    version = place.lake.version
    with pytest.raises((tl.TransactionExpired, CommitFailedException), match="may be deleted by a garbage collection"):
        way(place)
    assert place.lake.version == version
    assert not taken_up(place)
    collection.end(True)
    way(place)
    assert taken_up(place)


def test_adoption_after_a_finished_collection_is_refused(place: Place, way: Callable[[Place], None]) -> None:
    local_path(place.data).unlink()
    with pytest.raises((tl.TransactionExpired, FileNotFoundError, CommitFailedException)):
        way(place)
    assert not taken_up(place)


def test_adoption_of_statistics_during_a_collection_is_refused(place: Place) -> None:
    collection = place.begin_distributed_gc()
    table = place.lake.table("shop.others").iceberg
    snapshot = table.current_snapshot()
    assert snapshot is not None
    file = StatisticsFile.model_validate(
        {
            "snapshot-id": snapshot.snapshot_id,
            "statistics-path": place.statistics,
            "file-size-in-bytes": 10,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
    )
    update = SetStatisticsUpdate(snapshot_id=snapshot.snapshot_id, statistics=file)
    catalog = load(place.lake)
    with pytest.raises((tl.TransactionExpired, CommitFailedException), match="may be deleted by a garbage collection"):
        catalog.commit_table(catalog.load_table("shop.others"), (), (update,))
    collection.end(True)
    catalog.commit_table(catalog.load_table("shop.others"), (), (update,))
    assert place.lake.table("shop.others").iceberg.metadata.statistics


def test_existing_files_of_a_new_table_are_adopted(place: Place) -> None:
    """A rewritten manifest marks its files as existing, not added."""
    table = place.lake.table("shop.others").iceberg
    [task] = table.scan().plan_files()
    folder, id = f"{place.lake.uri}shop/kept-01234567", new_snapshot_id()
    found = f"{folder}/data/00000-0-{uuid.uuid4()}.parquet"
    local_path(found).parent.mkdir(parents=True)
    shutil.copyfile(local_path(task.file.file_path), local_path(found))
    file = data_file(found, 2, task.file.file_size_in_bytes)
    snapshot = snapshot_of(table, folder, id, [manifest_of(table, folder, id, file, ManifestEntryStatus.EXISTING)])
    age(place.root)
    main = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=id)
    for path in (place.root / "shop/kept-01234567/metadata").iterdir():
        path.touch()
    place.begin_distributed_gc()
    catalog = load(place.lake)
    with (
        pytest.raises((tl.TransactionExpired, CommitFailedException), match="may be deleted by a garbage collection"),
        catalog.create_table_transaction("shop.kept", ROWS.schema, location=folder) as change,
    ):
        change._apply((AddSnapshotUpdate(snapshot=snapshot), main))


def replaced(place: Place, name: str) -> tuple[Any, str]:
    """The loaded table as an engine knows it, and its data file. Another writer has replaced the file since, and no
    version references it.
    """
    known = place.lake.table(name).iceberg
    [task] = known.scan().plan_files()
    table = place.lake.table(name)
    table.overwrite(ROWS)
    table.maintenance.expire_snapshots(keep=1)
    place.lake.maintenance.expire(keep=1)
    age(place.root)
    return known, task.file.file_path


def follower(known: Any, location: str, number: int = 1) -> AddSnapshotUpdate:
    """The update that adds a snapshot outside of branches, as in write-audit-publish. Its new manifest marks a file of
    the parent snapshot as existing.
    """
    folder, id = known.location(), new_snapshot_id()
    manifest = manifest_of(known, folder, id, data_file(location, 2, 100), ManifestEntryStatus.EXISTING)
    parent = known.current_snapshot().snapshot_id
    return AddSnapshotUpdate(snapshot=snapshot_of(known, folder, id, [manifest], parent, number))


@pytest.mark.parametrize("format_version", [1, 2])
def test_files_of_an_expired_parent_snapshot_are_adopted(place: Place, format_version: int) -> None:
    """Files that a new snapshot carries over from an expired snapshot are checked, because a running garbage collection
    may delete them. Sequence numbers show that the table has changed; in format version 1 all of them are 0."""
    properties = {"format-version": str(format_version)}
    place.lake.create_table("shop.old", ROWS, properties=properties).append(ROWS)
    known, location = replaced(place, "shop.old")
    update = follower(known, location, 50 if format_version == 2 else 0)
    collection = place.begin_distributed_gc()
    catalog = load(place.lake)
    with pytest.raises((tl.TransactionExpired, CommitFailedException), match="may be deleted by a garbage collection"):
        catalog.commit_table(catalog.load_table("shop.old"), (), (update,))
    collection.end(True)
    catalog.commit_table(catalog.load_table("shop.old"), (), (update,))
    assert place.lake.table("shop.old").iceberg.snapshot_by_id(update.snapshot.snapshot_id)
    local_path(location).unlink()
    with pytest.raises((tl.TransactionExpired, CommitFailedException), match="is missing"):
        catalog.commit_table(
            catalog.load_table("shop.old"), (), (follower(known, location, 51 if format_version == 2 else 0),)
        )


@pytest.mark.parametrize("format_version", [1, 2])
def test_snapshot_of_a_removed_parent_conflicts(place: Place, format_version: int) -> None:
    """Otherwise no version would reach the files that a staged snapshot carries over from its parent."""
    properties = {"format-version": str(format_version)}
    place.lake.create_table("shop.old", ROWS, properties=properties).append(ROWS)
    known = place.lake.table("shop.old").iceberg
    [task] = known.scan().plan_files()
    late = place.lake.begin()
    with late.table("shop.old")._writing() as table, table.transaction() as change:
        change._apply((follower(known, task.file.file_path, 50 if format_version == 2 else 0),))
    place.lake.table("shop.old").overwrite(ROWS)
    place.lake.table("shop.old").maintenance.expire_snapshots(keep=1)
    with pytest.raises(tl.CommitConflict):
        late.commit()


def test_executors_adopt_files(place: Place) -> None:
    """The check that tasks of Spark run for each object also refuses files that a collection may delete."""
    collection = place.begin_distributed_gc()
    row = ObjectRow("table", "shop", "again", metadata_location=place.metadata)
    writer = definition_writer(place.lake._handle, place.lake._core.latest(), {})
    [refused] = writer.locate([row])
    assert isinstance(refused, tl.errors.RefusedObject)
    assert refused.error_kind == "transaction_expired"
    collection.end(True)
    [located] = writer.locate([row])
    assert isinstance(located, str)
