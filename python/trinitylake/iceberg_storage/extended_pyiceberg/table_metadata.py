"""Table metadata with what PyIceberg's own lacks: an index of snapshots, and the writing of format version 3."""

from __future__ import annotations

from operator import is_
from typing import Any

from pyiceberg.table.metadata import TableMetadata, TableMetadataV2, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import IcebergBaseModel

from trinitylake.iceberg_storage.extended_pyiceberg import variant

__all__ = ["INITIAL_ROW_ID", "IndexedMetadata", "IndexedMetadataV3", "indexed", "upgraded", "variant"]

#: The next row id of a table that has no rows with ids.
INITIAL_ROW_ID = 0


class _SnapshotIndex:
    """Finds a snapshot by its id without walking through all of them.

    The index is made for a list of snapshots when it is first needed, and never changed.
    """

    snapshots: list[Snapshot]

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        """The snapshot with that id, or None."""
        snapshots = self.snapshots
        index: tuple[list[Snapshot], dict[int, Snapshot]] = self.__dict__.get("_index") or ([], {})
        if index[0] is not snapshots:
            # Copied from the version before, whose list this one mostly extends.
            known, by_id = index
            grown = len(known) <= len(snapshots) and all(map(is_, known, snapshots))
            by_id = dict(by_id) if grown else {}
            by_id.update((snapshot.snapshot_id, snapshot) for snapshot in snapshots[len(known) if grown else 0 :])
            self.__dict__["_index"] = index = (snapshots, by_id)
        return index[1].get(snapshot_id)


class IndexedMetadata(_SnapshotIndex, TableMetadataV2):
    """Metadata of format version 2."""


class IndexedMetadataV3(_SnapshotIndex, TableMetadataV3):
    """Metadata of format version 3, which PyIceberg reads and does not write."""

    def model_dump_json(  # type: ignore[override]
        self, exclude_none: bool = True, exclude: set[str] | None = None, by_alias: bool = True, **kwargs: Any
    ) -> str:
        """As for the versions before."""
        return IcebergBaseModel.model_dump_json(self, exclude_none, exclude, by_alias, **kwargs)


def indexed(metadata: TableMetadata) -> TableMetadata:
    """The same metadata with fast access to snapshots, as far as its format version allows."""
    if type(metadata) is TableMetadataV2:
        return IndexedMetadata.model_construct(metadata.model_fields_set, **metadata.__dict__)
    if type(metadata) is TableMetadataV3:
        metadata = IndexedMetadataV3.model_construct(metadata.model_fields_set, **metadata.__dict__)
        if metadata.next_row_id is None and not metadata.snapshots:  # PyIceberg leaves it out of a new table
            metadata = metadata.model_copy(update={"next_row_id": INITIAL_ROW_ID})
    return metadata


def upgraded(metadata: TableMetadata) -> TableMetadata:
    """The same metadata in format version 3: its snapshots stay without row ids, the next one gives some to all rows.

    Raises `ValueError` for metadata of a version that is not 1, 2 or 3.
    """
    if metadata.format_version not in (1, 2, 3):
        raise ValueError(f"format version {metadata.format_version} cannot be upgraded to 3")
    if metadata.format_version == 3:
        return metadata
    values = {name: metadata.__dict__[name] for name in TableMetadataV3.model_fields if name in metadata.__dict__}
    values |= {"format_version": 3, "next_row_id": INITIAL_ROW_ID}
    values.setdefault("last_sequence_number", 0)  # of version 1, whose snapshots have none
    return IndexedMetadataV3.model_construct(**values)
