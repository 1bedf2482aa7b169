"""One managed table in one transaction: operations of PyIceberg, which are invisible before the commit."""

from __future__ import annotations

import itertools
import json
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import StaticTable, update
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from iceberg_storage import STORES, Store, make_store
from trinitylake.definitions import to_iceberg_schema
from trinitylake.errors import CorruptFile, InvalidArgument, InvalidLocation
from trinitylake.iceberg_storage import metadata as metadata_module
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.initial_metadata import new_metadata
from trinitylake.iceberg_storage.manifests.snapshot_producer import mergeable
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from waiting import in_threads

SCHEMA = IcebergSchema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "city", StringType(), required=False),
    identifier_field_ids=[1],
)
BY_CITY = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="city"))


def rows(*ids: int, city: str = "a") -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    return pa.table([pa.array(ids, pa.int64()), pa.array([city] * len(ids), pa.string())], schema=schema)


def new_table(io: LakehouseFileIO, folder: str, name: str = "t", **options: Any) -> StagedTable:
    metadata = new_metadata(io, "ns", name, to_iceberg_schema(SCHEMA), io.uri_of(folder), **options)
    return StagedTable(("ns", name), metadata, None, io.scoped())


class Lake:
    """A storage with one table, whose commits the test writes itself."""

    def __init__(self, storage: Store, **options: Any) -> None:
        self.storage = storage
        self.io = LakehouseFileIO(storage)
        staged = new_table(self.io, "ns/t-0badcafe", **options)
        self.path = ""
        self.commit(staged)

    def begin(self) -> StagedTable:
        return StagedTable.load(("ns", "t"), self.path, io=self.io)

    def commit(self, staged: StagedTable) -> StagedTable:
        self.path, data = staged.finish()
        self.storage.put_many([(self.path, data)])
        return staged

    def ids(self) -> list[int]:
        return ids(self.begin())


def ids(staged: StagedTable) -> list[int]:
    return sorted(staged.table.scan().to_arrow()["id"].to_pylist())


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path)


@pytest.fixture
def lake(store: Store) -> Lake:
    return Lake(store)


def test_a_new_table_is_an_ordinary_iceberg_table(tmp_path: Path) -> None:
    lake = Lake(make_store("disk", tmp_path), partition_spec=BY_CITY, properties={"owner": "ops"})
    staged = lake.begin()
    staged.table.append(rows(1, 2))
    lake.commit(staged)
    table = StaticTable.from_metadata(f"file://{tmp_path}/{lake.path}")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2]
    assert table.location() == f"file://{tmp_path}/ns/t-0badcafe"
    assert table.properties["owner"] == "ops"
    assert table.schema().identifier_field_ids == [1]
    assert table.spec() == BY_CITY


def test_a_table_created_and_filled_in_one_transaction_adds_one_metadata_file(store: Store) -> None:
    staged = new_table(LakehouseFileIO(store), "ns/t-1")
    assert staged.changed
    assert staged.created
    assert store.list("") == []
    staged.table.append(rows(1))
    staged.table.append(rows(2))
    path, data = staged.finish()
    assert path.startswith("ns/t-1/metadata/00000-")
    assert json.loads(data)["metadata-log"] == []
    assert not [name for name, _, _ in store.list("") if name.endswith(".json")]
    assert all(name.startswith(("ns/t-1/data/", "ns/t-1/metadata/")) for name, _, _ in store.list(""))


def test_everything_pyiceberg_can_do_works_and_stays_invisible(lake: Lake) -> None:
    staged = lake.begin()
    table = staged.table
    table.append(rows(1, 2, 3))
    table.delete("id = 2")
    table.overwrite(rows(4), overwrite_filter=EqualTo("id", 3))
    result = table.upsert(pa.concat_tables([rows(4, city="b"), rows(5)]))
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    with table.update_schema() as schema:
        schema.add_column("note", StringType())
    with table.transaction() as change:
        change.set_properties({"owner": "ops"})
        change.append(rows(6))
        assert change._scan().to_arrow().num_rows == 4
    with table.update_spec() as spec:
        spec.add_identity("city")
    table.dynamic_partition_overwrite(rows(7, city="a"))
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "tagged").create_branch(
        snapshot.snapshot_id, "audit"
    ).commit()
    table.append(rows(8), branch="audit")
    assert ids(staged) == [4, 7]
    assert table.scan().use_ref("audit").to_arrow().num_rows == 3
    assert [column.name for column in table.schema().columns] == ["id", "city", "note"]
    assert table.refresh().metadata is staged.metadata
    assert lake.ids() == []
    lake.commit(staged)
    assert lake.ids() == [4, 7]
    again = lake.begin().table
    assert (again.refs()["tagged"].snapshot_id, again.properties["owner"]) == (snapshot.snapshot_id, "ops")
    assert again.metadata == staged.metadata.model_copy(update={"metadata_log": again.metadata.metadata_log})


