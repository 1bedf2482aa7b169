"""Position deletes: the positions of deleted rows of data files.

Format version 2 stores them in Parquet files, version 3 in deletion vectors. A Puffin file may have the deletion
vectors of several data files, and a data file has at most one vector. The writer makes one delete file, or vector, per
data file, which includes the positions of the delete file that it replaces.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, InputStream, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import TableVersion
from pyiceberg.types import LongType, StringType
from pyroaring import BitMap64

from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet, reading
from trinitylake.iceberg_storage.delete_files import (
    FILE_PATH_ID,
    POSITION_ID,
    blob_of,
    file_key,
    of_one_data_file,
    referenced_data_file,
)
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri
from trinitylake.iceberg_storage.puffin import Blob, data_files_of, puffin_file

#: The first bytes of a vector in a blob, after its length.
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
#: The field id of row positions, to which deletion vectors apply.
_ROW_POSITION_ID = 2147483645
#: The first format version with deletion vectors.
_VECTORS_SINCE: TableVersion = 3
_PARQUET_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(FILE_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION_ID)}),
    ],
    {"delete-type": "position"},
)


def is_merge_on_read(metadata: TableMetadata, statement: str) -> bool:
    """Whether a statement writes delete files instead of rewriting data files, by the properties of the table.

    The properties for MERGE apply to an upsert, those for DELETE to an overwrite.
    """
    name = {"update": "update", "merge": "merge", "upsert": "merge"}.get(statement, "delete")
    mode = metadata.properties.get(f"write.{name}.mode", "copy-on-write").lower()
    return metadata.format_version > 1 and mode == "merge-on-read"


def can_lose_rows(file: DataFile) -> bool:
    """Whether a data file can get position deletes: only Parquet files can, because the reader knows the positions of
    rows only in these.
    """
    return bool(file.file_format == FileFormat.PARQUET)


def positions_in(io: FileIO, file: DataFile, footers: dict[str, dict[int, str]] | None = None) -> dict[str, np.ndarray]:
    """The deleted positions in a delete file, by the path of the data file as the delete file spells it.

    Args:
        footers: cache of the footers of Puffin files by path. A footer has the data files of the vectors by offset.
            This function adds the footer of `file`.

    Raises:
        CorruptFile: the file is damaged, or its manifest has another data file or number of positions.
        ValueError: the format is neither Parquet nor Puffin.
    """
    path, blob = referenced_data_file(file), blob_of(file)
    with io.new_input(file.file_path).open() as stream:
        if file.file_format == FileFormat.PARQUET:
            with reading(file.file_path, has_known_types=True):
                parquet = open_parquet(stream, read_dictionary=["file_path"])
                rows = parquet.read(columns=["file_path", "pos"])
            has_columns = {"file_path", "pos"} <= set(rows.column_names)
            paths = rows.column("file_path").unique().to_pylist() if has_columns else []
            is_of_others = path is not None and any(canonical_uri(one) != canonical_uri(path) for one in paths)
            if not has_columns or rows.num_rows != file.record_count or is_of_others:
                raise CorruptFile(f"the position deletes in {file.file_path} are damaged", path=file.file_path)
            return {one: rows.filter(pc.equal(rows["file_path"], one))["pos"].to_numpy() for one in paths}
        if file.file_format != FileFormat.PUFFIN or path is None or blob is None:
            raise ValueError(f"Delete file format not supported: {file.file_format}")
        footers = {} if footers is None else footers
        if file.file_path not in footers:
            footers[file.file_path] = _data_files_of(stream, file)
        if canonical_uri(footers[file.file_path].get(blob[0], path)) != canonical_uri(path):
            raise CorruptFile(f"the deletion vectors in {file.file_path} are not of {path}", path=file.file_path)
        stream.seek(blob[0])
        return {path: _positions_of_vector(stream.read(blob[1]), file)}


def _data_files_of(stream: InputStream, file: DataFile) -> dict[int, str]:
    try:
        return data_files_of(stream, file.file_size_in_bytes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"the deletion vectors in {file.file_path}: {error}", path=file.file_path) from error


def _positions_of_vector(blob: bytes, file: DataFile) -> np.ndarray:
    """The positions in a blob, which has four parts: length of magic and bitmap, magic, bitmap, and their checksum."""
    content, checksum = blob[4:-4], blob[-4:]
    is_whole = len(blob) >= 12 and int.from_bytes(blob[:4], "big") == len(content) and content[:4] == _VECTOR_MAGIC
    with suppress(ValueError):
        if is_whole and zlib.crc32(content) == int.from_bytes(checksum, "big"):
            bitmap = BitMap64.deserialize(content[4:])
            if len(bitmap) == file.record_count:  # before it is expanded: few bytes can encode billions
                return np.array(bitmap.to_array()).astype(np.int64)
    raise CorruptFile(
        f"the deletion vector of {referenced_data_file(file)} in {file.file_path} is damaged", path=file.file_path
    )


def read_position_deletes(io: FileIO, tasks: Iterable[FileScanTask]) -> dict[str, np.ndarray]:
    """The deleted positions of the tasks' data files, ascending, by the path of the data file as its task spells it.

    Engines spell the same location differently, such as `file:/x` and `file:///x`, so canonical locations are compared.
    """
    tasks = list(tasks)
    files = {
        file_key(delete_file): delete_file
        for task in tasks
        for delete_file in task.delete_files
        if delete_file.content == DataFileContent.POSITION_DELETES
    }
    if isinstance(io, LakehouseFileIO):
        # Also fetches equality deletes, which are read after this (`equality_deletes.py`).
        every = {file.file_path: file.file_size_in_bytes for task in tasks for file in task.delete_files}
        io.read_ahead(every.items())
    by_location = positions_by_location(io, files.values())
    return {
        task.file.file_path: by_location[location]
        for task in tasks
        if (location := canonical_uri(task.file.file_path)) in by_location
    }


def positions_by_location(io: FileIO, deletes: Iterable[DataFile]) -> dict[str, np.ndarray]:
    """The positions in files of position deletes, ascending, by the canonical location of the data file."""
    found: dict[str, list[np.ndarray]] = {}
    footers: dict[str, dict[int, str]] = {}
    for file in deletes:
        for path, positions in positions_in(io, file, footers).items():
            found.setdefault(canonical_uri(path), []).append(positions)
    return {location: _ascending(parts) for location, parts in found.items()}


def _ascending(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sorted positions of all parts without duplicates. A well-formed delete file is already sorted."""
    positions = np.concatenate(parts)
    return positions if (positions[1:] > positions[:-1]).all() else np.unique(positions)


