"""Ids of rows, which tables of format version 3 have (Iceberg's specification, "Row Lineage").

A file that is added has no ids of its own. The commit gives each manifest of data the first of a range that begins at
the `next-row-id` of the metadata, and readers derive those of files and rows from it. So new rows get their ids from
the metadata that they are committed to, and an append that is redone on newer metadata gets others.

Records of manifests and of data files have the fields of version 3 here (`manifest.py` reads them
so). PyIceberg, which writes none of that version, makes shorter ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

#: The first format version whose rows have ids.
ROW_IDS_SINCE = 3

_IN_MANIFEST = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[3].fields].index("first_row_id")
_FILE_FIELDS = [field.name for field in DATA_FILE_TYPE[3].fields]
_IN_FILE = _FILE_FIELDS.index("first_row_id")
_REFERENCED_DATA_FILE = _FILE_FIELDS.index("referenced_data_file")
_CONTENT_OFFSET = _FILE_FIELDS.index("content_offset")
_CONTENT_SIZE_BYTES = _FILE_FIELDS.index("content_size_in_bytes")

AnyRecord = TypeVar("AnyRecord", bound=Record)


def next_row_id_of(metadata: TableMetadata) -> int | None:
    """The first id that no row of a table has had; None if its rows have none."""
    return metadata.next_row_id or 0 if isinstance(metadata, TableMetadataV3) else None


def first_row_id_of_manifest(manifest: ManifestFile) -> int | None:
    """The id that the first file without one gets; None if its files have none."""
    first: int | None = _value(manifest, _IN_MANIFEST)
    return first


def first_row_id_of_file(file: DataFile) -> int | None:
    """The id of the first row of a data file, as `inherit` left it; None if its rows have none."""
    first: int | None = _value(file, _IN_FILE)
    return first


def referenced_data_file(file: DataFile) -> str | None:
    """The URI of the only data file that a file of deleted rows is about; None if it may be about any."""
    value: str | None = _value(file, _REFERENCED_DATA_FILE)
    return value


def blob_of(file: DataFile) -> tuple[int, int] | None:
    """Where a deletion vector lies in its Puffin file: offset and length in bytes; None for any other file."""
    offset, size_bytes = _value(file, _CONTENT_OFFSET), _value(file, _CONTENT_SIZE_BYTES)
    return None if offset is None or size_bytes is None else (offset, size_bytes)


def assigned(manifests: Iterable[ManifestFile], next_row_id: int) -> tuple[tuple[ManifestFile, ...], int]:
    """The manifests of a new snapshot, those of data with a first row id each; and the next id that is free.

    A manifest keeps what it has. Existing files may lack ids in a table that had an older format version, so room is
    left for theirs.
    """
    result = []
    for manifest in manifests:
        is_new = manifest.content == ManifestContent.DATA and first_row_id_of_manifest(manifest) is None
        if is_new or len(manifest) <= _IN_MANIFEST:
            manifest = with_fields(manifest, len(MANIFEST_LIST_FILE_SCHEMAS[3].fields))
        if is_new:
            manifest[_IN_MANIFEST] = next_row_id
            next_row_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        result.append(manifest)
    return tuple(result), next_row_id


def inherit(entries: Sequence[ManifestEntry], manifest: ManifestFile) -> None:
    """Give the files of all entries of a manifest, in their order, the row ids that they inherit from it."""
    next_row_id = first_row_id_of_manifest(manifest)
    for entry in entries:
        file = entry.data_file
        if next_row_id is None:  # of a snapshot that is older than the ids of the table
            file[_IN_FILE] = None
        elif entry.status != ManifestEntryStatus.DELETED and first_row_id_of_file(file) is None:
            file[_IN_FILE] = next_row_id
            next_row_id += file.record_count


def as_new(file: DataFile) -> DataFile:
    """A copy of a file as one that is to be added: its rows get their ids from the commit."""
    copy = with_fields(file, len(_FILE_FIELDS))
    copy[_IN_FILE] = None
    if hasattr(file, "_spec_id"):
        copy.spec_id = file.spec_id
    return copy


def with_fields(record: AnyRecord, fields: int) -> AnyRecord:
    """A copy of a record with at least so many fields; those that it lacks are null."""
    return type(record)(*record._data, *[None] * (fields - len(record)))


def fits(snapshot: Snapshot, metadata: TableMetadata) -> bool:
    """Whether a snapshot can be committed to metadata as it is: its row ids are new, if rows there have any."""
    following = next_row_id_of(metadata)
    return following is None or (snapshot.first_row_id is not None and snapshot.first_row_id >= following)


def is_later(file: DataFile, metadata: TableMetadata) -> bool:
    """Whether the rows of a file got their ids by a snapshot that some metadata does not have yet."""
    first = first_row_id_of_file(file)
    return first is not None and first >= (next_row_id_of(metadata) or 0)


def _value(record: Record, position: int) -> Any:
    return record[position] if len(record) > position else None
