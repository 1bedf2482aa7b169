"""Writes with `format("trinitylake")` add every row once, whatever happens to tasks, drivers and other writers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DateType, ListType, LongType, NestedField, StringType
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

import trinitylake as tl
from trinitylake.spark.batch_read import BatchReader
from trinitylake.spark.batch_write import BatchWriter
from trinitylake.spark.options import Options
from trinitylake.spark.types import check_assignable
from waiting import wait_until

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", None]})


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", ROWS, partition_spec="carrier")
    table.append(ROWS)
    return table


def frame_of(spark: SparkSession, ids: Iterable[int], tasks: int = 2) -> DataFrame:
    """Rows with these ids in two partitions of the table, distributed over tasks."""
    rows = [(id, "AA" if id % 2 else "UA") for id in ids]
    return spark.createDataFrame(rows, "id long, carrier string").repartition(tasks)


def save(frame: DataFrame, lake: tl.Lakehouse, name: str = "nyc.flights", mode: str = "append", **options: Any) -> None:
    frame.write.format("trinitylake").option("root", lake.uri).options(**options).mode(mode).save(name)


def ids(source: Any, name: str = "nyc.flights") -> list[int]:
    return sorted(source.table(name).scan().to_arrow()["id"].to_pylist())


def data_files(lake: tl.Lakehouse) -> set[str]:
    """Every Parquet file below the root."""
    root = Path(lake.uri.removeprefix("file://"))
    return {str(path) for path in root.rglob("*.parquet")}


def referenced_files(table: tl.Table) -> set[str]:
    return {task.file.file_path.removeprefix("file://") for task in table.scan().iceberg.plan_files()}


def test_appended_rows_are_one_commit(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    before = lake.version
    save(frame_of(spark, range(10, 30)), lake, message="nightly", author="etl")
    assert lake.version == before + 1
    assert ids(lake) == [1, 2, 3, *range(10, 30)]
    entry = lake.log(1)[0]
    assert (entry.message, entry.author) == ("nightly", "etl")
    assert entry.transactions[0].properties["engine"] == "spark"


def test_files_have_partition_values_and_statistics(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    save(frame_of(spark, range(100, 140)), lake)
    table.refresh()
    written = [task for task in table.scan(filter="id >= 100").iceberg.plan_files()]
    assert {task.file.partition[0] for task in written} == {"AA", "UA"}
    assert sum(task.file.record_count for task in written) == 40
    for task in written:
        assert set(task.file.lower_bounds) == set(task.file.upper_bounds) == set(task.file.value_counts) == {1, 2}
    # Files have correct bounds: filters exclude files, and no file with matching rows.
    assert list(table.scan(filter="id > 1000").iceberg.plan_files()) == []
    assert len(list(table.scan(filter="id >= 100 and carrier = 'UA'").iceberg.plan_files())) < len(written)


def test_an_overwrite_replaces_all_rows_or_those_of_a_filter(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    save(frame_of(spark, [11, 13]), lake, mode="overwrite", filter="carrier = 'AA'")
    assert ids(lake) == [2, 3, 11, 13]
    save(frame_of(spark, [20]), lake, mode="overwrite")
    assert ids(lake) == [20]
    assert lake.at(lake.version - 1).table("nyc.flights").scan().to_arrow().num_rows == 4


def test_an_overwrite_that_another_writer_overtakes_is_a_conflict(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    """An overwrite conflicts with a commit of another writer during its tasks, after the plan and before the commit of
    the overwrite."""
    uri = lake.uri

    def meanwhile(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        tl.open(uri, durability="none").table("nyc.flights").append(ROWS.slice(0, 1))
        yield from batches

    frame = frame_of(spark, [50], tasks=1)
    save(frame.mapInArrow(meanwhile, frame.schema), lake)  # an append is rebased on the other commit
    assert ids(lake) == [1, 1, 2, 3, 50]
    files = data_files(lake)
    with pytest.raises(PySparkException, match="CommitConflict"):
        save(frame.mapInArrow(meanwhile, frame.schema), lake, mode="overwrite")
    assert ids(lake) == [1, 1, 1, 2, 3, 50]
    assert len(data_files(lake) - files) == 1  # the file of the other writer


def test_a_retried_task_leaves_no_row_twice(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, tmp_path: Path
) -> None:
    """If a task fails after its rows were written, and Spark runs it again, each row is in the table once."""
    marker = tmp_path / "failed"

    def fails_once(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        rows = list(batches)
        yield from rows
        if any(15 in batch["id"].to_pylist() for batch in rows) and not marker.exists():
            marker.touch()
            raise RuntimeError("the disk of this worker is gone")

    frame = frame_of(spark, range(10, 20))
    save(frame.mapInArrow(fails_once, frame.schema), lake)
    assert marker.exists()
    assert ids(lake) == [1, 2, 3, *range(10, 20)]
    table.refresh()
    wait_until(lambda: data_files(lake) == referenced_files(table))


def test_a_job_that_fails_leaves_neither_rows_nor_files(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    def fails(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if 15 in batch["id"].to_pylist():
                raise RuntimeError("the disk of this worker is gone")

    version = lake.version
    frame = frame_of(spark, range(10, 20))
    with pytest.raises(PySparkException, match="the disk of this worker is gone"):
        save(frame.mapInArrow(fails, frame.schema), lake)
    assert lake.version == version
    wait_until(lambda: data_files(lake) == referenced_files(table))


def test_attempts_that_are_not_reported_leave_nothing(lake: tl.Lakehouse, table: tl.Table) -> None:
    """Files of attempts without a report, such as of speculative or killed tasks, do not become part of the table and
    are deleted."""
    writer = BatchWriter(Options.parse({"root": lake.uri, "path": "nyc.flights"}), overwrite=False)
    rows = pa.table({"id": pa.array([7, 8], pa.int64()), "carrier": ["AA", "AA"]})
    first = writer.write(iter(rows.to_batches()))
    writer.write(iter(rows.to_batches()))  # the same task again, slower
    assert len(data_files(lake) - referenced_files(table)) == 2
    writer.commit([first])
    table.refresh()
    assert ids(lake) == [1, 2, 3, 7, 8]
    assert data_files(lake) == referenced_files(table)


def test_a_commit_without_the_report_of_a_task_is_refused(lake: tl.Lakehouse, table: tl.Table) -> None:
    writer = BatchWriter(Options.parse({"root": lake.uri, "path": "nyc.flights"}), overwrite=False)
    report = writer.write(iter(ROWS.to_batches()))
    with pytest.raises(tl.StorageError, match="without reporting"):
        writer.commit([report, None])
    assert ids(lake) == [1, 2, 3]
    assert data_files(lake) == referenced_files(table)


def test_writes_take_part_in_a_saved_transaction(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    before = lake.version
    txn = lake.begin(id="etl-42", message="two tables")
    txn.create_table("nyc.planes", ROWS)
    txn.save()
    save(frame_of(spark, [40, 41]), lake, txn="etl-42")
    save(frame_of(spark, [42]), lake, "nyc.planes", txn="etl-42")
    reader = spark.read.format("trinitylake").option("root", lake.uri).option("txn", "etl-42")
    assert sorted(row.id for row in reader.load("nyc.flights").collect()) == [1, 2, 3, 40, 41]
    assert ids(lake) == [1, 2, 3]
    lake.resume("etl-42").commit()
    assert lake.version == before + 1
    assert ids(lake) == [1, 2, 3, 40, 41]
    assert ids(lake, "nyc.planes") == [42]
    with pytest.raises(PySparkException, match=r"TransactionClosed|ObjectNotFound"):
        save(frame_of(spark, [43]), lake, txn="etl-42")


def test_a_transaction_that_is_rolled_back_deletes_what_spark_wrote(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    lake.begin(id="bad-day").save()
    save(frame_of(spark, [40, 41]), lake, txn="bad-day")
    assert data_files(lake) != referenced_files(table)
    lake.resume("bad-day").rollback()
    assert data_files(lake) == referenced_files(table)
    assert ids(lake) == [1, 2, 3]


def test_writes_into_one_transaction_at_the_same_time_are_all_kept(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    """Concurrent writes into one transaction are all kept. Another process saves the transaction while the tasks of
    this write run."""
    uri = lake.uri

    def meanwhile(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        other = tl.open(uri, durability="none").resume("crowd")
        other.table("nyc.flights").append(pa.table({"id": pa.array([10], pa.int64()), "carrier": ["AA"]}))
        other.save()
        yield from batches

    lake.begin(id="crowd").save()
    frame = frame_of(spark, [20], tasks=1)
    save(frame.mapInArrow(meanwhile, frame.schema), lake, txn="crowd")
    lake.resume("crowd").commit()
    assert ids(lake) == [1, 2, 3, 10, 20]


def test_a_transaction_that_was_saved_during_the_commit_is_resumed_again(
    lake: tl.Lakehouse, table: tl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write into a saved transaction succeeds, although another process saves the transaction between this write's
    resume and its save."""
    options = Options.parse({"root": lake.uri, "path": "nyc.flights", "txn": "crowd"})
    lake.begin(id="crowd").save()
    writer = BatchWriter(options, overwrite=False)
    report = writer.write(iter(pa.table({"id": pa.array([20], pa.int64()), "carrier": ["AA"]}).to_batches()))
    save_alone = tl.Transaction.save
    races: list[str] = []

    def save_after_another(self: tl.Transaction) -> None:
        if not races:
            races.append(self.id)
            other = lake.resume("crowd")
            other.table("nyc.flights").append(pa.table({"id": pa.array([10], pa.int64()), "carrier": ["AA"]}))
            save_alone(other)
        save_alone(self)

    monkeypatch.setattr(tl.Transaction, "save", save_after_another)
    writer.commit([report])
    assert races == ["crowd"]
    lake.resume("crowd").commit()
    assert ids(lake) == [1, 2, 3, 10, 20]


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("append", {"version": 1}, "for reading"),
        ("append", {"filter": "id = 1"}, "for overwrites"),
        ("append", {"partitionOverwriteMode": "dynamic"}, "for overwrites"),
        ("overwrite", {"partitionOverwriteMode": "dynamic", "filter": "id = 1"}, "only one"),
        ("overwrite", {"overwrite-mode": "dynamic"}, "unknown option overwrite-mode"),
        ("append", {"txn": "unknown"}, "ObjectNotFound"),
    ],
)
def test_options_that_a_write_cannot_have_are_refused(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, mode: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(frame_of(spark, [1]), lake, mode=mode, **options)


def by_partition(lake: tl.Lakehouse) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for row in lake.table("nyc.flights").scan().to_arrow().sort_by("id").to_pylist():
        found.setdefault(row["carrier"], []).append(row["id"])
    return found


def test_a_dynamic_overwrite_replaces_the_partitions_of_its_rows(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    aa = spark.createDataFrame([(11, "AA")], "id long, carrier string")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        save(aa, lake, mode="overwrite")
        assert by_partition(lake) == {"AA": [11], "UA": [2], None: [3]}
        save(aa.limit(0), lake, mode="overwrite")
        assert by_partition(lake) == {"AA": [11], "UA": [2], None: [3]}
        save(aa, lake, mode="overwrite", filter="carrier = 'AA'")  # the filter selects the replaced rows
        assert by_partition(lake) == {"AA": [11], "UA": [2], None: [3]}
        save(aa, lake, mode="overwrite", partitionOverwriteMode="static")
        assert by_partition(lake) == {"AA": [11]}
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


def test_a_dynamic_overwrite_of_a_bucket_replaces_the_bucket(lake: tl.Lakehouse) -> None:
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", ROWS, partition_spec="bucket(4, id)")
    table.append(pa.table({"id": pa.array(range(100), pa.int64()), "carrier": ["AA"] * 100}))
    bucket = BucketTransform(4).transform(LongType())
    options = {"root": lake.uri, "path": "nyc.flights", "partitionOverwriteMode": "dynamic"}
    writer = BatchWriter(Options.parse(options), overwrite=True)
    batch = pa.record_batch({"id": pa.array([7], pa.int64()), "carrier": ["UA"]})
    writer.commit([writer.write(iter([batch]))])
    assert by_partition(lake) == {"AA": [id for id in range(100) if bucket(id) != bucket(7)], "UA": [7]}


def test_a_dynamic_overwrite_tells_zero_from_negative_zero(lake: tl.Lakehouse) -> None:
    """A dynamic overwrite of -0.0 keeps the partition of 0.0, as Iceberg's own does."""
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", {"id": "bigint", "x": "double"}, partition_spec="x")
    table.append({"id": [1, 2, 3, 4], "x": [0.0, -0.0, float("nan"), None]})
    options = {"root": lake.uri, "path": "nyc.flights", "partitionOverwriteMode": "dynamic"}
    writer = BatchWriter(Options.parse(options), overwrite=True)
    batch = pa.record_batch({"id": pa.array([5, 6], pa.int64()), "x": [-0.0, float("nan")]})
    writer.commit([writer.write(iter([batch]))])
    assert sorted(lake.table("nyc.flights").scan().to_arrow()["id"].to_pylist()) == [1, 4, 5, 6]


def test_conversions_that_depend_on_the_session_are_refused(spark: SparkSession) -> None:
    """A conversion that depends on the session is refused, such as a timestamp to a date, instead of storing other
    values."""
    table = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "name", StringType()),
        NestedField(3, "day", DateType()),
        NestedField(4, "tags", ListType(5, LongType())),
    )
    for rows in (
        "id string",
        "name interval day",
        "name double",
        "name timestamp",
        "day timestamp",
        "day string",
        "tags array<string>",
        "id array<long>",
    ):
        with pytest.raises(tl.InvalidArgument, match="CAST"):
            check_assignable(DataType.fromDDL(rows), table)
    check_assignable(DataType.fromDDL("id int, name date, day date, tags array<int>, other interval day"), table)
    check_assignable(DataType.fromDDL("id decimal(9,2), name void"), table)


