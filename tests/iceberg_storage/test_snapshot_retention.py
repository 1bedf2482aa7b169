"""Retention of snapshots in the metadata of tables, and lookup of older snapshots in older versions."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import AddSnapshotUpdate, SetStatisticsUpdate

import trinitylake as tl
from trinitylake.errors import CommitConflict, InvalidArgument
from trinitylake.iceberg_storage import snapshot_retention
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.snapshot_retention import SNAPSHOTS_KEPT, UNSET, YOUNG_KEPT, Retention, without

RETRY_TIME = "commit.retry.total-timeout-ms"
DAY_MILLIS = 24 * 3_600_000
FEW = {"history.expire.min-snapshots-to-keep": "3"}


@pytest.fixture(autouse=True)
def no_minimum_age(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of any age can be removed, except in tests with the fixture `default_age`."""
    if "default_age" not in request.fixturenames:
        monkeypatch.setattr(snapshot_retention, "UNSET", Retention(SNAPSHOTS_KEPT))


@pytest.fixture
def default_age() -> None:
    """Selects the default retention."""


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse on disk, whose files the tests read."""
    return tl.create(str(tmp_path / "lake"), durability="none")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "city": pa.array(["a"] * len(ids), pa.string())})


def table_of(lake: tl.Lakehouse, properties: dict[str, str] | None = None) -> tl.Table:
    """A table whose young snapshots are not kept for retries of clients, unless the properties say otherwise."""
    lake.create_namespace("ns")
    return lake.create_table("ns.t", rows(), properties={RETRY_TIME: "0", **(properties or {})})


def append(table: tl.Table, count: int) -> list[int]:
    """Append `count` rows, one in each snapshot. Returns the ids of the snapshots."""
    ids = []
    for number in range(count):
        table.append(rows(number))
        ids.append(current(table))
    return ids


def current(table: tl.Table) -> int:
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def kept(table: tl.Table) -> list[int]:
    return [one.snapshot_id for one in table.snapshots()]


def document(table: tl.Table) -> dict[str, Any]:
    """The content of the metadata file."""
    data = Path(table.iceberg.metadata_location.removeprefix("file://")).read_bytes()
    parsed: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return parsed


def written(lake: tl.Lakehouse) -> int:
    """The size of all files of the lakehouse in bytes."""
    folder = lake.uri.removeprefix("file://")
    return sum(os.path.getsize(Path(where, name)) for where, _, names in os.walk(folder) for name in names)


def test_a_late_append_writes_no_more_than_an_early_one(lake: tl.Lakehouse) -> None:
    """If each metadata file listed all snapshots, 1,500 appends of one row would write 711 MB."""
    table = table_of(lake)
    sizes = []
    for number in (SNAPSHOTS_KEPT + 2, 10, 20, 10):
        before = written(lake)
        append(table, number)
        sizes.append((written(lake) - before) / number)
    assert sizes[3] <= 1.2 * sizes[1], sizes
    assert sizes[3] <= 40_000, sizes
    assert len(kept(table)) == SNAPSHOTS_KEPT
    assert len(document(table)["metadata-log"]) == SNAPSHOTS_KEPT
    assert table.scan().count() == SNAPSHOTS_KEPT + 42


def test_snapshot_is_in_the_metadata_of_the_version_that_added_it(lake: tl.Lakehouse) -> None:
    table = table_of(lake, FEW)
    with lake.transaction() as txn:
        inside = append(txn.table("ns.t"), 9)
    table.refresh()
    assert kept(table) == inside
    brought = lake.version
    last = append(table, 1)
    assert kept(table) == [*inside[-2:], *last]
    assert [one.snapshot_id for one in lake.at(brought).table("ns.t").snapshots()] == inside


def test_retained_snapshots_have_log_entries_and_statistics(lake: tl.Lakehouse) -> None:
    """The oldest snapshot keeps the id of its parent, which was removed."""
    table = table_of(lake, FEW)
    ids = append(table, 2)
    with lake.transaction() as txn:
        staged = txn.table("ns.t")
        for id in ids:
            statistics = StatisticsFile.model_validate(
                {
                    "snapshot-id": id,
                    "statistics-path": f"{staged.location}/metadata/{id}.stats",
                    "file-size-in-bytes": 1,
                    "file-footer-size-in-bytes": 1,
                    "blob-metadata": [],
                }
            )
            with staged.iceberg.io.new_output(statistics.statistics_path).create() as stream:
                stream.write(b"x")
            with staged.iceberg.transaction() as change:
                change._apply((SetStatisticsUpdate(statistics=statistics),))
    ids += append(table, 2)
    text = document(table)
    assert [one["snapshot-id"] for one in text["snapshots"]] == ids[1:]
    assert [one["snapshot-id"] for one in text["snapshot-log"]] == ids[1:]
    assert text["snapshots"][0]["parent-snapshot-id"] == ids[0], "a reader of the branch finds the older snapshots"
    assert [one["snapshot-id"] for one in text["statistics"]] == [ids[1]]
    oldest = StaticTable.from_metadata(table.iceberg.metadata_location).scan(snapshot_id=ids[1]).to_arrow()
    assert oldest.num_rows == 2


def test_the_log_of_snapshots_has_no_gap(lake: tl.Lakehouse) -> None:
    """The log of snapshots has no gap, because a reader of a time in a gap would find the snapshot before it."""
    table = table_of(lake)
    first, second, third, last = append(table, 4)
    metadata = table.iceberg.metadata
    for removed, stay in (
        (set(), [first, second, third, last]),
        ({first}, [second, third, last]),
        ({second}, [third, last]),
        ({first, third}, [last]),
        ({last}, []),
    ):
        left = without(metadata, removed)
        assert [entry.snapshot_id for entry in left.snapshot_log] == stay
        assert {one.snapshot_id for one in left.snapshots} == {first, second, third, last} - removed


def test_branches_and_tags_keep_what_they_need(lake: tl.Lakehouse) -> None:
    """Such as the ancestors with which an audit branch can be published."""
    table = table_of(lake)
    first = append(table, 3)
    with table._writing() as iceberg:
        iceberg.manage_snapshots().create_tag(first[0], "t0").create_branch(first[2], "audit").commit()
    for number in range(SNAPSHOTS_KEPT + 3):
        with table._writing() as iceberg:
            iceberg.append(rows(number), branch="audit")
    last = append(table, SNAPSHOTS_KEPT)
    ids = set(kept(table))
    assert {*first, *last} <= ids
    head = table.iceberg.metadata.refs["audit"].snapshot_id
    chain = []
    while head in ids:
        chain.append(head)
        snapshot = table.iceberg.snapshot_by_id(head)
        assert snapshot is not None
        head = snapshot.parent_snapshot_id or 0
    assert len(chain) == SNAPSHOTS_KEPT + 6
    assert table.iceberg.scan(snapshot_id=first[0]).to_arrow().num_rows == 1


def test_properties_of_the_table_decide_about_retention(lake: tl.Lakehouse) -> None:
    table = table_of(lake, {"history.expire.max-snapshot-age-ms": str(3_600_000)})
    assert len(append(table, SNAPSHOTS_KEPT + 5)) == len(kept(table))
    lake.alter_table(table.name, remove_properties=["history.expire.max-snapshot-age-ms"])
    table.refresh()
    assert len(kept(table)) == SNAPSHOTS_KEPT
    lake.alter_table(table.name, {"history.expire.min-snapshots-to-keep": "2"})
    table.refresh()
    assert len(kept(table)) == 2
    lake.alter_table(table.name, {"history.expire.min-snapshots-to-keep": str(2**31 - 1)})
    table.refresh()
    append(table, SNAPSHOTS_KEPT + 5)
    assert len(kept(table)) == SNAPSHOTS_KEPT + 7


def test_snapshot_of_write_audit_publish_is_retained(lake: tl.Lakehouse) -> None:
    """A snapshot of write-audit-publish is kept although no branch has it, because it is published later."""
    table = table_of(lake, FEW)
    append(table, 1)
    with table._writing() as iceberg, iceberg.transaction() as change:
        producer = SnapshotProducer(change.table_metadata, iceberg.io, Operation.APPEND, {"wap.id": "w"}, None)
        producer.add(DataFileWriter(change.table_metadata, iceberg.io).written([rows(7)]))
        added = AddSnapshotUpdate(snapshot=producer.produce(current(table)))
        change._apply((added,))
    append(table, 5)
    assert added.snapshot.snapshot_id in kept(table)
    assert len(kept(table)) == 4


def test_statement_is_rebased_over_trimmed_snapshots(lake: tl.Lakehouse) -> None:
    """A statement can be rebased although the snapshots of the commits in between are not in the metadata any more."""
    table = table_of(lake, FEW | {"write.metadata.previous-versions-max": "2"})
    table.append(rows(100))
    with lake.transaction() as txn:
        txn.table("ns.t").delete("id = 100")
        append(lake.table("ns.t"), 12)
    table.refresh()
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(12))


def test_conflict_in_trimmed_snapshots_is_found(lake: tl.Lakehouse) -> None:
    """The snapshot of the first of many concurrent commits is not in the metadata any more."""
    table = table_of(lake, FEW | {"write.metadata.previous-versions-max": "2"})
    table.append(rows(100))
    txn = lake.begin()
    txn.table("ns.t").delete("id >= 100")
    lake.table("ns.t").append(rows(200))
    append(lake.table("ns.t"), 12)
    with pytest.raises(CommitConflict, match="added files that may hold such rows"):
        txn.commit()


def test_missing_history_is_a_conflict(lake: tl.Lakehouse) -> None:
    """If the history since the base is missing, the commit conflicts, because the table may have changed."""
    table = table_of(lake, FEW | {"write.metadata.previous-versions-max": "2"})
    table.append(rows(100))
    txn = lake.begin()
    txn.table("ns.t").delete("id = 100")
    append(lake.table("ns.t"), 12)
    from trinitylake.iceberg_storage import metadata

    metadata.cache.clear()
    folder = Path(table.location.removeprefix("file://"), "metadata")
    newest = lake.table("ns.t").iceberg.metadata_location.removeprefix("file://")
    for file in folder.glob("*.metadata.json"):
        if str(file) != newest:
            file.unlink()
    with pytest.raises(CommitConflict, match="has expired since"):
        txn.commit()


def test_engine_may_expire_a_trimmed_snapshot(lake: tl.Lakehouse) -> None:
    """An engine may expire snapshots that the metadata does not list any more, because it loaded the table before."""
    table = table_of(lake, FEW)
    ids = append(table, 3)
    loaded = lake.begin()
    expiring = loaded.table("ns.t").iceberg.maintenance.expire_snapshots().by_ids(ids[:2])
    expiring.commit()
    append(lake.table("ns.t"), 2)
    loaded.commit()
    table.refresh()
    assert len(kept(table)) == 3
    assert not set(ids[:2]) & set(kept(table))


def test_row_ids_continue_after_trimmed_snapshots(lake: tl.Lakehouse) -> None:
    table = table_of(lake, FEW | {"format-version": "3"})
    append(table, 8)
    assert [one["first-row-id"] for one in document(table)["snapshots"]] == [5, 6, 7]
    assert document(table)["next-row-id"] == 8


def test_compressed_metadata_is_readable_by_pyiceberg(lake: tl.Lakehouse) -> None:
    """The property `write.metadata.compression-codec` compresses metadata files, which PyIceberg can read."""
    table = table_of(lake)
    append(table, 2)
    plain = len(Path(table.iceberg.metadata_location.removeprefix("file://")).read_bytes())
    lake.alter_table(table.name, {"write.metadata.compression-codec": "gzip"})
    table.refresh()
    append(table, 2)
    assert table.iceberg.metadata_location.endswith(".gz.metadata.json")
    assert table.iceberg.metadata_location.rsplit("/", 1)[1].startswith("00005-")
    packed = Path(table.iceberg.metadata_location.removeprefix("file://")).read_bytes()
    assert packed[:2] == b"\x1f\x8b"
    assert len(packed) < plain / 2
    from trinitylake.iceberg_storage import metadata

    metadata.cache.clear()
    again = tl.open(lake.uri, durability="none").table("ns.t")
    assert again.scan().count() == 4
    assert StaticTable.from_metadata(table.iceberg.metadata_location).scan().to_arrow().num_rows == 4
    with lake.transaction() as txn:
        txn.create_table("ns.u", rows(), properties={"write.metadata.compression-codec": "GZIP"}).append(rows(1))
    assert lake.table("ns.u").iceberg.metadata_location.endswith("-1.gz.metadata.json"[2:])
    lake.alter_table(table.name, {"write.metadata.compression-codec": "none"})
    table.refresh()
    assert table.iceberg.metadata_location.endswith(".metadata.json")
    assert ".gz." not in table.iceberg.metadata_location
    assert table.scan().count() == 4


def test_an_unknown_codec_is_refused(lake: tl.Lakehouse) -> None:
    table = table_of(lake)
    with pytest.raises(InvalidArgument, match="none or gzip, not 'zstd'"):
        lake.alter_table(table.name, {"write.metadata.compression-codec": "zstd"})


def test_merged_manifests_keep_the_list_of_manifests_short(lake: tl.Lakehouse) -> None:
    """Manifests are merged. Every append adds one, and each manifest list would name all of them."""
    table = table_of(lake)
    append(table, 30)
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.APPEND
    assert len(snapshot.manifests(table.iceberg.io)) <= 12


def test_snapshots_are_retained_for_retries(lake: tl.Lakehouse) -> None:
    """PyIceberg looks for the snapshot on which its append began."""
    table = table_of(lake, {RETRY_TIME: "1800000"})
    table.append(rows(0))
    for others in (SNAPSHOTS_KEPT + 5, 40):
        began = table.iceberg.catalog.load_table("ns.t")
        append(table, others)
        began.append(rows(-1))
    assert lake.table("ns.t").scan().count() == 1 + SNAPSHOTS_KEPT + 5 + 40 + 2


def test_snapshots_for_retries_have_a_limit(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_retention, "YOUNG_KEPT", SNAPSHOTS_KEPT + 3)
    table = table_of(lake, {RETRY_TIME: "1800000"})
    append(table, SNAPSHOTS_KEPT + 10)
    assert len(kept(table)) == SNAPSHOTS_KEPT + 3


def with_history(table: tl.Table, count: int, apart_millis: int) -> TableMetadata:
    """Metadata with `count` copies of the table's only snapshot, `apart_millis` apart. The newest one is from now."""
    metadata = table.iceberg.metadata
    (last,) = metadata.snapshots
    ids = [*range(1, count), last.snapshot_id]
    snapshots = [
        last.model_copy(
            update={
                "snapshot_id": id,
                "parent_snapshot_id": ids[number - 1] if number else None,
                "timestamp_ms": metadata.last_updated_ms - (count - 1 - number) * apart_millis,
            }
        )
        for number, id in enumerate(ids)
    ]
    return indexed(metadata.model_copy(update={"snapshots": snapshots}))


