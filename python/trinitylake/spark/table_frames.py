"""Tables as data frames of Spark's own Parquet reader, if it returns the same rows as Iceberg.

Spark 4.1 to 4.3 do not pass the columns, the limit or the aggregates of a query to a Python data source. They do not
know the size of the source, and transfer its rows through a socket. Spark's Parquet reader has none of these
limitations, and finds columns by name, or by field id as Iceberg does. The Python data source reads all other tables.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType
from pyspark.sql import functions as _sql
from pyspark.sql.types import StructField, StructType

from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE
from trinitylake.iceberg_storage.data_files.schema_projection import has_plain_part_names
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.spark.filters import column_named, option_filter, readable_schema
from trinitylake.spark.options import Options, source_options
from trinitylake.spark.runtime import is_remote
from trinitylake.spark.types import quoted, spark_schema

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import Column, DataFrame, SparkSession

    from trinitylake.lakehouse.opening import Durability

#: A table of the data source with at most this size of files is broadcast in a join, as Spark does with tables whose
#: size it knows.
BROADCAST_MAX_BYTES = 10 << 20
_FIELD_ID = "parquet.field.id"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
#: Number of files up to which the driver lists files: Spark's default for
#: `spark.sql.sources.parallelPartitionDiscovery.threshold`.
_LISTED_BY_DRIVER = 32
#: Guards the setting `_LISTING_TASKS`, which belongs to the session and so to all its threads.
_listing_tasks = threading.Lock()


def table(
    spark: SparkSession,
    root: str | PathLike[str],
    name: str,
    *,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    txn: str | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
) -> DataFrame:
    """A table in one state as a data frame of Spark's Parquet reader if possible, or else of `format("trinitylake")`.

    Spark's reader is possible if Hadoop has a file system for the root, and if each planned file is a Parquet file
    with the present types of columns, without deleted rows and without rows that do not match `filter`.

    Args:
        spark: the session.
        root: the URI of the lakehouse.
        name: the full name of the table.
        version: the version to read; by default the latest.
        timestamp: the time of the version to read, with a time zone.
        txn: the id of a saved transaction in which to read.
        columns: names of the columns to read, in this order; by default all columns.
        filter: the rows to read. Files without matching rows are left out.
        storage_options: as for `trinitylake.open`. Spark's reader uses Hadoop's settings instead.
        durability: as for `trinitylake.open`.

    Raises:
        ObjectNotFound: the table does not exist.
        VersionNotFound, VersionExpired: the version does not exist.
        InvalidArgument: a column does not exist or has a type that Spark lacks, or the filter is invalid.
    """
    time = timestamp.isoformat() if isinstance(timestamp, datetime) else timestamp
    options = source_options(
        root, name, storage_options, version=version, timestamp=time, txn=txn, filter=filter, durability=durability
    )
    parsed = Options.parse(options)
    if txn is None:
        view = parsed.reading(parsed.open())
        options.pop("timestamp", None)
        options["version"] = str(view.version)
        found = view.table(name)
    else:
        found = parsed.open_table()
    schema = found.iceberg.schema()
    if columns is not None:
        schema = Schema(*(column_named(column, readable_schema(found.iceberg.metadata)) for column in columns))
        options["columns"] = ",".join(column.name for column in schema.fields)
    with translated(found.name):
        scan = found.scan(filter=option_filter(filter, found.iceberg.schema())).iceberg
        parsed.record_scan(scan.row_filter)
        tasks = list(scan.plan_files())
    if (paths := _paths(spark, found.iceberg, tasks, schema)) is not None:
        has_ever_same_names = _has_ever_same_names(found.iceberg.metadata)
        return _parquet_frame(spark, paths, schema, has_ever_same_names, _may_have_nan(tasks, schema))
    frame = spark.read.format("trinitylake").options(**options).load()
    size_bytes = sum(task.file.file_size_in_bytes for task in tasks)
    return frame.hint("broadcast") if size_bytes <= BROADCAST_MAX_BYTES else frame


def _paths(spark: SparkSession, table: IcebergTable, tasks: list[FileScanTask], schema: Schema) -> list[str] | None:
    """The URIs of the planned files for Hadoop; None if Spark's reader could return other rows than Iceberg."""
    io = table.io
    if not isinstance(io, LakehouseFileIO) or not _has_file_system(spark, io.root) or not _is_unchanged(table, schema):
        return None
    paths = [io.path_of(task.file.file_path) for task in tasks]
    is_readable = all(
        task.file.file_format == FileFormat.PARQUET and not task.delete_files and task.residual == AlwaysTrue()
        for task in tasks
    )
    # Hadoop's readers skip files whose names begin with "_" or ".".
    if not is_readable or any(path.rpartition("/")[2].startswith(("_", ".")) for path in paths):
        return None
    return [f"file://{local}" if (local := io.local_path(path)) else io.root + path for path in paths]


