"""Registration of objects on executors, which builds the same tree as registration in one process.

Spark sorts, counts and checks the objects. The number of objects determines the first row of each leaf. So each task
writes the leaves that lie within its partition, and sends the rows before and after these leaves to the driver. The
driver joins the parts, builds the levels above and commits.

Only files that the driver names in the new version belong to the lakehouse. A task that failed, was killed or ran twice
leaves unreferenced files with unique names, which `vacuum` deletes. Memory is bounded: tasks stream, Spark's sort
spills to disk, and the driver holds one row for each leaf.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from trinitylake import _core, errors
from trinitylake.base.pickling import StorageForTasks
from trinitylake.core import KeySizes
from trinitylake.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    RefusedObject,
    RegistrationFailed,
    TransactionExpired,
)
from trinitylake.lakehouse.bulk.definition_writer import (
    BATCH_OBJECTS,
    DEFINITION_PATH,
    OBJECT_KINDS,
    DefinitionWriter,
    ObjectRow,
    require_uncollected,
)
from trinitylake.lakehouse.bulk.registration import (
    OPTIONAL,
    REQUIRED,
    Registration,
    RegistrationOptions,
    check_columns,
    definition_writer,
    needs_definitions,
    read_objects,
)
from trinitylake.spark.key_ranges import KeyRange, frame_of, objects_within, ranges_of
from trinitylake.spark.leaf_tasks import PARTS, check_keys, write_leaves
from trinitylake.spark.runtime import require_driver
from trinitylake.spark.task_batches import Batches, in_bounds

if TYPE_CHECKING:
    from trinitylake.lakehouse.handle import Handle

#: Maximum number of refused objects that an error lists. The error has the number of all refused objects.
REFUSED_MAX = 1_000
#: Maximum number of definition files whose age a task checks at a time.
AGES_AT_ONCE = 256
#: Number of key ranges for each core. Ranges differ in size: a core that finishes early takes another range.
PARTS_PER_CORE = 4
#: The first character of the key of each kind (format §4).
LETTERS = {"namespace": "B", "table": "C", "view": "D"}
#: Separator of namespace and name in an unpadded key (`unpadded_keys` in the core).
END_OF_NAMESPACE = "\x01"

_LOCATED = "kind string, namespace string, name string, location string, error_kind string, error string"
_OLD = "location string, problem string"


def register(spark: SparkSession, lake: Handle, objects: Any, options: RegistrationOptions) -> Registration:
    """Run `trinitylake.Lakehouse.register` on executors. A failure of Spark itself raises Spark's error."""
    require_driver(spark, "registration")
    if not hasattr(DataFrame, "toArrow"):
        raise InvalidArgument("registration by executors needs PySpark 4")
    frame = objects if isinstance(objects, DataFrame) else spark.createDataFrame(read_objects(objects))
    check_columns(frame.columns)
    base = lake.core.latest()
    sizes = KeySizes.of(lake.definition)
    with ExitStack() as kept:
        ranges = ranges_of(lake.storage, base, spark.sparkContext.defaultParallelism)
        existing = _existing(spark, lake, base.number, sizes, ranges) if ranges else None
        if "location" in frame.columns:
            _require_uncollected(frame, existing, StorageForTasks(lake.storage), base.number, kept)
        text = _text()
        if not needs_definitions(frame.columns):
            text = f.when(f.regexp_extract("location", DEFINITION_PATH, 1) == f.col("kind"), text)
        else:
            frame = _with_locations(
                frame, definition_writer(lake, base, options.file_io_properties), options.dry_run, kept
            )
        parts = spark.sparkContext.defaultParallelism * PARTS_PER_CORE
        rows = _sorted(frame.select(text.alias("text"), "location"), existing, parts, kept)
        counts = _counts(rows, base, options.replace)
        _check_whole(rows, counts)
        objects = rows.select("text", "location")
        if options.dry_run:
            _check_parts(objects.mapInArrow(partial(check_keys, sizes), PARTS).toArrow())
            return Registration(None, *counts.kinds)
        task = partial(write_leaves, StorageForTasks(lake.storage), base.definition, counts.rows, counts.first_rows)
        written = objects.mapInArrow(task, PARTS).toArrow()
        _check_parts(written)
        written = written.select(["number", "path", "text", "location"]).set_column(
            0, "number", written["number"].cast(pa.uint64())
        )
        version = lake.core.register_parts(base, counts.rows, written, options.message, options.author, counts.kinds)
        return Registration(version, *counts.kinds)


