"""Garbage collection on executors, for more files than one machine can read; the result is the same as on one machine.

The rules are in the core, which tasks call. This module passes lists of files from step to step, as data frames:

1. *Mark*, level by level: nodes, definitions, metadata, manifest lists, manifests. Tasks read the files of a level and
   return the files that these name. Spark removes duplicates, so each file is read once.
2. *List*: the driver divides the root into folders, and tasks list the files in them.
3. *Classify*: the list is joined with the marked files, and tasks classify each file.
4. *Fence*: if there is garbage, the driver creates a version after which no transaction can commit an older file.
5. *Delete*, in lots. Before each lot the driver marks files that were committed in the meantime.

No machine has all paths in memory: the driver has the numbers of the roots, the nodes of one version and the files that
were committed in the meantime. Spark repeats failed tasks. If the driver dies, only garbage remains. Repeated tasks
have the same result: marked files exist as long as their versions are kept (if versions expire, the collection ends),
and later files are too young to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial, reduce
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.base.timestamps import time_of
from trinitylake.errors import CorruptFile, VersionExpired
from trinitylake.lakehouse.vacuum_report import Files, Progress, Vacuumed, VacuumRequest, sum_of
from trinitylake.spark.runtime import require_driver
from trinitylake.spark.task_batches import Batches, in_bounds
from trinitylake.spark.task_errors import raised_in_task

#: Kinds of files in the order in which they are read. Nodes name other nodes; all other files name only files of later
#: kinds.
SORTS = ("table", "metadata", "external metadata", "manifest list", "manifest")
#: Upper bound of the height of a tree.
MAX_HEIGHT = 64
#: Number of attempts to mark while versions expire.
MARK_ATTEMPTS = 5
#: Maximum number of files that a task classifies at a time.
CLASSIFIED_AT_ONCE = 1_000
#: Maximum number of files that a task reads at a time. All names in these files are in memory at once; one manifest
#: contains about ten thousand names.
READ_AT_ONCE = 64
#: Number of tasks of a level for each core. Files differ in size: a core that finishes early runs another task.
PARTS_PER_CORE = 4
#: Number of folders for each core. Folders differ in size: a core that finishes early lists another folder.
FOLDERS_PER_CORE = 8
#: Number of files that are deleted between two checks of concurrent commits.
LOT_FILES = 100_000

_NAMED = "sort string, name string"
_LISTED = "path string, size_bytes long, modified_millis long"
_LISTED_SCHEMA = pa.schema({"path": pa.string(), "size_bytes": pa.int64(), "modified_millis": pa.int64()})
_CLASSIFIED = "path string, size_bytes long, verdict string, kind string, folder string"


def vacuum(spark: SparkSession, core: _core.Lakehouse, asked: VacuumRequest) -> Vacuumed:
    """Run `Lakehouse.vacuum` on executors. A failure of Spark itself raises Spark's error."""
    require_driver(spark, "vacuum")
    oldest = core.oldest()
    with ExitStack() as kept:
        try:
            collection, marks = _marked(spark, core, asked, kept)
            classified = _classified(spark, core.storage, collection, marks, kept)
            return _delete_garbage(spark, core.storage, collection, classified, asked)
        except (CorruptFile, PySparkException) as error:
            damage = error if isinstance(error, CorruptFile) else raised_in_task(error)
            if damage is None:
                raise
            if (oldest_now := core.oldest()) > oldest:
                raise VersionExpired(
                    f"versions below {oldest_now} expired while files were looked for; try again"
                ) from error
            raise damage from error


class Marks(NamedTuple):
    """The reachable files, and the folders of tables."""

    files: DataFrame
    folders: DataFrame


# Mark


def _marked(
    spark: SparkSession, core: _core.Lakehouse, asked: VacuumRequest, kept: ExitStack
) -> tuple[_core.DistributedGc, Marks]:
    """The files that the roots reach. Marks again if versions, whose files may be deleted, expire in the meantime."""
    for attempt in range(MARK_ATTEMPTS):
        collection = core.begin_distributed_gc(asked.grace_millis, asked.dry_run, *asked.note)
        try:
            return collection, _mark(spark, core.storage, collection.roots, kept, asked.progress)
        except PySparkException as error:
            if raised_in_task(error) is None or core.oldest() <= collection.oldest or attempt == MARK_ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _mark(
    spark: SparkSession, storage: _core.Storage, roots: list[int], kept: ExitStack, progress: Progress | None
) -> Marks:
    levels = _Levels(spark, storage, kept, progress)
    levels.read(spark.createDataFrame([("root", str(number)) for number in roots], _NAMED), len(roots))
    for _ in range(MAX_HEIGHT):
        nodes = levels.found[-1].of("node")
        if nodes is None:
            break
        levels.read(*nodes)
    else:
        raise CorruptFile(f"the tree has more than {MAX_HEIGHT} levels: its files are damaged")
    for sort in SORTS:
        named = [files for files in (level.of(sort) for level in levels.found) if files is not None]
        if named:
            levels.read(_all([frame for frame, _ in named]), sum(count for _, count in named))
    everything = _all([level.named for level in levels.found]).distinct().persist(StorageLevel.MEMORY_AND_DISK)
    kept.callback(everything.unpersist)
    is_folder = f.col("sort").isin("folder", "foreign")
    return Marks(
        everything.where(~is_folder).select(f.col("name").alias("path")).distinct(), everything.where(is_folder)
    )


