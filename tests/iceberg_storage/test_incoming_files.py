"""Checks of files that a client names, for each way to commit a table.

A client committed a manifest that named a data file with two slashes, another with a query, and one with a scheme in
capitals. This library refused the first one, and read another file for the others; engines cut the query off or decoded
the name, and found the file. So a table had different rows for different readers, and garbage collection and conflict
checks saw different files.

`WAYS` lists all ways to commit files; new ways must be added to it.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import FileFormat, ManifestEntryStatus
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

import trinitylake as tl
from manifests_by_hand import data_file, manifest_of, new_snapshot_id, snapshot_of
from rest.client import TOKEN, Client, running
from rest.shop import new_table
from trinitylake.definitions import to_iceberg_schema
from trinitylake.errors import RefusedObject, RegistrationFailed, TrinityLakeError
from trinitylake.iceberg import load, table_writing
from trinitylake.iceberg_storage import incoming_files
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.initial_metadata import new_metadata
from trinitylake.iceberg_storage.manifests import snapshot_producer
from trinitylake.iceberg_storage.manifests.manifest_consistency import SpecsAndSchemas
from trinitylake.lakehouse.bulk.definition_writer import ObjectRow
from trinitylake.lakehouse.bulk.registration import definition_writer
from trinitylake.rest import RestServer

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
NAME = "shop.orders"


class Place(NamedTuple):
    """A lakehouse with one table, and a server."""

    lake: tl.Lakehouse
    server: RestServer

    @property
    def table(self) -> Any:
        return self.lake.table(NAME).iceberg


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("shop")
    lake.create_table(NAME, ROWS.schema)
    lake.table(NAME).append(ROWS)
    with running(lake, token=TOKEN) as server:
        yield Place(lake, server)


def written_by_hand(
    place: Place, location: str, folder: str, status: ManifestEntryStatus = ManifestEntryStatus.ADDED
) -> tuple[TableUpdate, TableUpdate]:
    """The updates of an engine that writes its own manifest, which names a file at `location`."""
    id = new_snapshot_id()
    return of_manifests(place, folder, id, [manifest_of(place.table, folder, id, data_file(location), status)], None)


def of_manifests(
    place: Place, folder: str, id: int, manifests: list[Any], parent: int | None, number: int = 50
) -> tuple[TableUpdate, TableUpdate]:
    snapshot = snapshot_of(place.table, folder, id, manifests, parent, number)
    return (AddSnapshotUpdate(snapshot=snapshot), SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=id))


def as_json(updates: tuple[TableUpdate, ...]) -> list[Any]:
    return [update.model_dump(mode="json", by_alias=True, exclude_none=True) for update in updates]


def sent(place: Place, path: str, body: Any) -> None:
    answer = Client(place.server)("POST", path, body)
    if answer.code == 400:
        raise tl.InvalidLocation(answer.body["error"]["message"])
    assert answer.code in (200, 204), answer


# Each function commits a table that names `location` in its own way, or raises `InvalidLocation`.


def by_append_files(place: Place, location: str) -> None:
    with place.lake.table(NAME)._writing() as table, table.transaction() as change:
        change.append_files([data_file(location)])


def by_pyiceberg(kind: str) -> Callable[[Place, str], None]:
    def way(place: Place, location: str) -> None:
        with (
            place.lake.table(NAME)._writing() as table,
            table.transaction() as change,
            getattr(change.update_snapshot(), kind)() as snapshot,
        ):
            snapshot.append_data_file(data_file(location))

    return way


def by_catalog(place: Place, location: str) -> None:
    table = load(place.lake).load_table(NAME)
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(data_file(location))


def by_commit_table(place: Place, location: str) -> None:
    catalog = load(place.lake)
    table = catalog.load_table(NAME)
    catalog.commit_table(table, (), written_by_hand(place, location, place.table.location()))


def by_rest(place: Place, location: str) -> None:
    updates = written_by_hand(place, location, place.table.location())
    sent(place, "/v1/namespaces/shop/tables/orders", {"requirements": [], "updates": as_json(updates)})


def by_rest_transaction(place: Place, location: str) -> None:
    updates = written_by_hand(place, location, place.table.location())
    identifier = {"namespace": ["shop"], "name": "orders"}
    change = {"identifier": identifier, "requirements": [], "updates": as_json(updates)}
    sent(place, "/v1/transactions/commit", {"table-changes": [change]})


def by_rest_creation(place: Place, location: str) -> None:
    id = str(uuid.uuid4())
    folder = f"{place.lake.uri}shop/made-{id[:8]}"
    updates = [
        *new_table(id),
        {"action": "set-location", "location": folder},
        *as_json(written_by_hand(place, location, folder)),
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    sent(place, "/v1/namespaces/shop/tables/made", body)


def by_catalog_creation(place: Place, location: str) -> None:
    with (
        load(place.lake).create_table_transaction("shop.made", ROWS.schema) as change,
        change.update_snapshot().fast_append() as snapshot,
    ):
        snapshot.append_data_file(data_file(location))


def metadata_that_names(place: Place, location: str) -> str:
    """A metadata file of a table that names `location`, as another writer of the format may have written it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_producer, "check_data_file", lambda io, file: None)
        by_append_files(place, location)
    at = place.table.metadata_location
    place.lake.drop_table(NAME)
    return at


