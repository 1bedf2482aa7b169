"""Rebase of staged changes on metadata that another transaction committed.

An append is always produced again on the newer head of its branch, with the same data files and new manifests. A
statement that selected rows (overwrite, delete, upsert) and a compaction are produced again if no other commit to the
branch concerns their rows and files (`row_conflicts.py`). Changes of schema, spec, sort order, references and
properties are applied if no other commit changed the same field (`metadata_conflicts.py`).

The staged changes are applied in their order. If one of them conflicts, none is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter
from pyiceberg.exceptions import CommitFailedException, ValidationError, ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from trinitylake.iceberg_storage import row_ids
from trinitylake.iceberg_storage.errors import RowConflict, TableConflict
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import MetadataBuilder
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import SCAN, WHOLE, RowsRead
from trinitylake.iceberg_storage.manifests.snapshot_producer import SnapshotProducer
from trinitylake.iceberg_storage.staging.changed_rows import ChangedFiles, changed_files, merged_vectors, own_manifests
from trinitylake.iceberg_storage.staging.metadata_conflicts import check_unchanged, ref_id
from trinitylake.iceberg_storage.staging.row_conflicts import Intervening, is_blind, referenced_files

_UPDATES: TypeAdapter[tuple[TableUpdate, ...]] = TypeAdapter(tuple[TableUpdate, ...])
_REQUIREMENTS: TypeAdapter[tuple[TableRequirement, ...]] = TypeAdapter(tuple[TableRequirement, ...])


@dataclass(frozen=True)
class StagedCommit:
    """One accepted commit to a staged table.

    Attributes:
        requirements: requirements on the metadata before the commit.
        updates: the changes; empty for a statement that only read rows, or found none.
        rows_read: filters that match at least the rows on which the results of the statements depend.
    """

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    rows_read: tuple[RowsRead, ...] = ()

    def to_json(self, schema: Schema) -> dict[str, Any]:
        """JSON for a saved transaction. `schema` is the current schema of the table."""
        return {
            "requirements": [one.model_dump(mode="json", by_alias=True) for one in self.requirements],
            "updates": [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in self.updates],
            "rows-read": [read.to_json(schema) for read in self.rows_read],
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> StagedCommit:
        """The inverse of `to_json`. Raises `ValueError`, `KeyError`, pydantic's `ValidationError`."""
        return cls(
            _REQUIREMENTS.validate_python(saved["requirements"]),
            _UPDATES.validate_python(saved["updates"]),
            tuple(RowsRead.from_json(read) for read in saved["rows-read"]),
        )


