"""Positions of streams, tested without Spark: offsets after restarts, expired snapshots, and the costs of a backlog."""

from __future__ import annotations

from typing import Any

import pytest
from flights import flights, rows
from pyspark.sql.types import LongType, StringType, StructType

import trinitylake as tl
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.spark.options import Options
from trinitylake.spark.stream_read import StreamReader

SCHEMA = StructType().add("id", LongType()).add("carrier", StringType())


@pytest.fixture
def source(lake: tl.Lakehouse) -> tl.Table:
    return flights(lake)


def reader_of(lake: tl.Lakehouse, **options: Any) -> StreamReader:
    """A new reader, as after a start or a restart of a query."""
    given = {"root": lake.uri, "path": "nyc.flights", **{name: str(value) for name, value in options.items()}}
    return StreamReader(Options.parse(given), SCHEMA)


def between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch["id"].to_pylist()
    return sorted(found)


def test_the_first_batch_begins_where_the_stream_did_after_a_restart(lake: tl.Lakehouse, source: tl.Table) -> None:
    """A repeated first batch begins at the original start of the stream. Spark requests the start again after a
    restart, and by then the table may have grown, so rows could be lost."""
    end = reader_of(lake).latestOffset()  # Spark stores this end in the checkpoint; then the batch fails
    source.append(rows(4))
    restarted = reader_of(lake)
    start = restarted.initialOffset()
    assert start["version"] > end["origin"]["version"]
    assert between(restarted, start, end) == [0, 1, 2, 3]
    assert between(restarted, end, restarted.latestOffset()) == [4]


def test_a_stream_is_asked_again_where_it_begins_while_the_table_grows(lake: tl.Lakehouse, source: tl.Table) -> None:
    """Spark requests the end of the first batch before its start. A commit between the two does not make the batch
    empty."""
    reader = reader_of(lake)
    end = reader.latestOffset()
    source.append(rows(4))
    start = reader.initialOffset()
    assert start["version"] == 6
    assert between(reader, start, end) == [0, 1, 2, 3]
    resumed = reader_of(lake)
    assert between(resumed, end, end) == []  # with this call, Spark sends the position to a restarted query
    assert resumed.initialOffset() == start


def test_a_batch_that_ends_before_it_begins_is_an_error(lake: tl.Lakehouse, source: tl.Table) -> None:
    """A batch whose start is after its end is an error. As a batch without rows, it would make the stream skip rows."""
    reader = reader_of(lake)
    start, end = reader.initialOffset(), reader.latestOffset()
    with pytest.raises(tl.InvalidArgument, match="cannot begin"):
        reader.partitions(end, start)
    source.append(rows(4))
    restarted = reader_of(lake)
    begun_again = restarted.initialOffset()
    with pytest.raises(tl.InvalidArgument, match="two streams"):
        restarted.partitions({**begun_again, "version": begun_again["version"] + 1}, end)
    foreign = {**end, "origin": {**end["origin"], "version": 1}}
    with pytest.raises(tl.InvalidArgument, match="two streams"):
        restarted.partitions(foreign, end)
    with pytest.raises(tl.InvalidArgument, match="another source"):
        restarted.partitions({"offset": 1}, end)


def test_a_stream_that_has_read_more_than_there_is_stops(lake: tl.Lakehouse, source: tl.Table) -> None:
    """A stream that has read a version beyond the latest one stops, as after a restore from an older copy. Otherwise it
    would treat later versions as read."""
    end = reader_of(lake).latestOffset()
    ahead = {**end, "version": end["version"] + 1}
    for offset, rows_left in ((end, []), (ahead, None)):
        restarted = reader_of(lake)
        restarted.partitions(offset, offset)  # with this call, Spark sends the position
        if rows_left is None:
            with pytest.raises(tl.InvalidArgument, match="the newest version of"):
                restarted.latestOffset()
        else:
            assert between(restarted, offset, restarted.latestOffset()) == rows_left


def append_files(table: tl.Table, *ids: int) -> None:
    """Append one file for each id, in one snapshot."""
    with table.iceberg.update_spec() as change:
        change.add_identity("id")
    table.refresh()
    table.append(rows(*ids))


