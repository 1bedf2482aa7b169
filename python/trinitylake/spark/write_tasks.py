"""Writes data files on executors, and removes the files of failed tasks.

Each write has its own folder below the table, `data/<write id>`. A task writes its rows into new files in this folder,
and reports the files. Only files whose report reaches the commit in the driver become part of the table, so a retried,
speculative or killed task adds nothing twice. Other files in the folder are deleted at the end. A task that is still
running after the write can leave an unreferenced file, which `vacuum` deletes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from trinitylake.errors import InvalidArgument, TrinityLakeError
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.written_values import defaulted
from trinitylake.iceberg_storage.errors import translated
from trinitylake.spark.filters import option_filter
from trinitylake.spark.options import Options
from trinitylake.spark.scan_tasks import storage_io, without_history
from trinitylake.spark.types import check_assignable, from_spark_batch, path_to_field, spelled
from trinitylake.tables import input_rows as rows
from trinitylake.tables.declared_limits import Limits, limits_of
from trinitylake.tables.merge import WriteResult
from trinitylake.tables.partitioning_and_sorting import check_same_spec, split_expressions

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.tables.table import Table

#: Setting of a session: whether an overwrite of a partitioned table replaces all rows or only partitions.
OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"
#: Size of the Arrow data that a task gathers before it writes a file. The file is several times smaller.
BUFFER_SIZE_BYTES = 256 << 20


@dataclass
class WrittenFiles(WriterCommitMessage):
    """Files that one attempt of one task wrote.

    Attributes:
        files: the files, with statistics, partition values and partition spec.
        query_id: the id of the streaming query of the task; "" in a batch query.
        is_dynamic: whether an overwrite replaces only the partitions of these files.
        plan: the plan of the task, for the commit of a stream, whose writer does not have it.
    """

    files: list[DataFile]
    query_id: str = ""
    is_dynamic: bool = False
    plan: WritePlan | None = None


@dataclass
class RewrittenFiles(WrittenFiles):
    """Files that one attempt of one task of a MERGE, UPDATE or DELETE wrote.

    Attributes:
        removed: data files to remove from the table, as indexes into the `files` of the `RowChange`.
        removed_deletes: delete files that are replaced or obsolete.
        updated, deleted: how many rows were updated and deleted.
    """

    removed: list[int] = field(default_factory=list)
    removed_deletes: list[DataFile] = field(default_factory=list)
    updated: int = 0
    deleted: int = 0


@dataclass
class RowChange:
    """A MERGE, UPDATE or DELETE.

    Attributes:
        statement: "merge", "update" or "delete".
        filter: a filter that matches at least all rows that the statement may change.
        snapshot_id: the snapshot of the table on which the statement was planned.
        files: the data files that may contain rows that match `filter`.
    """

    statement: str
    filter: BooleanExpression
    snapshot_id: int | None
    files: list[DataFile]


@dataclass
class WritePlan:
    """Plan for writing files of one table, the same for every task.

    Attributes:
        options: the options, with which tasks open the storage.
        table_name: the full name of the table.
        table_id: the id of the table, because a new table could get the same name before the commit.
        version: the version of the lakehouse on which the write was planned.
        metadata: the table's metadata without its history.
        limits: the declared limits of the table's columns.
        write_id: a random id, which is the name of the folder.
        changes: the statement whose rows are written; None for an append or overwrite, and in tasks.
        rows: the columns of the rows, if the table gets columns that it lacks; otherwise None.
    """

    options: Options
    table_name: str
    table_id: str
    version: int
    metadata: TableMetadata
    limits: Limits
    write_id: str
    changes: RowChange | None = None
    rows: StructType | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "changes": None}

    @classmethod
    def of(cls, options: Options, table: Table, version: int) -> WritePlan:
        """The plan of one write. Raises `InvalidArgument` for a table that is not managed."""
        if table.type != "managed":
            raise InvalidArgument(
                f"table {table.name} is {table.type} and read-only here: write to it through its own catalog"
            )
        return cls(
            options=options,
            table_name=table.name,
            table_id=table.id,
            version=version,
            metadata=without_history(table.iceberg.metadata),
            limits=limits_of(table.schema),
            write_id=uuid.uuid4().hex,
        )

    def check_columns(self, rows: StructType) -> None:
        """Raise `InvalidArgument` if rows lack a column that partitions need, or have a column that does not fit."""
        schema = self.metadata.schema()
        check_assignable(rows, schema)
        known = [field.name for field in schema.fields]
        columns = [spelled(name, known) for name in rows.fieldNames()]
        if unknown := [name for name in columns if name not in known]:
            raise InvalidArgument(
                f"table {self.table_name} has no column {', '.join(unknown)}; it has {', '.join(known)}. To add "
                'columns, write with option("mergeSchema", "true")'
            )
        if self.options.merge_schema:
            self.rows = rows
        if self.options.partition_by is not None:
            check_same_spec(split_expressions(self.options.partition_by), self.metadata, self.table_name)
        for by in self.metadata.spec().fields:
            path = path_to_field(schema, by.source_id)
            if path and path[0] not in (*columns, *defaulted(schema)):
                raise InvalidArgument(
                    f"the rows have no column {'.'.join(path)!r}, by which table {self.table_name} is partitioned "
                    f"({by.transform}); they have {', '.join(columns)}"
                )

    def _check_replaced(self, conformed: pa.Table) -> None:
        """Raise `InvalidArgument` if a row of an overwrite does not match its filter.

        A repeated run would add such a row again.
        """
        if self.options.filter is None:
            return
        from trinitylake.iceberg_storage.row_filter import RowFilter

        schema = self.metadata.schema()
        with translated(self.table_name):
            matches = RowFilter.of(option_filter(self.options.filter, schema), schema).matches(conformed)
        outside = conformed.num_rows - conformed.filter(matches).num_rows
        if outside:
            raise InvalidArgument(
                f"{outside} rows of the overwrite do not match its filter {self.options.filter!r}: they would be added "
                "without replacing any. Leave them out, or choose a filter that they match"
            )

    @property
    def folder(self) -> str:
        """The URI of the folder for the files of this write; it ends with "/"."""
        data = self.metadata.properties.get(TableProperties.WRITE_DATA_PATH)
        return f"{(data or self.metadata.location.rstrip('/') + '/data').rstrip('/')}/{self.write_id}/"

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenFiles:
        """Write the rows of one task. Runs on an executor. If it fails, its files are deleted."""
        files: list[DataFile] = []
        with self.writing() as (metadata, io):
            table = arrow_schema(metadata.schema())
            for gathered in _gathered(from_spark_batch(batch, table) for batch in batches if batch.num_rows):
                conformed = rows.conform(gathered, metadata.schema(), limits=self.limits)
                assert isinstance(conformed, pa.Table)
                self._check_replaced(conformed)
                files += DataFileWriter(metadata, io).written([conformed])
        return WrittenFiles(files, _local_property("sql.streaming.queryId"), self._is_dynamic())

    @contextmanager
    def writing(self) -> Iterator[tuple[TableMetadata, LakehouseFileIO]]:
        """Context manager with the table's metadata, changed so that new files are written to `folder`, and with file
        access.

        If the block raises an error, the written files are deleted.
        """
        io = storage_io(self.options)
        properties = {**self.metadata.properties, TableProperties.WRITE_DATA_PATH: self.folder.rstrip("/")}
        try:
            with translated(lambda: f"table {self.table_name}"):
                yield self.metadata.model_copy(update={"properties": properties}), io
        except BaseException:
            io.storage.delete_unneeded(io.written_paths)  # the driver deletes the files of other tasks
            raise

    def _is_dynamic(self) -> bool:
        """Whether an overwrite replaces only partitions, by the options or the settings of the session."""
        chosen = self.options.partition_overwrite_mode
        if chosen is None and self.options.filter is None:
            chosen = "dynamic" if _local_property(OVERWRITE_MODE).lower() == "dynamic" else "static"
        return chosen == "dynamic"

    def delete_all_but(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Try to delete the files of this write that are not in `messages`."""
        with suppress(TrinityLakeError):
            io = storage_io(self.options)
            kept = {io.path_of(file.file_path) for file in files_of(messages)}
            written = io.storage.list(io.path_of(self.folder.rstrip("/")) + "/")
            io.storage.delete_unneeded([path for path, _, _ in written if path not in kept])


@contextmanager
def deleted_on_error(plan: WritePlan) -> Iterator[None]:
    """Context manager: delete all files of a write if the block raises."""
    try:
        yield
    except BaseException:
        plan.delete_all_but([])
        raise


def result_of(messages: Sequence[WriterCommitMessage | None]) -> WriteResult:
    """How many rows the tasks of a MERGE, UPDATE or DELETE changed."""
    rewritten = [message for message in messages if isinstance(message, RewrittenFiles)]
    inserted = [message for message in messages if not isinstance(message, RewrittenFiles)]
    return WriteResult(
        sum(message.updated for message in rewritten),
        sum(message.deleted for message in rewritten),
        sum(file.record_count for file in files_of(inserted)),
    )


def files_of(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    """The files that tasks reported."""
    return [file for message in messages if isinstance(message, WrittenFiles) for file in message.files]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Concatenate small batches into tables large enough for a file."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        gathered.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= BUFFER_SIZE_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size_bytes = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _local_property(name: str) -> str:
    """A property of the task's job: a setting of the session, or the id of the streaming query; "" if missing."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context is not None else ""
