"""Redoing staged changes on metadata that somebody else committed meanwhile.

Iceberg's own requirements decide. An append needs no more than its branch: it is redone with the same data files,
new manifest and manifest list, on the newer head. Everything that depends on rows it found (overwrite, delete,
upsert) holds only if its branch did not move. Changes of schema, spec, sort order, references and properties hold
if nobody changed the same thing.

The order of the staged changes is kept; if one of them does not hold, none is redone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException, ValidationError, ValidationException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from trinitylake.iceberg.append import AppendFiles
from trinitylake.iceberg.manifest import manifest_lists, read_entries
from trinitylake.iceberg.metadata import MetadataBuilder, later_than
from trinitylake.iceberg.transaction import StagedIcebergTable


class TableConflict(Exception):
    """Staged changes do not hold on the newer metadata. `requirement` says which of Iceberg's requirements broke."""

    def __init__(self, requirement: str) -> None:
        super().__init__(requirement)
        self.requirement = requirement


class RowConflict(TableConflict):
    """New rows do not fit the newer schema, and would not on any later try: they have to be written anew."""


@dataclass(frozen=True)
class StagedCommit:
    """One commit to a staged table, as it was accepted.

    Attributes:
        requirements: what it asked of the metadata before it.
        updates: what it changed.
        depends_on: the operation whose result depends on the rows it found, such as "upsert"; else "".
    """

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    depends_on: str = ""


