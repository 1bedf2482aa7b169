"""Writes of data frames that also create the table and cluster the rows.

Spark 4.1 does not ask a Python data source how to distribute rows before a write, and refuses the modes `errorifexists`
and `ignore`. `write` does both around the data source.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import IntegerType, LongType, StringType
from pyspark.sql import functions as _sql

from trinitylake.errors import CommitConflict, InvalidArgument, ObjectAlreadyExists
from trinitylake.lakehouse import open as open_lakehouse
from trinitylake.spark.types import arrow_schema_of

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import Column, DataFrame

    from trinitylake.lakehouse.lakehouse import Lakehouse
    from trinitylake.lakehouse.opening import Durability

Mode = Literal["append", "overwrite", "errorifexists", "ignore"]
_MODES: tuple[Mode, ...] = ("append", "overwrite", "errorifexists", "ignore")
_TRUNCATED: dict[Any, str] = {
    YearTransform: "year",
    MonthTransform: "month",
    DayTransform: "day",
    HourTransform: "hour",
}


def write(
    frame: DataFrame,
    root: str | PathLike[str],
    table: str,
    *,
    mode: Mode = "errorifexists",
    filter: str | None = None,
    id: str | None = None,
    partition_spec: Any = None,
    sort_order: Any = None,
    properties: Mapping[str, str] | None = None,
    cluster: bool = True,
    message: str = "",
    author: str = "",
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> bool:
    """Write a data frame to a table, with `format("trinitylake")`; returns whether anything was written.

    Args:
        frame: the rows.
        root: the URI of the lakehouse.
        table: the full name.
        mode: `append` and `overwrite` need the table. `errorifexists` and `ignore` make it, of the columns of the
            frame; table and rows are one commit.
        filter: for `overwrite`, the rows that are replaced; the rows of the frame have to match it.
        id: of the transaction: a write with an id that has been committed is not done again.
        partition_spec: this, `sort_order` and `properties` as for `create_table`, if the table is made.
        sort_order: see above.
        properties: see above.
        cluster: bring the rows of a partition together before they are written (`clustered`).
        message: for the log.
        author: for the log.
        storage_options: as for `trinitylake.open`.
        durability: as for `trinitylake.open`.

    Raises:
        ObjectAlreadyExists: in the mode `errorifexists`, if the table exists.
        ObjectNotFound: in the modes `append` and `overwrite`, if it does not.
        CommitConflict: another writer changed the same rows first.
    """
    if mode not in _MODES:
        raise InvalidArgument(f"mode must be one of {', '.join(_MODES)}, got {mode!r}")
    lake = open_lakehouse(root, storage_options=storage_options, durability=durability)
    if id is not None and lake.transactions.is_committed(id):
        if (outcome := lake.transactions.outcome(id)).status == "undone":
            raise CommitConflict(f"transaction {id} was committed as version {outcome.version} and undone since")
        return False
    options = {f"storage.{name}": value for name, value in (storage_options or {}).items()}
    options |= {"root": lake.uri, "message": message, "author": author}
    if durability is not None:
        options["durability"] = durability
    if mode in ("append", "overwrite"):
        options |= {name: value for name, value in (("filter", filter), ("id", id)) if value is not None}
        rows = clustered(frame, lake.table(table).iceberg) if cluster else frame
        rows.write.format("trinitylake").options(**options).mode(mode).save(table)
        return True
    if lake.exists(table):
        if mode == "ignore":
            return False
        raise ObjectAlreadyExists(f"table {table} exists: choose the mode append or overwrite, or ignore to leave it")
    _create_and_write(lake, frame, table, options, id, cluster, (partition_spec, sort_order, properties))
    return True


def _create_and_write(
    lake: Lakehouse, frame: DataFrame, table: str, options: dict[str, str], id: str | None, cluster: bool, made: Any
) -> None:
    message, author = options.pop("message"), options.pop("author")
    txn = lake.begin(id=id, message=message or f"Spark write to {table}", author=author, restart=id is not None)
    try:
        partition_spec, sort_order, properties = made
        created = txn.create_table(
            table,
            arrow_schema_of(frame.schema),
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=properties,
        )
        rows = clustered(frame, created.iceberg) if cluster else frame
        txn.save()
    except BaseException:
        txn.rollback()
        raise
    try:
        rows.write.format("trinitylake").options(**options, txn=txn.id).mode("append").save(table)
    except BaseException:
        lake.resume(txn.id).rollback()
        raise
    lake.resume(txn.id).commit()


def clustered(frame: DataFrame, table: IcebergTable) -> DataFrame:
    """The rows of a frame, those of one partition of `table` in one task, so that each partition becomes one file.

    `table` is an Iceberg table, such as `lake.table("nyc.flights").iceberg`. Where it has no partitions, or the frame
    lacks a column that they are made of, the frame stays as it is.
    """
    schema = table.schema()
    keys: list[Column] = []
    for field in table.spec().fields:
        name = schema.find_column_name(field.source_id)
        if name is None or name.partition(".")[0] not in frame.columns:
            return frame
        if not isinstance(field.transform, VoidTransform):
            keys.append(_key(_sql.col(name), field, type(schema.find_type(field.source_id))))
    return frame.repartition(*keys) if keys else frame


def _key(column: Column, field: PartitionField, kind: type) -> Column:
    """An expression with one value for all rows of a partition."""
    transform = field.transform
    if (unit := _TRUNCATED.get(type(transform))) is not None:
        return _sql.date_trunc(unit, column)
    if isinstance(transform, BucketTransform):
        from trinitylake.spark.functions import bucket_of

        return bucket_of(column, transform.num_buckets)
    if isinstance(transform, TruncateTransform):
        if kind in (IntegerType, LongType):
            return column - _sql.pmod(column, _sql.lit(transform.width))
        if kind is StringType:
            return _sql.substring(column, 1, transform.width)
    return column
