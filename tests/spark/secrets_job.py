"""A Spark application with all kinds of secrets, which then collects everything that Spark wrote or shows.

`test_secrets.py` runs it in a process of its own, because the event log and the web UI must be configured before a
session starts. The secrets are in its environment. Its first argument is the folder for the collected output.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import trinitylake as tl
from trinitylake.spark import connect, transaction
from trinitylake.spark.connection import connection_of
from trinitylake.spark.runtime import EXTENSIONS, package

HERE = Path(sys.argv[1])
SEEN = HERE / "seen"
SEEN.mkdir()


def main() -> None:
    spark = _session()
    _use_sql(spark)
    if "TRINITYLAKE_TEST_S3" in os.environ:
        _use_data_source(spark)
    _collect(spark)
    number = spark.sparkContext.applicationId
    spark.stop()
    if os.environ.get("TRINITYLAKE_DEEP"):
        _collect_history(number)


def _session() -> SparkSession:
    settings = {
        "spark.master": "local[2,1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": EXTENSIONS,
        "spark.jars.packages": package(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (HERE / "events").as_uri(),
        "spark.eventLog.logStageExecutorMetrics": "true",
        "spark.logConf": "true",
        "spark.python.daemon.module": "trinitylake.spark.worker_daemon",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.local.dir": str(HERE / "local"),
        "spark.sql.warehouse.dir": str(HERE / "warehouse"),
        "spark.sql.planChangeLog.level": "INFO",
        "spark.sql.debug.maxToStringFields": "1000",
    }
    for folder in ("events", "local"):
        (HERE / folder).mkdir()
    lake = tl.create(str(HERE / "lake"), durability="none")
    spark = connect(
        lake.uri, session_config=settings, catalog_config=json.loads(os.environ["TRINITYLAKE_TEST_CATALOG_CONFIG"])
    )
    spark.sparkContext.setLogLevel("INFO")
    return spark


def _use_sql(spark: SparkSession) -> None:
    """DDL, a stage with a shuffle, a transaction, a stream, and the session that Spark creates for the batches of the
    stream."""
    spark.sql("CREATE NAMESPACE lake.nyc")
    spark.sql("CREATE TABLE lake.nyc.flights (id bigint, carrier string)")
    spark.sql("CREATE TABLE lake.nyc.copy (id bigint, carrier string)")
    spark.sql("INSERT INTO lake.nyc.flights VALUES (1, 'AA'), (2, 'UA'), (3, 'AA')")
    with transaction(spark) as tx:
        spark.sql(f"INSERT INTO {tx}.nyc.flights VALUES (4, 'B6')")
        _see("transaction-settings", str(spark.sql("SET").collect()))
    counts = spark.sql("SELECT carrier, count(*) FROM lake.nyc.flights GROUP BY carrier ORDER BY carrier")
    assert [row.carrier for row in counts.collect()] == ["AA", "B6", "UA"]
    for mode in ("EXTENDED", "FORMATTED", "COST", "CODEGEN"):
        query = "SELECT * FROM lake.nyc.flights JOIN lake.nyc.copy USING (id)"
        _see(f"plan-{mode.lower()}", spark.sql(f"EXPLAIN {mode} {query}").first()[0])
    _see("description", str(spark.sql("DESCRIBE TABLE EXTENDED lake.nyc.flights").collect()))

    def copy(batch: DataFrame, number: int) -> None:
        batch.createOrReplaceTempView("batch")
        batch.sparkSession.sql("INSERT INTO lake.nyc.copy SELECT * FROM batch")

    stream = spark.readStream.table("lake.nyc.flights").writeStream.foreachBatch(copy)
    query = stream.option("checkpointLocation", str(HERE / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    _see("progress", str([progress.json for progress in query.recentProgress]))
    assert spark.table("lake.nyc.copy").count() == 4
    _see("settings", str(spark.sql("SET").collect()) + str(spark.sql("SET -v").collect()))
    names = [name for name in spark.conf.getAll if name.startswith("spark.sql.catalog.")]
    _see("settings-by-name", "".join(str(spark.sql(f"SET `{name}`").collect()) for name in names))


def _use_data_source(spark: SparkSession) -> None:
    """The same tables without Iceberg's runtime: a batch, a stream, and a store that cannot be reached."""
    s3 = json.loads(os.environ["TRINITYLAKE_TEST_S3"])
    options = {"root": s3["root"], **{f"storage.{name}": value for name, value in s3["options"].items()}}
    frame = spark.read.format("trinitylake").options(**options).load("nyc.flights")
    assert frame.count() == 3
    for mode in ("extended", "formatted", "cost", "codegen"):
        explained = frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), mode)
        _see(f"source-plan-{mode}", explained)
    frame.write.format("trinitylake").options(**options).mode("append").save("nyc.copy")
    stream = spark.readStream.format("trinitylake").options(**options).load("nyc.flights")
    sink = stream.writeStream.format("trinitylake").options(**options)
    for attempts_left in (2, 1, 0):
        query = sink.option("checkpointLocation", str(HERE / "source-checkpoint")).start("nyc.copy")
        try:
            query.processAllAvailable()
            break
        except StreamingQueryException:  # Spark waits at most ten seconds for a Python worker
            if not attempts_left:
                raise
    _see("source-progress", str([progress.json for progress in query.recentProgress]))
    query.explain(True)
    query.stop()
    away = json.loads(os.environ["TRINITYLAKE_TEST_AWAY"])
    for name, (root, storage) in away.items():
        options = {"root": root, **{f"storage.{option}": value for option, value in storage.items()}}
        with suppress(Exception):
            spark.read.format("trinitylake").options(**options).load("nyc.flights").count()
            raise AssertionError(f"{name} answered")