def test_files_of_a_partly_delivered_snapshot_arrive_once_after_its_version_expired(
    lake: tl.Lakehouse, source: tl.Table
) -> None:
    """If `max_files_per_trigger` stops within a snapshot and its version expires, the remaining files arrive once: the
    position counts files of the snapshot, not of the version."""
    since = lake.version
    append_files(source, 10, 11, 12, 13, 14)
    reader = reader_of(lake, since=since, max_files_per_trigger=2)
    start, end = reader.initialOffset(), reader.latestOffset()
    first = between(reader, start, end)
    assert len(first) == 2
    for id in (20, 21):
        source.append(rows(id))
    lake.maintenance.expire(before=lake.version)
    restarted = reader_of(lake)
    restarted.partitions(end, end)
    assert sorted(first + between(restarted, end, restarted.latestOffset())) == [10, 11, 12, 13, 14, 20, 21]


def test_a_partly_delivered_initial_load_goes_on_after_its_version_expired(
    lake: tl.Lakehouse, source: tl.Table
) -> None:
    reader = reader_of(lake, max_files_per_trigger=3)
    start, end = reader.initialOffset(), reader.latestOffset()
    first = between(reader, start, end)
    assert len(first) == 3
    source.append(rows(4))
    lake.maintenance.expire(before=lake.version)
    restarted = reader_of(lake)
    restarted.partitions(end, end)
    assert sorted(first + between(restarted, end, restarted.latestOffset())) == [0, 1, 2, 3, 4]


def test_a_repeated_batch_has_the_same_rows_after_its_versions_expired(lake: tl.Lakehouse, source: tl.Table) -> None:
    since = lake.version
    append_files(source, 10, 11, 12)
    source.append(rows(13))
    reader = reader_of(lake, since=since)
    start, end = reader.initialOffset(), reader.latestOffset()
    source.append(rows(14))
    lake.maintenance.expire(before=lake.version)
    restarted = reader_of(lake)
    assert between(restarted, start, end) == [10, 11, 12, 13]
    assert between(restarted, end, restarted.latestOffset()) == [14]


@pytest.mark.parametrize("options", [{}, {"ignore_changes": True}])
def test_a_partly_delivered_snapshot_that_expired_stops_the_stream(
    lake: tl.Lakehouse, source: tl.Table, options: dict[str, Any]
) -> None:
    since = lake.version
    append_files(source, 10, 11, 12)
    reader = reader_of(lake, since=since, max_files_per_trigger=2)
    reader.initialOffset()
    end = reader.latestOffset()
    source.append(rows(20))
    expire_snapshots(source, keep=1)
    lake.maintenance.expire(before=lake.version)
    restarted = reader_of(lake, **options)
    restarted.partitions(end, end)
    with pytest.raises(tl.VersionExpired, match="snapshots were expired"):
        restarted.latestOffset()


def test_a_table_that_was_created_again_stops_a_restarted_stream(lake: tl.Lakehouse, source: tl.Table) -> None:
    """A restarted stream stops if the table was dropped and created again, because its position contains the id of the
    table."""
    end = reader_of(lake).latestOffset()
    with lake.transaction() as txn:
        txn.drop_table("nyc.flights")
        txn.create_table("nyc.flights", rows())
    restarted = reader_of(lake, ignore_changes=True)
    restarted.partitions(end, end)
    with pytest.raises(tl.ObjectNotFound, match="created again"):
        restarted.latestOffset()


def expire_snapshots(table: tl.Table, *, keep: int) -> None:
    """Expire snapshots as an engine does: only the newest ones stay, and the oldest of them has no parent."""
    table.refresh()
    old = [snapshot.snapshot_id for snapshot in table.iceberg.snapshots()][:-keep]
    with table._writing() as iceberg:
        iceberg.maintenance.expire_snapshots().by_ids(old).commit()
    table.refresh()


