"""Changes rows of data files: rewrites the files, or writes delete files for them."""

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

from trinitylake.iceberg_storage.data_files.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.position_deletes import RowDeletes, can_lose_rows
from trinitylake.iceberg_storage.data_files.row_lineage import LAST_UPDATED, POSITION, ROW_ID, carried_schema
from trinitylake.tables.input_rows import fitting
from trinitylake.tables.merging.clauses import Clauses
from trinitylake.tables.merging.matching import Hits
from trinitylake.tables.merging.row_operations import differing

#: Maximum number of files that are rewritten concurrently.
WORKERS = min(4, os.cpu_count() or 1)
#: The rows of a file of at least this size are not mixed with rows of other files, so that the bounds of the new files
#: are narrow. Smaller files are joined.
KEPT_APART_SIZE_BYTES = 8 << 20
#: Maximum size in memory of the rows that precede the first changed row of a file.
KEPT_PARTS_SIZE_BYTES = 32 << 20


@dataclass
class Rewritten:
    """Removed and added files, including delete files, and how many rows were updated and deleted."""

    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    updated: int = 0
    deleted: int = 0


class _Updated(NamedTuple):
    """Updated rows.

    Attributes:
        rows: the new rows, with the columns of the table.
        is_changed: mask of the rows that count as updated.
        positions: positions of the rows in their file.
    """

    rows: pa.Table
    is_changed: np.ndarray
    positions: np.ndarray


@dataclass
class _Part:
    """Some rows of a file.

    Attributes:
        rows: the rows, with the columns and types of the table, and in format version 3 with their lineage.
        positions: positions of the rows in the file.
        hits: the rows to which a clause applies. Their positions are indexes in `rows`.
        updated: the updated rows for each clause that updates rows, if they are already computed.
    """

    rows: pa.Table
    positions: np.ndarray
    hits: Hits
    updated: list[_Updated] | None = None


class _Changed(NamedTuple):
    """How many rows of a file were updated and deleted.

    Attributes:
        positions: positions of all these rows, for the delete file; None if the file was rewritten.
    """

    updated: int
    deleted: int
    positions: np.ndarray | None