def test_files_that_exist_can_be_added(lake: Lake, store: Store) -> None:
    buffer = pa.BufferOutputStream()
    pq.write_table(rows(1, 2), buffer)
    store.put("landing/file.parquet", buffer.getvalue().to_pybytes())
    staged = lake.begin()
    staged.table.add_files([store.root + "landing/file.parquet"])
    assert ids(staged) == [1, 2]
    assert "landing/file.parquet" not in staged.written_paths


def test_one_metadata_file_whatever_the_number_of_operations(lake: Lake) -> None:
    before = lake.path
    staged = lake.begin()
    assert not staged.changed
    for id in range(5):
        staged.table.append(rows(id))
    assert staged.changed
    path, data = staged.finish()
    assert staged.finish() == (path, data), "the result is the same until the metadata changes"
    assert path.startswith("ns/t-0badcafe/metadata/00001-")
    log = json.loads(data)["metadata-log"]
    assert [entry["metadata-file"] for entry in log] == [lake.storage.root + before]
    staged.table.append(rows(9))
    assert staged.finish()[0] != path
    assert staged.finish()[0].startswith("ns/t-0badcafe/metadata/00001-")


def test_the_metadata_log_keeps_as_many_files_as_the_table_asks_for(lake: Lake) -> None:
    paths = []
    for number in range(6):
        staged = lake.begin()
        with staged.table.transaction() as change:
            change.set_properties({"write.metadata.previous-versions-max": "3", "n": str(number)})
        paths.append(lake.path)
        lake.commit(staged)
    log = lake.begin().metadata.metadata_log
    assert [entry.metadata_file for entry in log] == [lake.storage.root + path for path in paths[-3:]]
    assert lake.path.split("/")[-1].startswith("00006-")
    times = [entry.timestamp_ms for entry in log]
    assert times == sorted(times)


def test_metadata_is_the_same_after_a_trip_through_the_file(lake: Lake) -> None:
    for number in range(4):
        staged = lake.begin()
        staged.table.append(rows(number))
        lake.commit(staged)
    expected = lake.begin().metadata
    metadata_module.cache.clear()
    text = lake.storage.get(lake.path)
    parsed = lake.begin().metadata
    assert parsed.model_dump() == expected.model_copy(update={"metadata_log": parsed.metadata_log}).model_dump()
    assert json.loads(text) == json.loads(parsed.model_dump_json()), "the file has the JSON of PyIceberg"


def test_encoded_metadata_is_independent_of_earlier_files(lake: Lake) -> None:
    staged = lake.begin()
    for number in range(6):
        staged.table.append(rows(number))
    lake.commit(staged)
    branches = [lake.begin() for _ in range(3)]
    branches[0].table.append(rows(10))
    branches[1].table.append(rows(11))
    branches[1].table.append(rows(12))
    third = branches[2].metadata.snapshots[2].snapshot_id
    branches[2].table.maintenance.expire_snapshots().by_id(third).commit()
    branches[2].table.append(rows(13))
    for branch in (*branches, *reversed(branches), branches[0], branches[2]):
        branch._finished = None
        expected = json.loads(branch.metadata.model_dump_json())
        written = json.loads(branch.finish()[1])
        assert {**written, "metadata-log": []} == {**expected, "metadata-log": []}


def test_metadata_is_immutable(lake: Lake) -> None:
    staged = lake.begin()
    staged.table.append(rows(1, 2, 3))
    frozen = [(staged.metadata, staged.metadata.model_dump_json())]
    operations: list[Callable[[], object]] = [
        lambda: staged.table.append(rows(4)),
        lambda: staged.table.delete("id = 1"),
        lambda: staged.table.upsert(rows(2, city="z")),
        lambda: staged.table.update_schema().add_column("note", StringType()).commit(),
        lambda: staged.table.update_spec().add_identity("city").commit(),
        lambda: staged.table.transaction().set_properties({"a": "b"}).commit_transaction(),
        lambda: staged.table.append(rows(5)),
        lambda: staged.table.maintenance.expire_snapshots().by_id(frozen[0][0].snapshots[0].snapshot_id).commit(),
        lambda: staged.finish(),
    ]
    for operation in operations:
        operation()
        for metadata, text in frozen:
            assert metadata.model_dump_json() == text
        frozen.append((staged.metadata, staged.metadata.model_dump_json()))


def test_written_files_are_recorded_for_a_rollback(lake: Lake, store: Store) -> None:
    before = {path for path, _, _ in store.list("")}
    staged = lake.begin()
    staged.table.append(rows(1, 2))
    staged.table.delete("id = 1")
    written = set(staged.written_paths)
    assert {path for path, _, _ in store.list("")} - before == written
    for path in written:
        store.delete(path)
    assert {path for path, _, _ in store.list("")} == before
    assert lake.ids() == []


