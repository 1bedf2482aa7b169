"""Tables as streams: every row of every version arrives once, in the source and in the sink, also after a restart."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from flights import flights, rows
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import trinitylake as tl
from trinitylake.spark.options import Options
from trinitylake.spark.stream_read import StreamReader
from trinitylake.spark.stream_write import StreamWriter


@pytest.fixture
def source(lake: tl.Lakehouse) -> tl.Table:
    return flights(lake)


def ids(lake: tl.Lakehouse, name: str) -> list[int]:
    return sorted(lake.table(name).scan().to_arrow()["id"].to_pylist())


def stream(spark: SparkSession, lake: tl.Lakehouse, **options: Any) -> DataFrame:
    return spark.readStream.format("trinitylake").option("root", lake.uri).options(**options).load("nyc.flights")


@contextlib.contextmanager
def running(frame: DataFrame, lake: tl.Lakehouse, checkpoint: Path, mode: str = "append") -> Iterator[StreamingQuery]:
    """A query that copies into the table `nyc.copy`, and is stopped at the end of the block."""
    writer = frame.writeStream.format("trinitylake").option("root", lake.uri).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).start("nyc.copy")
    try:
        yield query
    finally:
        query.stop()


def batches(query: StreamingQuery) -> list[int]:
    """The rows of each non-empty micro-batch."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_every_row_arrives_once_over_restarts(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path
) -> None:
    lake.create_table("nyc.copy", rows())
    with running(stream(spark, lake), lake, tmp_path / "checkpoint") as query:
        query.processAllAvailable()
        assert ids(lake, "nyc.copy") == [0, 1, 2, 3]
        source.append(rows(4))
        source.append(rows(5))
        query.processAllAvailable()
        assert ids(lake, "nyc.copy") == [0, 1, 2, 3, 4, 5]
    source.append(rows(6))  # while no query runs
    before = lake.version
    with running(stream(spark, lake), lake, tmp_path / "checkpoint") as query:
        query.processAllAvailable()
    assert ids(lake, "nyc.copy") == [0, 1, 2, 3, 4, 5, 6]
    assert lake.version == before + 1


def test_a_batch_that_spark_runs_again_is_written_once(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path
) -> None:
    """A batch that Spark runs again is written once. The driver died after the commit of the sink and before Spark's
    own commit."""
    lake.create_table("nyc.copy", rows())
    checkpoint = tmp_path / "checkpoint"
    with running(stream(spark, lake), lake, checkpoint) as query:
        query.processAllAvailable()
    version = lake.version
    written = sorted((checkpoint / "commits").glob("[0-9]*"))
    assert written
    written[-1].unlink()
    for left_over in (checkpoint / "commits").glob(".*.crc"):
        left_over.unlink()
    with running(stream(spark, lake), lake, checkpoint) as query:
        query.processAllAvailable()
    assert sorted((checkpoint / "commits").glob("[0-9]*")) == written
    assert lake.version == version
    assert ids(lake, "nyc.copy") == [0, 1, 2, 3]
    files = {str(path) for path in Path(lake.uri.removeprefix("file://")).rglob("*.parquet")}
    in_tables = [task for name in ("flights", "copy") for task in lake.table(f"nyc.{name}").scan().iceberg.plan_files()]
    assert files == {task.file.file_path.removeprefix("file://") for task in in_tables}


def test_the_initial_load_arrives_if_its_batch_failed_and_the_table_grew_meanwhile(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path
) -> None:
    arrived: list[int] = []
    faults = ["the consumer's disk is full"]

    def consume(batch: DataFrame, number: int) -> None:
        if faults:
            raise RuntimeError(faults.pop())
        arrived.extend(row.id for row in batch.collect())

    def start() -> StreamingQuery:
        writer = stream(spark, lake).writeStream.foreachBatch(consume)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(StreamingQueryException, match="disk is full"):
        start().processAllAvailable()
    source.append(rows(4))
    query = start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(arrived) == [0, 1, 2, 3, 4]


def test_two_queries_write_one_table(spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path) -> None:
    lake.create_table("nyc.copy", rows())
    with (
        running(stream(spark, lake), lake, tmp_path / "one") as one,
        running(stream(spark, lake, filter="id >= 2"), lake, tmp_path / "two") as two,
    ):
        one.processAllAvailable()
        two.processAllAvailable()
    assert ids(lake, "nyc.copy") == [0, 1, 2, 2, 3, 3]


def test_complete_mode_replaces_the_result(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path
) -> None:
    lake.create_table("nyc.copy", pa.schema([("carrier", pa.string()), ("id", pa.int64())]))
    counts = stream(spark, lake).groupBy("carrier").count().withColumnRenamed("count", "id")
    with running(counts, lake, tmp_path / "checkpoint", mode="complete") as query:
        query.processAllAvailable()
        assert ids(lake, "nyc.copy") == [4]
        source.append(rows(9))
        query.processAllAvailable()
    assert ids(lake, "nyc.copy") == [5]


def test_admission_limits_bound_each_batch(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path
) -> None:
    lake.create_table("nyc.copy", rows())
    with running(stream(spark, lake, max_files_per_trigger=3), lake, tmp_path / "files") as query:
        query.processAllAvailable()
        assert batches(query) == [3, 1]
    with running(stream(spark, lake, since=3, max_versions_per_trigger=1), lake, tmp_path / "versions") as query:
        query.processAllAvailable()
        assert batches(query) == [1, 1, 1]
    assert ids(lake, "nyc.copy") == [0, 1, 1, 2, 2, 3, 3]