def test_rows_that_do_not_fit_the_table_are_refused(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    version = lake.version
    with pytest.raises(PySparkException, match="speed"):
        save(spark.createDataFrame([(1, 2.0)], "id long, speed double"), lake)
    assert lake.version == version
    assert data_files(lake) == referenced_files(table)


#: The last second of the year 9999 in New York, and the first one of the year 1 in Tokyo, in microseconds of UTC.
OUTSIDE = (253402300799_000_000 + 5 * 3600_000_000, -62135596800_000_000 - 9 * 3600_000_000)


@pytest.mark.sample(4)
@pytest.mark.parametrize("spec", [None, "ts", "day(ts)", "bucket(4, ts)"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_outside_of_the_years_of_python_are_written_and_read(
    lake: tl.Lakehouse, spec: str | None, zone: str | None
) -> None:
    """Timestamps outside of the years of Python's `datetime` can be written and read, also in bounds and partition
    values."""
    rows = pa.table({"id": pa.array([1, 2]), "ts": pa.array(OUTSIDE, pa.int64()).cast(pa.timestamp("us", zone))})
    lake.create_namespace("nyc")
    lake.create_table("nyc.flights", rows, partition_spec=spec)
    given = Options.parse({"root": lake.uri, "path": "nyc.flights"})
    writer = BatchWriter(given, overwrite=False)
    writer.commit([writer.write(iter(rows.to_batches()))])
    schema = StructType().add("id", "long").add("ts", "timestamp_ntz" if zone is None else "timestamp")
    reader = BatchReader(given, schema)
    found = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    assert sorted(found["ts"].cast(pa.int64()).to_pylist()) == sorted(OUTSIDE)