@dataclass
class Rebase:
    """Redoes `commits`, staged on `base`, on `newer`.

    Args:
        table: the staged table, for its file access and for what it knows of its own appends.

    Attributes:
        metadata: the result.
        rebuilt: the commits as they now are.
        replaced: URIs of manifest lists that nothing refers to any more.
    """

    table: StagedIcebergTable
    base: TableMetadata
    newer: TableMetadata
    commits: Sequence[StagedCommit]
    rebuilt: list[StagedCommit] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    metadata: TableMetadata = field(init=False)

    def run(self) -> None:
        """Redo everything. Raises `TableConflict`, after which the object is of no use."""
        if self.base.table_uuid != self.newer.table_uuid:
            raise TableConflict(
                f"assert-table-uuid: the table was replaced, {self.base.table_uuid} is now {self.newer.table_uuid}"
            )
        ours, theirs = self.base, self.newer
        for commit in self.commits:
            ours, theirs = self._redo(commit, ours, theirs)
        self.metadata = theirs

    def _redo(
        self, commit: StagedCommit, ours: TableMetadata, theirs: TableMetadata
    ) -> tuple[TableMetadata, TableMetadata]:
        """Redo one commit. `ours` is what it was staged on, `theirs` is what it is redone on; returns both after it."""
        old, new = MetadataBuilder(ours), MetadataBuilder(theirs)
        redone_branches: set[str] = set()
        updates: list[TableUpdate] = []
        for update in commit.updates:
            replacement = update
            if isinstance(update, AddSnapshotUpdate):
                branch = _branch_of(update.snapshot, commit.updates)
                redone = self._redo_snapshot(update.snapshot, branch, commit, old.metadata, new.metadata)
                if redone.snapshot.manifest_list != update.snapshot.manifest_list and branch is not None:
                    redone_branches.add(branch)
                replacement = redone
            else:
                _check_unchanged(update, old.metadata, new.metadata)
            try:
                old.apply(update)
                new.apply(replacement)
            except (ValueError, KeyError) as error:
                raise TableConflict(f"{getattr(update, 'action', 'update')}: {error}") from error
            updates.append(replacement)
        requirements = tuple(
            _assert_ref(requirement.ref, theirs)
            if isinstance(requirement, AssertRefSnapshotId) and requirement.ref in redone_branches
            else requirement
            for requirement in commit.requirements
        )
        for requirement in requirements:
            try:
                requirement.validate(theirs)
            except CommitFailedException as error:
                raise TableConflict(f"{requirement.type}: {error}") from error
        try:
            result = old.build(), new.build()
        except (ValidationError, ValueError) as error:
            raise TableConflict(str(error)) from error
        self.rebuilt.append(StagedCommit(requirements, tuple(updates), commit.depends_on))
        return result

    def _redo_snapshot(
        self, snapshot: Snapshot, branch: str | None, commit: StagedCommit, ours: TableMetadata, theirs: TableMetadata
    ) -> AddSnapshotUpdate:
        written = ours.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
        if column := _newly_required(written or ours.schema(), theirs.schema()):
            raise RowConflict(f"assert-current-schema-id: column {column} is required now, and rows may lack it")
        head = theirs.snapshot_by_name(branch) if branch is not None else None
        head_id = head.snapshot_id if head is not None else None
        unmoved = branch is None or head_id == snapshot.parent_snapshot_id
        fresh = theirs.format_version == 1 or (snapshot.sequence_number or 0) > theirs.last_sequence_number
        if unmoved and fresh:
            return AddSnapshotUpdate(snapshot=_as_of(snapshot, theirs))
        if unmoved:
            moved = f"another branch was committed to, and sequence number {snapshot.sequence_number} is taken"
        else:
            moved = f"branch {branch} moved from snapshot {snapshot.parent_snapshot_id} to {head_id}"
        operation = snapshot.summary.operation if snapshot.summary is not None else None
        if commit.depends_on:
            raise TableConflict(f"assert-ref-snapshot-id: {moved}; {commit.depends_on} depends on the rows it found")
        if operation != Operation.APPEND:
            word = operation.value if operation is not None else "an unknown operation"
            raise TableConflict(f"assert-ref-snapshot-id: {moved}, and {word} removes files")
        return self._redo_append(snapshot, branch, theirs)

    def _redo_append(self, snapshot: Snapshot, branch: str | None, theirs: TableMetadata) -> AddSnapshotUpdate:
        known = self.table.added_files.get(snapshot.snapshot_id)
        files = self._files_added_by(snapshot) if known is None else known
        specs = theirs.specs()
        if gone := {file.spec_id for file in files} - specs.keys():
            raise TableConflict(f"assert-default-spec-id: partition spec {min(gone)} of the new files was removed")
        transaction = self.table.transaction_on(theirs)
        # A snapshot that no branch has yet, as write-audit-publish makes them, stays beside its parent.
        producer = AppendFiles(transaction, self.table.io, _own_properties(snapshot), branch, snapshot.snapshot_id)
        if branch is None:
            producer._parent_snapshot_id = snapshot.parent_snapshot_id
        for file in files:
            producer.append_data_file(file)
        try:
            (added, *_), _ = producer._commit()
        except (ValueError, ValidationException) as error:
            raise TableConflict(f"the append cannot be redone: {error}") from error
        assert isinstance(added, AddSnapshotUpdate)
        self.replaced.append(snapshot.manifest_list)
        return AddSnapshotUpdate(snapshot=_as_of(added.snapshot, theirs))

    def _files_added_by(self, snapshot: Snapshot) -> list[DataFile]:
        files = []
        for manifest in manifest_lists.read(self.table.io, snapshot.manifest_list):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            if manifest.content != ManifestContent.DATA:
                raise TableConflict("assert-ref-snapshot-id: the branch moved, and the snapshot adds delete files")
            for entry in read_entries(self.table.io, manifest, discard_deleted=False):
                own = entry.snapshot_id == snapshot.snapshot_id
                if own and entry.status == ManifestEntryStatus.DELETED:
                    raise TableConflict("assert-ref-snapshot-id: the branch moved, and the snapshot removes files")
                if own and entry.status == ManifestEntryStatus.ADDED:
                    files.append(entry.data_file)
        return files


def _branch_of(snapshot: Snapshot, updates: Sequence[TableUpdate]) -> str | None:
    """The branch that the same commit points to the snapshot; None for one that no branch has yet.

    Of a chain of snapshots on one branch, PyIceberg points it to each in turn, an engine may point it to the last.
    """
    ids = [update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)]
    later = set(ids[ids.index(snapshot.snapshot_id) :])
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and update.type == "branch" and update.snapshot_id in later:
            return update.ref_name
    return None


def _as_of(snapshot: Snapshot, metadata: TableMetadata) -> Snapshot:
    """The snapshot as one that follows `metadata`: under its current schema, and not before its last update."""
    update: dict[str, int] = {}
    if snapshot.timestamp_ms < metadata.last_updated_ms:
        update["timestamp_ms"] = later_than(metadata)
    if snapshot.schema_id is not None and snapshot.schema_id != metadata.current_schema_id:
        update["schema_id"] = metadata.current_schema_id
    return snapshot.model_copy(update=update) if update else snapshot


