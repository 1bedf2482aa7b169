"""Row ids of format version 3 (Iceberg's specification, "Row Lineage").

A new data file stores no row ids. The commit assigns a range of ids to each data manifest, beginning at the
`next-row-id` of the metadata, and readers compute the ids of files and rows from the first id of the manifest. So the
ids of new rows depend on the metadata that the commit is based on, and change when an append is rebased.

In this library, records of manifests and data files have the fields of format version 3 (`manifest_file.py`). Records
that PyIceberg made have fewer fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

AnyRecord = TypeVar("AnyRecord", bound=Record)


def next_row_id_of(metadata: TableMetadata) -> int | None:
    """The first row id that was never assigned in a table; None before format version 3."""
    return metadata.next_row_id or 0 if isinstance(metadata, TableMetadataV3) else None


def first_row_id_of_manifest(manifest: ManifestFile) -> int | None:
    """The first row id of a manifest, for its first file without an own row id; None without row ids."""
    first: int | None = _value(manifest, _IN_MANIFEST)
    return first


def with_first_row_id(manifest: ManifestFile, of: ManifestFile) -> ManifestFile:
    manifest[_IN_MANIFEST] = first_row_id_of_manifest(of)
    return manifest


def first_row_id_of_file(file: DataFile) -> int | None:
    """The id of the first row of a data file, as `inherit_row_ids` set it; None without row ids."""
    first: int | None = _value(file, _IN_FILE)
    return first


def assigned(manifests: Iterable[ManifestFile], next_row_id: int) -> tuple[tuple[ManifestFile, ...], int]:
    """The manifests of a new snapshot with a first row id for each data manifest, and the next free id.

    A manifest keeps its first row id. The range of a manifest without one includes the rows of existing files, which
    may lack ids after an upgrade of the table.
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


def inherit_row_ids(entries: Sequence[ManifestEntry], manifest: ManifestFile) -> None:
    """Set the row ids that files inherit from a manifest. `entries` are all of its entries, in order."""
    next_row_id = first_row_id_of_manifest(manifest)
    for entry in entries:
        file = entry.data_file
        if next_row_id is None:  # the manifest was written before the upgrade to version 3
            file[_IN_FILE] = None
        elif entry.status != ManifestEntryStatus.DELETED and first_row_id_of_file(file) is None:
            file[_IN_FILE] = next_row_id
            next_row_id += file.record_count


def as_new(file: DataFile) -> DataFile:
    """A copy of a file for an entry with status "added", whose rows get their ids from the commit."""
    copy = with_fields(file, len(_FILE_FIELDS))
    copy[_IN_FILE] = None
    copy.spec_id = file.spec_id
    return copy


def with_values(file: DataFile, fields: Mapping[str, Any]) -> DataFile:
    """A copy of a file with other values of some fields, by their names in the specification."""
    copy = with_fields(file, len(_FILE_FIELDS))
    for name, value in fields.items():
        copy[_FILE_FIELDS.index(name)] = value
    copy.spec_id = file.spec_id
    return copy


def with_fields(record: AnyRecord, fields: int) -> AnyRecord:
    """A copy of a record with at least `fields` fields. Added fields are null."""
    return type(record)(*(record[position] for position in range(len(record))), *[None] * (fields - len(record)))


def fits(snapshot: Snapshot, metadata: TableMetadata) -> bool:
    """Whether the first row id of a new snapshot is the `next-row-id` of the metadata, so that it can be committed.

    A commit increases `next-row-id` by the number of added rows. With a higher first row id, later rows would get the
    same ids.
    """
    return next_row_id_of(metadata) in (None, snapshot.first_row_id)


def is_later(file: DataFile, metadata: TableMetadata) -> bool:
    """Whether the row ids of a file were assigned after some metadata was written."""
    first = first_row_id_of_file(file)
    return first is not None and first >= (next_row_id_of(metadata) or 0)


def _value(record: Record, position: int) -> Any:
    return record[position] if len(record) > position else None
