"""Functions that write data frames: they can create the table, take part in an open transaction, and cluster rows.

Spark 4.1 does not ask a Python data source how to distribute rows before a write, and refuses the modes `errorifexists`
and `ignore`. These functions run the data source's tasks (`write_tasks.py`) in an ordinary query, and commit on the
driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import BucketTransform, TruncateTransform, VoidTransform
from pyiceberg.types import IntegerType, LongType, StringType
from pyspark.errors import PySparkException
from pyspark.sql import functions as _sql

from trinitylake.errors import InvalidArgument, ObjectAlreadyExists
from trinitylake.iceberg_storage.errors import translated
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.spark.commit import commit_write, is_committed, planned, resumed
from trinitylake.spark.options import options_for
from trinitylake.spark.planning_workers import spare_repeated_work
from trinitylake.spark.task_batches import Batches
from trinitylake.spark.task_errors import error_of_user
from trinitylake.spark.types import arrow_schema_of, optional, path_to_field, quoted
from trinitylake.spark.write_tasks import WritePlan, WrittenFiles, deleted_on_error
from trinitylake.tables.partitioning_and_sorting import check_same_spec

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import Column, DataFrame

    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.opening import Durability
    from trinitylake.spark.options import Options
    from trinitylake.tables.table import Table

spare_repeated_work()

Mode = Literal["append", "overwrite", "error", "errorifexists", "ignore"]
#: The column of a frame of reports: each row is the pickled report of a task.
REPORT = "report binary"


def write(
    frame: DataFrame,
    root: str | PathLike[str],
    table: str,
    *,
    mode: Mode = "errorifexists",
    filter: str | None = None,
    txn: str | Transaction | None = None,
    id: str | None = None,
    partition_spec: Any = None,
    sort_order: Any = None,
    properties: Mapping[str, str] | None = None,
    merge_schema: bool = False,
    cluster: bool = True,
    message: str = "",
    author: str = "",
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> bool:
    """Write a data frame to a table, which is created if it does not exist; returns whether anything was written.

    Table and rows are one commit, or part of the transaction `txn`.

    Args:
        frame: the rows.
        root: the URI of the lakehouse.
        table: the full name of the table.
        mode: what to do if the table exists: one of Spark's modes. `overwrite` replaces rows, not the table.
        filter: for `overwrite`, the rows to replace; the rows of the frame must match it.
        txn: an open transaction of this process, or the id of a saved transaction: the write becomes part of it.
        id: id of the write's transaction, or with `txn` of the write in the transaction. A write whose id was used
            before is not done again.
        partition_spec: as for `create_table`; an existing table must have this partition spec.
        sort_order: as for `create_table`, if the table is created.
        properties: as for `create_table`, if the table is created.
        merge_schema: add columns that the table lacks, and widen columns as Iceberg allows, in the same commit.
        cluster: send all rows of a partition to one task before they are written (`clustered`).
        message: stored in the log.
        author: stored in the log.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    Raises:
        ObjectAlreadyExists: the table exists, and the mode is `errorifexists` or `error`.
        InvalidArgument: columns, types or values do not fit the table.
        CommitConflict: another writer changed the same rows first.
    """
    if mode not in get_args(Mode):
        raise InvalidArgument(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
    options = options_for(root, table, txn, id, message, author, storage_options, durability)
    options = replace(options, filter=filter, merge_schema=merge_schema)
    transaction = txn if isinstance(txn, Transaction) else None
    if transaction is not None:
        transaction.save()
    lake = options.open()
    state = lake if options.txn is None else resumed(lake, options.txn)
    if not state.exists(table):
        if options.txn is None and id is not None and is_committed(lake, id):
            return False
        definition = {"partition_spec": partition_spec, "sort_order": sort_order, "properties": properties}
        _create_and_write(frame, options, lake, transaction, cluster, definition)
        return True
    plan, found, is_done = planned(options, frame.schema)
    if is_done or mode == "ignore":
        return False
    if mode in ("error", "errorifexists"):
        raise ObjectAlreadyExists(f"table {table} exists: choose the mode append or overwrite, or ignore to leave it")
    if partition_spec is not None:
        check_same_spec(partition_spec, found.iceberg.metadata, table)
    with running(plan, "write"):
        reports = reported(written(frame, plan, found, cluster))
    commit_write(plan, reports, mode == "overwrite", transaction)
    return True


def _create_and_write(
    frame: DataFrame,
    options: Options,
    lake: Lakehouse,
    transaction: Transaction | None,
    cluster: bool,
    definition: Mapping[str, Any],
) -> None:
    """Create the table and add the rows, in a new transaction or in the transaction of the options."""
    id, message = options.id, options.message or f"Spark write to {options.table_name}"
    if options.txn is None:
        target = lake.begin(
            id=id, restart=id is not None, message=message, author=options.author, properties={"engine": "spark"}
        )
    else:
        target = transaction or resumed(lake, options.txn)
    created = None
    try:
        created = target.create_table(options.table_name, arrow_schema_of(optional(frame.schema)), **definition)
        plan, _, _ = planned(options, frame.schema, target)
        with running(plan, "write"):
            reports = reported(written(frame, plan, created, cluster))
        commit_write(plan, reports, False, target)
    except BaseException:
        if options.txn is None:
            target.rollback()
        elif transaction is not None and created is not None and transaction.is_open:
            transaction.drop_table(options.table_name)
        raise
    if options.txn is None:
        target.commit()
    elif transaction is None:
        target.save()


@contextmanager
def running(plan: WritePlan, what: str) -> Iterator[None]:
    """Context manager for the tasks of a write: after an error it deletes their files.

    It converts Spark's errors about expressions and values. It is not for the commit, which must not delete files that
    became part of a version.
    """
    with deleted_on_error(plan), translated(plan.table_name):
        try:
            yield
        except PySparkException as error:
            if (own := error_of_user(error, f"{what} of {plan.table_name}")) is None:
                raise
            raise own from error


def reported(parts: DataFrame) -> list[WrittenFiles]:
    """Run the tasks of a write, and return their reports."""
    return [pickle.loads(row.report) for row in parts.collect()]


def written(rows: DataFrame, plan: WritePlan, table: Table, cluster: bool = True) -> DataFrame:
    """The reports of tasks that write rows to new files; with `cluster`, one task writes all rows of a partition."""
    rows = clustered(rows, table.iceberg) if cluster else rows
    # For `mapInArrow` Spark looks up columns by name, which fails for names with dots or that differ only in case.
    numbered = rows.toDF(*map(str, range(len(rows.columns))))
    return numbered.mapInArrow(partial(_write, plan, rows.columns), REPORT)


def clustered(frame: DataFrame, table: IcebergTable) -> DataFrame:
    """The rows of a frame, with all rows of a partition of `table` in one task, so that a partition gets one file.

    `table` is an Iceberg table, such as `lake.table("nyc.flights").iceberg`. The frame is returned unchanged if the
    table has no partitions, or if the frame lacks a column from which partitions are computed.
    """
    schema = table.schema()
    keys: list[Column] = []
    columns = {name.lower() for name in frame.columns}
    for field in table.spec().fields:
        path = path_to_field(schema, field.source_id)
        if not path or path[0].lower() not in columns:
            return frame
        if not isinstance(field.transform, VoidTransform):
            column = _sql.col(".".join(map(quoted, path)))
            keys.append(_key(column, field, type(schema.find_type(field.source_id))))
    return frame.repartition(*keys) if keys else frame


def _key(column: Column, field: PartitionField, kind: type) -> Column:
    """An expression that has the same value for all rows of a partition."""
    transform = field.transform
    if str(transform) in ("year", "month", "day", "hour"):
        return _sql.date_trunc(str(transform), column)
    if isinstance(transform, BucketTransform):
        from trinitylake.spark.functions import bucket_of

        return bucket_of(column, transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        if kind in (IntegerType, LongType):
            # Near the least integer the result is too small for the type: null, where ANSI's subtraction is an error.
            return _sql.try_subtract(column, _sql.pmod(column, _sql.lit(transform.width)))
        if kind is StringType:
            return _sql.substring(column, 1, transform.width)
    return column


def _write(plan: WritePlan, names: list[str], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Task that writes rows to new files, and yields a pickled `WrittenFiles`. `names` are the names of the columns."""
    yield report_of(plan.write(batch.rename_columns(names) for batch in batches))


def report_of(report: WrittenFiles) -> pa.RecordBatch:
    """The batch in which a task sends its report to the driver."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], ["report"])
