"""Writes rows as data files of a table in a bounded part of memory: row group by row group, partition by partition.

PyIceberg's own writer has all rows of a file in memory, and those of a partitioned table all at once. It also tries a
dictionary for every column, which is most of the work where values do not repeat.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO, OutputStream
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from trinitylake.iceberg_storage.arrow_rows import nulls
from trinitylake.iceberg_storage.bloom_filters import without_bloom_filters, writer_options
from trinitylake.iceberg_storage.data_file_sizes import TARGET_FILE_SIZE_BYTES
from trinitylake.iceberg_storage.derived import Derived
from trinitylake.iceberg_storage.extended_pyiceberg.null_values import keep_nulls_here
from trinitylake.iceberg_storage.extended_pyiceberg.partitioned_rows import Partition, rows_by_partition, spelled
from trinitylake.iceberg_storage.extended_pyiceberg.row_order import RowOrder
from trinitylake.iceberg_storage.extended_pyiceberg.rows_written import filled
from trinitylake.iceberg_storage.file_writer import FileWriter
from trinitylake.iceberg_storage.parquet_statistics import FileMetrics
from trinitylake.iceberg_storage.row_groups import ROW_GROUP_SIZE_BYTES, RowGroups, row_groups_of, without_row_groups

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: What all open files of one writer may hold in memory. The largest one is finished beyond that.
OPEN_FILES_SIZE_BYTES = 160 << 20
#: Files of different partitions that are open at the same time; the one that waits longest is finished before another.
MAX_OPEN_FILES = 64
#: Files of one writer that wait for a thread that finishes them, or are being finished, at the same time.
MAX_FINISHING_FILES = 32
#: Rows that tell whether a dictionary of a column pays.
_SAMPLE_ROWS = 4096
#: Of no more rows than these every second value, on average, has to be one that was there before.
_MOST_REPEATED_ROWS = 20_000
#: Of fewer rows a dictionary takes as much as it saves.
_FEW_ROWS = 64
#: Of fewer bytes compression saves hardly any, and takes as long as all else that a file of them takes. The schema of
#: Arrow, which tells no more than the types of Parquet but for the width of offsets (`arrow_rows.py`), is longer.
_FEW_BYTES = 4096
#: Parts of a row group that are smaller on average are copied into one.
_CHUNK_ROWS = 10_000
#: Of a page; only wide rows make one larger before the writer has a look.
_PAGE_SIZE_BYTES = 1 << 20
_PAGE_ROWS = 1024
#: What Arrow's own defaults do better, unless the table says otherwise.
_TUNING = {
    TableProperties.PARQUET_PAGE_SIZE_BYTES: "data_page_size",
    TableProperties.PARQUET_DICT_SIZE_BYTES: "dictionary_pagesize_limit",
    TableProperties.PARQUET_PAGE_ROW_LIMIT: "write_batch_size",
}


class DataFileWriter:
    """Rows of one table, written as they come into files that are closed at the target size.

    Not for two threads at once. Whoever has `close`d it has all `files`.

    Args:
        metadata: of the table, whose current schema and partition spec the files have.
        io: the file access of the table.
        target_file_size_bytes: of each file; by default what the table says, or `TARGET_FILE_SIZE_BYTES`.
        row_group_size_bytes: of rows, as Arrow holds them, that make a row group, if the table says nothing of them.
        encoders: threads that encode row groups while the caller gets more rows; by default the caller's does.
        is_sorted: whether the rows have an order of their own; else they get that of the table (`row_order.py`).
        finishers: threads that encode the last rows of files and store them, several files at the same time. Not those
            of `encoders`, which they wait for. By default the caller finishes one file after the other.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        target_file_size_bytes: int | None = None,
        row_group_size_bytes: int | None = None,
        encoders: Executor | None = None,
        is_sorted: bool = False,
        finishers: Executor | None = None,
    ) -> None:
        self._metadata = metadata
        self._io = io
        order = next((one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id), None)
        self._order = None if is_sorted or order is None else RowOrder.of(order, metadata.schema())
        self._encoders = encoders
        self._finishers = finishers
        told = property_as_int(metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES)
        self._target_size_bytes = target_file_size_bytes or told or TARGET_FILE_SIZE_BYTES
        self._row_groups = row_groups_of(metadata.properties, row_group_size_bytes, is_ahead=encoders is not None)
        self._open: OrderedDict[Hashable, _OpenFile] = OrderedDict()
        self._finishing: deque[tuple[_OpenFile, Future[DataFile]]] = deque()
        self._names = _Names()
        self._layout: _Layout | None = None
        self.files: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """Take rows with the columns of the table. Raises `ValueError` and Arrow's errors for rows that do not fit."""
        rows = self._whole(filled(rows, self._metadata.schema()))
        if rows.num_rows == 0:
            return
        if self._metadata.spec().is_unpartitioned():
            self._write_parts(None, rows)
            return
        for partition, part in rows_by_partition(self._metadata.spec(), self._metadata.schema(), rows):
            self._write_parts(partition, part)

    def write_all(self, parts: Iterable[pa.Table]) -> None:
        """Take rows part by part. Raises as `write` does."""
        for rows in parts:
            self.write(rows)

    def written(self, parts: Iterable[pa.Table]) -> list[DataFile]:
        """Write rows part by part and finish all files, or discard them. Raises as `write` does."""
        try:
            self.write_all(parts)
            return self.close()
        except BaseException:
            self.discard()
            raise

    def close(self) -> list[DataFile]:
        """Finish all files; returns them."""
        if len(self._open) == 1 and not self._finishing:  # a thread would save no time
            self._finishers = None
        while self._open:
            self._finish(next(iter(self._open)))
        while self._finishing:
            self._take_finished()
        return self.files

    def discard(self) -> None:
        """Discard all files that are not finished.

        Finished files are in the record of the file access, which deletes them. So are those that a thread is finishing
        and that are not waited for: the file access deletes a file that is written after `LakehouseFileIO.discard`.
        """
        for file, finishing in self._finishing:
            if finishing.cancel():
                file.discard()
        self._finishing.clear()
        for file in self._open.values():
            file.discard()
        self._open.clear()

    def _whole(self, rows: pa.Table) -> pa.Table:
        """The rows with all columns of the table in its order and types, so that all rows of a file are alike."""
        import pyarrow as pa

        columns = self._layout_of_files().columns
        if rows.schema.equals(columns):
            return rows
        given = {name: number for number, name in enumerate(rows.column_names)}
        arrays = [
            _as_type(rows.column(given[field.name]), field.type)
            if field.name in given
            else nulls(rows.num_rows, field.type)
            for field in columns
        ]
        return pa.Table.from_arrays(arrays, schema=columns)

    def _layout_of_files(self) -> _Layout:
        if self._layout is None:
            self._layout = _layout_of(self._metadata)
        return self._layout

    def _write_parts(self, partition: Partition | None, rows: pa.Table) -> None:
        """Write rows in parts, so that a file is closed at the target size although more rows come at once."""
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
            file = self._open[key] = _OpenFile(
                self._metadata,
                self._layout_of_files(),
                self._io,
                partition,
                self._names,
                self._row_groups,
                self._encoders,
                self._order,
            )
        self._open.move_to_end(key)
        file.write(rows)
        if file.size_bytes >= self._target_size_bytes:
            self._finish(key)
        if sum(one.held_bytes for one in self._open.values()) > OPEN_FILES_SIZE_BYTES:
            self._finish(max(self._open, key=lambda one: self._open[one].held_bytes))
        while self._finishing and self._held_bytes() > OPEN_FILES_SIZE_BYTES:
            self._take_finished()

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
        """Wait for the file that is being finished for the longest time. Raises what finishing it raised."""
        _, finishing = self._finishing.popleft()
        self.files.append(finishing.result())


