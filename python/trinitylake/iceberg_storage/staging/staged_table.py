"""One managed Iceberg table in one transaction.

A `StagedTable` has the metadata that the transaction sees. Its `table` is a PyIceberg table whose commits change this
metadata in memory. Data files, manifests and manifest lists are written below the location of the table while
statements run. `finish` makes one metadata file for the transaction, which the commit of the lakehouse makes visible
(format §9).

If another transaction commits the table first, `reapply` rebases the changes on the newer metadata (`rebase.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn
from weakref import ref

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertCreate, SetSnapshotRefUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from trinitylake.base.pickling import refuse_staged_table
from trinitylake.errors import InvalidLocation, TransactionClosed, TrinityLakeError
from trinitylake.iceberg_storage.errors import RowConflict, TableConflict
from trinitylake.iceberg_storage.extended_pyiceberg.catalog import KeepsOldMetadata
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import StaleSnapshot, apply_updates
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import SCAN, WHOLE_TABLE, RowsRead, rows_read
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed, parsed_size_bytes, sized, sized_as
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedIcebergTable
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.incoming_files import incoming_paths, snapshots_of, statistics_in
from trinitylake.iceberg_storage.manifests.manifest_consistency import SpecsAndSchemas
from trinitylake.iceberg_storage.metadata import (
    cache,
    cache_key,
    encoded,
    metadata_uri,
    new_file_stem,
    read_metadata,
    with_log_entry,
)
from trinitylake.iceberg_storage.metadata_compression import file_bytes
from trinitylake.iceberg_storage.snapshot_retention import trimmed
from trinitylake.iceberg_storage.staging.rebase import Rebase, StagedCommit
from trinitylake.iceberg_storage.staging.summary import ChangeSummary, summarize_changes
from trinitylake.iceberg_storage.update_checks import check_update

__all__ = ["StagedTable", "TableConflict"]

#: Maximum number of recorded scan filters of one transaction. With more filters, all rows count as read.
MAX_SCANS = 100


class StagedTable:
    """A managed table in a transaction.

    Attributes:
        identifier: namespace parts and name, as PyIceberg shows them.
        io: the file access of this table, with a record of the written files.
        metadata: the metadata that the transaction sees. Immutable, because caches share it.
        is_serializable: whether a rebase must not change the results of the transaction (`rebase.py`).
        own_changes: summary of the changes of this transaction alone, if changes of other transactions of its group are
            staged too; None otherwise.
    """

    def __init__(
        self, identifier: tuple[str, ...], metadata: TableMetadata, base_metadata_path: str | None, io: LakehouseFileIO
    ) -> None:
        self.identifier = identifier
        self.io = io
        self.metadata = metadata
        self.is_serializable = False
        self.own_changes: list[ChangeSummary] | None = None
        self._base = metadata
        self._base_metadata_path = base_metadata_path
        self._commits: list[StagedCommit] = []
        self._superseded: list[str] = []
        self._adopted: list[str] = []
        self._adopted_lists: set[str] = set()
        self._finished: tuple[TableMetadata, str, bytes] | None = None
        self._put_forward: str | None = None
        self._next_file_stem: str | None = None  # chosen on demand
        self._lock = threading.RLock()
        self._table: StagedIcebergTable | None = None
        self._check_use: Callable[[], None] | None = None

    def ask_before_use(self, check: Callable[[], None]) -> None:
        """Set a function that is called before each commit of a handle.

        `check` raises if the transaction has ended or has dropped the table. It must not refer to this object.
        """
        self._check_use = check

    def check_use(self) -> None:
        """Raise `TransactionClosed` or `ObjectNotFound` if a handle can no longer commit."""
        if self._check_use is not None:
            self._check_use()

    def __reduce__(self) -> NoReturn:
        refuse_staged_table(".".join(self.identifier))

    @classmethod
    def load(
        cls,
        identifier: tuple[str, ...],
        metadata_location_path: str,
        *,
        io: LakehouseFileIO,
        table_id: str | None = None,
    ) -> StagedTable:
        """The table that a metadata file describes. Raises as `read_metadata` does."""
        own_io = io.scoped()
        metadata = read_metadata(own_io, own_io.uri_of(metadata_location_path), table_id=table_id)
        return cls(identifier, metadata, metadata_location_path, own_io)

    def saved(self) -> dict[str, Any]:
        """The staged changes as JSON, for `resume`. The files of the changes must not be deleted."""
        with self._lock:
            path, _ = self.finish()
            base = None if self._base_metadata_path is not None else encoded(self._base).decode()
            return {
                "base-metadata-path": self._base_metadata_path,
                "base-metadata": base,
                "table-id": str(self._base.table_uuid),
                "commits": [commit.to_json(self.metadata.schema()) for commit in self._commits],
                "written": self.written_paths,
                "superseded": [*self._superseded, path],
                "put-forward": self._put_forward,
            }

    @classmethod
    def resume(cls, identifier: tuple[str, ...], saved: Mapping[str, Any], io: LakehouseFileIO) -> StagedTable:
        """Restore a staged table from the result of `saved`, also of another process."""
        own_io = io.scoped()
        path = saved["base-metadata-path"]
        if path is None:
            base = indexed(TableMetadataUtil.parse_raw(saved["base-metadata"]))
        else:
            base = read_metadata(own_io, own_io.uri_of(path), table_id=saved["table-id"])
        table = cls(identifier, base, path, own_io)
        own_io.remember_written(saved["written"])
        metadata = base
        for commit in map(StagedCommit.from_json, saved["commits"]):
            metadata = apply_updates(metadata, commit.updates)
            table._commits.append(commit)
        table._superseded = list(saved["superseded"])
        table._put_forward = saved.get("put-forward")
        table._set_metadata(metadata)
        return table

    @property
    def table(self) -> StagedIcebergTable:
        """The PyIceberg table of this object, created on demand."""
        with self._lock:
            if self._table is None:
                catalog = StagingCatalog(self)
                self._table = StagedIcebergTable(
                    self.identifier, self.metadata, self._metadata_location(), self.io, catalog, catalog.check_use
                )
            return self._table

    @property
    def created(self) -> bool:
        """Whether the table is new in this transaction."""
        return self._base_metadata_path is None

    @property
    def base(self) -> TableMetadata:
        return self._base

    @property
    def changed(self) -> bool:
        """Whether the commit includes a metadata file, also if a rebase left no changes after `put_forward`."""
        return self.created or self.metadata is not self._base or self._put_forward is not None

    @property
    def base_size_bytes(self) -> int:
        """Upper bound of the memory of the base metadata and the finished file."""
        return parsed_size_bytes(self._base) + (0 if self._finished is None else len(self._finished[2]))

    @property
    def required(self) -> bool:
        """Whether the commit has requirements on the table although it does not change it."""
        return not self.changed and any(commit.requirements for commit in self._commits)

    @property
    def base_metadata_path(self) -> str | None:
        """The metadata file that the changes are staged on; None for a new table."""
        return self._base_metadata_path

    @property
    def written_paths(self) -> list[str]:
        """Paths of all files that this table wrote, which a rollback deletes."""
        return self.io.written_paths

    @property
    def superseded_paths(self) -> list[str]:
        """Paths of files that this table wrote and replaced. They may be deleted after the commit."""
        return [path for path in self._superseded if path != self._put_forward]

    def summarize(self) -> list[ChangeSummary]:
        """The changes, for the log of the lakehouse."""
        if self.own_changes is not None:
            return self.own_changes
        with self._lock:
            reads = (read for commit in self._commits for read in commit.rows_read)
            statements = {id: read for read in reads for id in read.snapshot_ids}
            return summarize_changes(self._base, self.metadata, statements, is_new=self.created)

    def finish(self) -> tuple[str, bytes]:
        """Path and content of a file with the current metadata. The caller writes the file.

        The name is `<table>/metadata/<sequence>-<uuid>.metadata.json`. The sequence is one more than in the name of the
        base file, which is added to the metadata log. Snapshots that are not retained are left out
        (`snapshot_retention.py`). The result is the same until the metadata changes. An unchanged table gets a file
        too.
        """
        with self._lock:
            if self._finished is None or self._finished[0] is not self.metadata:
                if self._finished is not None:
                    self._superseded.append(self._finished[1])
                metadata = trimmed(self.metadata, self._base)
                if self._base_metadata_path is not None:
                    metadata = with_log_entry(metadata, self.io.uri_of(self._base_metadata_path), self._base)
                uri = self._metadata_uri()
                path = self.io.path_of(uri)
                data = encoded(metadata)
                self._finished = (self.metadata, path, file_bytes(data, path))
                cache.put(cache_key(self.io, uri), sized(metadata, data))
                sized_as(self.metadata, metadata)
            return self._finished[1], self._finished[2]

    def put_forward(self) -> str:
        """Finish the metadata file, and return its path for the table's definition.

        After this call the table is part of the commit, even if a rebase leaves no changes.
        """
        with self._lock:
            self._put_forward, _ = self.finish()
            return self._put_forward

    @property
    def manifest_list(self) -> str:
        """The path of the manifest list of the current snapshot; "" without a snapshot or outside of the root."""
        snapshot = self.metadata.current_snapshot()
        with suppress(InvalidLocation):
            return "" if snapshot is None else self.io.path_of(snapshot.manifest_list)
        return ""

    def read_rows(self, filter: BooleanExpression, case_sensitive: bool = True) -> None:
        """Record, for SERIALIZABLE, that the transaction read the rows of the main branch that match `filter`."""
        self._read(RowsRead(SCAN, filter, case_sensitive))

    def read_whole(self) -> None:
        """Record, for SERIALIZABLE, that the transaction read the table with its snapshots and branches."""
        self._read(WHOLE_TABLE)

    def _read(self, read: RowsRead) -> None:
        if self.created:
            return
        with self._lock:
            known = [one for commit in self._commits for one in commit.rows_read if one.statement == read.statement]
            if len(known) >= MAX_SCANS:
                read = replace(read, filter=AlwaysTrue())
            names_same_columns = self.metadata.current_schema_id == self._base.current_schema_id
            if (names_same_columns or read.filter == AlwaysTrue()) and read in known:
                return
            self._commits.append(StagedCommit((), (), (read,)))

    def reapply(self, newer_metadata_path: str) -> None:
        """Rebase the staged changes on metadata that another transaction committed.

        Raises `TableConflict` if the changes conflict. Then this object is unchanged.
        """
        with self._lock:
            if self.created:
                raise TableConflict("assert-create: another transaction created the table")
            newer = self._base
            if newer_metadata_path != self._base_metadata_path:
                newer = read_metadata(self.io, self.io.uri_of(newer_metadata_path))
            rebase = Rebase(self.io, self._base, newer, self._commits, self.is_serializable)
            rebase.run()
            self._base = newer
            self._base_metadata_path = newer_metadata_path
            self._commits = rebase.rebuilt
            self._superseded += [self.io.path_of(uri) for uri in rebase.replaced]
            if self._finished is not None:
                self._superseded.append(self._finished[1])
            self._finished = None
            self._next_file_stem = None
            self._set_metadata(rebase.metadata)

    def commit(self, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> None:
        """Stage one commit of PyIceberg's table or of a client of the REST server.

        Raises:
            CommitFailedException: if a requirement does not hold for the metadata that this transaction sees.
            InvalidLocation, InvalidArgument: for an update that breaks a rule of managed tables (`update_checks.py`).
        """
        with self._lock:
            is_new = self.created and not self._commits
            for requirement in requirements:
                if not (is_new and isinstance(requirement, AssertCreate)):
                    requirement.validate(self.metadata)
            for update in updates:
                check_update(update, self.metadata, self.io)
            self._adopt_named(updates, self.metadata)
            try:
                metadata = apply_updates(self.metadata, updates)
            except StaleSnapshot as error:  # possible although the requirements hold
                raise CommitFailedException(str(error)) from error
            if metadata.table_uuid != self.metadata.table_uuid:
                raise CommitFailedException("the UUID of a managed table is the id of its definition and cannot change")
            if metadata is self.metadata and not rows_read.get() and not requirements:
                return
            self._commits.append(StagedCommit(tuple(requirements), tuple(updates), rows_read.get()))
            if metadata is not self.metadata:  # changed metadata gets another file name
                self._next_file_stem = None
            self._set_metadata(metadata)

    def commit_from(
        self, base: TableMetadata, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]
    ) -> None:
        """Stage a commit whose base is the current metadata of this table or older metadata.

        A commit with new snapshots is rebased on the current metadata, as by `reapply`. Other commits only need their
        requirements. Raises as `commit` does, `CommitFailedException` for updates that do not fit the current metadata,
        and `ValidationException` for rows that conflict or do not fit a newer schema.
        """
        with self._lock:
            if base is self.metadata:
                self.commit(requirements, updates)
                return
            try:
                self._adopt_named(updates, base)
                if any(isinstance(update, AddSnapshotUpdate) for update in updates):
                    commit = StagedCommit(tuple(requirements), tuple(updates), rows_read.get())
                    rebase = Rebase(self.io, base, self.metadata, [commit])
                    try:
                        rebase.run()
                    finally:
                        self._superseded += [self.io.path_of(uri) for uri in rebase.replaced]
                    requirements, updates = rebase.rebuilt[0].requirements, rebase.rebuilt[0].updates
                self.commit(requirements, updates)
            except RowConflict as conflict:
                raise ValidationException(f"Requirement failed: {conflict.requirement}") from conflict
            except TableConflict as conflict:
                raise CommitFailedException(f"Requirement failed: {conflict.requirement}") from conflict
            except TrinityLakeError:
                raise
            except (ValueError, KeyError) as error:  # PyIceberg's errors for updates that no longer fit
                name = ".".join(self.identifier)
                raise CommitFailedException(f"table {name} was changed, and the updates do not fit: {error}") from error

    @property
    def is_append_of_written_files(self) -> bool:
        """Whether the only change is an append to a branch, and a client wrote its files before the transaction."""
        if len(self._commits) != 1 or self.created or self.written_paths or self._superseded or self._put_forward:
            return False
        updates = self._commits[0].updates
        summaries = [one.snapshot.summary for one in updates if isinstance(one, AddSnapshotUpdate)]
        return (
            len(updates) == 2
            and isinstance(updates[1], SetSnapshotRefUpdate)
            and [None if summary is None else summary.operation for summary in summaries] == [Operation.APPEND]
        )

    def absorb(self, other: StagedTable) -> None:
        """Stage the append of another transaction (`is_append_of_written_files`) after the changes of this transaction.

        Raises as `commit_from` does. After an error nothing is staged, and the other transaction keeps its files.
        """
        [commit] = other._commits
        with self._lock:
            superseded = list(self._superseded)
            try:
                self._adopted_lists.update(other._adopted_lists)
                self.commit_from(other.base, commit.requirements, commit.updates)
            except BaseException:
                self._superseded = superseded
                raise
            self._adopted += other._adopted

    def follow(self, leader: StagedTable) -> None:
        """Show the metadata that the leader has committed, after its transaction absorbed this append."""
        with self._lock:
            self._finished = leader._finished
            self._set_metadata(leader.metadata)

    def adopt(
        self,
        snapshots: Sequence[Snapshot],
        base: TableMetadata | None = None,
        incoming: Sequence[str] | None = None,
        statistics: Sequence[str] = (),
        layout: SpecsAndSchemas | None = None,
    ) -> None:
        """Check and record the files of snapshots that other processes wrote.

        Args:
            snapshots: of a commit. Snapshots that this table wrote or adopted are skipped.
            incoming: the paths of the files that the snapshots add, if they are already checked.
            statistics: the paths of files with statistics.
            layout: specs and schemas of the table after the commit, to check manifests; by default of the staged
                metadata.

        Raises `InvalidLocation` for a file that may not be named (`incoming_files.py`), and `InvalidArgument` for a
        manifest that contradicts itself.
        """
        if not snapshots and not statistics and not incoming:
            return
        with self._lock:
            known = {*self.io.written_paths, *self._adopted_lists}
            others = [one for one in snapshots if self.io.path_of(one.manifest_list) not in known]
            if incoming is None:
                layout = SpecsAndSchemas.after(self.metadata, ()) if layout is None else layout
                incoming = incoming_paths(self.io, base, others, layout)
            self._adopted += incoming
            self._adopted_lists.update(self.io.path_of(one.manifest_list) for one in others)
            written = {*self.io.written_paths}
            self._adopted += [path for path in statistics if path not in written]

    def _adopt_named(self, updates: Sequence[TableUpdate], base: TableMetadata) -> None:
        statistics, layout = statistics_in(self.io, updates), SpecsAndSchemas.after(base, updates)
        self.adopt(snapshots_of(updates), base, statistics=statistics, layout=layout)

    def take_adopted(self) -> list[str]:
        """The paths of the files that were adopted since the last call.

        These are manifest lists, manifests and the files that they add, files with statistics, and data files from
        `add_files`.
        """
        with self._lock:
            paths, self._adopted = self._adopted, []
            return list(dict.fromkeys([*paths, *self.io.take_incoming()]))

    def _set_metadata(self, metadata: TableMetadata) -> None:
        self.metadata = metadata
        if self._table is not None:
            self._table.metadata = metadata
            self._table.metadata_location = self._metadata_location()

    def _metadata_location(self) -> str:
        """The URI of the base metadata file, or of the file that a new table will have."""
        path = self._base_metadata_path
        return self._metadata_uri() if path is None else self.io.uri_of(path)

    def response(self) -> CommitTableResponse:
        """The response to a commit in the open transaction.

        The file at the metadata location does not exist yet. The commit of the transaction creates it, unless further
        changes follow. Each change gets another location, because polars recognizes its own commit by the location.
        """
        return _response(self.metadata, self._metadata_uri() if self.changed else self._metadata_location())

    def response_after_commit(self) -> CommitTableResponse:
        """The response to a commit that became a version of the lakehouse."""
        if not self.changed:
            return _response(self.metadata, self.table.metadata_location)
        path, _ = self.finish()
        location = self.io.uri_of(path)
        return _response(read_metadata(self.io, location), location)

    def _metadata_uri(self) -> str:
        with self._lock:
            if self._next_file_stem is None:
                self._next_file_stem = new_file_stem(self._base_metadata_path)
            return metadata_uri(self.metadata, self._next_file_stem)


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    """A response that is built without validation, which would copy the metadata."""
    return CommitTableResponse.model_construct(metadata=metadata, metadata_location=location)


class StagingCatalog(KeepsOldMetadata, NoopCatalog):
    """The catalog of a staged table. It has one table, whose commits stay in memory.

    The table refers to this catalog. So the catalog has only a weak reference to the table, because a cycle of
    references would stay in memory until Python's garbage collection.
    """

    def __init__(self, staged: StagedTable) -> None:
        super().__init__("trinitylake-staging")
        self._identifier = staged.identifier
        self._weak_staged = ref(staged)

    @property
    def _staged(self) -> StagedTable:
        if (staged := self._weak_staged()) is None:
            raise TransactionClosed(
                f"the transaction that had table {'.'.join(self._identifier)} has ended; begin another one"
            )
        return staged

    def load_table(self, identifier: str | Identifier) -> Table:
        if self.identifier_to_tuple(identifier) != self._identifier:
            raise NoSuchTableError(f"{identifier} is not the staged table {self._identifier}")
        return self._staged.table

    def table_exists(self, identifier: str | Identifier) -> bool:
        return self.identifier_to_tuple(identifier) == self._identifier

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        self.check_use()
        self._staged.commit_from(table.metadata, requirements, updates)
        return self._staged.response()

    def check_use(self) -> None:
        """Raise `TransactionClosed` or `ObjectNotFound` if the table can no longer be committed."""
        self._staged.check_use()

    def supports_server_side_planning(self) -> bool:
        return False
