"""Applies position delete files to the rows of data files (Iceberg's merge-on-read)."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table import FileScanTask

from trinitylake.iceberg_storage.extended_pyiceberg.functions import position_deletes_of
from trinitylake.iceberg_storage.file_io import canonical_uri


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