@dataclass(frozen=True)
class _Layout:
    """How the files of a table are written, as far as its schema and properties say.

    Attributes:
        format: of the files.
        columns: of the rows that the writer is given.
        given: the same for PyIceberg.
        schema: of the files.
        in_file: of the files for Arrow, if rows are written as they are; None if PyIceberg has to bring them there.
        metrics: of files.
        options: of the writer of Parquet.
        of_few_bytes: which of them are others for a file of few bytes.
    """

    format: FileFormat
    columns: pa.Schema
    given: Schema
    schema: Schema
    in_file: pa.Schema | None
    metrics: FileMetrics
    options: dict[str, Any]
    of_few_bytes: dict[str, Any]


#: By schema, properties and format version: to work a layout out takes longer than to write a few rows.
_layouts: Derived[_Layout] = Derived()


def _layout_of(metadata: TableMetadata) -> _Layout:
    return _layouts.of(
        metadata.schema(), metadata.properties, metadata.format_version, make=lambda: _new_layout(metadata)
    )


def _new_layout(metadata: TableMetadata) -> _Layout:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import (
        _get_parquet_writer_kwargs,
        pyarrow_to_schema,
        schema_to_pyarrow,
    )

    keep_nulls_here()
    schema = sanitize_column_names(metadata.schema())
    columns = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    mapping = metadata.schema().name_mapping
    given = pyarrow_to_schema(columns, name_mapping=mapping, format_version=metadata.format_version)
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in columns], schema=columns)
    in_file = _brought(empty, given, schema, metadata).schema
    is_flat = in_file.types == columns.types and not any(pa.types.is_nested(kind) for kind in columns.types)
    options = _get_parquet_writer_kwargs(without_bloom_filters(without_row_groups(metadata.properties)))
    for name, option in _TUNING.items():
        if name not in metadata.properties:
            options.pop(option, None)
    of_few_bytes: dict[str, Any] = {}
    if TableProperties.PARQUET_COMPRESSION not in metadata.properties:
        of_few_bytes |= {"compression": "none", "compression_level": None}
    if is_flat:
        of_few_bytes["store_schema"] = False
    return _Layout(
        format=_format_of(metadata),
        columns=columns,
        given=given,
        schema=schema,
        in_file=in_file if is_flat else None,
        metrics=FileMetrics(metadata.schema(), metadata.properties),
        options=options,
        of_few_bytes=of_few_bytes,
    )