def _has_file_system(spark: SparkSession, root: str) -> bool:
    """Whether Hadoop has a file system for the scheme of a URI. With Spark Connect this is unknown, so False."""
    if is_remote(spark):
        return False
    # PySpark has no public access to the JVM. `jvm.org.apache.…` would send a request for each part of the name.
    jvm: Any = spark._jvm  # noqa: SLF001
    gateway: Any = import_module("py4j.java_gateway")
    file_systems = gateway.JavaClass("org.apache.hadoop.fs.FileSystem", jvm._gateway_client)  # noqa: SLF001
    settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    try:
        file_systems.getFileSystemClass(root.partition(":")[0], settings)
    except Exception:  # an error of Py4J, whose classes cannot be imported with Spark Connect's client
        return False
    return True


def _is_unchanged(table: IcebergTable, schema: Schema) -> bool:
    """Whether Spark's Parquet reader can read these columns: files have field ids, and the types never changed.

    Spark finds columns by id, but parts of nested columns by name, so the names of parts must not have changed either.
    """
    metadata = table.metadata
    types = {field.field_id: field.field_type for field in schema.fields}
    ids = {one.schema_id for one in metadata.schemas}
    return (
        metadata.name_mapping() is None
        and not types.keys() & {field.field_id for field in LINEAGE}
        and ids == set(range(len(ids)))
        and all(field.initial_default is None for field in schema.fields)
        and not any(kind in str(field.field_type) for field in schema.fields for kind in ("uuid", "unknown"))
        and all(has_plain_part_names(field.field_type) for field in schema.fields)
        and all(
            types.get(old.field_id, old.field_type) == old.field_type for one in metadata.schemas for old in one.fields
        )
    )


def _has_ever_same_names(metadata: TableMetadata) -> bool:
    """Whether all files have each column under its present name: no column was renamed, or replaced under its name.

    Then Spark can find columns by name. Field ids would double the time to create a frame, and add as much time as its
    `count(*)` takes.
    """
    names = {(field.name, field.field_id) for schema in metadata.schemas for field in schema.fields}
    is_one_to_one = len(names) == len({name.lower() for name, _ in names}) == len({id for _, id in names})
    return is_one_to_one and all(has_plain_part_names(schema.as_struct()) for schema in metadata.schemas)


def _may_have_nan(tasks: list[FileScanTask], schema: Schema) -> bool:
    """Whether a column may have a NaN. Spark sorts NaN above all numbers, but the bounds of files leave it out."""
    floating = [field.field_id for field in schema.fields if isinstance(field.field_type, FloatType | DoubleType)]
    counts = [task.file.nan_value_counts or {} for task in tasks]
    return any(count.get(id) != 0 for count in counts for id in floating)


def _parquet_frame(
    spark: SparkSession, paths: list[str], schema: Schema, is_found_by_name: bool, may_have_nan: bool
) -> DataFrame:
    columns = spark_schema(schema)
    if not paths:
        return spark.createDataFrame([], columns)
    read = columns
    if not is_found_by_name:
        # This setting has no effect on reads whose schema has no field ids.
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
        read = StructType(
            [
                StructField(column.name, column.dataType, column.nullable, {_FIELD_ID: field.field_id})
                for column, field in zip(columns.fields, schema.fields, strict=True)
            ]
        )
    reader = spark.read.schema(read).options(
        datetimeRebaseMode="CORRECTED", int96RebaseMode="CORRECTED", ignoreMissingFiles=False, ignoreCorruptFiles=False
    )
    reader = reader.option("__globPaths__", False)  # paths may contain characters of patterns
    if may_have_nan:
        reader = reader.options(**{"parquet.filter.stats.enabled": False, "parquet.filter.columnindex.enabled": False})
    if len(paths) <= _LISTED_BY_DRIVER:
        frame = reader.parquet(*paths)
    else:
        # By default Spark lists the files with one task for each, which takes longer than reading a small file.
        with _listing_tasks:
            at_most = spark.conf.get(_LISTING_TASKS) or "10000"
            spark.conf.set(_LISTING_TASKS, str(2 * spark.sparkContext.defaultParallelism))
            try:
                frame = reader.parquet(*paths)
            finally:
                spark.conf.set(_LISTING_TASKS, at_most)
    if is_found_by_name:
        return frame
    # Remove the field ids, which a write of the frame would copy into its files.
    return frame.select(*(_without_id(column) for column in columns.fields))


def _without_id(column: StructField) -> Column:
    return _sql.col(quoted(column.name)).alias(column.name, metadata=column.metadata)
