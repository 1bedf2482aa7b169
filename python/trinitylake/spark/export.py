"""Export on executors, with the result of `lake.export()`, file for file.

The driver compares the trees and publishes the versions of the copy, as without Spark (`lakehouse/export.py`). Tasks
copy in two steps: first definitions and the metadata of tables, then the files that these name. The second step divides
the files of one large table among all cores.

Each attempt of a task writes the same bytes to the same paths, so a task may fail, be killed or run twice. A version of
the copy is published after all its files exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from trinitylake import _core
from trinitylake.core import KeySizes
from trinitylake.definitions import parse_lakehouse_def
from trinitylake.lakehouse.object_copier import (
    Copied,
    ExportedObject,
    ExportWorkers,
    FileToCopy,
    ObjectCopier,
    OnProgress,
    batches,
    objects_in,
)
from trinitylake.spark.key_ranges import frame_of, objects_within, ranges_of
from trinitylake.spark.runtime import require_driver
from trinitylake.spark.task_batches import Batches, in_bounds
from trinitylake.spark.task_errors import raised_in_task

#: Maximum number of objects that the driver sends to tasks at a time, in an export of changes.
OBJECTS_AT_ONCE = 100_000
#: Maximum number and size of files that the driver copies itself, because this is faster than a job.
FEW_FILES = 32
FEW_BYTES = 64 * 1024 * 1024
#: Maximum number of objects that a task has in memory at a time, with all files of their tables.
OBJECTS_OF_A_TASK = 32
#: Maximum number of files that a task copies at a time.
FILES_OF_A_TASK = 256
#: Number of tasks for each core. Tasks differ in size: a core that finishes early runs another task.
TASKS_PER_CORE = 4
_OBJECTS = "kind string, location string, before string"
_FILES = "path string, size_bytes long, is_new boolean"
_COUNTS = "files long, bytes long, present long"
_COUNTS_SCHEMA = pa.schema(dict.fromkeys(("files", "bytes", "present"), pa.int64()))
#: Result of the first step: each row has a file to copy, or the counts of some objects.
_FOUND = f"{_FILES}, {_COUNTS}, objects long"
_FILES_SCHEMA = pa.schema([("path", pa.string()), ("size_bytes", pa.int64()), ("is_new", pa.bool_())])
_FOUND_SCHEMA = pa.schema([*_FILES_SCHEMA, *_COUNTS_SCHEMA, ("objects", pa.int64())])


class Executors(ExportWorkers):
    """Runs the work on executors. A failure of Spark itself raises Spark's error."""

    def __init__(self, spark: SparkSession, progress: OnProgress | None) -> None:
        require_driver(spark, "export")
        super().__init__(progress)
        self._spark = spark
        self._tasks = spark.sparkContext.defaultParallelism * TASKS_PER_CORE

    def files(self, copier: ObjectCopier, files: Iterable[FileToCopy]) -> Copied:
        given = list(files)
        if len(given) <= FEW_FILES and sum(one.size_bytes or 0 for one in given) <= FEW_BYTES:
            return super().files(copier, given)
        return self._copied(copier, self._spark.createDataFrame(given, _FILES), len(given))

    def objects(self, copier: ObjectCopier, objects: Iterable[ExportedObject]) -> Copied:
        copied = Copied()
        done = 0
        for some in batches(objects, OBJECTS_AT_ONCE):
            if len(some) <= OBJECTS_OF_A_TASK:
                files: list[FileToCopy] = []
                copied = copied.plus(copier.objects(some, partial(_noted, files)))
                copied = copied.plus(self.files(copier, files))
            else:
                tasks = min(self._tasks, -(-len(some) // OBJECTS_OF_A_TASK))
                frame = self._spark.createDataFrame(some, _OBJECTS).repartition(tasks, "location")
                copied = copied.plus(self._described(frame.mapInArrow(partial(_described, copier), _FOUND), copier)[0])
            done += len(some)
            self._tell(done)
        return copied

    def version(self, copier: ObjectCopier, state: _core.Version) -> Copied:
        # Each task reads a range of the version's keys from the storage.
        ranges = ranges_of(copier.source.storage, state, self._tasks)
        if not ranges:
            return Copied()
        sizes = KeySizes.of(parse_lakehouse_def(state.definition))
        described = partial(_described_ranges, copier, state.number, sizes)
        copied, objects = self._described(frame_of(self._spark, ranges).mapInArrow(described, _FOUND), copier)
        self._tell(objects)
        return copied

    def _described(self, found: DataFrame, copier: ObjectCopier) -> tuple[Copied, int]:
        """Run the first step `found`, and copy the files that it found; returns counts, and the number of objects."""
        found = found.persist(StorageLevel.DISK_ONLY)  # without this, each of the two uses would run the step again
        try:
            totals = [f.sum(name) for name in (*_COUNTS_SCHEMA.names, "objects")]
            written = _result(found.agg(*totals, f.count("path")))
            *counts, objects, n_files = (number or 0 for number in written)
            copied = Copied(*counts)
            if n_files:
                files = found.where("path is not null").select(*_FILES_SCHEMA.names)
                copied = copied.plus(self._copied(copier, files, n_files))
            return copied, objects
        finally:
            found.unpersist()

    def _copied(self, copier: ObjectCopier, files: DataFrame, count: int) -> Copied:
        tasks = max(min(count, self._tasks), -(-count // FILES_OF_A_TASK))
        done = files.repartition(tasks, "path").mapInArrow(partial(_copied, copier), _COUNTS)
        return Copied(*_result(done.agg(*(f.sum(name) for name in _COUNTS_SCHEMA.names))))

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, done)


def _result(one_row: DataFrame) -> Row:
    try:
        return one_row.collect()[0]
    except PySparkException as error:
        if (raised := raised_in_task(error)) is None:
            raise
        raise raised from error


# Tasks


def _described(copier: ObjectCopier, given: Batches) -> Iterator[pa.RecordBatch]:
    for batch in given:
        rows = (ExportedObject(row["kind"], row["location"], row["before"]) for row in batch.to_pylist())
        yield from _described_objects(copier, rows)


def _described_ranges(
    copier: ObjectCopier, number: int, sizes: tuple[int, int, int], given: Batches
) -> Iterator[pa.RecordBatch]:
    yield from _described_objects(copier, objects_in(objects_within(copier.source.storage, number, given), sizes))


def _described_objects(copier: ObjectCopier, objects: Iterable[ExportedObject]) -> Iterator[pa.RecordBatch]:
    for some in batches(objects, OBJECTS_OF_A_TASK):
        files: list[FileToCopy] = []
        counts = copier.objects(some, partial(_noted, files))
        rows = [(*file, None, None, None, None) for file in files] + [(None, None, None, *counts, len(some))]
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _FOUND_SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_FOUND_SCHEMA)


def _copied(copier: ObjectCopier, given: Batches) -> Iterator[pa.RecordBatch]:
    for batch in in_bounds(given, FILES_OF_A_TASK):
        done = copier.files(FileToCopy(row["path"], row["size_bytes"], row["is_new"]) for row in batch.to_pylist())
        yield pa.RecordBatch.from_arrays([pa.array([one], pa.int64()) for one in done], schema=_COUNTS_SCHEMA)


def _noted(into: list[FileToCopy], files: list[FileToCopy]) -> Copied:
    into += files
    return Copied()
