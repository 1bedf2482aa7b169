"""Requests of statements on a remote store: no file is read twice, one lookup of the latest version, parallel requests.

An append of ten rows made ten requests one after the other, and a transaction of three statements fetched the manifests
that it had just written three times. Requests and rounds are counted on a store with a simulated clock
(`stepped_store.py`), so no test depends on the speed of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import LongType

import stepped_store
import trinitylake as tl
from conformance.extensions import definition_of, inline_definitions
from conformance.lakehouse import SeedLakehouse, SeedVersion
from stepped_store import READ_MILLIS, WRITE_MILLIS, SteppedStore, Trace
from trinitylake.definitions import MANIFEST_LIST, parse_table_def, serialize
from trinitylake.errors import CommitConflict, CorruptFile, InvalidLocation, ObjectAlreadyExists, ObjectNotFound
from trinitylake.iceberg import load
from trinitylake.iceberg_storage import metadata
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.manifest_list import read_list
from trinitylake.iceberg_storage.remote_reads import MAX_FILES, MAX_SIZE_BYTES, Prefetch
from trinitylake.rest import serve
from trinitylake.tables.table_definition import name_metadata

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "name": [f"n{i}" for i in range(10)]})
ROOT = "s3://bucket/lake"


@pytest.fixture(scope="module")
def store() -> Iterator[SteppedStore]:
    with stepped_store.running() as running:
        yield running


@dataclass
class Shop:
    """A lakehouse with tables `n.t`, of one file, and `n.six`, of six files, which this process has written."""

    store: SteppedStore
    lake: tl.Lakehouse
    root: str

    def elsewhere(self) -> tl.Lakehouse:
        """The lakehouse as opened by a process that has read nothing yet."""
        metadata.cache.clear()
        return tl.open(self.root, storage_options=self.store.storage_options)

    def traced(self, statement: Callable[[], Any]) -> Trace:
        with self.store.trace() as trace:
            statement()
        return trace


@pytest.fixture
def shop(store: SteppedStore, request: pytest.FixtureRequest) -> Shop:
    root = f"{ROOT}/{request.node.name}"
    lake = tl.create(root, storage_options=store.storage_options)
    lake.create_namespace("n")
    lake.create_table("n.t", ROWS.schema).append(ROWS)
    six = lake.create_table("n.six", ROWS.schema)
    for _ in range(6):
        six.append(ROWS)
    return Shop(store, lake, root)


def looks(trace: Trace) -> int:
    """Number of requests for a version that does not exist yet."""
    return sum(one.status == 404 and one.verb == "GET" for one in trace.requests)


def files_read(trace: Trace) -> list[str]:
    """Requested files of tables and definitions, with repetitions."""
    paths = trace.asked("GET", "RANGE", "HEAD")
    return sorted(path for path in paths if path.endswith((".json", ".avro", ".parquet", ".binpb")))


def append_delete_append(lake: tl.Lakehouse) -> None:
    with lake.transaction() as txn:
        table = txn.table("n.t")
        assert table.scan().to_arrow().num_rows == 10
        table.append(ROWS)
        assert table.scan().to_arrow().num_rows == 20
        table.delete("id = 5")
        assert table.scan().to_arrow().num_rows == 18
        table.append(ROWS)
        assert table.scan().to_arrow().num_rows == 28


STATEMENTS: dict[str, Callable[[tl.Lakehouse], object]] = {
    "append": lambda lake: lake.table("n.t").append(ROWS),
    "delete": lambda lake: lake.table("n.t").delete("id = 5"),
    "overwrite": lambda lake: lake.table("n.t").overwrite(ROWS, filter="id > 5"),
    "upsert": lambda lake: lake.table("n.t").upsert(ROWS, on="id"),
    "scan": lambda lake: lake.table("n.six").scan().to_arrow(),
    "count": lambda lake: lake.table("n.six").scan().count(),
    "append, delete, append": append_delete_append,
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_file_is_fetched_that_this_process_wrote(shop: Shop, name: str) -> None:
    trace = shop.traced(lambda: STATEMENTS[name](shop.lake))
    assert files_read(trace) == [], trace


@pytest.mark.parametrize("is_of_all_tables", [False, True])
def test_the_change_feed_fetches_definitions_of_versions_in_parallel(shop: Shop, is_of_all_tables: bool) -> None:
    """One round for each definition that is too large for its root: 10,000 versions would take minutes."""
    rows = pa.table({f"a column with a long name, {number}": [1] for number in range(60)})
    large = shop.lake.create_table("n.large", rows.schema)
    since = shop.lake.version
    for _ in range(6):
        large.append(rows)
    lake = shop.elsewhere()
    table = lake.table("n.large")
    if is_of_all_tables:
        trace = shop.traced(lambda: list(lake.changes(since, rows=True)))
    else:
        trace = shop.traced(lambda: table.changes(since).read_all())
    definitions = [one for one in trace.requests if one.path.endswith(".binpb")]
    assert len(definitions) == len({one.path for one in definitions}) == 6, trace  # the latest definition is cached
    since_then = definitions[1:]
    assert max(one.began for one in since_then) < min(one.ended for one in since_then), trace


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_file_is_fetched_twice(shop: Shop, name: str) -> None:
    """A delete fetched each manifest four times, and the size of each data file before the file."""
    lake = shop.elsewhere()
    trace = shop.traced(lambda: STATEMENTS[name](lake))
    read = files_read(trace)
    assert read
    assert len(set(read)) == len(read), trace
    assert not [path for path in trace.asked("HEAD") if "/n/" in path], trace
    # The hint of an earlier commit may be written a second later.
    written = [path for path in trace.asked("PUT") if "hint" not in path]
    assert not set(written) & set(read), trace
    assert len(set(written)) == len(written), trace


def test_a_write_through_a_handle_looks_for_the_newest_version_once(shop: Shop) -> None:
    """An append does not, because it begins on the version of its last commit."""
    table = shop.lake.table("n.t")
    table.append(ROWS)
    trace = shop.traced(lambda: table.append(ROWS))
    assert looks(trace) == 0, trace
    for write in (
        lambda: table.delete("id = 3"),
        lambda: table.overwrite(ROWS, filter="id = 4"),
        lambda: table.upsert(ROWS, on="id"),
        lambda: shop.lake.alter_table(table.name, {"owner": "ops"}),
    ):
        trace = shop.traced(write)
        assert looks(trace) == 1, trace
    assert shop.lake.table("n.t").scan().to_arrow().num_rows == table.scan().to_arrow().num_rows
    assert shop.lake.table("n.t").properties["owner"] == "ops"


def test_append_to_a_table_from_a_fresh_lookup_needs_no_second_lookup(shop: Shop) -> None:
    for statement in (
        lambda: shop.lake.table("n.t").append(ROWS),
        lambda: shop.lake.create_table("n.new", ROWS.schema),
    ):
        trace = shop.traced(statement)
        assert looks(trace) == 1, trace
    assert shop.lake.table("n.t").scan().count() == 20


def test_a_scan_of_six_small_files_waits_only_for_what_it_cannot_know(shop: Shop) -> None:
    """A scan by a process that wrote all files needs only requests for what it cannot know."""
    trace = shop.traced(lambda: shop.lake.table("n.six").scan().to_arrow())
    assert trace.millis == READ_MILLIS, trace
    # The hint of an earlier commit may be written at this time, because it is written at most once a second.
    assert len([request for request in trace.requests if request.verb != "PUT"]) <= 4, trace

    lake = shop.elsewhere()
    # The latest version with the definition; metadata; manifest list; manifests; data files.
    trace = shop.traced(lambda: lake.table("n.six").scan().to_arrow())
    assert trace.millis <= 6 * READ_MILLIS, trace
    assert len(files_read(trace)) == 2 + 6 + 6, trace

    shop.lake.table("n.six").append(ROWS)
    metadata.cache.clear()
    # Only files that another process has added: metadata, manifest list, one manifest, one data file.
    trace = shop.traced(lambda: lake.table("n.six").scan().to_arrow())
    assert len(files_read(trace)) == 4, trace


def test_a_scan_skips_manifests_that_list_only_removed_files(shop: Shop) -> None:
    """After a compaction each scan fetched the manifest that lists the former files, and parsed it in a thread."""
    shop.lake.table("n.six").maintenance.compact(min_files=2)
    table = shop.elsewhere().table("n.six")
    manifests = table.iceberg.current_snapshot().manifests(table.iceberg.io)  # type: ignore[union-attr]
    assert len(manifests) == 2
    trace = shop.traced(lambda: table.scan().to_arrow())
    assert len([path for path in trace.fetched(".avro") if "/snap-" not in path]) == 1, trace


def test_a_table_of_a_transaction_is_read_as_one_outside(shop: Shop) -> None:
    lake = shop.elsewhere()

    def scan() -> None:
        with lake.begin() as txn:
            assert txn.table("n.six").scan().to_arrow().num_rows == 60

    trace = shop.traced(scan)
    assert trace.millis <= 6 * READ_MILLIS, trace
    assert len(files_read(trace)) == 14, trace


def test_columns_added_after_the_lookup_can_be_appended(shop: Shop) -> None:
    """An append begins on the version of the last lookup; if that fails, it begins again on a newer one."""
    table = shop.lake.table("n.t")
    with shop.elsewhere().table("n.t").update_schema() as update:
        update.add_column("extra", LongType())
    table.append(ROWS.append_column("extra", pa.array(range(10), pa.int64())))
    assert sorted(shop.lake.table("n.t").scan().to_arrow()["extra"].to_pylist(), key=str)[:2] == [0, 1]
    assert shop.lake.table("n.t").scan().count() == 20


def test_rows_that_fit_neither_version_are_refused(shop: Shop) -> None:
    table = shop.lake.table("n.t")
    shop.elsewhere().create_namespace("other")
    with pytest.raises(tl.TrinityLakeError, match="nonsense"):
        table.append(pa.table({"nonsense": [1]}))
    assert shop.lake.table("n.t").scan().count() == 10


def test_an_append_after_the_table_was_made_anew_is_refused(shop: Shop) -> None:
    table = shop.lake.table("n.t")
    other = shop.elsewhere()
    other.drop_table("n.t")
    other.create_table("n.t", ROWS.schema)
    with pytest.raises(CommitConflict, match="another table has its name now"):
        table.append(ROWS)
    assert shop.lake.table("n.t").scan().count() == 0


def test_delete_removes_rows_appended_since_the_lookup(shop: Shop) -> None:
    """Only appends may begin on the version of the last lookup: a delete there would not see these rows."""
    table = shop.lake.table("n.t")
    with shop.lake.transaction() as txn:  # a transaction, so that the delete finds no conflict
        txn.alter_table("n.t", {"write.delete.isolation-level": "snapshot"})
    table = shop.lake.table("n.t")
    shop.elsewhere().table("n.t").append(ROWS)
    table.delete("id = 5")
    assert shop.lake.table("n.t").scan().count() == 18


def test_nothing_that_is_read_is_older_than_what_was_committed(shop: Shop) -> None:
    """Reads see writes of others, rollbacks, and tables that are created again."""
    here, there = shop.lake, shop.elsewhere()
    version = here.version

    def seen() -> list[list[int]]:
        return [sorted(lake.table("n.t").scan().to_arrow()["id"].to_pylist()) for lake in (here, there)]

    assert seen() == [[*range(10)]] * 2
    there.table("n.t").overwrite(ROWS.slice(7))
    assert seen() == [[7, 8, 9]] * 2
    here.table("n.t").delete("id = 8")
    assert seen() == [[7, 9]] * 2
    there.rollback(version)
    assert seen() == [[*range(10)]] * 2
    here.drop_table("n.t")
    there.create_table("n.t", ROWS.schema).append(ROWS.slice(9))
    assert seen() == [[9]] * 2
    assert [lake.at(version).table("n.t").scan().count() for lake in (here, there)] == [10, 10]


def test_two_stores_with_a_lakehouse_of_one_name_are_distinguished(shop: Shop) -> None:
    with stepped_store.running() as other:
        twin = tl.create(shop.root, storage_options=other.storage_options)
        twin.create_namespace("n")
        twin.create_table("n.t", ROWS.schema).append(ROWS.slice(8))
        assert twin.table("n.t").scan().to_arrow().num_rows == 2
        assert shop.lake.table("n.t").scan().to_arrow().num_rows == 10


def test_metadata_with_a_name_that_may_be_given_again_is_read_each_time(shop: Shop) -> None:
    """Metadata with a name such as `v3.metadata.json`, which another catalog can use again, is not cached."""
    table = shop.lake.table("n.t")
    storage = shop.lake._storage
    path = table.iceberg.metadata_location.removeprefix(storage.root)
    folder = path.rpartition("/")[0]
    renamed = f"{folder}/v3.metadata.json"
    storage.put(renamed, storage.get(path))
    shop.lake.drop_table("n.t")
    catalog = load(shop.root, storage_options=shop.store.storage_options)
    catalog.register_table("n.t", storage.root + renamed)
    assert shop.lake.table("n.t").scan().count() == 10
    document = json.loads(storage.get(renamed))
    document["properties"]["owner"] = "another"
    storage.delete(renamed)
    storage.put(renamed, json.dumps(document).encode())
    assert shop.lake.table("n.t").properties["owner"] == "another"


def test_cached_files_need_the_right_to_read_them(shop: Shop) -> None:
    """The server plans scans with access to the folder of the table only; a snapshot may name files of other tables."""

    class OneFolder(LakehouseFileIO):
        def path_of(self, location: str) -> str:
            path = super().path_of(location)
            if not path.startswith("n/six-"):
                raise InvalidLocation(f"{location} is outside")
            return path

    table = shop.lake.table("n.t").iceberg
    snapshot = table.current_snapshot()
    assert snapshot is not None
    io = OneFolder(shop.lake._storage)
    for read in (
        lambda: read_list(io, snapshot),
        lambda: metadata.read_metadata(io, table.metadata_location),
        lambda: snapshot.manifests(io),
    ):
        with pytest.raises(InvalidLocation):
            read()


@pytest.mark.parametrize("size_bytes", [0, 1, 600, 10**12])
def test_a_manifest_with_a_wrong_file_size_raises_corrupt_file(shop: Shop, size_bytes: int) -> None:
    """A reader that trusts the size of the manifest reads a part of the file, or another file."""
    table = shop.lake.table("n.six")
    with shop.lake.transaction() as txn:
        staged = txn.table("n.t")
        for task in table.iceberg.scan().plan_files():
            task.file._data[5] = size_bytes
            with staged.iceberg.transaction() as update:
                update.append_files([task.file])
    lake = shop.elsewhere()
    sizes = {task.file.file_size_in_bytes for task in lake.table("n.t").iceberg.scan().plan_files()}
    assert size_bytes in sizes
    with pytest.raises(tl.CorruptFile, match=f"its manifest {size_bytes}"):
        lake.table("n.t").scan().to_arrow()


def test_delete_without_caches_reads_files_in_parallel(shop: Shop) -> None:
    """A delete read the manifests one after the other, three times, and then the data files one after the other."""
    lake = shop.elsewhere()
    trace = shop.traced(lambda: lake.table("n.six").delete("id = 5"))
    reads = [one for one in trace.requests if one.verb in ("GET", "RANGE") and "/n/six" in one.path]
    # Metadata and manifest list; manifests; data files.
    assert len({one.began for one in reads}) == 3, trace
    assert lake.table("n.six").scan().count() == 54


def test_many_files_are_fetched_at_once_on_a_machine_with_few_processors(shop: Shop) -> None:
    """PyIceberg has about as many threads as there are processors, and each thread waited for one file."""
    table = shop.lake.create_table("n.many", {"id": "bigint", "part": "int"}, partition_spec=["part"])
    table.append(pa.table({"id": pa.array(range(100), pa.int64()), "part": pa.array([i % 50 for i in range(100)])}))
    for lake in (shop.elsewhere(), shop.elsewhere()):
        trace = shop.traced(lambda lake=lake: lake.table("n.many").scan().to_arrow())
        reads = [one for one in trace.requests if one.path.endswith(".parquet")]
        assert len(reads) == 50, trace
        assert len({one.began for one in reads}) <= 3, trace
    lake = shop.elsewhere()
    assert lake.table("n.many").scan(limit=3).to_arrow().num_rows == 3
    assert lake.table("n.many").scan().to_arrow_batch_reader().read_all().num_rows == 100


def test_columns_of_a_large_file_wait_for_its_footer_and_not_for_each_other(shop: Shop) -> None:
    """The columns of a large file are fetched in one round after the footer, not one after the other."""
    random = np.random.default_rng(1)
    rows = pa.table({f"c{i}": random.random(200_000) for i in range(8)})
    shop.lake.create_table("n.large", rows.schema).append(rows)
    table = shop.elsewhere().table("n.large")
    table.scan().iceberg.plan_files()
    found = []
    trace = shop.traced(lambda: found.append(table.scan(columns=["c1", "c6"]).to_arrow()))
    # On a busy machine, the hint of the append may be written only now, a second later.
    assert [one.verb for one in trace.requests if "hint" not in one.path] == ["RANGE", "RANGE", "RANGE"], trace
    assert trace.millis == 2 * READ_MILLIS, trace
    assert found[0].sort_by("c1") == rows.select(["c1", "c6"]).sort_by("c1")


def test_scan_of_uncached_files_needs_four_rounds_of_requests(shop: Shop) -> None:
    """Files that do not depend on each other are requested at the same time."""
    other = shop.elsewhere()
    found = []
    trace = shop.traced(lambda: found.append(other.table("n.six").scan().to_arrow()))
    assert trace.millis == 4 * READ_MILLIS, trace
    assert found[0].num_rows == 60
    # A process does not fetch again the files that only it has written, and it reads changes of others.
    lake = shop.elsewhere()
    writer = shop.elsewhere()
    lake.table("n.six").scan().to_arrow()
    writer.table("n.six").append(ROWS)
    assert lake.table("n.six").scan().to_arrow().num_rows == 70
    writer.drop_table("n.six")
    with pytest.raises(ObjectNotFound):
        lake.table("n.six")


def test_an_old_hint_of_the_manifest_list_costs_a_request_and_nothing_else(shop: Shop) -> None:
    """A writer that does not know the property `manifest_list` copies it from the previous definition."""
    old = parse_table_def(shop.lake._read_definition("table", "n", "six"))
    stale = old.format_properties[MANIFEST_LIST]
    shop.lake.table("n.six").append(ROWS)
    definition = parse_table_def(shop.lake._read_definition("table", "n", "six"))
    assert definition.format_properties[MANIFEST_LIST] != stale
    for hint in (stale, "n/nowhere/snap-00000000-0000-4000-8000-000000000000.avro"):
        definition.format_properties[MANIFEST_LIST] = hint
        with shop.lake.transaction() as txn:
            txn._state().replace("table", "n", "six", serialize(definition))
        assert shop.elsewhere().table("n.six").scan().to_arrow().num_rows == 70
    name_metadata(definition, "n/six/metadata/another.metadata.json")
    assert MANIFEST_LIST not in definition.format_properties


def test_prefetch_waits_for_memory() -> None:
    """Prefetching waits for memory: ten thousand prefetched files would not fit into it."""
    fetched: list[str] = []
    files = [(f"f{i}", MAX_SIZE_BYTES // 10) for i in range(1000)]
    ahead = Prefetch(fetched.extend, files)
    ahead.fetch_more()
    assert len(fetched) == 10
    for number, (path, _) in enumerate(files, start=1):
        ahead.opened(path)
        assert len(fetched) <= number + 10
    assert fetched == [path for path, _ in files]
    small: list[str] = []
    ahead = Prefetch(small.extend, [(f"f{i}", 1) for i in range(1000)])
    ahead.fetch_more()
    assert len(small) == MAX_FILES
    # A file that is larger than the limit is fetched alone.
    large: list[str] = []
    Prefetch(large.extend, [("huge", 10 * MAX_SIZE_BYTES), ("next", 1)]).fetch_more()
    assert large == ["huge"]


def test_a_file_that_is_missing_is_reported_by_its_reader(shop: Shop) -> None:
    folder = shop.root.removeprefix("s3://bucket/") + "/n/six"
    lost = min(path for _, path in shop.store.objects if path.startswith(folder) and path.endswith(".parquet"))
    del shop.store.objects["bucket", lost]
    with pytest.raises(CorruptFile, match=lost.rpartition("/")[2]):
        shop.elsewhere().table("n.six").scan().to_arrow()


def test_a_namespace_takes_one_round_of_writes(shop: Shop) -> None:
    """The definition and the root are written at the same time, without look-ups before or after."""
    shop.lake.create_namespace("first")
    # On a busy machine a commit may take half a second, and then it lists the boundary.
    traces = [shop.traced(lambda name=name: shop.lake.create_namespace(name)) for name in ("second", "third", "fourth")]
    trace = min(traces, key=lambda trace: trace.millis)
    assert trace.millis == WRITE_MILLIS, trace
    assert trace.counts["PUT"] <= 3, trace


def test_a_change_of_a_namespace_takes_one_round_of_writes(shop: Shop) -> None:
    """It does not look for the newest version, because the commit detects a conflicting change."""
    shop.lake.create_namespace("first", {"owner": "ann"})
    traces = [shop.traced(lambda n=n: shop.lake.alter_namespace("first", {"owner": f"team {n}"})) for n in range(3)]
    trace = min(traces, key=lambda trace: trace.millis)
    assert trace.millis == WRITE_MILLIS, trace
    assert trace.counts["PUT"] <= 3, trace


def test_namespace_statement_on_an_old_version_sees_concurrent_commits(shop: Shop) -> None:
    """The statement begins without a lookup. It must find concurrent commits nevertheless."""
    other = shop.elsewhere()
    shop.lake.create_namespace("a")
    other.create_namespace("b")
    with pytest.raises(ObjectAlreadyExists):
        shop.lake.create_namespace("b")
    other.create_namespace("c")
    other.drop_namespace("a")
    shop.lake.create_namespace("a")
    other.drop_namespace("c")
    shop.lake.create_namespace("c", exist_ok=True)
    assert sorted(shop.elsewhere().namespaces()) == ["a", "b", "c", "n"]


def test_a_commit_over_rest_costs_the_store_what_one_in_a_process_does(shop: Shop) -> None:
    table = shop.lake.table("n.t")
    table.scan()
    here = shop.traced(lambda: shop.lake.alter_table(table.name, {"owner": "a"}))
    with serve(shop.lake) as uri:
        catalog = load_catalog("rest", type="rest", uri=uri)
        remote = catalog.load_table("n.t")
        there = shop.traced(lambda: remote.transaction().set_properties(owner="b").commit_transaction())
        loaded = shop.traced(lambda: catalog.load_table("n.t"))
        catalog.load_table("n.six")
    for verb in ("PUT", "RANGE"):
        # Any writer may write the hint, about once a second.
        asked = [[path for path in trace.asked(verb) if "hint" not in path] for trace in (there, here)]
        assert len(asked[0]) == len(asked[1]), there
    assert files_read(there) == files_read(here) == files_read(loaded) == []
    assert looks(there) == looks(here) == looks(loaded) == 1
    # On a busy machine, a commit may take so long that it has to list the boundary.
    assert abs(there.millis - here.millis) <= READ_MILLIS
    assert loaded.millis == READ_MILLIS


def test_the_feed_of_one_row_per_version_makes_two_requests_a_version(shop: Shop) -> None:
    """For the root, which contains the definition of the table, and for the data file."""
    since, count = shop.lake.version, 40
    for number in range(count):
        shop.lake.table("n.t").append({"id": [number], "name": ["new"]})
    table = shop.elsewhere().table("n.t")
    trace = shop.traced(lambda: table.changes(since).read_all())
    asked = trace.asked("GET", "RANGE", "HEAD")
    assert len([path for path in asked if path.endswith(".parquet")]) == count
    assert len(asked) <= 2 * count + 16, trace


def test_version_is_complete_without_the_definition_file_next_to_its_root(shop: Shop) -> None:
    """A version is complete without the definition file that its writer writes at the same time as the root, because
    the root contains the definition: for this library, and for a reader built from the format's page. The next
    committer creates the file."""
    shop.lake.create_namespace("held", properties={"owner": "me"})
    folder = shop.root.removeprefix("s3://bucket/") + "/"
    [lost] = [path for _, path in shop.store.objects if "-namespace-held-" in path]
    del shop.store.objects["bucket", lost]
    other = shop.elsewhere()
    assert other.namespace("held").properties == {"owner": "me"}
    objects = shop.store.objects.items()
    files = {path.removeprefix(folder): data for (_, path), data in objects if path.startswith(folder)}
    lakehouse = SeedLakehouse(files)
    version = SeedVersion(lakehouse, lakehouse.latest())
    assert lost.removeprefix(folder) in inline_definitions(version)
    held = next(name for name in version.objects if name.namespace == "held")
    assert definition_of(version, held)["properties"] == {"owner": "me"}
    assert not other.maintenance.fsck().findings
    other.create_namespace("next")
    assert ("bucket", lost) in shop.store.objects
