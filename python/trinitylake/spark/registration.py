"""Registration of objects by executors: the same tree as one machine builds, of parts.

The rows are sorted and counted by Spark. Where leaves of the tree start depends on nothing but the number of rows, so
each task writes the leaves that lie within its partition, and hands the rows of the others, at both of its ends, to the
driver. The driver puts the parts together, builds the few levels above and commits.

Nothing of a task counts until the driver names it in the new version. A task that failed, was killed or ran twice
leaves files that no version refers to, with names that nobody else can have; `vacuum` is for those. Memory: a task
streams, and Spark's sort spills to disk; the driver holds one row for each leaf, an order-th of all rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from trinitylake import _core, core, errors
from trinitylake.bulk.definitions import BATCH_OBJECTS, DefinitionWriter, ObjectRow
from trinitylake.bulk.registration import (
    KINDS,
    OPTIONAL,
    REQUIRED,
    Registration,
    check_columns,
    definition_writer,
    key_sizes,
    needs_definitions,
)
from trinitylake.errors import InvalidArgument, ObjectAlreadyExists, ObjectNotFound, RefusedObject, RegistrationFailed

if TYPE_CHECKING:
    from trinitylake.core import KeySizes
    from trinitylake.lakehouse import Lakehouse

#: Refused objects that are named; all are counted.
REFUSED_MAX = 1_000
#: The first character of the key of each kind (format §4).
LETTERS = {"namespace": "B", "table": "C", "view": "D"}

Batches = Iterable[pa.RecordBatch]

_LOCATED = "kind string, namespace string, name string, location string, error_kind string, error string"
_OBJECTS = "text string, location string"
_PARTS = "number long, path string, text string, location string, error_kind string, error string"


def register(
    spark: SparkSession,
    lake: Lakehouse,
    objects: Any,
    *,
    message: str = "",
    author: str = "",
    replace: bool = False,
    dry_run: bool = False,
    file_io_properties: Mapping[str, str] | None = None,
) -> Registration:
    """See `trinitylake.Lakehouse.register`. What fails in Spark itself raises Spark's own errors."""
    if not hasattr(DataFrame, "toArrow"):
        raise InvalidArgument("registration by executors needs PySpark 4")
    frame = _frame(spark, objects)
    base = lake._core.latest()
    sizes = key_sizes(lake)
    with ExitStack() as kept:
        if needs_definitions(frame.columns):
            frame = _with_locations(frame, definition_writer(lake, file_io_properties), dry_run, kept)
        added = frame.select(_text().alias("text"), "location", f.lit(True).alias("is_new"))
        merged = added
        ranges = _ranges(lake, base, spark.sparkContext.defaultParallelism)
        if ranges:
            existing = _existing(spark, lake, base.number, sizes, ranges)
            if replace:
                existing = existing.join(added.select("text"), "text", "left_anti")
            merged = existing.withColumn("is_new", f.lit(False)).union(added)
        rows = _sorted(spark, merged, kept)
        counts = _counts(rows)
        _check_whole(rows, counts)
        if dry_run:
            return Registration(None, *counts.kinds)
        task = LeafTask(lake._storage, base.definition, counts.rows, counts.first_rows)
        parts = rows.mapInArrow(task, _PARTS).toArrow()
        _check_parts(parts, base, sizes)
        parts = parts.select(["number", "path", "text", "location"]).set_column(
            0, "number", parts["number"].cast(pa.uint64())
        )
        version = lake._core.register_parts(base, counts.rows, parts, message, author)
        return Registration(version, *counts.kinds)


@dataclass(frozen=True)
class LeafTask:
    """Writes the leaves within one partition. What is wrong with the rows is a row of the result, so that no task is
    tried again in vain; what is wrong with the storage fails the task."""

    storage: _core.Storage = field(repr=False)
    definition: bytes = field(repr=False)
    rows: int
    first_rows: Mapping[int, int]

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        writer = _core.LeafWriter(self.storage, self.definition, self.rows, self.first_rows.get(partition, 0))
        last: str | None = None
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if (twice := _first_twice(last, batch["text"])) is not None:
                yield _problem("object_already_exists", twice)
                return
            last = batch["text"][-1].as_py()
            try:
                leaves = writer.write(batch)
            except (errors.InvalidName, InvalidArgument) as error:
                yield _problem(error.kind, str(error))
                return
            yield _as_parts(leaves)
        yield _as_parts(writer.finish())