def by_catalog_registration(place: Place, location: str) -> None:
    load(place.lake).register_table("shop.again", metadata_that_names(place, location))


def by_rest_registration(place: Place, location: str) -> None:
    at = metadata_that_names(place, location)
    sent(place, "/v1/namespaces/shop/register", {"name": "again", "metadata-location": at})


def by_bulk_registration(place: Place, location: str) -> None:
    at = metadata_that_names(place, location)
    objects = pa.table({"kind": ["table"], "namespace": ["shop"], "name": ["again"], "metadata_location": [at]})
    try:
        place.lake.register(objects)
    except RegistrationFailed as error:
        raise tl.InvalidLocation(str(error)) from error


def by_executors(place: Place, location: str) -> None:
    """The check that tasks of Spark run for each object."""
    at = metadata_that_names(place, location)
    writer = definition_writer(place.lake._handle, place.lake._core.latest(), {})
    [located] = writer.locate([ObjectRow("table", "shop", "again", metadata_location=at)])
    if isinstance(located, RefusedObject):
        assert located.error_kind == "invalid_location", located
        raise tl.InvalidLocation(located.message)


WAYS: dict[str, Callable[[Place, str], None]] = {
    "append_files": by_append_files,
    "fast_append": by_pyiceberg("fast_append"),
    "merge_append": by_pyiceberg("merge_append"),
    "overwrite": by_pyiceberg("overwrite"),
    "PyIceberg catalog": by_catalog,
    "commit_table": by_commit_table,
    "REST commit": by_rest,
    "REST transaction": by_rest_transaction,
    "REST creation": by_rest_creation,
    "PyIceberg creation": by_catalog_creation,
    "PyIceberg register": by_catalog_registration,
    "REST register": by_rest_registration,
    "bulk registration": by_bulk_registration,
    "bulk registration by executors": by_executors,
}

ODD: dict[str, Callable[[str], str]] = {
    "two slashes": lambda uri: uri.replace("/data/", "//data/"),
    "a dot": lambda uri: uri.replace("/data/", "/./data/"),
    "two dots": lambda uri: uri.replace("/data/", "/data/../data/"),
    "two dots in other letters": lambda uri: uri.replace("/data/", "/data/%2e%2E/data/"),
    "a slash at its end": lambda uri: f"{uri}/",
    "a query": lambda uri: f"{uri}?x=1",
    "a fragment": lambda uri: f"{uri}#x",
    "a line": lambda uri: f"{uri}\n",
    "a scheme in capitals": lambda uri: uri.replace("file:", "FILE:"),
    "outside": lambda _: "file:///etc/passwd",
    "another store": lambda _: "s3://bucket/x.parquet",
    "a folder of the lakehouse": lambda uri: uri.partition("shop/")[0] + "_txn/x.parquet",
}


def present_file(place: Place) -> str:
    [task] = place.table.scan().plan_files()
    return str(task.file.file_path)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_refuses_ambiguous_file_names(place: Place, way: str) -> None:
    if "regist" in way:  # the registered table must not exist any more
        names = [next(iter(ODD.values()))(present_file(place))]
    else:
        names = [odd(present_file(place)) for odd in ODD.values()]
    for name in names:
        with pytest.raises(tl.InvalidLocation, match=r"not a qualified|outside of|an internal folder of the lakehouse"):
            WAYS[way](place, name)
    assert not place.lake.exists("shop.made")
    assert not place.lake.exists("shop.again")