@pytest.mark.usefixtures("default_age")
@pytest.mark.parametrize(
    ("properties", "count", "hours", "expected"),
    [
        ({}, 300, 1, 5 * 24),  # five days
        ({}, 300, 24, SNAPSHOTS_KEPT),
        ({}, YOUNG_KEPT + 50, 0.05, YOUNG_KEPT),
        ({"history.expire.max-snapshot-age-ms": str(2 * DAY_MILLIS)}, 300, 1, 2 * 24),
        ({"history.expire.max-snapshot-age-ms": str(30 * DAY_MILLIS)}, YOUNG_KEPT + 50, 0.05, YOUNG_KEPT + 50),
        ({"history.expire.max-snapshot-age-ms": "0"}, 300, 1, 1),
        ({"history.expire.min-snapshots-to-keep": "200"}, 300, 1, 200),
        ({"history.expire.min-snapshots-to-keep": "3"}, 300, 1, 5 * 24),
    ],
)
def test_snapshots_of_the_last_days_are_retained(
    lake: tl.Lakehouse, properties: dict[str, str], count: int, hours: float, expected: int
) -> None:
    """Iceberg's stream source in Spark reads from snapshot to snapshot, also after a break."""
    table = table_of(lake, properties)
    append(table, 1)
    metadata = with_history(table, count, int(hours * 3_600_000))
    assert len(snapshot_retention.retained(metadata)) == expected