@dataclass(frozen=True)
class Counts:
    """How many rows there are: in all, before each partition, of views; and how many of each kind are new."""

    rows: int
    first_rows: dict[int, int]
    views: int
    kinds: list[int]


def _frame(spark: SparkSession, objects: Any) -> DataFrame:
    if isinstance(objects, DataFrame):
        frame = objects
    else:
        from trinitylake.bulk.registration import read_objects

        frame = spark.createDataFrame(read_objects(objects))
    check_columns(frame.columns)
    return frame


def _text() -> Any:
    """The key without its padding: see `sort_texts` in the core. Spark compares text by bytes, as the tree does."""
    kind = f.col("kind")
    letter = f.when(kind == KINDS[0], LETTERS[KINDS[0]])
    for other in KINDS[1:]:
        letter = letter.when(kind == other, LETTERS[other])
    name = f.when(kind == "namespace", "").otherwise(f.coalesce("name", f.lit("")))
    return f.concat(letter, "namespace", f.lit(" "), name)


def _sorted(spark: SparkSession, frame: DataFrame, kept: ExitStack) -> DataFrame:
    """The rows in key order, each partition a range. Kept, because what is counted must be what is written."""
    wanted = max(int(str(spark.conf.get("spark.sql.shuffle.partitions", "200"))), spark.sparkContext.defaultParallelism)
    return _keep(frame.repartitionByRange(wanted, "text").sortWithinPartitions("text"), kept)


def _keep(frame: DataFrame, kept: ExitStack) -> DataFrame:
    frame.persist(StorageLevel.DISK_ONLY)
    kept.callback(frame.unpersist)
    return frame


def _counts(rows: DataFrame) -> Counts:
    """Counts the rows. Raises `InvalidArgument` for a null where none may be."""
    complete = f.col("text").isNotNull() & f.col("location").isNotNull()
    letter = f.when(complete, f.substring("text", 1, 1)).alias("letter")
    groups = rows.groupBy(f.spark_partition_id().alias("partition"), letter, "is_new").count().collect()
    if incomplete := sum(group["count"] for group in groups if group.letter is None):
        raise InvalidArgument(
            f"{incomplete} objects have a null in kind, namespace or location, or a kind other than {', '.join(KINDS)}"
        )
    first_rows, total = {}, 0
    for partition in sorted({group.partition for group in groups}):
        first_rows[partition] = total
        total += sum(group["count"] for group in groups if group.partition == partition)
    new = Counter[str]()
    for group in groups:
        new[group.letter] += group["count"] if group.is_new else 0
    views = sum(group["count"] for group in groups if group.letter == LETTERS["view"])
    return Counts(total, first_rows, views, [new[LETTERS[kind]] for kind in KINDS])


def _check_whole(rows: DataFrame, counts: Counts) -> None:
    """Every table and view is in a namespace that exists, and no view has the name of a table."""
    full_name = f.expr("substring(text, 2)")
    # By namespace: whether it is there itself, which one look at the rows tells.
    exists = f.max(f.col("text") < "C").alias("exists")
    by_namespace = rows.where("text < 'E'").groupBy(f.substring_index(full_name, " ", 1).alias("namespace"))
    for row in by_namespace.agg(exists).where(~f.col("exists")).limit(1).collect():
        raise ObjectNotFound(f"namespace {row.namespace} does not exist; register it with its tables and views")
    if not counts.views:
        return
    tables = rows.where("text >= 'C' and text < 'D'").select(full_name.alias("name"))
    views = rows.where("text >= 'D' and text < 'E'").select(full_name.alias("name"))
    for row in views.join(tables, "name", "left_semi").limit(1).collect():
        raise ObjectAlreadyExists(f"table {row.name.replace(' ', '.')} exists, and a view cannot have the same name")


