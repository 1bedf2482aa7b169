"""Updates applied to table metadata, one after the other: PyIceberg's own code, without a copy of all the metadata.

What PyIceberg lacks: format version 3, and `format-version` among properties, which upgrades as in Iceberg for Java.
PyIceberg would keep it as a property that nothing reads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple

from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV3
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.extended_pyiceberg import readable_numbers
from trinitylake.iceberg_storage.extended_pyiceberg.row_ids import ROW_IDS_SINCE, fits
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import check_schema, indexed, upgraded

_FORMAT_VERSIONS = ("1", "2", "3")


class MetadataBuilder:
    """Applies updates one by one. `metadata` is the result so far; nothing that was handed out changes."""

    def __init__(self, base: TableMetadata) -> None:
        self.base = base
        self.metadata = base
        self._context = _TableMetadataUpdateContext()

    def apply(self, update: TableUpdate) -> None:
        """Apply one update. Raises `ValueError` if it does not fit, which `InvalidArgument` is, too."""
        if isinstance(update, SetPropertiesUpdate) and TableProperties.FORMAT_VERSION in update.updates:
            properties = dict(update.updates)
            self.apply(_upgrade_to(properties.pop(TableProperties.FORMAT_VERSION), self.metadata.format_version))
            update = SetPropertiesUpdate(updates=properties)
        if isinstance(update, UpgradeFormatVersionUpdate) and update.format_version == ROW_IDS_SINCE:
            self.metadata = upgraded(self.metadata)
            return
        if isinstance(update, RemoveSnapshotsUpdate):  # some may be gone by themselves (`kept_snapshots.py`)
            present = {one.snapshot_id for one in self.metadata.snapshots}
            update = RemoveSnapshotsUpdate.model_validate(
                {"snapshot-ids": [id for id in update.snapshot_ids if id in present]}
            )
            if not update.snapshot_ids:
                return
        if isinstance(
            update, RemovePropertiesUpdate
        ):  # somebody else may have removed some, or a client names one twice
            there = [name for name in dict.fromkeys(update.removals) if name in self.metadata.properties]
            if not there:
                return
            update = RemovePropertiesUpdate(removals=there)
        match update:
            case AddSnapshotUpdate():
                _check_counted(update.snapshot, self.metadata)
            case AddSchemaUpdate():
                readable_numbers.check_schema(update.schema_)
            case AddPartitionSpecUpdate():
                readable_numbers.check_spec(update.spec)
            case AddSortOrderUpdate():
                readable_numbers.check_order(update.sort_order)
            case SetSnapshotRefUpdate():
                readable_numbers.check_ref(update)
        self.metadata = indexed(_apply_table_update(update, self.metadata, self._context))

    def build(self) -> TableMetadata:
        """The result, checked, with a time of its own. Raises PyIceberg's `ValidationError`."""
        result = self.metadata
        if result is self.base:
            return result
        if result.last_updated_ms <= self.base.last_updated_ms:
            result = result.model_copy(update={"last_updated_ms": later_than(self.base)})
        if result.schema() is not (self.base.schema() if self.base.schemas else None):
            check_schema(result)
        if not _has_same_columns(result, self.base):
            result.spec().check_compatible(result.schema())
            result.sort_order().check_compatible(result.schema())
        return result


def _has_same_columns(one: TableMetadata, other: TableMetadata) -> bool:
    """Whether nothing was done to columns, partitioning and order: then they fit each other as before."""
    return (
        one.schemas is other.schemas
        and one.partition_specs is other.partition_specs
        and one.sort_orders is other.sort_orders
        and one.current_schema_id == other.current_schema_id
        and one.default_spec_id == other.default_spec_id
        and one.default_sort_order_id == other.default_sort_order_id
    )


def _upgrade_to(version: str, present: int) -> UpgradeFormatVersionUpdate:
    """The update that the property `format-version` stands for. Raises `InvalidArgument` for what is no upgrade."""
    if version not in _FORMAT_VERSIONS or int(version) < present:
        raise InvalidArgument(
            f"the table has format version {present}, and the property format-version upgrades it, to one of "
            f"{', '.join(_FORMAT_VERSIONS)}; it cannot become {version[:100]!r}"
        )
    return UpgradeFormatVersionUpdate.model_validate({"format-version": int(version)})


class Applied(NamedTuple):
    """Metadata, the updates that were applied to it, and what came of it."""

    base: TableMetadata
    updates: tuple[TableUpdate, ...]
    result: TableMetadata


#: What the transaction that commits has applied already. Read in the same call stack, like `rows_read`.
applied: ContextVar[Applied | None] = ContextVar("trinitylake_applied", default=None)


def apply_updates(base: TableMetadata, updates: Sequence[TableUpdate]) -> TableMetadata:
    """`base` with all updates applied; shares with it what they leave alone."""
    known = applied.get()
    if known is not None and known.base is base and known.updates is updates:
        return known.result
    builder = MetadataBuilder(base)
    for update in updates:
        builder.apply(update)
    return builder.build()


class StaleSnapshot(ValueError):
    """A snapshot that was numbered by older metadata, as on another branch: its writer has to make it anew."""


def _check_counted(snapshot: Snapshot, metadata: TableMetadata) -> None:
    """Whether a snapshot follows the numbers of the metadata. Raises `StaleSnapshot`, and `ValueError` for none."""
    if isinstance(metadata, TableMetadataV1):
        return
    number, parent = snapshot.sequence_number, snapshot.parent_snapshot_id
    if parent is not None and (number or 0) <= metadata.last_sequence_number:
        raise StaleSnapshot(
            f"Cannot add snapshot with sequence number {number} older than last sequence number "
            f"{metadata.last_sequence_number}"
        )
    if not isinstance(metadata, TableMetadataV3):
        return
    if snapshot.first_row_id is not None and not fits(snapshot, metadata):
        raise StaleSnapshot(
            f"Cannot add a snapshot with first row id smaller than the table's next-row-id "
            f"{snapshot.first_row_id} < {metadata.next_row_id}"
        )
    if snapshot.added_rows is None or snapshot.added_rows < 0:
        raise ValueError("Cannot add snapshot without added rows: next-row-id is counted by them")


def later_than(metadata: TableMetadata) -> int:
    """The present in milliseconds since the epoch, but never before the last update of `metadata`."""
    return max(time.time_ns() // 1_000_000, metadata.last_updated_ms)