@dataclass(frozen=True)
class Counts:
    """How many rows there are in all and before each partition, and how many views and new objects of each kind."""

    rows: int
    first_rows: dict[int, int]
    views: int
    kinds: tuple[int, int, int]


def _text() -> Column:
    """The key without padding (`unpadded_keys` in the core). Spark compares strings by bytes, as the tree does."""
    kind = f.col("kind")
    letter = f.coalesce(*(f.when(kind == one, letter) for one, letter in LETTERS.items()))
    name = f.when(kind == "namespace", "").otherwise(f.coalesce("name", f.lit("")))
    return f.concat(letter, "namespace", f.lit(END_OF_NAMESPACE), name)


def _sorted(added: DataFrame, existing: DataFrame | None, parts: int, kept: ExitStack) -> DataFrame:
    """Each key once, in key order. Each row counts the rows with the key, the new ones and the incomplete ones among
    them.

    Each partition is a range of keys. A new object replaces an existing one. The frame is cached, because exactly the
    counted rows must be written.
    """
    objects = added.withColumn("is_new", f.lit(True))
    if existing is not None:
        objects = objects.union(existing.select("text", "location", f.lit(False)))
    is_incomplete = f.col("text").isNull() | f.col("location").isNull()
    each_once = (
        objects.repartitionByRange(parts, "text")
        .groupBy("text")
        .agg(
            f.max_by("location", "is_new").alias("location"),
            f.count(f.lit(1)).alias("all"),
            f.count_if(f.col("is_new")).alias("new"),
            f.count_if(is_incomplete).alias("incomplete"),
        )
    )
    return _keep(each_once.sortWithinPartitions("text"), kept)


def _keep(frame: DataFrame, kept: ExitStack) -> DataFrame:
    frame.persist(StorageLevel.DISK_ONLY)
    kept.callback(frame.unpersist)
    return frame


def _counts(rows: DataFrame, base: _core.Version, replace: bool) -> Counts:
    """Count the objects. Raises `InvalidArgument` for an incomplete row, and `ObjectAlreadyExists`."""
    is_twice = (f.col("new") > 1) if replace else (f.col("all") > 1)
    groups = (
        rows.groupBy(f.spark_partition_id().alias("part"), f.substring("text", 1, 1).alias("letter"))
        .agg(
            f.count(f.lit(1)).alias("objects"),
            f.sum("new").alias("new"),
            f.sum("incomplete").alias("incomplete"),
            f.min(f.when(is_twice, f.col("text"))).alias("twice"),
        )
        .orderBy("part")
        .collect()
    )
    if incomplete := sum(group.incomplete for group in groups):
        raise InvalidArgument(
            f"{incomplete} objects have a null in kind, namespace or location, a location that is not the path of the "
            f"definition file of such an object, or a kind other than {', '.join(OBJECT_KINDS)}"
        )
    if twice := [group.twice for group in groups if group.twice is not None]:
        first = min(twice, key=str.encode)
        letter, (namespace, name) = first[0], first[1:].split(END_OF_NAMESPACE, 1)
        kind: Any = next(kind for kind in OBJECT_KINDS if LETTERS[kind] == letter)
        shown = f"{kind} {namespace}.{name}" if name else f"{kind} {namespace}"
        exists = base.exists(kind, namespace, name)
        raise ObjectAlreadyExists(f"{shown} exists" if exists else f"{shown} is registered twice")
    first_rows: dict[int, int] = {}
    total, views, new = 0, 0, Counter[str]()
    for group in groups:
        first_rows.setdefault(group.part, total)
        total += group.objects
        views += group.objects if group.letter == LETTERS["view"] else 0
        new[group.letter] += group.new
    return Counts(total, first_rows, views, (new["B"], new["C"], new["D"]))


def _check_whole(rows: DataFrame, counts: Counts) -> None:
    """Check that every table and view is in an existing namespace, and no view has the name of a table."""
    name = f.expr("substring(text, 2)")
    namespace = f.substring_index(name, END_OF_NAMESPACE, 1).alias("namespace")
    exists = f.max(f.col("text") < LETTERS["table"]).alias("exists")
    for row in rows.where("text < 'E'").groupBy(namespace).agg(exists).where("not exists").limit(1).collect():
        raise ObjectNotFound(f"namespace {row.namespace} does not exist; register it with its tables and views")
    if not counts.views:
        return
    views, tables = (
        rows.where(f.col("text").startswith(LETTERS[kind])).select(name.alias("name")) for kind in ("view", "table")
    )
    for row in views.join(tables, "name", "left_semi").limit(1).collect():
        raise ObjectAlreadyExists(
            f"table {row.name.replace(END_OF_NAMESPACE, '.')} exists, and a view cannot have the same name"
        )