class FileRewrite:
    """Applies the clauses for matched rows, file by file, with a few threads.

    Args:
        in_place: whether to write delete files instead of rewriting data files (merge-on-read).
        only_changes: whether updates that do not change a row are ignored.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        live: LiveRows,
        source: pa.Table,
        clauses: Clauses,
        in_place: bool,
        only_changes: bool = False,
    ) -> None:
        self._metadata = metadata
        self._names = [field.name for field in carried_schema(metadata).fields]
        self._io = io
        self._live = live
        self._source = source
        self._clauses = clauses
        self._in_place = in_place
        self._only_changes = only_changes
        self._lock = threading.Lock()
        self._idle: list[DataFileWriter] = []

    def run(self, tasks: Sequence[FileScanTask], hits: dict[int, Hits], inserted: Iterable[pa.Table]) -> Rewritten:
        """Change the rows of `hits`, by the numbers of their files, and write `inserted` rows to new files."""
        result, deletes = Rewritten(), RowDeletes(self._live.deletes)
        with ThreadPoolExecutor(WORKERS, "trinitylake-merge") as pool:
            try:
                # New rows get separate files. Among old rows they would make the bounds of the files wide.
                fresh = DataFileWriter(self._metadata, self._io)
                self._idle.append(fresh)
                writing = pool.submit(_write_all, fresh, inserted)
                changed = pool.map(lambda number: self._file(tasks[number], hits[number]), hits)
                for number, found in zip(hits, changed, strict=True):
                    if found is None:
                        continue
                    task = tasks[number]
                    if found.positions is None or len(found.positions) == self._live.count(task):
                        deletes.remove(task)
                    else:
                        deletes.delete(task, found.positions)
                    result.updated += found.updated
                    result.deleted += found.deleted
                writing.result()
                for files in pool.map(DataFileWriter.close, self._idle):
                    result.added += files
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for writer in self._idle:
                    writer.discard()
                raise
        result.removed = deletes.removed
        result.added += deletes.write(self._metadata, self._io)
        return result

    def _writer(self) -> DataFileWriter:
        with self._lock:
            if len(self._idle) > 1:
                return self._idle.pop()
        return DataFileWriter(self._metadata, self._io, carries_rows=True)

    def _file(self, task: FileScanTask, hits: Hits) -> _Changed | None:
        """Change the hit rows of a file; None if nothing changes."""
        hits = hits.sorted()
        is_deleted = np.isin(hits.clause, [n for n, one in enumerate(self._clauses.clauses) if one.action == "delete"])
        deleted = int(is_deleted.sum())
        gone: list[np.ndarray] | None = None
        parts: Iterator[_Part] | None
        if self._in_place and can_lose_rows(task.file):
            gone = [hits.positions[is_deleted]]
            hits = hits.take(np.flatnonzero(~is_deleted))
            parts = self._parts(task, hits, only_hits=True)
        elif deleted == self._live.count(task):  # no row remains
            parts = iter(())
        else:
            parts = (
                self._parts_if_changed(task, hits) if self._only_changes and not deleted else self._parts(task, hits)
            )
        if parts is None:
            return None
        writer = self._writer()
        updated = 0
        try:
            for part in parts:
                stays = np.ones(part.rows.num_rows, dtype=bool)
                stays[part.hits.positions] = False
                if stays.any():
                    writer.write(part.rows.filter(pa.array(stays)) if len(part.hits.positions) else part.rows)
                for after in part.updated or self._updated(part):
                    updated += int(after.is_changed.sum())
                    if gone is None:
                        writer.write(after.rows)
                    else:
                        writer.write(after.rows.filter(pa.array(after.is_changed)))
                        gone.append(after.positions[after.is_changed])
            if gone is None and task.file.file_size_in_bytes >= KEPT_APART_SIZE_BYTES:
                writer.close()
        finally:
            with self._lock:
                self._idle.append(writer)
        if not updated and not deleted:
            return None
        return _Changed(updated, deleted, None if gone is None else np.sort(np.concatenate(gone)))

    def _parts_if_changed(self, task: FileScanTask, hits: Hits) -> Iterator[_Part] | None:
        """The parts of a file if any of its rows changes; None otherwise."""
        # Rows that were read for this check are kept in memory up to `KEPT_PARTS_SIZE_BYTES`, and read again above it.
        parts = self._parts(task, hits)
        seen: list[_Part] = []
        seen_bytes = 0
        for part in parts:
            seen_bytes += part.rows.nbytes
            seen = [*seen, part] if seen_bytes <= KEPT_PARTS_SIZE_BYTES else []
            part.updated = self._updated(part)
            if any(after.is_changed.any() for after in part.updated):
                return chain(seen, parts) if seen else self._parts(task, hits)
        return None

    def _parts(self, task: FileScanTask, hits: Hits, only_hits: bool = False) -> Iterator[_Part]:
        """The rows of a file in batches: all rows, or only the matched rows."""
        columns = [*self._names, POSITION.name]
        for batch in self._live.batches(task, columns, hits.positions if only_hits else None):
            positions = batch.column(POSITION.name).to_numpy()
            yield _Part(pa.Table.from_batches([batch.select(self._names)]), positions, hits.among(positions))

    def _updated(self, part: _Part) -> list[_Updated]:
        """The updated rows of each clause that updates rows."""
        result = []
        hits = part.hits
        for number, clause in enumerate(self._clauses.clauses):
            chosen = np.flatnonzero(hits.clause == number)
            if clause.action == "delete" or not len(chosen):
                continue
            places = hits.positions[chosen]
            before = part.rows.take(pa.array(places))
            values = self._clauses.values(number, self._source, hits.source[chosen], hits.computed, chosen)
            after = completed(self._clauses, values, before)
            is_changed = np.ones(len(chosen), dtype=bool)
            if self._only_changes:
                is_changed = differing(before.select(after.column_names), after)
            result.append(_Updated(_with_lineage(after, before, is_changed), is_changed, part.positions[places]))
        return result


def _with_lineage(after: pa.Table, before: pa.Table, changed: np.ndarray) -> pa.Table:
    """Updated rows with the row ids of the old rows, if they have ids. A changed row has NULL as its last update."""
    if ROW_ID.name in after.column_names or ROW_ID.name not in before.column_names:
        return after
    last = pc.if_else(pa.array(changed), pa.scalar(None, pa.int64()), before[LAST_UPDATED.name])
    return after.append_column(ROW_ID.name, before[ROW_ID.name]).append_column(LAST_UPDATED.name, last)


def _write_all(writer: DataFileWriter, parts: Iterable[pa.Table]) -> None:
    writer.write_all(parts)
    writer.close()


def completed(clauses: Clauses, values: Mapping[str, pa.ChunkedArray | pa.Array], before: pa.Table | None) -> pa.Table:
    """Rows with the columns `values`, cast to the types of the table. Other columns are taken from `before`.

    For new rows `before` is None, and columns without values are left out. Raises `InvalidArgument` with the name of
    the column for a value that does not fit.
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
