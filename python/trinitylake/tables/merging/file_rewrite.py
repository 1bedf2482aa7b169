"""Rewrites the files with rows that change; other files stay."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from trinitylake.iceberg_storage.data_files.arrow_rows import arrow_schema
from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import LAST_UPDATED, ROW_ID, carried_schema
from trinitylake.tables.input_rows import fitting
from trinitylake.tables.merging.clauses import Clauses
from trinitylake.tables.merging.differences import differing
from trinitylake.tables.merging.matching import Hits
from trinitylake.tables.merging.take_rows import take_rows

#: Files that are rewritten concurrently.
WORKERS = min(4, os.cpu_count() or 1)
#: The rows of a file of that size go into files of their own, so that its bounds stay narrow; smaller ones are joined.
KEPT_APART_SIZE_BYTES = 8 << 20
#: What is read of a file until a row is found that changes is kept, up to so much as Arrow holds it.
KEPT_PARTS_SIZE_BYTES = 32 << 20


@dataclass
class Rewritten:
    """Removed and added files, and the numbers of updated and deleted rows."""

    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    updated: int = 0
    deleted: int = 0


class _Updated(NamedTuple):
    """Rows as an update leaves them, and how many of them count."""

    rows: pa.Table
    changed: int


@dataclass
class _Part:
    """Some rows of a file.

    Attributes:
        rows: with the columns and types of the table, and in format version 3 their lineage.
        hits: at positions among these rows.
        updated: what becomes of rows, for each clause that updates some, if that was found out.
    """

    rows: pa.Table
    hits: Hits
    updated: list[_Updated] | None = None


class FileRewrite:
    """Applies the clauses for matched rows, file by file, with a few threads.

    Args:
        metadata, io: of the table.
        live: reads the files.
        source: the rows that came in.
        clauses: for matched rows.
        only_changes: whether an update that leaves a row as it was counts as none.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        live: LiveRows,
        source: pa.Table,
        clauses: Clauses,
        only_changes: bool,
    ) -> None:
        self._metadata = metadata
        self._columns = arrow_schema(carried_schema(metadata))
        self._io = io
        self._live = live
        self._source = source
        self._clauses = clauses
        self._only_changes = only_changes
        self._lock = threading.Lock()
        self._idle: list[DataFileWriter] = []

    def run(self, tasks: Sequence[FileScanTask], hits: dict[int, Hits], inserted: Iterable[pa.Table]) -> Rewritten:
        """Rewrite the files that have hits, and write `inserted` rows to new files."""
        result = Rewritten()
        with ThreadPoolExecutor(WORKERS, "trinitylake-merge") as pool:
            try:
                # New rows in files of their own: among old ones they would make the bounds of the files wide.
                fresh = DataFileWriter(self._metadata, self._io)
                self._idle.append(fresh)
                writing = pool.submit(_write_all, fresh, inserted)
                rewritten = pool.map(lambda number: self._file(tasks[number], hits[number]), hits)
                for number, found in zip(hits, rewritten, strict=True):
                    if found is not None:
                        result.removed.append(tasks[number].file)
                        result.updated += found[0]
                        result.deleted += found[1]
                writing.result()
                for files in pool.map(DataFileWriter.close, self._idle):
                    result.added += files
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for writer in self._idle:
                    writer.discard()
                raise
        return result

    def _writer(self) -> DataFileWriter:
        with self._lock:
            if len(self._idle) > 1:
                return self._idle.pop()
        return DataFileWriter(self._metadata, self._io, carries_rows=True)

    def _file(self, task: FileScanTask, hits: Hits) -> tuple[int, int] | None:
        """How many rows of a file were updated and deleted; None if it stays as it is."""
        hits = hits.sorted()
        parts = self._parts_if_changed(task, hits) if self._only_changes else self._parts(task, hits)
        if parts is None:
            return None
        writer = self._writer()
        updated = deleted = 0
        try:
            for part in parts:
                stays = np.ones(part.rows.num_rows, dtype=bool)
                stays[part.hits.positions] = False
                if stays.any():
                    writer.write(part.rows.filter(pa.array(stays)) if len(part.hits.positions) else part.rows)
                for number, clause in enumerate(self._clauses.clauses):
                    if clause.action == "delete":
                        deleted += int((part.hits.clause == number).sum())
                for after in part.updated or self._updated(part.rows, part.hits):
                    updated += after.changed
                    writer.write(after.rows)
            if task.file.file_size_in_bytes >= KEPT_APART_SIZE_BYTES:
                writer.close()
        finally:
            with self._lock:
                self._idle.append(writer)
        return updated, deleted

    def _parts_if_changed(self, task: FileScanTask, hits: Hits) -> Iterator[_Part] | None:
        """The parts of a file, if any of its rows becomes another one.

        What is read until that is known is not read again, unless it is much.
        """
        parts = self._parts(task, hits)
        if any(self._clauses.clauses[number].action == "delete" for number in np.unique(hits.clause)):
            return parts
        seen: list[_Part] = []
        seen_bytes = 0
        for part in parts:
            seen_bytes += part.rows.nbytes
            seen = [*seen, part] if seen_bytes <= KEPT_PARTS_SIZE_BYTES else []
            updated = self._updated(part.rows, part.hits)
            if any(after.changed for after in updated):
                part.updated = updated
                return chain(seen, parts) if seen else self._parts(task, hits)
        return None

    def _parts(self, task: FileScanTask, hits: Hits) -> Iterator[_Part]:
        """The rows of a file, batch by batch, each with the hits in it at positions in the batch."""
        begin = 0
        for batch in self._live.batches(task, self._columns.names):
            end = begin + batch.num_rows
            rows = pa.Table.from_batches([batch]).cast(self._columns)
            first, last = np.searchsorted(hits.positions, [begin, end])
            yield _Part(rows, hits.part(int(first), int(last), begin))
            begin = end

    def _updated(self, rows: pa.Table, hits: Hits) -> list[_Updated]:
        """What becomes of the rows that each clause updates, as far as it updates any."""
        result = []
        for number, clause in enumerate(self._clauses.clauses):
            chosen = np.flatnonzero(hits.clause == number)
            if clause.action == "delete" or not len(chosen):
                continue
            before = rows.take(pa.array(hits.positions[chosen]))
            plain = clause.plain(self._clauses.source, self._clauses.target)
            source = take_rows(self._source.select(list(dict.fromkeys(plain.values()))), hits.source[chosen])
            computed = hits.computed[number] if hits.computed else {}
            values = {
                **{name: source.column(column) for name, column in plain.items()},
                **{name: array.take(pa.array(chosen)) for name, array in computed.items()},
            }
            after = completed(self._clauses, values, before)
            changed = np.ones(len(chosen), dtype=bool)
            if self._only_changes:
                changed = differing(before.select(after.column_names), after)
            result.append(_Updated(_with_lineage(after, before, changed), int(changed.sum())))
        return result


def _with_lineage(after: pa.Table, before: pa.Table, changed: np.ndarray) -> pa.Table:
    """Updated rows with the lineage that the rows had, if they have one; NULL is the last update of a changed row."""
    if ROW_ID.name in after.column_names or ROW_ID.name not in before.column_names:
        return after
    last = pc.if_else(pa.array(changed), pa.scalar(None, pa.int64()), before[LAST_UPDATED.name])
    return after.append_column(ROW_ID.name, before[ROW_ID.name]).append_column(LAST_UPDATED.name, last)


def _write_all(writer: DataFileWriter, parts: Iterable[pa.Table]) -> None:
    writer.write_all(parts)
    writer.close()


def completed(clauses: Clauses, values: Mapping[str, pa.ChunkedArray | pa.Array], before: pa.Table | None) -> pa.Table:
    """Rows of the table made of some columns, of the types that it has; the others are as they were `before`.

    Without `before`, for new rows, columns without values are left out. Raises `InvalidArgument` that names a column.
    """
    columns, fields = [], []
    for column in clauses.target:
        if column.name in values:
            columns.append(fitting(values[column.name], column, clauses.limits))
        elif before is not None:
            columns.append(before.column(column.name))
        else:
            continue
        fields.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
