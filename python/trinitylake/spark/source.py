"""`format("trinitylake")`: tables of a lakehouse as a Spark data source, without a jar and without a server.

Spark creates an object of `TrinityLakeDataSource` in each process that plans, reads or commits. So these objects share
only the options (`options.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from trinitylake.errors import InvalidArgument
from trinitylake.spark.options import Options
from trinitylake.spark.planning_workers import spare_repeated_work
from trinitylake.spark.task_errors import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

    from trinitylake.tables.table import Table

spare_repeated_work()


@one_line_errors
class TrinityLakeDataSource(DataSource):
    """Reads and writes tables, in batches and as streams. Spark finds and registers it if TrinityLake is installed.

    Every evaluation of a data frame reads the version that was the latest when the frame was loaded; with
    `.schema(...)`, the version that was the latest at the first evaluation.
    """

    _version: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Fix the version when Spark stores this object in a data frame, also if the frame was given a schema."""
        options = Options.parse(self.options)
        if self._version is None and options.txn is None and options.metadata is None:
            self._version = options.reading(options.open()).version
        return self.__dict__

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "trinitylake"

    def schema(self) -> StructType | str:
        """The columns of the table or metadata table; only the columns in `.schema(...)` if that was called."""
        options = Options.parse(self.options)
        if options.metadata is not None:
            from trinitylake.spark.metadata_tables import schema_of

            return schema_of(options.metadata)
        if options.txn is not None:
            return _spark_schema(options.open_table(), options)
        view = options.reading(options.open())
        # Spark stores this object, with the version, in the data frame.
        self._version = view.version
        return _spark_schema(view.table(options.table_name), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for `spark.read`."""
        options = Options.parse(self.options)
        if options.metadata is not None:
            from trinitylake.spark.metadata_tables import MetadataReader

            return MetadataReader(options, schema)
        if self._version is not None:
            options = replace(options, version=self._version, timestamp=None)
        if options.changes:
            from trinitylake.spark.change_read import ChangeReader

            return ChangeReader(options, schema)
        from trinitylake.spark.batch_read import BatchReader, FilteringReader

        return (FilteringReader if options.pushdown else BatchReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer for `frame.write` in the modes append and overwrite."""
        from trinitylake.spark.batch_write import BatchWriter

        return BatchWriter(Options.parse(self.options), overwrite, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader for `spark.readStream`."""
        options = Options.parse(self.options)
        if options.changes:
            from trinitylake.spark.change_read import ChangeStreamReader

            return ChangeStreamReader(options, schema)
        from trinitylake.spark.stream_read import StreamReader

        return StreamReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer for `frame.writeStream`."""
        from trinitylake.spark.stream_write import StreamWriter

        return StreamWriter(Options.parse(self.options), overwrite, schema)


def _spark_schema(table: Table, options: Options) -> StructType:
    """The columns in the option `columns`; all columns without this option."""
    from trinitylake.spark.filters import column_named, readable_schema
    from trinitylake.spark.types import spark_schema

    schema = table.iceberg.schema()
    if options.changes:
        from trinitylake.spark.change_read import schema_of_changes as spark_schema
    if options.columns is None:
        return spark_schema(schema)
    names = [name.strip() for name in options.columns.split(",") if name.strip()]
    if not names:
        raise InvalidArgument("option columns names no column; to count rows, read the metadata table count")
    if not options.changes:
        schema = readable_schema(table.iceberg.metadata)
    return spark_schema(Schema(*(column_named(name, schema) for name in names)))