@pytest.mark.parametrize("is_emptied", [False, True])
def test_snapshots_that_expired_before_they_were_read_stop_a_stream(
    lake: tl.Lakehouse, source: tl.Table, is_emptied: bool
) -> None:
    """A stream stops if unread snapshots have expired. The oldest kept snapshot loses its parent and looks like the
    table's first one, so otherwise the rows before it would be skipped."""
    start = reader_of(lake, since=2).initialOffset()
    if is_emptied:
        source.delete("id >= 0")
        source.append(rows(7))
    expire_snapshots(source, keep=1)
    lake.maintenance.expire(before=lake.version)
    stopped = reader_of(lake)
    stopped.partitions(start, start)
    with pytest.raises(tl.VersionExpired, match="expired before the stream had read them"):
        stopped.latestOffset()
    skipping = reader_of(lake, ignore_changes=True)
    skipping.partitions(start, start)
    assert between(skipping, start, skipping.latestOffset()) == ([7] if is_emptied else [3])


def test_a_stream_reads_versions_whose_snapshots_have_left_the_metadata(lake: tl.Lakehouse, source: tl.Table) -> None:
    """A stream reads snapshots that the table's present metadata does not list any more: each is listed in the version
    that committed it."""
    few = {"history.expire.min-snapshots-to-keep": "2", "history.expire.max-snapshot-age-ms": "1"}
    lake.alter_table(source.name, {**few, "commit.retry.total-timeout-ms": "0"})
    end = reader_of(lake).latestOffset()
    for id in range(4, 12):
        source.append(rows(id))
    resumed = reader_of(lake)
    resumed.partitions(end, end)
    assert between(resumed, end, resumed.latestOffset()) == list(range(4, 12))
    lake.maintenance.expire(before=lake.version)
    stopped = reader_of(lake)
    stopped.partitions(end, end)
    with pytest.raises(tl.VersionExpired, match="expired before the stream had read them"):
        stopped.latestOffset()


def test_snapshots_that_expired_while_a_stream_stood_still_stop_it(lake: tl.Lakehouse, source: tl.Table) -> None:
    """A stream that was stopped ends with an error if unread snapshots have expired, also with `ignore_changes`."""
    end = reader_of(lake).latestOffset()
    for id in (4, 5, 6):
        source.append(rows(id))
    expire_snapshots(source, keep=2)
    lake.maintenance.expire(before=lake.version)
    stopped = reader_of(lake)
    stopped.partitions(end, end)
    with pytest.raises(tl.VersionExpired, match="expired before the stream had read them"):
        stopped.latestOffset()
    skipping = reader_of(lake, ignore_changes=True)
    skipping.partitions(end, end)
    with pytest.raises(tl.VersionExpired):  # it is unknown which of the rows were read
        skipping.latestOffset()


def test_rows_of_a_replaced_table_arrive_if_changes_are_ignored(lake: tl.Lakehouse, source: tl.Table) -> None:
    """With `ignore_changes`, a stream delivers the rows that replaced others when the table was reset or replaced."""
    reader = reader_of(lake, ignore_changes=True)
    end = reader.latestOffset()
    lake.rollback(version=4)
    source.refresh()
    source.append(rows(8))
    assert between(reader, end, reader.latestOffset()) == [8]
    lake.rollback(version=5)
    skipping = reader_of(lake, since=lake.version - 1, ignore_changes=True)
    assert between(skipping, skipping.initialOffset(), skipping.latestOffset()) == [2]


def test_a_backlog_is_read_once(lake: tl.Lakehouse, source: tl.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with a backlog reads each version once, not again for each micro-batch."""
    for id in range(4, 24):
        source.append(rows(id))
    loads: list[int] = []
    load = LakehouseVersion.table

    def counted(self: LakehouseVersion, name: str) -> tl.Table:
        loads.append(self.version)
        return load(self, name)

    reader = reader_of(lake, since=2, max_versions_per_trigger=1)
    start = reader.initialOffset()
    monkeypatch.setattr(LakehouseVersion, "table", counted)
    found: list[int] = []
    for _ in range(30):
        end = reader.latestOffset()
        if end == start:
            break
        found += between(reader, start, end)
        start = end
    assert found == list(range(24))
    walked = [version for version in loads if version != lake.version]
    assert sorted(walked) == sorted(set(walked))  # each version but the latest, which plans every batch, once
    assert len(loads) <= 2 * 24 + 1