def test_removed_rows_stop_a_stream_unless_it_ignores_changes(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table, tmp_path: Path
) -> None:
    lake.create_table("nyc.copy", rows())
    version = lake.version
    source.delete("id = 1")
    source.append(rows(7))
    with (
        running(stream(spark, lake, since=version), lake, tmp_path / "one") as query,
        pytest.raises(StreamingQueryException, match="ignore_changes"),
    ):
        query.processAllAvailable()
    assert ids(lake, "nyc.copy") == []
    with running(stream(spark, lake, since=version, ignore_changes=True), lake, tmp_path / "two") as query:
        query.processAllAvailable()
    assert ids(lake, "nyc.copy") == [7]


def read_between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The rows between two offsets, read in this process."""
    found: list[int] = []
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            found += batch["id"].to_pylist()
    return sorted(found)


def reader_of(spark: SparkSession, lake: tl.Lakehouse, **options: Any) -> StreamReader:
    given = {"root": lake.uri, "path": "nyc.flights", **{name: str(value) for name, value in options.items()}}
    return StreamReader(Options.parse(given), spark.createDataFrame([], "id long, carrier string").schema)


def test_offsets_read_the_same_rows_in_another_process_later(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table
) -> None:
    reader = reader_of(spark, lake, max_files_per_trigger=3)
    start, end = reader.initialOffset(), reader.latestOffset()
    taken = read_between(reader, start, end)
    assert len(taken) == 3
    source.append(rows(8))
    again = reader_of(spark, lake)  # limits may change at a restart
    assert read_between(again, start, end) == taken
    assert again.latestOffset() != end
    left = read_between(again, end, again.latestOffset())
    assert sorted(taken + left) == [0, 1, 2, 3, 8]


def test_a_stream_starts_with_an_older_version_or_behind_it(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table
) -> None:
    whole = reader_of(spark, lake, version=4)
    assert read_between(whole, whole.initialOffset(), whole.latestOffset()) == [0, 1, 2, 3]
    behind = reader_of(spark, lake, since=4)
    assert read_between(behind, behind.initialOffset(), behind.latestOffset()) == [2, 3]
    first = reader_of(spark, lake, since=0)  # the version before the table existed
    assert read_between(first, first.initialOffset(), first.latestOffset()) == [0, 1, 2, 3]


def test_commits_to_other_tables_add_no_rows_to_the_stream(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table
) -> None:
    reader = reader_of(spark, lake)
    reader.initialOffset()
    end = reader.latestOffset()
    lake.create_table("nyc.other", rows()).append(rows(1, 2))
    later = reader.latestOffset()
    assert read_between(reader, end, later) == []


def test_table_that_was_created_again_stops_a_stream(spark: SparkSession, lake: tl.Lakehouse, source: tl.Table) -> None:
    reader = reader_of(spark, lake)
    reader.initialOffset()
    end = reader.latestOffset()
    assert read_between(reader, reader.initialOffset(), end) == [0, 1, 2, 3]
    lake.drop_table("nyc.flights")
    lake.create_table("nyc.flights", rows()).append(rows(1))
    with pytest.raises(tl.ObjectNotFound, match=r"exist|created again"):
        reader.latestOffset()


def test_a_batch_that_lost_a_race_is_committed_with_all_its_files(
    lake: tl.Lakehouse, source: tl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that replaces all rows is committed with all of its files, although another writer commits after the
    batch has read the table."""
    monkeypatch.setattr("trinitylake.spark.write_tasks._local_property", lambda name: "query")
    writer = StreamWriter(Options.parse({"root": lake.uri, "path": "nyc.flights"}), overwrite=True)
    report = writer.write(iter(rows(70, 71).to_batches()))
    commit_alone = tl.Transaction.commit
    races: list[int] = []

    def commit_after_another(self: tl.Transaction, **arguments: Any) -> int:
        if not races:
            races.append(1)
            lake.table("nyc.flights").append(rows(50))
        return commit_alone(self, **arguments)

    monkeypatch.setattr(tl.Transaction, "commit", commit_after_another)
    writer.commit([report], 0)
    assert races == [1]
    assert ids(lake, "nyc.flights") == [70, 71]
    version = lake.version
    again = writer.write(iter(rows(70, 71).to_batches()))
    writer.commit([again], 0)
    assert lake.version == version


def test_available_now_ends_at_the_version_where_it_began(
    spark: SparkSession, lake: tl.Lakehouse, source: tl.Table
) -> None:
    """Spark 4.2 and later ask a reader for one micro-batch after the other, until it returns where it starts."""
    reader = reader_of(spark, lake, max_files_per_trigger=3)
    reader.prepareForTriggerAvailableNow()
    source.append(rows(4))
    offsets = [reader.initialOffset()]
    while len(offsets) < 2 or offsets[-1] != offsets[-2]:
        offsets.append(reader.latestOffset(offsets[-1], "a limit"))
    assert [len(read_between(reader, start, end)) for start, end in itertools.pairwise(offsets)] == [3, 1, 0]