@dataclass
class Rebase:
    """Applies `commits`, staged on `base`, to `newer`.

    Args:
        is_serializable: whether the transaction must have the same result as if it had begun on `newer`. If so,
            columns, specs and properties must be equal in both metadata, and isolation levels in the properties are
            ignored.

    Attributes:
        metadata: the result.
        rebuilt: the commits after the rebase.
        replaced: URIs of manifests, manifest lists and deletion vectors that are no longer referenced.
    """

    io: FileIO
    base: TableMetadata
    newer: TableMetadata
    commits: Sequence[StagedCommit]
    is_serializable: bool = False
    rebuilt: list[StagedCommit] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    metadata: TableMetadata = field(init=False)
    _written: list[str] = field(default_factory=list)
    _redone: dict[int, Intervening] = field(default_factory=dict)  # by snapshot id: its new ancestors
    _between: dict[tuple[str | None, int | None, int | None], Intervening] = field(default_factory=dict)

    def run(self) -> None:
        """Rebase all commits. Raises `TableConflict`, after which only `replaced` is valid."""
        try:
            if self.base.table_uuid != self.newer.table_uuid:
                raise TableConflict(
                    f"assert-table-uuid: Table UUID does not match: {self.base.table_uuid} was dropped, and "
                    f"{self.newer.table_uuid} has its name: load the table again"
                )
            if self.is_serializable and self.newer is not self.base:
                self._check_definition()
            ours, theirs = self.base, self.newer
            for commit in self.commits:
                ours, theirs = self._redo(commit, ours, theirs)
            self.metadata = theirs
        except BaseException:
            self.replaced = self._written
            raise

    def _check_definition(self) -> None:
        """Check that the fields in `_DEFINITION` are unchanged, and that no statement read the whole table."""
        if any(read.statement == WHOLE for commit in self.commits for read in commit.rows_read):
            raise TableConflict("assert-ref-snapshot-id: this transaction read the whole table with its snapshots")
        for name, requirement in _DEFINITION.items():
            if getattr(self.base, name) != getattr(self.newer, name):
                word = name.replace("_", " ")
                raise TableConflict(
                    f"{requirement}: the {word} changed, and every statement on the table depends on it"
                )

    def _redo(
        self, commit: StagedCommit, ours: TableMetadata, theirs: TableMetadata
    ) -> tuple[TableMetadata, TableMetadata]:
        """Rebase one commit from `ours` to `theirs`. Returns both metadata after the commit."""
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
                check_unchanged(update, old.metadata, new.metadata, self._redone)
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
        for read in commit.rows_read:
            if read.branch is not None:
                older, newer = ref_id(read.branch, ours), ref_id(read.branch, theirs)
                self._intervening(read.branch, older, newer).check_rows(
                    read, result[0].schema(), result[1], self.is_serializable
                )
        self.rebuilt.append(StagedCommit(requirements, tuple(updates), commit.rows_read))
        return result

    def _redo_snapshot(
        self, snapshot: Snapshot, branch: str | None, commit: StagedCommit, ours: TableMetadata, theirs: TableMetadata
    ) -> AddSnapshotUpdate:
        written = ours.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
        if column := _newly_required(written or ours.schema(), theirs.schema()):
            raise RowConflict(f"assert-current-schema-id: column {column} is required now, and rows may lack it")
        parent = snapshot.parent_snapshot_id
        # A snapshot without a branch, as in write-audit-publish, keeps its parent.
        if branch is not None and parent not in self._redone:
            head = theirs.snapshot_by_name(branch)
            parent = head.snapshot_id if head is not None else None
        elif branch is None and parent is not None and parent not in self._redone and _lost(parent, ours, theirs):
            raise TableConflict(
                f"assert-ref-snapshot-id: another commit removed snapshot {parent}, whose files snapshot "
                f"{snapshot.snapshot_id} references, so they may be deleted"
            )
        is_fresh = theirs.format_version == 1 or (snapshot.sequence_number or 0) > theirs.last_sequence_number
        is_fresh = is_fresh and row_ids.fits(snapshot, theirs)
        # An erasure gives a parent another manifest list under the same id.
        is_fresh = is_fresh and _manifest_list(parent, ours) == _manifest_list(parent, theirs)
        if parent == snapshot.parent_snapshot_id and parent not in self._redone and is_fresh:
            return AddSnapshotUpdate(snapshot=_as_of(snapshot, theirs))
        intervening = self._intervening(branch, snapshot.parent_snapshot_id, parent)
        changed = changed_files(self.io, snapshot)
        # The rows of statements of this library are checked later, by the recorded filter.
        is_statement = any(snapshot.snapshot_id in read.snapshot_ids for read in commit.rows_read)
        referenced: list[DataFile] = []
        if changed.added_deletes:
            # Two deletes of the same row do not conflict. But a row that another commit updated must not be deleted.
            only_deletes = not changed.added and not changed.removed
            vanished = intervening.removed_by_deletes() if only_deletes else []
            referenced = referenced_files(self.io, theirs, parent, changed, vanished)
            intervening.check_removed([] if only_deletes or is_statement else referenced, theirs)
        if not is_statement:
            if not self.is_serializable:
                intervening.check_unknown_rows(snapshot, changed, referenced, theirs)
            elif not is_blind(snapshot, changed) and not self._found_by_scans(changed):
                intervening.check_no_row_changes()
        intervening.check_removed(changed.removed, theirs)
        head = None if parent is None else theirs.snapshot_by_id(parent)
        self._check_carried_rows(snapshot, changed, referenced, ours, head)
        if theirs.format_version >= row_ids.ROW_IDS_SINCE and changed.added_deletes and head is not None:
            vectors = {file.file_path for file in changed.added_deletes}
            changed = merged_vectors(self.io, theirs, head, changed, referenced)
            merged = {file.file_path for file in changed.added_deletes}
            self._written += merged - vectors
            self.replaced += vectors - merged
        added = self._produce(snapshot, changed, branch, parent, theirs)
        self._redone[snapshot.snapshot_id] = intervening
        manifests = own_manifests(self.io, snapshot)
        self.replaced += [snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)]
        return AddSnapshotUpdate(snapshot=_as_of(added, theirs))

    def _found_by_scans(self, changed: ChangedFiles) -> bool:
        """Whether recorded scans found the rows that a snapshot changed, so that it does not depend on other rows."""
        # This is known only for position deletes. The files of an overwrite do not show on which rows it depends,
        # because its filter would also have selected rows that did not exist yet.
        scans = any(read.statement == SCAN for commit in self.commits for read in commit.rows_read)
        deletes = [file.content for file in changed.added_deletes]
        return scans and not changed.removed and bool(deletes) and set(deletes) == {DataFileContent.POSITION_DELETES}

    def _check_carried_rows(
        self,
        snapshot: Snapshot,
        changed: ChangedFiles,
        referenced: Sequence[DataFile],
        ours: TableMetadata,
        parent: Snapshot | None,
    ) -> None:
        """Raise `TableConflict` if rows that the snapshot copies to another file would get other ids by the rebase."""
        # The new file stores the ids of copied rows. So a rebase must not change ids that an earlier snapshot of this
        # transaction assigned, and `parent` must not have assigned ids to rows that were copied without ids.
        sources = (*changed.removed, *referenced)
        if not changed.added or not sources:
            return
        carried_from = ours.snapshot_by_id(snapshot.parent_snapshot_id or 0)
        if (
            parent is not None
            and parent.first_row_id is not None
            and carried_from is not None
            and carried_from.first_row_id is None
        ):
            raise TableConflict(
                f"assert-ref-snapshot-id: another commit assigned row ids (format version 3). Snapshot "
                f"{snapshot.snapshot_id} copies rows without these ids to another file: repeat the transaction"
            )
        if any(row_ids.is_later(file, self.base) for file in sources):
            raise TableConflict(
                f"assert-ref-snapshot-id: the branch moved. Snapshot {snapshot.snapshot_id} copies new rows of this "
                "transaction to another file, with row ids that another commit uses: repeat the transaction"
            )

    def _produce(
        self, snapshot: Snapshot, changed: ChangedFiles, branch: str | None, parent: int | None, theirs: TableMetadata
    ) -> Snapshot:
        """Produce the snapshot on another parent, with new manifests and the same data files."""
        specs = theirs.specs()
        added, removed = (*changed.added, *changed.added_deletes), (*changed.removed, *changed.removed_deletes)
        if gone := {file.spec_id for file in (*added, *removed)} - specs.keys():
            raise TableConflict(f"assert-default-spec-id: partition spec {min(gone)} of the files was removed")
        operation = snapshot.summary.operation if snapshot.summary is not None else Operation.OVERWRITE
        id, properties, numbers = snapshot.snapshot_id, _own_properties(snapshot), changed.sequence_numbers
        try:
            producer = SnapshotProducer(theirs, self.io, operation, properties, branch, id, numbers)
            try:
                return producer.add(added).remove(removed).produce(parent)
            finally:
                self._written += producer.written_uris
        except (ValueError, ValidationException) as error:
            raise TableConflict(f"the {operation.value} cannot be rebased: {error}") from error

    def _intervening(self, branch: str | None, older: int | None, newer: int | None) -> Intervening:
        """The commits of other transactions on a branch, after the snapshot `older` up to the snapshot `newer`."""
        if older == newer:
            return (self._redone.get(older) if older is not None else None) or Intervening.nothing(self.io)
        key = branch, older, newer
        if key not in self._between:
            self._between[key] = Intervening.between(self.io, self.newer, branch, older, newer)
        return self._between[key]


