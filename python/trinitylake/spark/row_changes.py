"""MERGE, UPDATE and DELETE with Spark's expressions and joins, without a jar.

A statement has three steps. First, tasks read the files that can contain matching rows: only the columns that keys,
conditions and values need, each row with its file and its position in the file. Second, Spark finds the rows that
change and computes their new values. Third, tasks rewrite the files of these rows, as on one machine
(`tables/merging/file_rewrite.py`): unchanged rows are copied from file to file and never pass through the JVM. The
driver commits removed and added files at once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from os import PathLike
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, DateType, DecimalType, IntegerType, LongType, StringType, UUIDType
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql import types as spark_types

from trinitylake.base.arguments import texts
from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.position_deletes import is_merge_on_read
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import MAX_KEYS, key_filter
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.spark.commit import commit_write, planned
from trinitylake.spark.filters import option_filter
from trinitylake.spark.frames import REPORT, report_of, reported, running, written
from trinitylake.spark.options import Options, options_for
from trinitylake.spark.scan_tasks import storage_io
from trinitylake.spark.task_batches import Batches
from trinitylake.spark.types import (
    arrow_schema_of,
    check_assignable,
    from_spark_batch,
    quoted,
    spark_schema,
    spelled,
    to_spark_batch,
)
from trinitylake.spark.write_tasks import RewrittenFiles, RowChange, WritePlan, WrittenFiles, result_of
from trinitylake.tables.merge import Merge, WriteResult, committed
from trinitylake.tables.merging.clauses import Clause
from trinitylake.tables.merging.row_changes import FILE, POSITION, FoundRows, PlacedRows, rewrite

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from trinitylake.lakehouse.opening import Durability


#: Columns of intermediate frames: the number of a source row, and the number of the clause that applies to a row.
ROW, CLAUSE = "trinitylake:row", "trinitylake:clause"
#: Maximum number of values of a source that is sent to all executors; a larger source is joined by sorting both sides.
BROADCAST_VALUES = 4_000_000
#: Size of the files of one task, if there are more than `FEW_TASKS` tasks.
TASK_SIZE_BYTES = 64 << 20
FEW_TASKS = 8
#: Types whose comparisons with literals have the same result in Spark and in our filters.
_COMPARED_ALIKE = (BooleanType, IntegerType, LongType, DecimalType, StringType, DateType)


class SparkMerge(Merge):
    """`trinitylake.spark.merge(…)`: the clauses of `table.merge(…)`, and clauses for rows without a match in the frame.

    Conditions and values are Spark SQL, in which `source.…` are columns of the frame and `target.…` columns of the
    table.
    """

    def __init__(self, run: Callable[[Sequence[Clause], Sequence[Clause], Sequence[Clause]], WriteResult]) -> None:
        super().__init__(lambda matched, not_matched: run(matched, not_matched, self._not_matched_by_source))
        self._not_matched_by_source: list[Clause] = []

    def when_not_matched_by_source_update(self, set: Mapping[str, str], *, condition: str | None = None) -> Self:
        """Update rows of the table without a matching row in the frame; `set` and `condition` are SQL over `target`."""
        return self._add(self._not_matched_by_source, "update", set, condition)

    def when_not_matched_by_source_delete(self, *, condition: str | None = None) -> Self:
        """Delete rows of the table without a matching row in the frame; `condition` is SQL over `target`."""
        return self._add(self._not_matched_by_source, "delete", None, condition)


def merge(
    frame: DataFrame,
    root: str | PathLike[str],
    table: str,
    on: Iterable[str] | None = None,
    *,
    txn: str | Transaction | None = None,
    id: str | None = None,
    message: str = "",
    author: str = "",
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> SparkMerge:
    """SQL's MERGE on executors: match the rows of a frame with a table by a key.

        tl.spark.merge(frame, uri, "nyc.planes", on="tailnum").when_matched_update().when_not_matched_insert().execute()

    In one commit, files with changed rows are rewritten, or get delete files if the table's property
    `write.merge.mode` requires this. A row with a null in its key matches nothing. The frame is evaluated once.

    Args:
        frame: the source rows. It may have columns that the table does not have, for conditions.
        root: the URI of the lakehouse.
        table: the full name of the table.
        on: the columns that are compared; by default the primary key.
        txn: an open transaction of this process, or the id of a saved transaction: the merge becomes part of it.
        id: id of the merge's transaction, or with `txn` of the merge in the transaction. A merge whose id was used
            before does nothing, and its result counts no rows.
        message: stored in the log.
        author: stored in the log.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    `execute` raises these errors:

    - `InvalidArgument`: more than one row of the frame would change the same row of the table; a key, column or SQL is
      invalid; or a value does not fit.
    - `CommitConflict`: another writer changed rows with one of the keys, or the same files, first.
    """
    options = options_for(root, table, txn, id, message, author, storage_options, durability)
    keys = None if on is None else list(texts(on, "on"))

    def run(matched: Sequence[Clause], not_matched: Sequence[Clause], by_source: Sequence[Clause]) -> WriteResult:
        statement = _Statement(frame.sparkSession, options, txn, "merge")
        return statement.run(lambda: statement.merge(frame, keys, matched, not_matched, by_source))

    return SparkMerge(run)


def update(
    spark: SparkSession,
    root: str | PathLike[str],
    table: str,
    set: Mapping[str, str],
    filter: str | None = None,
    *,
    txn: str | Transaction | None = None,
    id: str | None = None,
    message: str = "",
    author: str = "",
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> WriteResult:
    """SQL's UPDATE on executors: `tl.spark.update(spark, uri, "nyc.planes", {"seats": "seats + 1"}, "year > 2010")`.

    `set` and `filter` are Spark SQL over the columns of the table; without a filter all rows are updated. The other
    arguments and the errors are as for `merge`.
    """
    options = options_for(root, table, txn, id, message, author, storage_options, durability)
    statement = _Statement(spark, options, txn, "update")
    return statement.run(lambda: statement.change(Clause("update", filter, dict(set))))


def delete(
    spark: SparkSession,
    root: str | PathLike[str],
    table: str,
    filter: str,
    *,
    txn: str | Transaction | None = None,
    id: str | None = None,
    message: str = "",
    author: str = "",
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> WriteResult:
    """SQL's DELETE on executors. The arguments and errors are as for `update`."""
    options = options_for(root, table, txn, id, message, author, storage_options, durability)
    statement = _Statement(spark, options, txn, "delete")
    return statement.run(lambda: statement.change(Clause("delete", filter)))