def test_two_tables_of_a_transaction_know_their_own_files(store: Store) -> None:
    io = LakehouseFileIO(store)
    tables = [new_table(io, f"ns/{name}", name) for name in "ab"]
    for staged in tables:
        staged.table.append(rows(1))
    assert all(path.startswith("ns/a/") for path in tables[0].written_paths)
    assert len(tables[1].written_paths) == 3


def test_a_requirement_that_does_not_hold_is_refused(lake: Lake) -> None:
    staged = lake.begin()
    with pytest.raises(CommitFailedException, match="UUID"):
        staged.commit((update.AssertTableUUID(uuid=uuid.uuid4()),), (update.SetPropertiesUpdate(updates={"a": "b"}),))
    assert not staged.changed


def test_threads_that_append_to_one_handle_all_land(lake: Lake) -> None:
    staged = lake.begin()

    def work(start: int) -> None:
        for id in range(start, start + 3):
            staged.table.append(rows(id))

    in_threads(work, (0, 10, 20, 30))
    assert ids(staged) == sorted(itertools.chain(*(range(start, start + 3) for start in (0, 10, 20, 30))))
    assert len(staged.table.snapshots()) == 12


def test_a_table_cannot_leave_its_place_in_the_lakehouse(lake: Lake) -> None:
    staged = lake.begin()
    elsewhere = lake.storage.root + "other/data"
    for location in ("file:///etc", "s3://bucket/else", lake.storage.root + "ns/t-0badcafe/../x", elsewhere):
        for name in ("write.data.path", "write.metadata.path"):
            with pytest.raises(InvalidLocation):
                staged.commit((), (update.SetPropertiesUpdate(updates={name: location}),))
        with pytest.raises(InvalidLocation):
            staged.commit((), (update.SetLocationUpdate(location=location),))
    staged.commit((), (update.SetPropertiesUpdate(updates={"write.data.path": staged.table.location() + "/rows"}),))
    staged.table.append(rows(1))
    assert any("/ns/t-0badcafe/rows/" in "/" + path for path in staged.written_paths)
    snapshot = staged.table.current_snapshot()
    assert snapshot is not None
    foreign = snapshot.model_copy(update={"snapshot_id": 1, "manifest_list": "s3://elsewhere/list.avro"})
    with pytest.raises(InvalidLocation):
        staged.commit((), (update.AddSnapshotUpdate(snapshot=foreign),))


def test_a_property_that_would_load_code_is_refused(lake: Lake, store: Store) -> None:
    names = (
        "py-io-impl",
        "io-impl",
        "py-catalog-impl",
        "write.location-provider.impl",
        "write.py-location-provider.impl",
    )
    for name in names:
        with pytest.raises(InvalidArgument, match="load code"):
            lake.begin().commit((), (update.SetPropertiesUpdate(updates={name: "os.path"}),))
        with pytest.raises(InvalidArgument, match="load code"):
            Lake(store, properties={name: "os.path"})
        text = json.loads(store.get(lake.path))
        text["properties"][name] = "os.path"
        store.put(f"ns/t-0badcafe/metadata/{name}.metadata.json", json.dumps(text).encode())
        foreign = StagedTable.load(("ns", "t"), f"ns/t-0badcafe/metadata/{name}.metadata.json", io=lake.io)
        assert ids(foreign) == []
        for write in (foreign.table.append, foreign.table.overwrite, foreign.table.upsert):
            with pytest.raises(InvalidArgument, match="load code"):
                write(rows(1))


def test_metadata_of_a_newer_iceberg_is_refused_when_it_would_be_written(lake: Lake, store: Store) -> None:
    with pytest.raises(ValidationError, match="format version: 4"):
        Lake(store, properties={"format-version": "4"})
    with pytest.raises(ValueError, match="Unsupported table format version: 4"):
        lake.begin().commit((), (update.UpgradeFormatVersionUpdate.model_validate({"format-version": 4}),))


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"format-version": 2}', b"\xff\xfe", b'"text"'])
def test_damaged_metadata_is_a_corrupt_file(lake: Lake, store: Store, damage: bytes) -> None:
    path = "ns/t-0badcafe/metadata/00009-damaged.metadata.json"
    store.put(path, damage)
    with pytest.raises(CorruptFile, match="00009-damaged") as caught:
        StagedTable.load(("ns", "t"), path, io=lake.io)
    assert caught.value.path == path


