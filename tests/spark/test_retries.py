"""Repeated work: failed tasks, drivers that die between two writes, batches that Spark repeats."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import trinitylake as tl
from free_port import free_port
from trinitylake.spark import BatchTransaction, foreach_batch
from trinitylake.spark.batch_write import BatchWriter
from trinitylake.spark.options import Options

JOB = Path(__file__).parent / "lost_tasks_job.py"
ENVIRONMENT = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "carrier": pa.array(["AA"] * len(ids), pa.string())})


def ids(lake: tl.Lakehouse, name: str = "nyc.flights") -> list[int]:
    return sorted(lake.table(name).scan().to_arrow()["id"].to_pylist())


def data_files(lake: tl.Lakehouse) -> set[str]:
    return {str(path) for path in Path(lake.uri.removeprefix("file://")).rglob("*.parquet")}


def referenced_files(lake: tl.Lakehouse, *names: str) -> set[str]:
    tasks = [task for name in names for task in lake.table(name).scan().iceberg.plan_files()]
    return {task.file.file_path.removeprefix("file://") for task in tasks}


@pytest.fixture
def tables(lake: tl.Lakehouse) -> tl.Lakehouse:
    return with_tables(lake)


def with_tables(lake: tl.Lakehouse) -> tl.Lakehouse:
    """Create empty tables of the same columns."""
    with lake.transaction() as txn:
        txn.create_namespace("nyc")
        txn.create_table("nyc.flights", rows(), partition_spec="carrier")
        for name in ("copy", "source", "merged", "streamed"):
            txn.create_table(f"nyc.{name}", rows())
    return lake


def run_job(lake: tl.Lakehouse, marks: Path, *master: str) -> set[str]:
    """Run a Spark application that writes rows 0 to 399, consumes four versions and merges 200 rows. Returns the marks
    that the attempts of its tasks left."""
    marks.mkdir()
    with lake.transaction() as txn:
        txn.table("nyc.source").consume("copies")
    for id in range(4):
        lake.table("nyc.source").append(rows(id))
    lake.table("nyc.merged").append(rows(0, 1, 2))
    done = subprocess.run(
        [sys.executable, str(JOB), lake.uri, str(marks), *master], env=ENVIRONMENT, capture_output=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert ids(lake) == list(range(400))
    assert ids(lake, "nyc.copy") == list(range(4))
    assert ids(lake, "nyc.merged") == [0, 1, *range(2, 400, 2)]
    with lake.transaction() as txn:
        assert txn.table("nyc.source").consume("copies").read_all().num_rows == 0
    return {path.name for path in marks.iterdir()}


@contextmanager
def cluster_on_two_hosts(folder: Path) -> Iterator[str]:
    """A master with a worker on each of two loopback addresses; Spark starts no second attempt of a task on a host."""
    port = str(free_port())
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    small = ["--webui-port", "0", "--host"]
    commands = [[f"{deploy}.master.Master", *small, "127.0.0.1", "--port", port]]
    for host in ("127.0.0.1", "127.0.0.2"):
        work = ["--cores", "2", "--memory", "700m", "--work-dir", str(folder / host), master]
        commands.append([f"{deploy}.worker.Worker", *small, host, *work])
    short_life = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = {"SPARK_DAEMON_JAVA_OPTS": short_life, "SPARK_LAUNCHER_OPTS": short_life}
    environment = {**ENVIRONMENT, **options, "SPARK_DAEMON_MEMORY": "256m"}
    launcher = str(Path(ENVIRONMENT["SPARK_HOME"]) / "bin" / "spark-class")
    quiet = subprocess.DEVNULL
    started = [subprocess.Popen([launcher, *one], env=environment, stdout=quiet, stderr=quiet) for one in commands]
    try:
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


@pytest.mark.timeout(1200)
def test_a_speculative_attempt_adds_the_rows_of_its_task_once(tmp_path: Path) -> None:
    """A speculative attempt adds no rows twice. The first attempt of a task waits until a second attempt, which Spark
    starts for this reason, has ended. On a busy machine Spark may start none; then the run is repeated."""
    for run in range(3):
        folder = tmp_path / str(run)
        folder.mkdir()
        lake = with_tables(tl.create(folder / "lake"))
        with cluster_on_two_hosts(folder) as master:
            found = run_job(lake, folder / "marks", master)
        assert referenced_files(lake, "nyc.flights") <= data_files(lake)
        ended_later = {
            job
            for job, *task, attempt, what in (name.split("-") for name in found)
            if task == ["2"] and attempt != "0" and what == "ends"
        }
        if ended_later == {"write", "consume", "merge"}:
            return
    pytest.fail(f"Spark never started later attempts of task 2 in all three jobs: {sorted(found)}")


@pytest.mark.timeout(600)
def test_failed_and_lost_tasks_add_their_rows_once(tables: tl.Lakehouse, tmp_path: Path) -> None:
    found = run_job(tables, tmp_path / "marks")
    assert ids(tables, "nyc.streamed") == list(range(4))
    for job in ("write", "consume", "merge", "stream"):
        assert {f"{job}-0-0-fails", f"{job}-1-0-kills"} <= found
        assert not {f"{job}-0-0-ends", f"{job}-1-0-ends"} & found
        ended = {name.rpartition("-")[0].rpartition("-")[0] for name in found if name.endswith("-ends")}
        assert {f"{job}-0", f"{job}-1"} <= ended, "a later attempt must end"
    names = [f"nyc.{name}" for name in ("flights", "copy", "source", "merged", "streamed")]
    assert len(data_files(tables) - referenced_files(tables, *names)) == 1, (
        "only the file that the merge replaced is unreferenced"
    )


def save_into(lake: tl.Lakehouse, table: str, data: pa.Table, overwrite: bool = False, **options: Any) -> BatchWriter:
    """A write with the calls of Spark: plan, one task, commit."""
    writer = BatchWriter(Options.parse({"root": lake.uri, "path": table, **options}), overwrite)
    writer.commit([writer.write(iter(data.to_batches()))])
    return writer


def test_a_driver_that_died_between_two_writes_does_not_repeat_the_first(tables: tl.Lakehouse) -> None:
    """After a driver died between two writes into a saved transaction, the second run does not repeat the first write,
    which has an id."""
    tables.begin(id="load").save()
    late = BatchWriter(Options.parse({"root": tables.uri, "path": "nyc.flights", "txn": "load", "id": "one"}), False)
    reported = late.write(iter(rows(1).to_batches()))
    for _ in range(2):
        save_into(tables, "nyc.flights", rows(1), txn="load", id="one")
    late.commit([reported])  # planned before the first, committed after it
    save_into(tables, "nyc.flights", rows(2), txn="load", id="two")
    save_into(tables, "nyc.copy", rows(3), txn="load", id="one")  # another table has its own writes
    save_into(tables, "nyc.copy", rows(4), txn="load", id="all", overwrite=True)
    save_into(tables, "nyc.copy", rows(4), txn="load", id="all", overwrite=True)
    tables.resume("load").commit()
    assert ids(tables) == [1, 2]
    assert ids(tables, "nyc.copy") == [4]
    tables.begin(id="other").save()
    save_into(tables, "nyc.flights", rows(5), txn="other", id="one")  # another transaction too
    tables.resume("other").commit()
    assert ids(tables) == [1, 2, 5]


def test_an_id_whose_attempt_failed_begins_again(tables: tl.Lakehouse) -> None:
    """An id can be used again after its attempt failed and the saved transaction was rolled back."""

    def load(step: str) -> int:
        txn = tables.begin(id="load-1", restart=True)
        if txn.version is not None:
            return txn.version
        txn.save()
        save_into(tables, "nyc.flights", rows(1), txn="load-1", id="one")
        if step == "fails":
            tables.resume("load-1").rollback()
        if step in ("fails", "dies"):
            raise RuntimeError(step)
        return tables.resume("load-1").commit()

    for step in ("fails", "dies", "fails"):
        with pytest.raises(RuntimeError, match=step):
            load(step)
        assert not tables.transactions.is_committed("load-1")
    version = load("works")
    assert load("works") == version
    assert ids(tables) == [1]
    assert tables.transactions.outcome("load-1") == ("committed", version)


def test_driver_whose_work_was_begun_again_commits_nothing(tables: tl.Lakehouse) -> None:
    """Two drivers ran one load, because a scheduler took the first for dead. The first had written its rows when the
    second began again. Then its commit, by the id, committed the empty attempt of the second: the load had a version
    and no rows, for both drivers. Now each writes and commits by the name of its attempt."""
    first = tables.begin(id="load", restart=True).save()
    save_into(tables, "nyc.flights", rows(1), txn=first, id="one")
    second = tables.begin(id="load", restart=True).save()
    with pytest.raises(tl.CommitConflict, match="begun again"):
        tables.resume(first).commit()
    with pytest.raises(tl.CommitConflict, match="begun again"):
        save_into(tables, "nyc.flights", rows(2), txn=first, id="two")
    for id in (1, 2):
        save_into(tables, "nyc.flights", rows(id), txn=second, id=str(id))
    version = tables.resume(second).commit()
    assert tables.resume(first).commit() == version
    assert ids(tables) == [1, 2]


def test_batch_that_another_driver_begins_again_is_committed_as_a_whole(
    spark: SparkSession, tables: tl.Lakehouse
) -> None:
    """Two drivers ran one batch of a stream. The second began while the first was between the tables of the batch; the
    first then wrote into the attempt of the second and committed it, without the rows of the first table."""
    others = ["begins the batch"]

    def into_both(batch: DataFrame, tx: BatchTransaction) -> None:
        tx.write(batch, "nyc.copy")
        if others:
            others.clear()
            tables.begin(id=tx.id, restart=True).save()
        tx.write(batch, "nyc.merged")

    run = foreach_batch(into_both, tables.uri, durability="none")
    batch = spark.createDataFrame([(1, "AA"), (2, "UA")], "id long, carrier string")
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "query")
    try:
        with pytest.raises(tl.CommitConflict, match="begun again"):
            run(batch, 0)
        assert not tables.transactions.is_committed("spark-query-0")
        run(batch, 0)
    finally:
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)  # type: ignore[arg-type]
    assert ids(tables, "nyc.copy") == ids(tables, "nyc.merged") == [1, 2]


def follow(spark: SparkSession, lake: tl.Lakehouse, function: Any, checkpoint: Path) -> StreamingQuery:
    source = spark.readStream.format("trinitylake").option("root", lake.uri).load("nyc.flights")
    writer = source.writeStream.foreachBatch(foreach_batch(function, lake.uri, durability="none"))
    return writer.option("checkpointLocation", str(checkpoint)).start()


def test_a_batch_of_foreach_batch_is_one_commit_however_often_it_runs(
    spark: SparkSession, tables: tl.Lakehouse, tmp_path: Path
) -> None:
    tables.create_table("nyc.counts", {"carrier": "string", "id": "bigint"})
    tables.table("nyc.flights").append(rows(1, 2, 3))
    faults = ["after the first table"]
    calls: list[int] = []

    def into_both(batch: DataFrame, tx: BatchTransaction) -> None:
        calls.append(tx.number)
        tx.write(batch, "nyc.copy")
        if faults:
            raise RuntimeError(faults.pop())
        counts = tx.read("nyc.copy").groupBy("carrier").count().withColumnRenamed("count", "id")
        tx.write(counts, "nyc.counts", mode="overwrite")

    def run() -> None:
        query = follow(spark, tables, into_both, tmp_path / "checkpoint")
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="after the first table"):
        run()
    assert ids(tables, "nyc.copy") == []
    run()
    assert calls == [0, 0]
    assert ids(tables, "nyc.copy") == [1, 2, 3]
    assert ids(tables, "nyc.counts") == [3]
    version = tables.version
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    commits[-1].unlink()  # the driver died after the batch, and before Spark's own commit
    for checksum in (tmp_path / "checkpoint" / "commits").glob(".*.crc"):
        checksum.unlink()
    run()
    assert calls == [0, 0]
    assert tables.version == version
    assert ids(tables, "nyc.copy") == [1, 2, 3]