class _Statement:
    """A MERGE, UPDATE or DELETE on one state of a table."""

    def __init__(self, spark: SparkSession, options: Options, txn: str | Transaction | None, name: str) -> None:
        self._transaction = txn if isinstance(txn, Transaction) else None
        if self._transaction is not None:
            self._transaction.save()  # tasks read the transaction's files, which must be in the storage
        self._spark = spark
        self.name = name
        self.plan, self.table, self.is_done = planned(options)
        self._schema: Schema = self.plan.metadata.schema()

    def run(self, tasks: Callable[[], Sequence[WrittenFiles]]) -> WriteResult:
        """Run the tasks and commit the files that they report. Returns how many rows changed, and the version."""
        if self.is_done:
            return WriteResult(0, 0, 0)
        with running(self.plan, self.name):
            reports = tasks()
        version = commit_write(self.plan, reports, transaction=self._transaction)
        return committed(result_of(reports), version)

    def merge(
        self,
        frame: DataFrame,
        on: Sequence[str] | None,
        matched: Sequence[Clause],
        not_matched: Sequence[Clause],
        by_source: Sequence[Clause],
    ) -> list[WrittenFiles]:
        known = [field.name for field in self._schema.fields]
        on = None if on is None else [spelled(name, known) for name in on]
        keys = self.table._merge_keys(self.table.iceberg, on)  # noqa: SLF001 (of our own table)
        frame = _as_columns_of(frame, self._schema)
        if missing := [name for name in keys if name not in frame.columns]:
            raise InvalidArgument(f"columns of the key are missing from the data: {', '.join(missing)}")
        check_assignable(frame.select(*map(quoted, keys)).schema, self._schema)
        types = {field.name: field.dataType for field in spark_schema(self._schema.select(*keys))}
        frame = frame.withColumns({name: f.col(quoted(name)).cast(types[name]) for name in keys})
        # Evaluated only once, because each evaluation of a frame can return other rows, with other numbers.
        source = frame.withColumn(ROW, f.monotonically_increasing_id()).localCheckpoint()
        rows, filter = self._key_filter(source, keys)
        columns = [*keys, *self._named_in([*matched, *by_source], frame.columns)]
        target = self._located(columns, AlwaysTrue() if by_source else filter).alias("target")
        is_small = rows * len(frame.columns) <= BROADCAST_VALUES
        given = (f.broadcast(source) if is_small else source.hint("merge")).alias("source")
        same = reduce(
            lambda one, other: one & other, (f.col(_of("source", name)) == f.col(_of("target", name)) for name in keys)
        )
        pairs = target.join(given, same, "left" if by_source else "inner")
        is_matched = f.col(_of("source", ROW)).isNotNull()
        clauses = [(clause, is_matched, frame.columns) for clause in matched]
        clauses += [(clause, ~is_matched, []) for clause in by_source]
        changed = self._changed(pairs, clauses, [f.col(_of("source", ROW)).alias(ROW)])
        if not_matched:
            changed = changed.persist()  # used twice: for rewriting files, and to find source rows without a match
        try:
            parts = [self._rewritten(changed)]
            if not_matched:
                new = source.join(changed.select(f"`{ROW}`").where(f"`{ROW}` is not null"), ROW, "left_anti")
                parts += self._inserted(new.alias("source"), frame.columns, not_matched)
            return reported(reduce(lambda one, other: one.union(other), parts))
        finally:
            if not_matched:
                changed.unpersist()

    def change(self, clause: Clause) -> list[WrittenFiles]:
        """Apply one clause to the rows of the table for which its condition holds."""
        target = self._located(self._named_in([clause]), self._planning_filter(clause.condition)).alias("target")
        return reported(self._rewritten(self._changed(target, [(clause, f.lit(True), [])], [])))

    def _key_filter(self, source: DataFrame, keys: Sequence[str]) -> tuple[int, BooleanExpression]:
        """The number of source rows, and a filter that matches at least all rows of the table with their keys."""
        is_known = reduce(lambda one, other: one & other, (f.col(quoted(name)).isNotNull() for name in keys))
        ends = [end(quoted(name)).alias(f"{end.__name__} {name}") for name in keys for end in (f.min, f.max)]
        try:
            counts = f.count(f.lit(1)).alias("rows"), f.count_if(is_known).alias("known")
            (found,) = source.agg(*counts, *ends).toArrow().to_pylist()
        except AnalysisException:  # the type of a key has no order
            return source.count(), AlwaysTrue()
        rows: int = found["rows"]
        if not found["known"]:
            return rows, AlwaysFalse()
        if any(isinstance(self._schema.find_type(name), UUIDType) for name in keys):
            return rows, AlwaysTrue()
        if found["known"] <= MAX_KEYS:
            return rows, key_filter(source.where(is_known).select(*map(quoted, keys)).toArrow(), keys)
        ranges = pa.table({name: [found[f"min {name}"], found[f"max {name}"]] for name in keys})
        return rows, key_filter(ranges, keys, max_keys=0)

    def _planning_filter(self, condition: str | None) -> BooleanExpression:
        """A filter that chooses the files to read for a condition; all files if Spark may evaluate it differently."""
        if condition is None or '"' in condition:  # in double quotes, Spark has strings and our filters have names
            return AlwaysTrue()
        try:
            filter = option_filter(condition, self._schema)
            read = RowFilter.of(filter, self._schema).field_ids
        except (TrinityLakeError, ValueError, TypeError):
            return AlwaysTrue()
        alike = all(isinstance(self._schema.find_type(id), _COMPARED_ALIKE) for id in read)
        return filter if alike else AlwaysTrue()

    def _named_in(self, clauses: Iterable[Clause], given: Sequence[str] = ()) -> list[str]:
        """The columns of the table whose names occur in SQL of the clauses, all columns if it contains `target.*`.

        `given` are the columns of the source.
        """
        source = pa.schema([(name, pa.null()) for name in given])
        sql = " ".join(
            text for one in clauses for text in (one.condition or "", *one.computed(source).values())
        ).lower()
        names = [field.name for field in self._schema.fields]
        return [name for name in names if name.lower() in sql or "target.*" in sql]

    def _located(self, columns: Sequence[str], filter: BooleanExpression) -> DataFrame:
        """The rows of files that can contain matching rows: the given columns, the file's number and the position."""
        metadata = self.table.iceberg.metadata
        tasks = files_of_branch(metadata, self.table.iceberg.io, filter)
        tasks.sort(key=lambda task: (-task.file.file_size_in_bytes, task.file.file_path))
        size_bytes = sum(task.file.file_size_in_bytes for task in tasks)
        self._parts = max(1, min(len(tasks), max(FEW_TASKS, size_bytes // TASK_SIZE_BYTES)))
        tasks = [
            task for part in range(self._parts) for task in tasks[part :: self._parts]
        ]  # so each part has some large files
        self.plan.changes = RowChange(self.name, filter, metadata.current_snapshot_id, [task.file for task in tasks])
        self._tasks = [pickle.dumps(task) for task in tasks]
        columns = [field.name for field in self._schema.fields if field.name in columns]
        schema = spark_schema(self._schema.select(*columns) if columns else Schema())
        schema.add(FILE, spark_types.IntegerType()).add(POSITION, spark_types.LongType())
        numbers = self._spark.range(0, len(tasks), 1, self._parts)
        return numbers.mapInArrow(partial(_locate, self.plan, self._tasks, columns, schema), schema)

    def _changed(
        self, rows: DataFrame, clauses: Sequence[tuple[Clause, Column, Sequence[str]]], others: Sequence[Column]
    ) -> DataFrame:
        """The rows that match the source or to which a clause applies: file, position, clause and new values.

        Each element of `clauses` is a clause, the condition under which it applies to a row, and the source columns
        that it can use.
        """
        rows = rows.withColumn(CLAUSE, _first_that_applies((applies, clause) for clause, applies, _ in clauses))
        of_clause = [self._values(rows, clause, given) for clause, _, given in clauses]
        values: dict[str, Column] = {}
        for place, given_values in enumerate(of_clause):
            for name, value in given_values.items():
                values[name] = f.when(f.col(quoted(CLAUSE)) == place, value).otherwise(values.get(name, f.lit(None)))
        short = {name: f"v{place}" for place, name in enumerate(values)}
        self._outcomes = [
            None if clause.action == "delete" else {name: short[name] for name in given_values}
            for (clause, _, _), given_values in zip(clauses, of_clause, strict=True)
        ]
        placed = [f.col(_of("target", name)).alias(name) for name in (FILE, POSITION)]
        kept = f.col(quoted(CLAUSE)).isNotNull()
        if others:
            kept = kept | f.col(_of("source", ROW)).isNotNull()
        named = [value.alias(short[name]) for name, value in values.items()]
        return rows.where(kept).select(*placed, f.col(quoted(CLAUSE)), *others, *named)

    def _values(self, rows: DataFrame, clause: Clause, given: Sequence[str]) -> dict[str, Column]:
        """The values that a clause gives to columns of the table, in the types of these columns."""
        if clause.action == "delete":
            return {}
        names = [field.name for field in self._schema.fields]
        source, target = (pa.schema([(name, pa.null()) for name in some]) for some in (given, names))
        if clause.values is not None:
            clause = replace(clause, values={spelled(name, names): text for name, text in clause.values.items()})
        if unknown := [name for name in clause.values or {} if name not in names]:
            raise InvalidArgument(f"the table has no column {', '.join(unknown)}; it has {', '.join(names)}")
        values = {name: f.col(_of("source", column)) for name, column in clause.plain(source, target).items()}
        values |= {name: f.expr(text) for name, text in clause.computed(source).items()}
        if not values:
            raise InvalidArgument(f"the {clause.action} sets no column: the frame and the table have none in common")
        found = rows.select(*(value.alias(name) for name, value in values.items())).schema
        check_assignable(found, self._schema)
        types = {field.name: field.dataType for field in spark_schema(self._schema.select(*values))}
        return {
            name: value if isinstance(types[name], _NESTED) else value.cast(types[name])
            for name, value in values.items()
        }

    def _rewritten(self, changed: DataFrame) -> DataFrame:
        """A frame with one row, a pickled `RewrittenFiles`, for each task that rewrote files."""
        rows = changed.where(f"`{CLAUSE}` is not null").drop(ROW).repartition(self._parts, quoted(FILE))
        in_place = is_merge_on_read(self.plan.metadata, self.name)
        return rows.mapInArrow(partial(_rewrite, self.plan, self._tasks, self._outcomes, in_place), REPORT)

    def _inserted(self, new: DataFrame, given: Sequence[str], clauses: Sequence[Clause]) -> list[DataFrame]:
        """For each clause that inserts rows, a frame of pickled `WrittenFiles`."""
        new = new.withColumn(CLAUSE, _first_that_applies((f.lit(True), clause) for clause in clauses))
        parts = []
        for place, clause in enumerate(clauses):
            values = self._values(new, clause, given)
            rows = new.where(f.col(quoted(CLAUSE)) == place)
            rows = rows.select(*(value.alias(name) for name, value in values.items()))
            parts.append(written(rows, self.plan, self.table))
        return parts


_NESTED = (spark_types.StructType, spark_types.ArrayType, spark_types.MapType)


def _first_that_applies(clauses: Iterable[tuple[Column, Clause]]) -> Column:
    """The number of the first clause that applies to a row and whose condition holds; null if there is none."""
    number = f.lit(None).cast("int")
    for place, (applies, clause) in reversed(list(enumerate(clauses))):
        condition = applies if clause.condition is None else applies & f.expr(clause.condition)
        number = f.when(condition, f.lit(place)).otherwise(number)
    return number


def _as_columns_of(frame: DataFrame, schema: Schema) -> DataFrame:
    """The frame with the table's spelling of columns; unchanged if Spark is case-sensitive."""
    if frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return frame
    known = [field.name for field in schema.fields]
    return frame.withColumnsRenamed({name: spelled(name, known) for name in frame.columns})


def _of(side: str, name: str) -> str:
    return f"{side}.{quoted(name)}"


def _locate(
    plan: WritePlan, tasks: list[bytes], columns: list[str], schema: spark_types.StructType, numbers: Batches
) -> Iterator[pa.RecordBatch]:
    """Task that reads columns of the files with given numbers, each row with its position in the file."""
    target, io = arrow_schema_of(schema), storage_io(plan.options)
    for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
        with translated(lambda: f"table {plan.table_name}"):
            placed = PlacedRows(plan.metadata, io, [pickle.loads(tasks[number])])
            for batch in placed.batches([*columns, FILE, POSITION]):
                file = pa.array(np.full(batch.num_rows, number, dtype=np.int32))
                place = batch.schema.get_field_index(FILE)
                yield to_spark_batch(batch.set_column(place, FILE, file), target)


def _rewrite(
    plan: WritePlan, tasks: list[bytes], values: list[dict[str, str] | None], in_place: bool, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Task that rewrites the files of changed rows, and yields a pickled `RewrittenFiles`.

    `values` has for each clause a mapping of columns of the table to the columns with their new values; None for a
    delete. With `in_place` unchanged rows remain in their files, next to delete files (merge-on-read).
    """
    table = arrow_schema(plan.metadata.schema())
    given = [pair for of_clause in values if of_clause is not None for pair in of_clause.items()]
    names = pa.schema([table.field(column).with_name(name) for column, name in given])
    parts = [from_spark_batch(batch, names) for batch in batches if batch.num_rows]
    if not parts:
        return
    rows = pa.Table.from_batches(parts)
    numbers = pc.unique(rows[FILE]).to_pylist()
    local = pc.index_in(rows[FILE], pa.array(numbers, pa.int32()))
    rows = rows.set_column(rows.schema.get_field_index(FILE), FILE, local)
    found = [FoundRows(rows.filter(pc.equal(rows[CLAUSE], place)), of_clause) for place, of_clause in enumerate(values)]
    with plan.writing() as (metadata, io):
        files = [pickle.loads(tasks[number]) for number in numbers]
        done = rewrite(PlacedRows(metadata, io, files), found, plan.limits, [], in_place)
    number_of = {task.file.file_path: number for task, number in zip(files, numbers, strict=True)}
    removed = [number_of[file.file_path] for file in done.removed if file.file_path in number_of]
    deletes = [file for file in done.removed if file.file_path not in number_of]
    written = RewrittenFiles(
        done.added, removed=removed, removed_deletes=deletes, updated=done.updated, deleted=done.deleted
    )
    yield report_of(written)