@dataclass
class RowDeletes:
    """Collects rows to delete by position, and files to remove because all of their rows are deleted.

    Attributes:
        deletes: the positions that earlier snapshots deleted, by the path of the data file.
        removed: data files without remaining rows, and delete files that are replaced or obsolete.
    """

    deletes: Mapping[str, np.ndarray]
    removed: list[DataFile] = field(default_factory=list)
    _positions: list[tuple[DataFile, np.ndarray]] = field(default_factory=list)

    def remove(self, task: FileScanTask) -> None:
        """Remove a data file, and the delete files that apply only to it."""
        self.removed += [task.file, *of_one_data_file(task.delete_files)]

    def delete(self, task: FileScanTask, positions: np.ndarray) -> None:
        known = self.deletes.get(task.file.file_path, positions[:0])
        self._positions.append((task.file, np.union1d(known, positions)))
        self.removed += of_one_data_file(task.delete_files)

    def write(self, metadata: TableMetadata, io: FileIO) -> list[DataFile]:
        """Write the delete files. Returns their manifest entries."""
        return write_position_deletes(metadata, io, self._positions)


def write_position_deletes(
    metadata: TableMetadata, io: FileIO, deleted: Sequence[tuple[DataFile, np.ndarray]]
) -> list[DataFile]:
    """Write one delete file for each data file in `deleted`, with all of its deleted positions, in ascending order."""
    if metadata.format_version >= _VECTORS_SINCE:
        return _write_vectors(metadata, io, deleted) if deleted else []
    return [write_position_file(metadata, io, file, {file.file_path: positions}) for file, positions in deleted]


def _write_vectors(
    metadata: TableMetadata, io: FileIO, deleted: Sequence[tuple[DataFile, np.ndarray]]
) -> list[DataFile]:
    blobs = []
    for file, positions in deleted:
        bitmap = BitMap64(positions.astype(np.uint64))
        bitmap.run_optimize()
        content = _VECTOR_MAGIC + bitmap.serialize()
        blob = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
        properties = {"referenced-data-file": file.file_path, "cardinality": str(len(positions))}
        blobs.append(Blob("deletion-vector-v1", [_ROW_POSITION_ID], blob, properties))
    content, offsets = puffin_file(blobs)
    output = _new_output(metadata, io, "puffin")
    with output.create(overwrite=True) as stream:
        stream.write(content)
    return [
        _delete_file(
            file,
            len(positions),
            file_path=output.location,
            file_format=FileFormat.PUFFIN,
            file_size_in_bytes=len(content),
            referenced_data_file=file.file_path,
            content_offset=offset,
            content_size_in_bytes=len(blob.content),
        )
        for (file, positions), blob, offset in zip(deleted, blobs, offsets, strict=True)
    ]


def write_position_file(
    metadata: TableMetadata, io: FileIO, of: DataFile, deleted: Mapping[str, np.ndarray]
) -> DataFile:
    """Write a delete file in Parquet. `deleted` has the positions by the path of the data file, in ascending order.

    The delete file gets the partition of `of`, which is one of the data files or a delete file that applies to them.
    """
    paths = pa.concat_arrays([pa.repeat(path, len(positions)) for path, positions in deleted.items()])
    positions = np.concatenate(list(deleted.values()))
    rows = pa.table([paths, pa.array(positions)], schema=_PARQUET_SCHEMA)
    output = _new_output(metadata, io, "parquet")
    with output.create(overwrite=True) as stream:
        encoding = {"pos": "DELTA_BINARY_PACKED"}
        pq.write_table(
            rows,
            stream,
            compression="zstd",
            use_dictionary=["file_path"],
            column_encoding=encoding,
            write_page_checksum=True,
        )
    bounds = [
        {FILE_PATH_ID: to_bytes(StringType(), path), POSITION_ID: to_bytes(LongType(), int(position))}
        for path, position in ((min(deleted), positions.min()), (max(deleted), positions.max()))
    ]
    return _delete_file(
        of,
        len(positions),
        file_path=output.location,
        file_format=FileFormat.PARQUET,
        file_size_in_bytes=len(output),
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
    )


def _new_output(metadata: TableMetadata, io: FileIO, ending: str) -> OutputFile:
    provider = load_location_provider(metadata.location, metadata.properties)
    return io.new_output(provider.new_data_location(f"{uuid.uuid4()}-deletes.{ending}"))


def _delete_file(of: DataFile, count: int, **fields: Any) -> DataFile:
    file = DataFile.from_args(
        _table_format_version=_VECTORS_SINCE,
        content=DataFileContent.POSITION_DELETES,
        partition=of.partition,
        record_count=count,
        **fields,
    )
    file.spec_id = of.spec_id
    return file
