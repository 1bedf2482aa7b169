"""Writes rows as data files of a table in bounded memory: row group by row group, partition by partition.

PyIceberg's writer holds all rows of a file in memory, and all partitions at once.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, OutputStream
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StructType, UnknownType
from pyiceberg.utils.properties import property_as_int

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema, arrow_schema_with_ids, cast, nulls
from trinitylake.iceberg_storage.data_files.bloom_filters import writer_options
from trinitylake.iceberg_storage.data_files.file_sizes import (
    ROW_GROUP_SIZE_BYTES,
    TARGET_FILE_SIZE_BYTES,
    row_groups_of,
)
from trinitylake.iceberg_storage.data_files.parquet_statistics import FileMetrics
from trinitylake.iceberg_storage.data_files.partitioned_rows import Partition, rows_by_partition, spelled
from trinitylake.iceberg_storage.data_files.row_lineage import carried_schema
from trinitylake.iceberg_storage.data_files.row_order import RowOrder
from trinitylake.iceberg_storage.data_files.schema_projection import project
from trinitylake.iceberg_storage.data_files.written_values import filled
from trinitylake.iceberg_storage.file_writer import FileWriter
from trinitylake.iceberg_storage.identity_cache import IdentityCache

#: Memory for all open files of one writer. Above it, the largest file is finished.
OPEN_FILES_SIZE_BYTES = 160 << 20
#: Maximum number of files of different partitions that are open at the same time. Above it, the least recently used
#: file is finished.
MAX_OPEN_FILES = 64
#: Maximum number of files of one writer that are being finished by threads or wait for a thread.
MAX_FINISHING_FILES = 32
#: Chunks of a row group with fewer rows than this on average are copied into one chunk.
_CHUNK_ROWS = 10_000
#: Target size of a page. Pages of wide rows may exceed it, because the writer checks the size only every few rows.
_PAGE_SIZE_BYTES = 1 << 20
_PAGE_ROWS = 1024
#: Size of the sample that decides whether a column gets a dictionary, and minimum number of rows for a dictionary.
_SAMPLE_ROWS, _MIN_DICTIONARY_ROWS = 4096, 64
#: Number of rows for which the repetitions of values are estimated from the sample.
_MAX_REPEATED_ROWS = 20_000
#: Options of Arrow's writer that the table may set.
_OPTIONS = {
    TableProperties.PARQUET_PAGE_SIZE_BYTES: "data_page_size",
    TableProperties.PARQUET_DICT_SIZE_BYTES: "dictionary_pagesize_limit",
    TableProperties.PARQUET_PAGE_ROW_LIMIT: "write_batch_size",
}


class DataFileWriter:
    """Writes rows of one table into files that are closed at the target size. Not thread-safe.

    Args:
        metadata: of the table. The files have its current schema and partition spec.
        target_file_size_bytes: of each file; by default the property of the table, or `TARGET_FILE_SIZE_BYTES`.
        row_group_size_bytes: Arrow bytes that make a row group, if the table has no property for it.
        is_sorted: whether the rows are sorted already; otherwise each row group gets the order of the table
            (`row_order.py`).
        carries_rows: whether rows come from other files. Then the new files have lineage columns (`row_lineage.py`),
            and `write` accepts rows with these columns. A missing lineage column becomes NULL.
        finishers: threads that write the last rows of several files and store them at the same time; by default the
            calling thread finishes one file after the other.

    Attributes:
        files: the finished files.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        target_file_size_bytes: int | None = None,
        row_group_size_bytes: int | None = None,
        is_sorted: bool = False,
        carries_rows: bool = False,
        finishers: Executor | None = None,
    ) -> None:
        properties = metadata.properties
        file_format = properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT)
        if file_format.lower() != "parquet":
            raise InvalidArgument(
                f"the table property {TableProperties.WRITE_FILE_FORMAT!r} is {file_format!r}, and only Parquet files "
                "are written here: set it to 'parquet', or write with another engine"
            )
        self._metadata = metadata
        self._schema = carried_schema(metadata) if carries_rows else metadata.schema()
        self._io = io
        order = next((one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id), None)
        self._order = None if is_sorted or order is None else RowOrder.of(order, metadata.schema())
        self._finishers = finishers
        target_size_bytes = property_as_int(properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES)
        self._target_size_bytes = target_file_size_bytes or target_size_bytes or TARGET_FILE_SIZE_BYTES
        self._row_group_size_bytes = row_group_size_bytes
        self._open: OrderedDict[Hashable, _OpenFile] = OrderedDict()
        self._finishing: deque[tuple[_OpenFile, Future[DataFile]]] = deque()
        self._id, self._numbers = uuid.uuid4(), count()
        self.files: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """Write rows with the columns of the files. Raises `ValueError` and Arrow's errors for rows that do not fit."""
        rows = self._with_all_columns(filled(rows, self._metadata.schema()))
        if rows.num_rows == 0:
            return
        if self._metadata.spec().is_unpartitioned():
            self._write_parts(None, rows)
            return
        for partition, part in rows_by_partition(self._metadata.spec(), self._metadata.schema(), rows):
            self._write_parts(partition, part)

    def write_all(self, parts: Iterable[pa.Table]) -> None:
        """Write rows part by part. Raises as `write`."""
        for rows in parts:
            self.write(rows)

    def written(self, parts: Iterable[pa.Table]) -> list[DataFile]:
        """Write rows part by part and finish all files. An exception discards them. Raises as `write`."""
        try:
            self.write_all(parts)
            return self.close()
        except BaseException:
            self.discard()
            raise

    def close(self) -> list[DataFile]:
        """Finish all files. Returns the data files."""
        if len(self._open) == 1 and not self._finishing:
            self._finishers = None
        while self._open:
            self._finish(next(iter(self._open)))
        while self._finishing:
            self._take_finished()
        return self.files

    def discard(self) -> None:
        """Discard all files that are not finished.

        Finished files are not deleted here, but by the file access, which records all new files. This includes files
        that a thread finishes later.
        """
        for file, finishing in self._finishing:
            if finishing.cancel():
                file.discard()
        self._finishing.clear()
        for file in self._open.values():
            file.discard()
        self._open.clear()

    def _with_all_columns(self, rows: pa.Table) -> pa.Table:
        """Convert rows to the columns of the files: all of them, in their order and with their types."""
        columns = arrow_schema(self._schema)
        given = {name: number for number, name in enumerate(rows.column_names)}
        arrays = [
            cast(rows.column(given[field.name]), field.type)
            if field.name in given
            else nulls(rows.num_rows, field.type)
            for field in columns
        ]
        return pa.Table.from_arrays(arrays, schema=columns)

    def _write_parts(self, partition: Partition | None, rows: pa.Table) -> None:
        """Write rows in parts, so that a file is closed at the target size also within one large table."""
        size_bytes = max(self._target_size_bytes, ROW_GROUP_SIZE_BYTES)
        n_rows = max(1, rows.num_rows * size_bytes // max(rows.nbytes, 1))
        for begin in range(0, rows.num_rows, n_rows):
            self._write(partition, rows.slice(begin, n_rows))

    def _write(self, partition: Partition | None, rows: pa.Table) -> None:
        key: Hashable = None if partition is None else spelled(partition.values)
        file = self._open.get(key)
        if file is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._finish(next(iter(self._open)))
            file = self._open[key] = self._new_file(partition)
        self._open.move_to_end(key)
        file.write(rows)
        if file.size_bytes >= self._target_size_bytes:
            self._finish(key)
        if sum(one.held_bytes for one in self._open.values()) > OPEN_FILES_SIZE_BYTES:
            self._finish(max(self._open, key=lambda one: self._open[one].held_bytes))
        while self._finishing and self._held_bytes() > OPEN_FILES_SIZE_BYTES:
            self._take_finished()

    def _new_file(self, partition: Partition | None) -> _OpenFile:
        provider: Any = load_location_provider(self._metadata.location, self._metadata.properties)
        path = provider.new_data_location(f"00000-{next(self._numbers)}-{self._id}.parquet", partition)
        values = Record() if partition is None else partition.values
        return _OpenFile(self._metadata, self._schema, self._io, path, values, self._row_group_size_bytes, self._order)

    def _held_bytes(self) -> int:
        files = (*self._open.values(), *(file for file, _ in self._finishing))
        return sum(file.held_bytes for file in files)

    def _finish(self, key: Hashable) -> None:
        file = self._open.pop(key)
        if self._finishers is None:
            self.files.append(file.finish())
            return
        if len(self._finishing) >= MAX_FINISHING_FILES:
            self._take_finished()
        self._finishing.append((file, self._finishers.submit(file.finish)))

    def _take_finished(self) -> None:
        """Wait for the oldest file that a thread finishes. Raises its error."""
        _, finishing = self._finishing.popleft()
        self.files.append(finishing.result())


def write_data_file(
    metadata: TableMetadata, schema: Schema, io: FileIO, location: str, parts: Iterable[pa.Table]
) -> DataFile:
    """Write rows, at least one, as one file without partition. `schema` may differ from the schema of the table.

    Raises as `DataFileWriter.write`.
    """
    file = _OpenFile(metadata, schema, io, location, Record(), None, None)
    try:
        for rows in parts:
            file.write(rows)
    except BaseException:
        file.discard()
        raise
    return file.finish()


class _OpenFile:
    def __init__(
        self,
        metadata: TableMetadata,
        schema: Schema,
        io: FileIO,
        path: str,
        partition: Record,
        row_group_size_bytes: int | None,
        order: RowOrder | None,
    ) -> None:
        self._metadata = metadata
        self._schema = schema
        self._output = io.new_output(path)
        self._partition = partition
        self._row_groups = row_groups_of(metadata.properties, row_group_size_bytes)
        self._order = order
        properties = metadata.properties
        self._metrics = _metrics.of(schema, properties, make=lambda: FileMetrics(schema, properties))
        self._rows: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._stream: OutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._nan_counts: dict[int, int] = {}

    @property
    def size_bytes(self) -> int:
        """Estimate of the size on storage."""
        return (0 if self._stream is None else self._stream.tell()) + self._waiting_bytes // 4

    @property
    def held_bytes(self) -> int:
        """Memory of buffered rows, and of encoded bytes that are not stored yet."""
        stream = self._stream
        held = stream.held_bytes if isinstance(stream, FileWriter) else 0 if stream is None else stream.tell()
        return held + self._waiting_bytes

    def write(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if complete := self._row_groups.complete(self._waiting_rows, self._waiting_bytes):
            self._write_row_groups(complete)

    def finish(self) -> DataFile:
        try:
            if self._rows:
                self._write_row_groups(self._waiting_rows)
            assert self._writer is not None
            assert self._stream is not None
            self._writer.close()
        except BaseException:
            self.discard()
            raise
        self._stream.close()
        footer = self._writer.writer.metadata
        metrics = self._metrics.of(footer) | {"nan_value_counts": self._nan_counts}
        is_sorted = self._order is not None and footer.num_row_groups == 1
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._output.location,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=self._metadata.default_sort_order_id if is_sorted else None,
            equality_ids=None,
            key_metadata=None,
            **metrics,
        )
        file.spec_id = self._metadata.default_spec_id  # `from_args` does not accept it
        return file

    def discard(self) -> None:
        """Discard the file, by an exception in the `with` block of its stream."""
        if self._stream is not None:
            error = RuntimeError("discarded")
            with suppress(RuntimeError):
                self._stream.__exit__(type(error), error, None)

    def _write_row_groups(self, n_rows: int) -> None:
        """Write the first buffered rows as row groups; the rest stays buffered."""
        rows = pa.concat_tables(self._rows)
        left = rows.slice(n_rows)
        rows = rows.slice(0, n_rows)
        self._rows = [left] if left.num_rows else []
        self._waiting_rows, self._waiting_bytes = left.num_rows, left.nbytes
        chunks = rows.column(0).num_chunks if rows.num_columns else 0
        if chunks > 1 and rows.num_rows < chunks * _CHUNK_ROWS:
            rows = rows.combine_chunks()
        if self._order is not None:
            rows = self._order.sorted(rows)
        for id, found in self._metrics.nan_counts(rows).items():
            self._nan_counts[id] = self._nan_counts.get(id, 0) + found
        in_file = _schema_of_files(self._schema)
        target = arrow_schema_with_ids(in_file)
        batches = [project(batch, self._schema, in_file, target=target) for batch in rows.to_batches()]
        rows = pa.Table.from_batches(batches, schema=target)
        if self._writer is None:
            self._begin(rows)
        assert self._writer is not None
        self._writer.write(rows, row_group_size=self._row_groups.rows)

    def _begin(self, rows: pa.Table) -> None:
        properties = self._metadata.properties
        codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT)
        options: dict[str, Any] = {
            option: property_as_int(properties, name) for name, option in _OPTIONS.items() if name in properties
        }
        # The writer checks the size of a page every `page_rows` rows. Pages must be small, because readers hold them in
        # memory.
        page_rows = max(1, min(_PAGE_ROWS, rows.num_rows * _PAGE_SIZE_BYTES // max(rows.nbytes, 1)))
        options.setdefault("write_batch_size", page_rows)
        ids = self._metrics.ids
        self._stream = self._output.create(overwrite=True)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema=rows.schema,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=property_as_int(properties, TableProperties.PARQUET_COMPRESSION_LEVEL),
            store_decimal_as_integer=True,
            write_page_checksum=True,
            use_dictionary=[path for path in ids if _repeats(rows, path)],
            **options,
            **writer_options(properties, self._metadata.schema(), ids, min(rows.num_rows, self._row_groups.rows)),
        )


#: Derived from schema and properties once, because the computation takes longer than writing ten rows.
_metrics: IdentityCache[FileMetrics] = IdentityCache()
_schemas_of_files: IdentityCache[Schema] = IdentityCache()


def _schema_of_files(schema: Schema) -> Schema:
    """The schema of data files: without `unknown` columns, and with names that are valid in Avro, as engines expect."""
    return _schemas_of_files.of(
        schema, make=lambda: Schema(*_stored(sanitize_column_names(schema).fields), schema_id=schema.schema_id)
    )


def _stored(fields: Iterable[NestedField]) -> Iterator[NestedField]:
    """The fields except those of type `unknown`, which files omit (Iceberg's specification, "Primitive Types")."""
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield field.model_copy(update={"field_type": StructType(*_stored(field.field_type.fields))})
        elif not isinstance(field.field_type, UnknownType):
            yield field


def _repeats(rows: pa.Table, path: str) -> bool:
    """Whether a dictionary is likely to make a column smaller, by a sample."""
    # Without this estimate, Arrow builds a dictionary for each column and abandons it when it grows too large. This is
    # most of the work for columns whose values rarely repeat.
    if rows.num_rows < _MIN_DICTIONARY_ROWS:
        return False
    if path not in rows.column_names or pa.types.is_nested(rows.schema.field(path).type):
        return True
    sample = rows.column(path).slice(0, _SAMPLE_ROWS).combine_chunks()
    if isinstance(sample, pa.ExtensionArray):
        sample = sample.storage
    again = len(sample) - len(sample.unique())
    if again * 2 >= len(sample):
        return True
    # If n values are drawn at random from d different ones, n² / 2d of them repeat.
    return bool(again * min(rows.num_rows, _MAX_REPEATED_ROWS) >= len(sample) ** 2)