def _brought(batch: pa.RecordBatch, given: Schema, schema: Schema, metadata: TableMetadata) -> pa.RecordBatch:
    """A batch as it stands in a file."""
    from pyiceberg.io.pyarrow import _to_requested_schema

    return _to_requested_schema(
        requested_schema=schema,
        file_schema=given,
        batch=batch,
        include_field_ids=True,
        format_model=FileFormatFactory.get(_format_of(metadata)),
    )


def _format_of(metadata: TableMetadata) -> FileFormat:
    return FileFormat(
        metadata.properties.get(TableProperties.WRITE_FILE_FORMAT, TableProperties.WRITE_FILE_FORMAT_DEFAULT)
    )


class _Names:
    """What the names of the files of one writer have in common."""

    def __init__(self) -> None:
        self.id = uuid.uuid4()
        self.numbers = count()


class _OpenFile:
    """One data file that is being written."""

    def __init__(
        self,
        metadata: TableMetadata,
        layout: _Layout,
        io: FileIO,
        partition: Partition | None,
        names: _Names,
        row_groups: RowGroups,
        encoders: Executor | None,
        order: RowOrder | None,
    ) -> None:
        self._metadata = metadata
        self._layout = layout
        self._order = order
        self._partition = partition
        self._rows: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._row_groups = row_groups
        self._encoders = encoders
        self._encoding: Future[None] | None = None  # of one row group at a time
        self._encoding_bytes = 0
        self._is_given_up = False
        self._written_bytes = self._unsent_bytes = 0  # as the last row group left them: another thread may be at work
        properties = metadata.properties
        model = FileFormatFactory.get(layout.format)
        name = f"00000-{next(names.numbers)}-{names.id}.{model.file_extension()}"
        provider: Any = load_location_provider(metadata.location, properties)
        self._path = provider.new_data_location(name, partition)
        self._output = io.new_output(self._path)
        self._stream: OutputStream | None = None
        self._in_memory: pa.BufferOutputStream | None = None  # of a file of few bytes: Arrow writes it by itself
        self._is_all_here = False
        self._writer: pq.ParquetWriter | None = None
        self._nan_counts: dict[int, int] = {}

    @property
    def size_bytes(self) -> int:
        """About how large the file is on storage."""
        return self._written_bytes + (self._encoding_bytes + self._waiting_bytes) // 4

    @property
    def held_bytes(self) -> int:
        """What it has in memory: rows that wait, and what is written when the file is finished."""
        return self._unsent_bytes + self._encoding_bytes + self._waiting_bytes

    def write(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if complete := self._row_groups.complete(self._waiting_rows, self._waiting_bytes):
            self._flush(complete)

    def finish(self) -> DataFile:
        self._is_all_here = True
        try:
            self._flush()
            self._wait()
            assert self._writer is not None
            assert self._stream is not None
            self._writer.close()
            if self._in_memory is not None:
                self._stream.write(self._in_memory.getvalue())
        except BaseException:
            self.discard()
            raise
        self._stream.close()
        layout, metadata = self._layout, self._writer.writer.metadata
        metrics = layout.metrics.of(metadata)
        metrics["nan_value_counts"] = self._nan_counts
        is_sorted = self._order is not None and metadata.num_row_groups == 1
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=layout.format,
            partition=self._partition.values if self._partition is not None else Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=self._metadata.default_sort_order_id if is_sorted else None,
            equality_ids=None,
            key_metadata=None,
            **metrics,
        )
        file.spec_id = self._metadata.default_spec_id  # which `from_args` does not take
        return file

    def discard(self) -> None:
        """Write nothing.

        A thread that encodes for this file is waited for. If a signal ends the waiting, the file is removed all the
        same, and once more by that thread, which may be about to make it.
        """
        self._is_given_up = True
        try:
            with suppress(Exception):
                self._wait()
        finally:
            self._leave()

    def _leave(self) -> None:
        """A stream that is left by an exception discards its file."""
        if self._stream is not None:
            error = RuntimeError("given up")
            with suppress(RuntimeError):
                self._stream.__exit__(type(error), error, None)

    def _flush(self, n_rows: int | None = None) -> None:
        """Write the first rows that wait; by default all of them."""
        if not self._rows:
            return
        self._wait()
        given, waiting = self._rows, self._waiting_bytes
        self._rows, self._waiting_rows, self._waiting_bytes = self._left_of(given, n_rows)
        self._encoding_bytes = waiting - self._waiting_bytes
        if self._encoders is not None:
            self._encoding = self._encoders.submit(self._encode_there, given)
        else:
            self._encode(given)
            self._encoding_bytes = 0

    def _left_of(self, given: list[pa.Table], n_rows: int | None) -> tuple[list[pa.Table], int, int]:
        """Cut rows off at the end of what is given, so that so many are left there; those rows, and how much they are.

        They are of the last rows that came, or else these would have been written before.
        """
        rest = 0 if n_rows is None else self._waiting_rows - n_rows
        if not rest:
            return [], 0, 0
        last = given.pop()
        given.append(last.slice(0, last.num_rows - rest))
        left = last.slice(last.num_rows - rest)
        return [left], rest, left.nbytes

    def _wait(self) -> None:
        """For the row group that is being encoded. Raises what that raised."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()
            self._encoding_bytes = 0

    def _encode_there(self, given: list[pa.Table]) -> None:
        try:
            self._encode(given)
        finally:
            if self._is_given_up:
                self._leave()

    def _encode(self, given: list[pa.Table]) -> None:
        import pyarrow as pa

        rows = pa.concat_tables(given) if len(given) > 1 else given[0]
        chunks = rows.column(0).num_chunks if rows.num_columns else 0
        if chunks > 1 and rows.num_rows < chunks * _CHUNK_ROWS:
            rows = rows.combine_chunks()
        if self._order is not None:
            rows = self._order.sorted(rows)
        layout = self._layout
        if layout.in_file is not None:
            table = pa.Table.from_arrays(rows.columns, schema=layout.in_file)
        else:
            table = pa.Table.from_batches(
                [_brought(batch, layout.given, layout.schema, self._metadata) for batch in rows.to_batches()]
            )
        for id, found in layout.metrics.nan_counts(rows).items():
            self._nan_counts[id] = self._nan_counts.get(id, 0) + found
        if self._writer is None:
            self._open(table)
        assert self._writer is not None
        assert self._stream is not None
        self._writer.write(table, row_group_size=self._row_groups.rows)
        if self._in_memory is not None:
            self._written_bytes = self._unsent_bytes = self._in_memory.tell()
            return
        self._written_bytes = self._stream.tell()
        stream = self._stream
        self._unsent_bytes = stream.held_bytes if isinstance(stream, FileWriter) else self._written_bytes

    def _open(self, rows: pa.Table) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        size_bytes = self._encoding_bytes
        options = dict(self._layout.options)
        if size_bytes < _FEW_BYTES and self._is_all_here:
            options |= self._layout.of_few_bytes
            self._in_memory = pa.BufferOutputStream()
        if TableProperties.PARQUET_PAGE_ROW_LIMIT not in self._metadata.properties:
            options["write_batch_size"] = _rows_of_page(rows.num_rows, size_bytes)
        stream = self._stream = self._output.create(overwrite=True)
        self._writer = pq.ParquetWriter(
            stream if self._in_memory is None else self._in_memory,
            schema=rows.schema,
            store_decimal_as_integer=True,
            write_page_checksum=True,
            use_dictionary=[path for path in self._layout.metrics.ids if _repeats(rows, path)],
            **options,
            **writer_options(
                self._metadata.properties,
                self._metadata.schema(),
                self._layout.metrics.ids,
                min(rows.num_rows, self._row_groups.rows),
            ),
        )


def _as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A cast to the type that a column has takes as long as some rows."""
    return column if column.type == kind else column.cast(kind)


def _rows_of_page(rows: int, size_bytes: int) -> int:
    """After how many rows the writer looks whether a page is full: who reads a page has all of it in memory."""
    return max(1, min(_PAGE_ROWS, rows * _PAGE_SIZE_BYTES // max(size_bytes, 1)))


def _repeats(rows: pa.Table, path: str) -> bool:
    """Whether a dictionary is likely to make a column smaller. Where values hardly repeat, making one is most of the
    work of writing the column, and it is given up in the end."""
    import pyarrow as pa

    if rows.num_rows < _FEW_ROWS:
        return False
    if path not in rows.column_names or pa.types.is_nested(rows.schema.field(path).type):
        return True
    sample = rows.column(path).slice(0, _SAMPLE_ROWS).combine_chunks()
    if isinstance(sample, pa.ExtensionArray):
        sample = sample.storage
    again = len(sample) - len(sample.unique())
    if again * 2 >= len(sample):
        return True
    # Of so many values drawn at random, n² / 2d come again, if there are d different ones.
    return bool(again * min(rows.num_rows, _MOST_REPEATED_ROWS) >= len(sample) ** 2)