def _check_unchanged(update: TableUpdate, ours: TableMetadata, theirs: TableMetadata) -> None:
    """Refuse an update of something that the newer metadata has otherwise than the one it was staged on."""
    match update:
        case SetPropertiesUpdate():
            for name, value in update.updates.items():
                if theirs.properties.get(name) not in (ours.properties.get(name), value):
                    raise TableConflict(f"set-properties: property {name!r} was changed by both")
        case RemovePropertiesUpdate():
            for name in update.removals:
                if theirs.properties.get(name) != ours.properties.get(name):
                    raise TableConflict(f"remove-properties: property {name!r} was changed by both")
        case SetSnapshotRefUpdate() | RemoveSnapshotRefUpdate():
            if _ref_id(update.ref_name, ours) != _ref_id(update.ref_name, theirs) and not (
                # The head of a branch whose snapshots were redone: the same ids on another parent.
                isinstance(update, SetSnapshotRefUpdate) and _is_tip(update.snapshot_id, update.ref_name, theirs)
            ):
                raise TableConflict(
                    f"assert-ref-snapshot-id: {update.ref_name} moved from snapshot {_ref_id(update.ref_name, ours)} "
                    f"to {_ref_id(update.ref_name, theirs)}"
                )
        case RemoveSnapshotsUpdate():
            kept = {ref.snapshot_id for ref in theirs.refs.values()} - {ref.snapshot_id for ref in ours.refs.values()}
            if needed := kept & set(update.snapshot_ids):
                raise TableConflict(f"assert-ref-snapshot-id: snapshot {min(needed)} was given a branch or tag")
        case AddSchemaUpdate():
            if ours.last_column_id != theirs.last_column_id:
                raise TableConflict(
                    f"assert-last-assigned-field-id: expected {ours.last_column_id}, found {theirs.last_column_id}"
                )
            if theirs.schema_by_id(update.schema_.schema_id) is not None:
                raise TableConflict(f"assert-current-schema-id: schema {update.schema_.schema_id} was added meanwhile")
        case SetCurrentSchemaUpdate() if ours.current_schema_id != theirs.current_schema_id:
            raise TableConflict(
                f"assert-current-schema-id: expected {ours.current_schema_id}, found {theirs.current_schema_id}"
            )
        case AddPartitionSpecUpdate() if ours.last_partition_id != theirs.last_partition_id:
            raise TableConflict(
                f"assert-last-assigned-partition-id: expected {ours.last_partition_id}, "
                f"found {theirs.last_partition_id}"
            )
        case SetDefaultSpecUpdate() if ours.default_spec_id != theirs.default_spec_id:
            raise TableConflict(
                f"assert-default-spec-id: expected {ours.default_spec_id}, found {theirs.default_spec_id}"
            )
        case AddSortOrderUpdate() | SetDefaultSortOrderUpdate() if (
            ours.default_sort_order_id != theirs.default_sort_order_id
        ):
            raise TableConflict(
                f"assert-default-sort-order-id: expected {ours.default_sort_order_id}, "
                f"found {theirs.default_sort_order_id}"
            )


def _ref_id(name: str, metadata: TableMetadata) -> int | None:
    ref = metadata.refs.get(name)
    return ref.snapshot_id if ref is not None else None


def _is_tip(snapshot_id: int, branch: str, metadata: TableMetadata) -> bool:
    """Whether a snapshot directly follows the head of a branch."""
    snapshot = metadata.snapshot_by_id(snapshot_id)
    return snapshot is not None and snapshot.parent_snapshot_id == _ref_id(branch, metadata)


def _assert_ref(name: str, metadata: TableMetadata) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": _ref_id(name, metadata)})


def _newly_required(written: Schema, current: Schema) -> str | None:
    """A column that rows of `written` may lack, but `current` requires."""
    if written is current or written.schema_id == current.schema_id:
        return None
    before = {id: field for id, field in _fields(written)}
    for id, now in _fields(current):
        then = before.get(id)
        if now.required and (then is None or not then.required):  # type: ignore[attr-defined]
            return current.find_column_name(id)
    return None


def _fields(schema: Schema) -> list[tuple[int, object]]:
    return [(id, schema.find_field(id)) for id in schema.field_ids]


def _own_properties(snapshot: Snapshot) -> dict[str, str]:
    """What the user put into the summary of a snapshot, without what is counted afresh."""
    properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return {name: value for name, value in properties.items() if not name.startswith(_COUNTED)}


_COUNTED = (
    "added-",
    "deleted-",
    "removed-",
    "total-",
    "changed-partition-count",
    "partition-summaries-included",
    "partitions.",
)