class _Level(NamedTuple):
    """Files that a level names, and their numbers by sort."""

    named: DataFrame
    counts: dict[str, int]

    def of(self, sort: str) -> tuple[DataFrame, int] | None:
        """Files of one sort, and an upper bound of their number; None if no file has this sort."""
        count = self.counts.get(sort, 0)
        return (self.named.where(f.col("sort") == sort), count) if count else None


class _Levels:
    """Reads files level by level.

    Attributes:
        found: the files that each level names.
    """

    def __init__(self, spark: SparkSession, storage: _core.Storage, kept: ExitStack, progress: Progress | None) -> None:
        self.found: list[_Level] = []
        self._read = partial(_read, StorageForTasks(storage))
        self._most_parts = spark.sparkContext.defaultParallelism * PARTS_PER_CORE
        self._kept = kept
        self._progress = progress

    def read(self, files: DataFrame, count: int) -> None:
        """Read each file once, as the next level.

        The result is persisted, because several later levels use it. It is counted at once, so that a file that cannot
        be read ends the collection early.
        """
        parts = min(self._most_parts, -(-count // READ_AT_ONCE))
        spread = files.repartition(parts, "name").distinct()
        read = spread.mapInArrow(self._read, _NAMED).persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.callback(read.unpersist)
        named = _planned(read)
        counts = {row["sort"]: row["count"] for row in named.groupBy("sort").count().collect()}
        self.found.append(_Level(named, counts))
        if self._progress is not None:
            self._progress("marked", sum(sum(level.counts.values()) for level in self.found))


def _read(carried: StorageForTasks, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in in_bounds(batches, READ_AT_ONCE):
        yield _core.gc_links(carried.storage, batch["sort"], batch["name"])


# List


def _listed(spark: SparkSession, storage: _core.Storage) -> DataFrame:
    places, at_the_top = _core.split_walk(storage, spark.sparkContext.defaultParallelism * FOLDERS_PER_CORE)
    top = spark.createDataFrame([tuple(row.values()) for row in at_the_top.to_pylist()], _LISTED)
    if not places:
        return top
    carried = StorageForTasks(storage)

    def walked(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            walk = _core.Walk(carried.storage, [(one["folder"], one["after"]) for one in batch.to_pylist()])
            while (files := walk.next()) is not None:
                yield files.cast(_LISTED_SCHEMA)

    frame = spark.createDataFrame(places, "folder string, after string").repartition(len(places))
    return frame.mapInArrow(walked, _LISTED).union(top)


# Classification


def _classified(
    spark: SparkSession, storage: _core.Storage, collection: _core.DistributedGc, marks: Marks, kept: ExitStack
) -> DataFrame:
    reached = marks.files.withColumn("reached", f.lit(True))
    files = _listed(spark, storage).join(reached, "path", "left")
    # Only files that are not reached are looked up in folders. The folders of the path `a/b/c` are `a`, `a/b`, `a/b/c`.
    parts = f.split("path", "/")
    above = f.transform(f.sequence(f.lit(1), f.size(parts)), lambda n: f.array_join(f.slice(parts, 1, n), "/"))
    unreached = files.where("reached is null").select("path", f.explode(above).alias("name"))
    is_foreign = f.max(f.col("sort") == "foreign")  # "foreign" also if the folder of a managed table matches as well
    folder = f.when(is_foreign, "foreign").otherwise("table").alias("folder")
    in_folders = unreached.join(marks.folders, "name").groupBy("path").agg(folder)
    mark = f.when(f.col("reached"), "reached").otherwise(f.coalesce("folder", f.lit("")))
    files = files.join(in_folders, "path", "left").withColumn("mark", mark)
    classify = partial(_classify, StorageForTasks(storage), collection.before_millis, collection.oldest)
    classified = files.select("path", "size_bytes", "modified_millis", "mark").mapInArrow(classify, _CLASSIFIED)
    classified = classified.persist(StorageLevel.DISK_ONLY)
    kept.callback(classified.unpersist)
    return classified


def _classify(carried: StorageForTasks, before_millis: int, oldest: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    classifier = _core.Classifier(carried.storage, before_millis, oldest)
    for batch in in_bounds(batches, CLASSIFIED_AT_ONCE):
        sizes, times = batch["size_bytes"].cast(pa.uint64()), batch["modified_millis"].cast(pa.uint64())
        verdict = classifier.classify(batch["path"], sizes, times, batch["mark"])
        columns = [batch["path"], batch["size_bytes"], *verdict.columns]
        yield pa.RecordBatch.from_arrays(columns, ["path", "size_bytes", "verdict", "kind", "folder"])


# Delete


def _delete_garbage(
    spark: SparkSession,
    storage: _core.Storage,
    collection: _core.DistributedGc,
    classified: DataFrame,
    asked: VacuumRequest,
) -> Vacuumed:
    counted = _counted(classified, "verdict", "kind")
    garbage = classified.where(f.col("verdict") == "garbage")
    folders = _counted(garbage.where("folder is not null"), "folder")
    folders = folders.orderBy("folder").limit(collection.max_reported_folders)
    by_folder = {row["folder"]: Files(row["files"], row["size_bytes"]) for row in folders.collect()}
    by_verdict: dict[str, dict[str, Files]] = {}
    for row in counted.collect():
        by_verdict.setdefault(row["verdict"], {})[row["kind"]] = Files(row["files"], row["size_bytes"])
    doomed = by_verdict.get("garbage", {})
    version = None
    if doomed and not asked.dry_run:
        version = _deleted(spark, storage, collection, garbage, doomed, asked.progress)
    if not asked.dry_run:
        collection.end(knows_all="unknown" not in by_verdict and "foreign" not in by_verdict)

    def of(verdict: str) -> Files:
        return sum_of(by_verdict.get(verdict, {}).values())

    return Vacuumed(
        version,
        time_of(collection.before_millis),
        asked.dry_run,
        doomed,
        by_folder,
        by_verdict.get("kept", {}),
        of("young"),
        of("unknown"),
        of("foreign"),
        _paths(classified, "garbage", asked.examples),
        _paths(classified, "unknown", asked.examples),
    )


def _deleted(
    spark: SparkSession,
    storage: _core.Storage,
    collection: _core.DistributedGc,
    garbage: DataFrame,
    doomed: dict[str, Files],
    progress: Progress | None,
) -> int:
    """Delete the garbage, lot by lot; returns the version that the fence created."""
    total = sum(one.files for one in doomed.values())
    lots = -(-total // LOT_FILES)
    carried = StorageForTasks(storage)
    swept = 0
    for lot in range(lots):
        version, fresh = collection.fence("roots" in doomed)
        paths = garbage.where(f.pmod(f.xxhash64("path"), f.lit(lots)) == lot).select("path")
        delete = partial(_delete, carried, spark.sparkContext.broadcast(fresh))
        swept += paths.mapInArrow(delete, "files long").agg(f.sum("files")).collect()[0][0] or 0
        if progress is not None:
            progress("swept", swept)
    return version


def _delete(carried: StorageForTasks, fresh: Any, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        files = _core.delete_garbage(carried.storage, batch["path"], fresh.value)
        yield pa.RecordBatch.from_pydict({"files": [files]}, pa.schema({"files": pa.int64()}))


# Frames


def _counted(files: DataFrame, *by: str) -> DataFrame:
    return files.groupBy(*by).agg(f.count(f.lit(1)).alias("files"), f.sum("size_bytes").alias("size_bytes"))


def _planned(frame: DataFrame) -> DataFrame:
    """The rows of a frame as a frame whose plan does not contain the plan of `frame`.

    Each level depends on all earlier levels, so without this the plans would double with each level. Unlike with a
    local checkpoint, Spark can still recompute lost rows.
    """
    session = frame.sparkSession
    java: Any = frame._jdf  # noqa: SLF001 (PySpark has no way that keeps the lineage)
    inner: Any = session._jsparkSession  # noqa: SLF001 (the same)
    planned = inner.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    return DataFrame(planned, session)


def _all(found: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.union, found)


def _paths(classified: DataFrame, verdict: str, examples: int) -> list[str]:
    """The first `examples` paths with a verdict, but at most as many as Spark can collect."""
    paths = classified.where(f.col("verdict") == verdict).select("path").orderBy("path")
    return [row.path for row in paths.limit(min(examples, 2**31 - 1)).collect()]