def _check_parts(parts: pa.Table) -> None:
    for problem in parts.filter(pc.is_valid(parts["error_kind"])).to_pylist()[:1]:
        if problem["error_kind"] == errors.InvalidName.kind:
            raise errors.InvalidName(problem["error"])
        raise InvalidArgument(problem["error"])


# Definitions


def _with_locations(frame: DataFrame, writer: DefinitionWriter, dry_run: bool, kept: ExitStack) -> DataFrame:
    """Write the definitions that are missing, and return the objects with locations. Raises `RegistrationFailed`."""
    columns = [name for name in (*REQUIRED, *OPTIONAL) if name in frame.columns]

    def located(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in in_bounds(batches, BATCH_OBJECTS):
            yield _located(writer.check if dry_run else writer.locate, batch)

    # Persisted, because a second evaluation would write the definitions again, under other locations.
    frame = _keep(frame.select(columns).mapInArrow(located, _LOCATED), kept)
    refused = frame.where("error_kind is not null")
    if count := refused.count():
        first = refused.orderBy("kind", "namespace", "name").limit(REFUSED_MAX).collect()
        rows = [(ObjectRow(one.kind or "", one.namespace or "", one.name or ""), one) for one in first]
        raise RegistrationFailed.of(
            [RefusedObject(row.kind, row.full_name, one.error_kind, one.error) for row, one in rows], count
        )
    return frame.drop("error_kind", "error")


def _located(locate: Callable[[list[ObjectRow]], list[str | RefusedObject]], batch: pa.RecordBatch) -> pa.RecordBatch:
    given = [ObjectRow.of(row) for row in batch.to_pylist()]
    results = [
        (None, one.error_kind, one.message) if isinstance(one, RefusedObject) else (one, None, None)
        for one in locate(given)
    ]
    columns = [batch[name].cast(pa.string()) for name in REQUIRED]
    columns += [pa.array([result[i] for result in results], pa.string()) for i in range(3)]
    return pa.RecordBatch.from_arrays(columns, [*REQUIRED, "location", "error_kind", "error"])


# Existing definition files


def _require_uncollected(
    frame: DataFrame, existing: DataFrame | None, carried: StorageForTasks, number: int, kept: ExitStack
) -> None:
    """Raise `TransactionExpired` if a garbage collection may have deleted a given file.

    These are old files that no object of the version uses. A later garbage collection creates a version, which
    conflicts with the registration (`lakehouse/bulk/registration.py`).
    """
    given = frame.where("location is not null").select("location")
    old = _keep(given.mapInArrow(partial(_old, carried, number), _OLD), kept)
    if old.isEmpty():
        return
    if existing is not None:
        old = old.join(existing.select("location"), "location", "left_anti")
    for row in old.orderBy("location").limit(1).collect():
        raise TransactionExpired(row.problem)


def _old(carried: StorageForTasks, number: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Files that a garbage collection before the version `number` may have deleted, each with an error message."""
    core = _core.Lakehouse.open(carried.storage)
    since = core.version(number)
    for batch in in_bounds(batches, AGES_AT_ONCE):
        paths = batch["location"].cast(pa.string())
        if _problem(core, since, paths) is None:
            continue
        problems = [_problem(core, since, paths.slice(row, 1)) for row in range(len(paths))]
        found = pa.RecordBatch.from_arrays([paths, pa.array(problems, pa.string())], ["location", "problem"])
        yield found.filter(pc.is_valid(found["problem"]))


def _problem(core: _core.Lakehouse, since: _core.Version, paths: pa.StringArray) -> str | None:
    try:
        require_uncollected(core, since, paths)
    except TransactionExpired as error:
        return str(error)
    return None


# Existing objects


def _existing(spark: SparkSession, lake: Handle, number: int, sizes: KeySizes, ranges: list[KeyRange]) -> DataFrame:
    carried = StorageForTasks(lake.storage)

    def scanned(batches: Batches) -> Iterator[pa.RecordBatch]:
        for found in objects_within(carried.storage, number, batches):
            texts = pa.array(_core.unpadded_keys(found["key"], sizes))
            yield pa.RecordBatch.from_arrays([texts, found["location"]], ["text", "location"])

    return frame_of(spark, ranges).mapInArrow(scanned, "text string, location string")
