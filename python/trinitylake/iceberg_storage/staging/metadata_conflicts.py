"""Conflict check of metadata updates: a staged update is valid if no other commit changed the same field."""

from __future__ import annotations

from collections.abc import Container

from pyiceberg.table import update as iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import is_ancestor_of

from trinitylake.iceberg_storage.errors import TableConflict

#: Iceberg's requirement for each kind of update, and the metadata field that the requirement compares.
_ASSERTED: dict[type, tuple[str, str]] = {
    iceberg.AddSchemaUpdate: ("assert-last-assigned-field-id", "last_column_id"),
    iceberg.SetCurrentSchemaUpdate: ("assert-current-schema-id", "current_schema_id"),
    iceberg.AddPartitionSpecUpdate: ("assert-last-assigned-partition-id", "last_partition_id"),
    iceberg.SetDefaultSpecUpdate: ("assert-default-spec-id", "default_spec_id"),
    iceberg.AddSortOrderUpdate: ("assert-default-sort-order-id", "default_sort_order_id"),
    iceberg.SetDefaultSortOrderUpdate: ("assert-default-sort-order-id", "default_sort_order_id"),
}


def check_unchanged(
    update: iceberg.TableUpdate, ours: TableMetadata, theirs: TableMetadata, redone: Container[int]
) -> None:
    """Raise `TableConflict` if another commit changed the same field since the update was staged.

    The update was staged on the metadata `ours`, and `theirs` is the newer metadata. `redone` are the ids of this
    transaction's snapshots that were already rebased, so that they have another parent in `theirs`.
    """
    match update:
        case iceberg.SetPropertiesUpdate():
            for name, value in update.updates.items():
                if theirs.properties.get(name) not in (ours.properties.get(name), value):
                    raise TableConflict(f"set-properties: property {name!r} was changed by both")
        case iceberg.RemovePropertiesUpdate():
            for name in update.removals:
                if theirs.properties.get(name) != ours.properties.get(name):
                    raise TableConflict(f"remove-properties: property {name!r} was changed by both")
        case iceberg.SetSnapshotRefUpdate() | iceberg.RemoveSnapshotRefUpdate():
            if ref_id(update.ref_name, ours) != ref_id(update.ref_name, theirs) and not (
                # The branch moves to a rebased snapshot.
                isinstance(update, iceberg.SetSnapshotRefUpdate)
                and update.snapshot_id in redone
                and _is_ahead(update.snapshot_id, update.ref_name, theirs)
            ):
                raise TableConflict(
                    f"assert-ref-snapshot-id: {update.ref_name} moved from snapshot {ref_id(update.ref_name, ours)} "
                    f"to {ref_id(update.ref_name, theirs)}"
                )
        case iceberg.RemoveSnapshotsUpdate():
            kept = {ref.snapshot_id for ref in theirs.refs.values()} - {ref.snapshot_id for ref in ours.refs.values()}
            if needed := kept & set(update.snapshot_ids):
                raise TableConflict(f"assert-ref-snapshot-id: snapshot {min(needed)} was given a branch or tag")
    if (asserted := _ASSERTED.get(type(update))) is not None:
        requirement, name = asserted
        expected, found = getattr(ours, name), getattr(theirs, name)
        if expected != found:
            raise TableConflict(f"{requirement}: expected {expected}, found {found}")


def ref_id(name: str, metadata: TableMetadata) -> int | None:
    """The snapshot that a branch or tag points to; None if there is no such reference."""
    ref = metadata.refs.get(name)
    return ref.snapshot_id if ref is not None else None


def _is_ahead(snapshot_id: int, branch: str, metadata: TableMetadata) -> bool:
    head = ref_id(branch, metadata)
    return head is not None and is_ancestor_of(snapshot_id, head, metadata)