@pytest.mark.parametrize("way", [way for way in WAYS if way != "append_files" and "bulk" not in way])
def test_every_way_refuses_a_file_that_contradicts_itself(
    place: Place, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to add files refuses a file that contradicts its manifest entry, such as Parquet that is called Avro,
    which no reader could read. `append_files` accepts files that this library wrote. Bulk registrations differ from
    others only in the transaction."""

    made = data_file

    def contradicting(location: str) -> Any:
        file = made(location)
        file[2] = FileFormat.AVRO
        return file

    monkeypatch.setitem(globals(), "data_file", contradicting)
    with pytest.raises(TrinityLakeError, match="the suffix of another format"):
        WAYS[way](place, present_file(place))
    assert not place.lake.exists("shop.made")
    assert not place.lake.exists("shop.again")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_accepts_equal_spellings_and_existing_files(place: Place, way: str) -> None:
    """Every way accepts equal spellings and existing files of the lakehouse. Engines write `file:/x` for `file:///x`,
    escape partition values, and add files outside of the table's folder, which is allowed with access to the storage.
    """
    path = place.lake.uri + "landing/day=a%2Fb%20c/x=.../f.parquet"
    local = Path(path.removeprefix("file://"))
    local.parent.mkdir(parents=True)
    pq.write_table(ROWS, local)
    before = place.lake.version
    WAYS[way](place, path.replace("file:///", "file:/"))
    assert place.lake.version > before


def test_add_files_refuses_ambiguous_file_names(place: Place) -> None:
    present = present_file(place)
    landing = Path(place.lake.uri.removeprefix("file://")) / "landing"
    landing.mkdir()
    for name in ("f.parquet", "f.parquet?x=1"):
        shutil.copy(present.removeprefix("file://"), landing / name)
    with place.lake.table(NAME)._writing() as table:
        table.add_files([f"file://{landing}/f.parquet"])
    assert place.lake.table(NAME).scan().count() == 4
    for odd in (f"file://{landing}/f.parquet?x=1", f"FILE://{landing}/f.parquet"):
        with pytest.raises(tl.InvalidLocation), place.lake.table(NAME)._writing() as table:
            table.add_files([odd], check_duplicate_files=False)


def test_existing_file_with_an_ambiguous_name_may_be_carried_over(place: Place) -> None:
    """Otherwise an engine could never remove such a file."""
    odd = present_file(place).replace("/data/", "//data/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_producer, "check_data_file", lambda io, file: None)
        by_append_files(place, odd)
    table = place.table
    parent = table.current_snapshot()
    add, ref = written_by_hand(place, odd, table.location(), ManifestEntryStatus.EXISTING)
    assert isinstance(add, AddSnapshotUpdate)
    layout = SpecsAndSchemas.after(table.metadata, ())
    with pytest.raises(tl.InvalidLocation):
        incoming_files.incoming_paths(table.io, table.metadata, [add.snapshot], layout)
    follows = add.snapshot.model_copy(update={"parent_snapshot_id": parent.snapshot_id})
    assert incoming_files.incoming_paths(table.io, table.metadata, [follows], layout)
    catalog = load(place.lake)
    catalog.commit_table(catalog.load_table(NAME), (), (AddSnapshotUpdate(snapshot=follows), ref))


def test_manifest_with_an_older_snapshot_id_is_checked(place: Place) -> None:
    table = place.table
    odd = present_file(place) + "?x"
    add, _ = written_by_hand(place, odd, table.location())
    assert isinstance(add, AddSnapshotUpdate)
    manifests = incoming_files.read_list(table.io, add.snapshot)
    head = table.current_snapshot()
    updates = of_manifests(place, table.location(), 77, list(manifests), head.snapshot_id)
    with pytest.raises(tl.InvalidLocation, match="readers interpret differently"):
        load(place.lake).commit_table(table, (), updates)


def test_ambiguous_names_of_statistics_are_refused(place: Place) -> None:
    body = {
        "action": "set-statistics",
        "statistics": {
            "snapshot-id": place.table.current_snapshot().snapshot_id,
            "statistics-path": f"{place.table.location()}/metadata/s.stats?x",
            "file-size-in-bytes": 1,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        },
    }
    with pytest.raises(tl.InvalidLocation):
        sent(place, "/v1/namespaces/shop/tables/orders", {"requirements": [], "updates": [body]})


def test_manifests_outside_of_the_folder_are_not_merged(place: Place) -> None:
    """Bounds and counts of another table would be copied into a manifest of this table."""
    lake = place.lake
    for _ in range(12):
        lake.table(NAME).append(ROWS)
    lake.rollback(lake.version, objects={NAME: "shop.copy"})
    copy = lake.table("shop.copy").iceberg
    foreign = {one.manifest_path for one in copy.current_snapshot().manifests(copy.io)}
    for _ in range(30):
        lake.table("shop.copy").append(ROWS)
    copy = lake.table("shop.copy").iceberg
    present = {one.manifest_path for one in copy.current_snapshot().manifests(copy.io)}
    assert foreign <= present
    assert len(present - foreign) < 30  # own manifests are merged
    assert lake.table("shop.copy").scan().count() == lake.table(NAME).scan().count() + 60


def test_files_of_a_new_table_are_adopted(place: Place) -> None:
    """A garbage collection may have deleted old files."""
    folder = f"{place.lake.uri}shop/made-1"
    with place.lake.transaction() as txn:
        base = new_metadata(place.table.io, "shop", "made", to_iceberg_schema(ROWS.schema), folder)
        add, ref = written_by_hand(place, f"{folder}/data/f.parquet", folder)
        metadata = apply_updates(base, (add, ref))
        made = table_writing.create_table(txn, "shop", "made", metadata)
        paths = made.take_adopted()
    assert "shop/made-1/data/f.parquet" in paths
    assert len(paths) == 3  # the manifest list, the manifest and the data file