def _collect(spark: SparkSession) -> None:
    """Collect the content of web UI, REST API, process list and driver folders while the application runs."""
    base = spark.sparkContext.uiWebUrl
    application = f"{base}/api/v1/applications/{spark.sparkContext.applicationId}"
    for name in (
        "environment",
        "jobs",
        "stages?details=true",
        "sql?details=true&planDescription=true&length=1000",
        "executors",
        "allexecutors",
        "storage/rdd",
        "logs",
    ):
        with suppress(OSError):
            _see(f"api-{name}", _get(f"{application}/{name}"))
    for name in ("jobs", "stages", "environment", "executors", "SQL", "StreamingQuery", "storage"):
        _see(f"page-{name}", _get(f"{base}/{name}/"))
    for number in range(0, 60, 10):
        with suppress(OSError):
            _see(f"page-execution-{number}", _get(f"{base}/SQL/execution/?id={number}"))
    for process in Path("/proc").iterdir() if Path("/proc").exists() else []:
        with suppress(OSError):
            if (process / "cmdline").stat().st_uid == os.getuid():
                _see(f"process-{process.name}", (process / "cmdline").read_text(errors="replace"))
    for path in _files(HERE / "local"):
        _see(f"local-{path.name}", path.read_bytes().decode("latin-1"))
    _see("token", connection_of(spark, "lake").server.token, folder=HERE)


def _collect_history(number: str) -> None:
    """Collect the content of Spark's history server after the end of the application, which reads only the event
    log."""
    jars = Path(pyspark.__file__).parent / "jars"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"),
            *(f"-Dspark.history.fs.logDirectory={(HERE / 'events').as_uri()}", f"-Dspark.history.ui.port={port}"),
            "org.apache.spark.deploy.history.HistoryServer",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    application = f"http://127.0.0.1:{port}/api/v1/applications/{number}"
    try:
        while True:
            try:
                _see("history-environment", _get(f"{application}/environment"))
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.5)
        for name in ("jobs", "stages?details=true", "sql?details=true&planDescription=true&length=1000"):
            _see(f"history-{name}", _get(f"{application}/{name}"))
        for name in ("jobs", "stages", "environment", "SQL"):
            _see(f"history-page-{name}", _get(f"http://127.0.0.1:{port}/history/{number}/{name}/"))
        for execution in range(0, 60, 10):
            with suppress(OSError):
                page = f"http://127.0.0.1:{port}/history/{number}/SQL/execution/?id={execution}"
                _see(f"history-page-execution-{execution}", _get(page))
    finally:
        server.kill()
        server.wait()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _see(name: str, text: str, folder: Path = SEEN) -> None:
    (folder / name.replace("/", "_")[:200]).write_text(text)


if __name__ == "__main__":
    assert pyspark.__version__.startswith("4.1")
    main()
