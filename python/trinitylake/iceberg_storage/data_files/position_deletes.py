"""Position deletes: the positions of deleted rows, by data file."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from trinitylake.iceberg_storage.file_io import canonical_uri


def positions_in(io: FileIO, file: DataFile) -> dict[str, pa.ChunkedArray]:
    """The deleted positions that a delete file lists, by the path of the data file as it is spelled there.

    Raises `ValueError` for a format other than Parquet and Puffin.
    """
    with io.new_input(file.file_path).open() as stream:
        match file.file_format:
            case FileFormat.PARQUET:
                rows = pq.read_table(stream, columns=["file_path", "pos"], read_dictionary=["file_path"])
                paths = rows.column("file_path")
                return {path: rows.filter(pc.equal(paths, path)).column("pos") for path in paths.unique().to_pylist()}
            case FileFormat.PUFFIN:
                vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
                return {one.referenced_data_file: one.to_vector() for one in vectors}
    raise ValueError(f"Delete file format not supported: {file.file_format}")


def read_position_deletes(io: FileIO, tasks: Iterable[FileScanTask]) -> dict[str, list[pa.ChunkedArray]]:
    """The deleted positions of the tasks' data files, by the path of the data file as its task spells it.

    Engines spell one location differently, such as `file:/x` and `file:///x`, so paths are compared in one spelling.
    """
    tasks = list(tasks)
    files = {delete_file.file_path: delete_file for task in tasks for delete_file in task.delete_files}
    by_location: dict[str, list[pa.ChunkedArray]] = {}
    for delete_file in files.values():
        for path, positions in positions_in(io, delete_file).items():
            by_location.setdefault(canonical_uri(path), []).append(positions)
    return {
        task.file.file_path: by_location[location]
        for task in tasks
        if (location := canonical_uri(task.file.file_path)) in by_location
    }
