"""The rows that are alive in a data file, always in the same order: without those that position deletes took out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from trinitylake.iceberg_storage.extended_pyiceberg.functions import position_deletes_of, record_batches_of
from trinitylake.iceberg_storage.file_io import canonical_uri

if TYPE_CHECKING:
    import pyarrow as pa


class LiveRows:
    """Reads the data files of one plan, each as often as it is asked for.

    Args:
        metadata: of the table, as the plan has it.
        io: the file access of the table.
        tasks: the plan, with the files of deleted rows.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO, tasks: Iterable[FileScanTask]) -> None:
        self._metadata = metadata
        self._io = io
        self._deletes = read_position_deletes(io, tasks)

    def batches(self, task: FileScanTask, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of one file under the current schema, with some or all columns; `columns` may be empty."""
        schema = self._metadata.schema()
        if columns is not None:
            schema = schema.select(*columns) if columns else Schema()
        yield from record_batches_of(self._metadata, self._io, schema, AlwaysTrue(), [task], self._deletes)


def read_position_deletes(io: FileIO, tasks: Iterable[FileScanTask]) -> dict[str, list[pa.ChunkedArray]]:
    """The positions that are gone, by the path of the data file as its task spells it.

    Engines spell one place differently, `file:/x` and `file:///x`, so paths are compared in one spelling.
    """
    tasks = list(tasks)
    files = {delete_file.file_path: delete_file for task in tasks for delete_file in task.delete_files}
    by_location: dict[str, list[pa.ChunkedArray]] = {}
    for delete_file in files.values():
        for path, positions in position_deletes_of(io, delete_file).items():
            by_location.setdefault(canonical_uri(path), []).append(positions)
    return {
        task.file.file_path: by_location[location]
        for task in tasks
        if (location := canonical_uri(task.file.file_path)) in by_location
    }
