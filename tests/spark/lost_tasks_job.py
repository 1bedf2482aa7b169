"""A Spark application whose tasks fail, lose their executor or are slow, in writes, a consumer, a merge and a stream.

`test_retries.py` runs it in a process of its own. Its arguments are the root of the lakehouse and the folder in which
each attempt of a task creates a file, `<job>-<partition>-<attempt>-<what>`. A third argument is the master of a cluster
for a slow task; without it, the application starts its own master for the other faults.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import trinitylake as tl
from trinitylake.spark.runtime import use_this_python

ROOT, MARKS = sys.argv[1], Path(sys.argv[2])
MASTER = sys.argv[3] if len(sys.argv) > 3 else "local-cluster[2,2,700]"
IS_SLOW = len(sys.argv) > 3
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.locality.wait": "0",
}


def unreliable(job: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a task that fails or is slow at its first attempt, after it has read its rows.

    Of four tasks one fails and one loses its executor, or one is slow.
    """
    context = TaskContext.get()
    assert context is not None
    partition, attempt = context.partitionId(), context.attemptNumber()

    def mark(what: str) -> None:
        (MARKS / f"{job}-{partition}-{attempt}-{what}").touch()

    mark("begun")
    yield from batches
    if IS_SLOW:
        deadline = time.monotonic() + 150
        while attempt == 0 and partition == 2 and time.monotonic() < deadline:
            if any(MARKS.glob(f"{job}-2-[1-9]*-ends")):
                break
            time.sleep(0.2)
        mark("ends")
        return
    if attempt == 0 and partition == 0:
        mark("fails")
        raise RuntimeError("the disk of this worker is full")
    if attempt == 0 and partition == 1:
        mark("kills")
        daemon = os.getppid()
        executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
        os._exit(1)
    mark("ends")


def main() -> None:
    use_this_python()
    settings = {
        "spark.driver.memory": "700m",
        "spark.executor.memory": "700m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.task.maxFailures": "8",
    }
    builder = SparkSession.builder.appName("lost tasks").master(MASTER)
    for name, value in {**settings, **(SPECULATION if IS_SLOW else {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(0, 400, 1, 4).selectExpr("id", "cast(id % 3 as string) AS carrier")
    lost = rows.mapInArrow(partial(unreliable, "write"), rows.schema)
    lost.write.format("trinitylake").option("root", ROOT).mode("append").save("nyc.flights")
    with tl.open(ROOT).transaction() as txn:
        changed = tl.spark.consume(spark, ROOT, "nyc.source", "copies", txn=txn).select("id", "carrier")
        lost = changed.mapInArrow(partial(unreliable, "consume"), rows.schema)
        tl.spark.write(lost, ROOT, "nyc.copy", mode="append", txn=txn)
    lost = rows.where("id % 2 = 0").mapInArrow(partial(unreliable, "merge"), rows.schema)
    tl.spark.merge(lost, ROOT, "nyc.merged", on="id").when_matched_update().when_not_matched_insert().execute()
    if not IS_SLOW:
        follow(spark)
    spark.stop()


def follow(spark: SparkSession) -> None:
    """Copy a table as a stream, with a task for each of its four files."""
    source = spark.readStream.format("trinitylake").options(root=ROOT, split_size_bytes="1").load("nyc.source")
    lost = source.mapInArrow(partial(unreliable, "stream"), source.schema)
    sink = lost.writeStream.format("trinitylake").option("root", ROOT)
    query = sink.option("checkpointLocation", str(MARKS.parent / "checkpoint")).start("nyc.streamed")
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main()
