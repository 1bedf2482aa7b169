"""Writes the files anew that hold rows which change; a file in which nothing changes stays."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.extended_pyiceberg.data_file_writer import DataFileWriter
from trinitylake.iceberg_storage.extended_pyiceberg.row_ids import ROW_IDS_SINCE
from trinitylake.iceberg_storage.live_rows import LiveRows
from trinitylake.tables.input_rows import fitting
from trinitylake.tables.merging.chosen_rows import chosen_rows
from trinitylake.tables.merging.clauses import Clause, Clauses
from trinitylake.tables.merging.differences import differing
from trinitylake.tables.merging.matching import Hits

#: Files that are written anew at the same time.
WORKERS = min(4, os.cpu_count() or 1)
#: The rows of a file of that size go into files of their own, so that its bounds stay narrow; smaller ones are joined.
KEPT_APART_SIZE_BYTES = 8 << 20
#: What is read of a file until a row is found that changes is kept, up to so much as Arrow holds it.
KEPT_PARTS_SIZE_BYTES = 32 << 20


@dataclass
class Rewritten:
    """Files that go and come, and how many rows were changed in which way."""

    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    updated: int = 0
    deleted: int = 0


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
        self._io = io
        self._live = live
        self._source = source
        self._clauses = clauses
        self._only_changes = only_changes
        self._lock = threading.Lock()
        self._idle: list[DataFileWriter] = []

    def run(self, tasks: Sequence[FileScanTask], hits: dict[int, Hits], inserted: Iterable[pa.Table]) -> Rewritten:
        """Rewrite the files that have hits, and write `inserted` rows beside them."""
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
            return self._idle.pop() if len(self._idle) > 1 else DataFileWriter(self._metadata, self._io)

    def _file(self, task: FileScanTask, hits: Hits) -> tuple[int, int] | None:
        """How many rows of a file were updated and deleted; None if it stays as it is."""
        hits = hits.sorted()
        parts = self._parts_if_changed(task, hits) if self._only_changes else self._parts(task, hits)
        if parts is None:
            return None
        writer = self._writer()
        updated = deleted = 0
        try:
            for rows, part in parts:
                stays = np.ones(rows.num_rows, dtype=bool)
                stays[part.positions] = False
                if stays.any():
                    self._check_row_ids(task)
                    writer.write(rows if not len(part.positions) else rows.filter(pa.array(stays)))
                for number, clause in enumerate(self._clauses.clauses):
                    of_clause = np.flatnonzero(part.clause == number)
                    if clause.action == "delete":
                        deleted += len(of_clause)
                    elif len(of_clause):
                        before, after = self._updated(rows, part, number, clause, of_clause)
                        updated += int(differing(before, after).sum()) if self._only_changes else len(of_clause)
                        writer.write(after)
            if task.file.file_size_in_bytes >= KEPT_APART_SIZE_BYTES:
                writer.close()
        finally:
            with self._lock:
                self._idle.append(writer)
        return updated, deleted

    def _parts_if_changed(self, task: FileScanTask, hits: Hits) -> Iterator[tuple[pa.Table, Hits]] | None:
        """The parts of a file, if any of its rows becomes another one.

        What is read until that is known is not read again, unless it is much.
        """
        parts = self._parts(task, hits)
        if any(self._clauses.clauses[number].action == "delete" for number in np.unique(hits.clause)):
            return parts
        seen: list[tuple[pa.Table, Hits]] = []
        seen_bytes = 0
        for rows, part in parts:
            seen_bytes += rows.nbytes
            seen = [*seen, (rows, part)] if seen_bytes <= KEPT_PARTS_SIZE_BYTES else []
            if self._changes_anything(rows, part):
                return chain(seen, parts) if seen else self._parts(task, hits)
        return None

    def _changes_anything(self, rows: pa.Table, hits: Hits) -> bool:
        """Whether any of some rows becomes another one, by clauses that update."""
        for number in np.unique(hits.clause):
            of_clause = np.flatnonzero(hits.clause == number)
            clause = self._clauses.clauses[number]
            before, after = self._updated(rows, hits, int(number), clause, of_clause)
            if differing(before, after).any():
                return True
        return False

    def _parts(self, task: FileScanTask, hits: Hits) -> Iterator[tuple[pa.Table, Hits]]:
        """The rows of a file, batch by batch, each with the hits in it at positions in the batch."""
        begin = 0
        for batch in self._live.batches(task):
            rows = pa.Table.from_batches([batch]).cast(self._clauses.target)
            first, last = np.searchsorted(hits.positions, [begin, begin + rows.num_rows])
            yield rows, hits.part(int(first), int(last), begin)
            begin += rows.num_rows

    def _updated(
        self, rows: pa.Table, hits: Hits, number: int, clause: Clause, chosen: np.ndarray
    ) -> tuple[pa.Table, pa.Table]:
        """The rows that a clause updates, before and after."""
        before = rows.take(pa.array(hits.positions[chosen]))
        plain = clause.plain(self._clauses.source, self._clauses.target)
        source = chosen_rows(self._source.select(list(dict.fromkeys(plain.values()))), hits.source[chosen])
        computed = hits.computed[number] if hits.computed else {}
        values = {
            **{name: source.column(column) for name, column in plain.items()},
            **{name: array.take(pa.array(chosen)) for name, array in computed.items()},
        }
        return before, completed(self._clauses.target, values, before)

    def _check_row_ids(self, task: FileScanTask) -> None:
        if self._metadata.format_version >= ROW_IDS_SINCE:
            raise InvalidArgument(
                f"the table has format version 3, and {task.file.file_path} holds rows that would stay: of such tables "
                "only whole files are deleted or overwritten here, since rows that move would lose their ids. Let an "
                "engine that writes deletion vectors do it, for instance Spark"
            )


def _write_all(writer: DataFileWriter, parts: Iterable[pa.Table]) -> None:
    writer.write_all(parts)
    writer.close()


def completed(target: pa.Schema, values: Mapping[str, pa.ChunkedArray | pa.Array], before: pa.Table | None) -> pa.Table:
    """Rows of the table made of some columns, of the types that it has; the others are as they were `before`.

    Without `before`, for new rows, columns without values are left out. Raises `InvalidArgument` that names a column.
    """
    columns, fields = [], []
    for column in target:
        if column.name in values:
            columns.append(fitting(values[column.name], column))
        elif before is not None:
            columns.append(before.column(column.name))
        else:
            continue
        fields.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))