def _manifest_list(id: int | None, metadata: TableMetadata) -> str | None:
    snapshot = None if id is None else metadata.snapshot_by_id(id)
    return None if snapshot is None else snapshot.manifest_list


def _lost(id: int, ours: TableMetadata, theirs: TableMetadata) -> bool:
    return ours.snapshot_by_id(id) is not None and theirs.snapshot_by_id(id) is None


def _branch_of(snapshot: Snapshot, updates: Sequence[TableUpdate]) -> str | None:
    """The branch that the commit sets to the snapshot or to a later one; None for a snapshot without a branch."""
    # For several snapshots, PyIceberg sets the branch to each of them, and an engine may set it only to the last.
    ids = [update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)]
    later = set(ids[ids.index(snapshot.snapshot_id) :])
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate) and update.type == "branch" and update.snapshot_id in later:
            return update.ref_name
    return None


def _as_of(snapshot: Snapshot, metadata: TableMetadata) -> Snapshot:
    """The snapshot as a successor of `metadata`, with its current schema."""
    if snapshot.schema_id in (None, metadata.current_schema_id):
        return snapshot
    return snapshot.model_copy(update={"schema_id": metadata.current_schema_id})


def _assert_ref(name: str, metadata: TableMetadata) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref_id(name, metadata)})


def _newly_required(written: Schema, current: Schema) -> str | None:
    """The name of a column that `current` requires and rows of `written` may lack; None for no such column."""
    if written is current or written.schema_id == current.schema_id:
        return None
    before = {id: written.find_field(id) for id in written.field_ids}
    for id in current.field_ids:
        then = before.get(id)
        if current.find_field(id).required and (then is None or not then.required):
            return current.find_column_name(id)
    return None


def _own_properties(snapshot: Snapshot) -> dict[str, str]:
    """The user's properties in the summary of a snapshot, without the counters."""
    properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return {name: value for name, value in properties.items() if not name.startswith(_COUNTED)}


#: Fields of metadata on which every statement depends, and the requirement that a change of the field violates.
_DEFINITION = {
    "current_schema_id": "assert-current-schema-id",
    "default_spec_id": "assert-default-spec-id",
    "default_sort_order_id": "assert-default-sort-order-id",
    "location": "assert-location",
    "properties": "assert-properties",
}
_COUNTED = (
    "added-",
    "deleted-",
    "removed-",
    "total-",
    "changed-partition-count",
    "partition-summaries-included",
    "partitions.",
)