def _check_parts(parts: pa.Table, base: _core.Version, sizes: KeySizes) -> None:
    """Raises the first error that a task told of."""
    wrong = parts.filter(pc.is_valid(parts["error_kind"])).to_pylist()
    for problem in wrong[:1]:
        if problem["error_kind"] == ObjectAlreadyExists.kind:
            letter, (namespace, name) = problem["error"][0], problem["error"][1:].split(" ", 1)
            kind: Any = next(kind for kind in KINDS if LETTERS[kind] == letter)
            shown = f"{kind} {namespace}.{name}" if name else f"{kind} {namespace}"
            exists = base.exists(kind, namespace, name)
            raise ObjectAlreadyExists(f"{shown} exists" if exists else f"{shown} is registered twice")
        if problem["error_kind"] == errors.InvalidName.kind:
            raise errors.InvalidName(problem["error"])
        raise InvalidArgument(problem["error"])


# Definitions


def _with_locations(frame: DataFrame, writer: DefinitionWriter, dry_run: bool, kept: ExitStack) -> DataFrame:
    """The objects with a location each, their definitions written. Raises `RegistrationFailed`."""
    columns = [name for name in (*REQUIRED, *OPTIONAL) if name in frame.columns]

    def located(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_OBJECTS):
                yield _located(writer.check if dry_run else writer.locate, batch.slice(start, BATCH_OBJECTS))

    # Kept, because a definition that is written again would have another place.
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


# The objects that are there


def _ranges(lake: Lakehouse, base: _core.Version, wanted: int) -> list[tuple[str | None, str | None]]:
    """Ranges of keys, about as many as wanted, that hold all objects; none if there is no object."""
    if next(iter(pa.RecordBatchReader.from_stream(base.scan(columns=["key"]))), None) is None:
        return []
    level = [core.root_path(base.number)]
    keys: list[str] = []
    while level and len(keys) < wanted:
        nodes = [core.read_node(lake._storage.get(path), path) for path in level]
        keys += [key for node in nodes for key in node.table["key"].to_pylist()[1 : node.n_keys + 1]]
        level = [path for node in nodes for path in node.table["pnode"].to_pylist() if path is not None]
    keys.sort(key=str.encode)
    step = max(1, len(keys) // wanted)
    bounds = [None, *keys[::step], None]
    return list(pairwise(bounds))


def _existing(
    spark: SparkSession,
    lake: Lakehouse,
    number: int,
    sizes: KeySizes,
    ranges: list[tuple[str | None, str | None]],
) -> DataFrame:
    """The objects of a version, read by the executors."""
    storage = lake._storage

    def scanned(batches: Batches) -> Iterator[pa.RecordBatch]:
        version = _core.Lakehouse.open(storage).version(number)
        for batch in batches:
            for one in batch.to_pylist():
                for found in pa.RecordBatchReader.from_stream(version.scan(start=one["start"], end=one["end"])):
                    texts = pa.array(_core.sort_texts(found["key"], sizes))
                    yield pa.RecordBatch.from_arrays([texts, found["location"]], ["text", "location"])

    frame = spark.createDataFrame(ranges, "start string, end string").repartition(len(ranges))
    return frame.mapInArrow(scanned, _OBJECTS)


# Arrow


def _as_parts(parts: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(parts.num_rows, pa.string())
    columns = [parts["number"].cast(pa.int64()), parts["path"], parts["text"], parts["location"], nothing, nothing]
    return pa.RecordBatch.from_arrays(columns, ["number", "path", "text", "location", "error_kind", "error"])


def _problem(kind: str, message: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"error_kind": kind, "error": message}],
        pa.schema(
            {"number": pa.int64()} | dict.fromkeys(["path", "text", "location", "error_kind", "error"], pa.string())
        ),
    )


def _first_twice(last: str | None, texts: pa.Array) -> str | None:
    """The first text that is equal to the one before it."""
    if last is not None and texts[0].as_py() == last:
        return last
    equal = pc.equal(texts.slice(1), texts.slice(0, len(texts) - 1))
    position: int = pc.index(equal, True).as_py()
    return None if position < 0 else str(texts[position].as_py())