@pytest.mark.usefixtures("default_age")
def test_default_retention_keeps_young_snapshots(lake: tl.Lakehouse) -> None:
    table = table_of(lake)
    assert len(append(table, SNAPSHOTS_KEPT + 5)) == len(kept(table))
    assert UNSET.age_millis == 5 * DAY_MILLIS


def test_newest_snapshot_of_each_streaming_query_is_retained(lake: tl.Lakehouse) -> None:
    """Iceberg's sink in Spark would not find its last epoch, and would write it a second time."""
    table = table_of(lake, FEW)

    def of_query(id: str) -> int:
        with table._writing() as iceberg:
            iceberg.append(rows(0), snapshot_properties={snapshot_retention.STREAMING_QUERY: id})
        return current(table)

    append(table, 2)
    of_query("a")
    newest = of_query("a")
    append(table, 5)
    of_query("b")
    append(table, 5)
    assert kept(table)[0] == newest
    assert len(kept(table)) == 12


def test_old_streaming_query_keeps_only_near_snapshots(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that was stopped for six days, but not one that never continues."""
    table = table_of(lake, FEW)
    with table._writing() as iceberg:
        iceberg.append(rows(0), snapshot_properties={snapshot_retention.STREAMING_QUERY: "a"})
    append(table, 5)
    metadata = table.iceberg.metadata
    days_millis = 5 * 24 * 3_600_000

    def later() -> int:
        return len(snapshot_retention.retained(metadata, now_millis=metadata.last_updated_ms + days_millis))

    assert len(metadata.snapshots) == later() == 6
    monkeypatch.setattr(snapshot_retention, "YOUNG_KEPT", 5)
    assert later() == 3
