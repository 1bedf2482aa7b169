"""Registration by the executors of a Spark session beside one machine's, from the same Parquet files.

Counted is processor time, of all processes: that of the JVM and its Python workers, and of a process of its own for
the one machine. Starting Spark is not counted.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trinitylake as tl
from benches.python.measure import Bench, at_most, seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: From here the program below imports the package.
TOP = Path(__file__).resolve().parent.parent.parent
TABLES_PER_NAMESPACE = 10_000
HUNDRED_MILLION = 100_000_000
FILES = 8

ALONE = """
import resource, sys, time
import pyarrow.parquet
import trinitylake as tl
lake = tl.create(sys.argv[2], durability="none")
before = resource.getrusage(resource.RUSAGE_SELF)
lake.register(pyarrow.parquet.read_table(sys.argv[1]))
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def bulk_spark(bench: Bench) -> None:
    """How many objects: 1 million, or what BULK_SPARK_TABLES says."""
    tables = int(os.environ.get("BULK_SPARK_TABLES", bench.size(1_000_000, 20_000)))
    spark = _session(bench)
    try:
        _measure(bench, spark, tables)
    finally:
        spark.stop()


def _measure(bench: Bench, spark: SparkSession, tables: int) -> None:
    files = bench.folder("objects")
    _write_objects(spark, files, tables)
    warm = bench.folder("warm")
    _write_objects(spark, warm, 20_000)
    tl.create(str(bench.folder("warm-lake")), durability="none").register(spark.read.parquet(str(warm)), engine=spark)
    alone, together, walls, peaks, peaks_alone = [], [], [], [], []
    for _ in range(bench.size(1 if tables > 2_000_000 else 2, 1)):
        folder = bench.folder("alone")
        answer = subprocess.run(
            [sys.executable, "-c", ALONE, str(files), str(folder)], check=True, capture_output=True, text=True, cwd=TOP
        ).stdout.split()
        alone.append(float(answer[0]))
        peaks_alone.append(float(answer[1]))
        lake = tl.create(str(bench.folder("together")), durability="none")
        before = _processor_seconds()
        walls.append(
            seconds(lambda lake=lake: lake.register(spark.read.parquet(str(files)), engine=spark))  # type: ignore[misc]
        )
        together.append(_processor_seconds() - before)
        peaks.append(float(_worker_peak_bytes()))
        same = [
            found.at().nodes().select(["height", "n_keys", "first_key"])
            for found in (lake, tl.open(str(folder), durability="none"))
        ]
        assert same[0].equals(same[1])
    what = f"register {tables:,} tables by Spark on 2 local cores"
    bench.cost(
        None, f"{what}: processor time", together, "one machine", alone, at_most(2), note=_projection(lake, tables)
    )
    bench.figure(None, f"{what}: wall time", walls, "s")
    bench.figure(None, f"{what}: peak memory of a Python worker", peaks, "bytes")
    bench.figure(None, f"register {tables:,} tables alone: peak memory", peaks_alone, "bytes")


def _projection(lake: tl.Lakehouse, tables: int) -> str:
    """What a hundred million objects would be, reckoned from this tree; nothing of that size was built."""
    leaves = lake.at().nodes()["height"].to_pylist().count(0)
    per_leaf = tables / leaves
    levels, nodes = [], HUNDRED_MILLION
    while nodes > 1:
        nodes = math.ceil(nodes / per_leaf)
        levels.append(nodes)
    return (
        f"{leaves:,} leaves of {per_leaf:.0f} rows; reckoned for {HUNDRED_MILLION:,} objects, not built: nodes by "
        f"level {' / '.join(f'{nodes:,}' for nodes in levels)}, of which the driver holds one row for each of the first"
    )


def _write_objects(spark: SparkSession, files: Path, tables: int) -> None:
    """Objects in no order, as Parquet; their definition files do not exist."""
    prefix = "concat_ws('/', substring(bits, 1, 4), substring(bits, 5, 4), substring(bits, 9, 4), substring(bits, 13))"
    rows = spark.range(0, tables, 1, FILES).selectExpr(
        "'table' AS kind",
        f"format_string('namespace_%05d', id div {TABLES_PER_NAMESPACE}) AS namespace",
        f"format_string('table_%07d', id % {TABLES_PER_NAMESPACE}) AS name",
        "lpad(conv(hash(id) & 1048575, 10, 2), 20, '0') AS bits",
        "uuid() AS own",
    )
    located = rows.selectExpr(
        "kind",
        "namespace",
        "name",
        f"concat({prefix}, '-table-', name, '-', namespace, '-', own, '.binpb') AS location",
    )
    namespaces = (
        located.select("namespace")
        .distinct()
        .selectExpr("'namespace' AS kind", "namespace", "'' AS name", "concat('namespace-', namespace) AS location")
    )
    located.union(namespaces).repartition(FILES, "location").write.parquet(str(files))


def _session(bench: Bench) -> SparkSession:
    from pyspark.sql import SparkSession

    from trinitylake.spark.runtime import use_this_python

    use_this_python()
    return (
        SparkSession.builder.master("local[2]")
        .appName("trinitylake-bench-bulk")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "16")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(bench.folder("spark")))
        .getOrCreate()
    )


def _descendants() -> list[int]:
    """This process and all below it: the JVM, its Python daemon and the workers."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(_stat(int(entry))[1])
            except OSError:
                continue
    found, waiting = [], [os.getpid()]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += [child for child, parent in parents.items() if parent == process]
    return found


def _stat(process: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name, which may hold anything."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _processor_seconds() -> float:
    """User and system time of this process and all below it, also of those that have ended."""
    ticks = 0
    for process in _descendants():
        try:
            ticks += sum(int(field) for field in _stat(process)[11:15])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _worker_peak_bytes() -> int:
    """The most that one of Spark's Python workers has had in memory."""
    peaks = [0]
    for process in _descendants()[1:]:
        try:
            if "pyspark.daemon" in Path(f"/proc/{process}/cmdline").read_text():
                status = Path(f"/proc/{process}/status").read_text().splitlines()
                peaks += [int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")]
        except OSError:
            continue
    return max(peaks)


BENCHMARKS = {"bulk-spark": bulk_spark}