def test_manifests_are_merged_as_they_add_up(lake: Lake) -> None:
    counts, merges = [], 0
    for number in range(120):
        staged = lake.begin()
        staged.table.append(rows(number))
        lake.commit(staged)
        snapshot = staged.table.current_snapshot()
        assert snapshot is not None
        manifests = snapshot.manifests(staged.io)
        counts.append(len(manifests))
        merges += len(counts) > 1 and counts[-1] <= counts[-2]
        assert sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests) == number + 1
    assert merges >= 10
    assert max(counts) <= 20
    assert lake.ids() == list(range(120))
    entries = lake.begin().table.inspect.entries().to_pylist()
    assert sorted(entry["sequence_number"] for entry in entries) == list(range(1, 121))
    total = lake.begin().table.current_snapshot()
    assert total is not None
    assert total.summary is not None
    assert (total.summary["total-records"], total.summary["total-data-files"]) == ("120", "120")


def test_deleted_rows_stay_deleted_when_manifests_are_merged(lake: Lake) -> None:
    staged = lake.begin()
    for number in range(40):
        staged.table.append(rows(number))
        if number % 3 == 2:
            staged.table.delete(f"id = {number - 1}")
    lake.commit(staged)
    assert lake.ids() == [number for number in range(40) if number % 3 != 1]


def test_merging_is_left_to_the_tables_own_properties(store: Store) -> None:
    lake = Lake(store, properties={"commit.manifest-merge.enabled": "false"})
    staged = lake.begin()
    for number in range(15):
        staged.table.append(rows(number))
    snapshot = staged.table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(staged.io)) == 15


def test_manifests_of_any_history_are_merged_in_levels() -> None:
    class Manifest:
        content = 0
        partition_spec_id = 0
        existing_files_count = 0

        def __init__(self, files: int, length: int) -> None:
            self.added_files_count, self.manifest_length = files, length

    manifests: list[Manifest] = []
    rewritten = 0
    for _ in range(5000):
        for group in mergeable(manifests, 10, 1 << 40):  # type: ignore[arg-type]
            for manifest in group:
                manifests.remove(manifest)  # type: ignore[arg-type]
            files = sum(manifest.added_files_count or 0 for manifest in group)
            manifests.append(Manifest(files, files * 100))
            rewritten += files
        manifests.insert(0, Manifest(1, 100))
        assert len(manifests) <= 40
    assert rewritten <= 5000 * 4
    limited = [Manifest(1, 30) for _ in range(12)] + [Manifest(1, 60)]
    (group,) = mergeable(limited, 10, 100)  # type: ignore[arg-type]
    assert sum(manifest.manifest_length for manifest in group) <= 100


def test_time_travel_by_iceberg_snapshot_reads_the_old_rows(lake: Lake) -> None:
    staged = lake.begin()
    for number in range(25):
        staged.table.append(rows(number))
    third = staged.table.snapshots()[2]
    assert sorted(staged.table.scan(snapshot_id=third.snapshot_id).to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_expiring_snapshots_shortens_the_metadata_and_deletes_no_file(lake: Lake, store: Store) -> None:
    staged = lake.begin()
    for number in range(5):
        staged.table.append(rows(number))
    lake.commit(staged)
    files = {path for path, _, _ in store.list("")}
    staged = lake.begin()
    staged.table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in staged.table.snapshots()[:-1]]).commit()
    with staged.table.transaction() as change:
        change.set_properties({"write.metadata.delete-after-commit.enabled": "true"})
    lake.commit(staged)
    assert len(json.loads(store.get(lake.path))["snapshots"]) == 1
    assert files <= {path for path, _, _ in store.list("")}
    assert lake.ids() == list(range(5))


def test_a_partitioned_table_writes_one_file_per_partition(store: Store) -> None:
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()))
    lake = Lake(store, partition_spec=BY_CITY, sort_order=order)
    staged = lake.begin()
    staged.table.append(pa.concat_tables([rows(1, city="x/y z"), rows(2, city="é%")]))
    data = [path for path in staged.written_paths if path.endswith(".parquet")]
    assert len(data) == 2
    lake.commit(staged)
    assert lake.ids() == [1, 2]
    assert lake.begin().table.scan("city = 'x/y z'").to_arrow().num_rows == 1
    assert not lake.begin().table.sort_order().is_unsorted


def test_an_empty_append_makes_an_empty_snapshot_as_pyiceberg_does(lake: Lake) -> None:
    staged = lake.begin()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        staged.table.append(rows())
    assert ids(staged) == []
    assert len(staged.table.snapshots()) == 1


def test_columns_that_the_partitioning_needs_stay(tmp_path: Path) -> None:
    """A change of columns, partition spec or sort order is refused if these do not fit each other any more."""
    lake = Lake(make_store("disk", tmp_path), partition_spec=BY_CITY)
    metadata = lake.begin().metadata
    without_city = IcebergSchema(*(field for field in metadata.schema().fields if field.name != "city"), schema_id=1)
    updates = (update.AddSchemaUpdate(schema_=without_city), update.SetCurrentSchemaUpdate(schema_id=1))
    with pytest.raises(ValidationError, match="Cannot find source column"):
        apply_updates(metadata, updates)
