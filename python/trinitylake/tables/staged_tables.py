"""The tables that a transaction has opened or created, and their files until it ends.

Data files are written while statements run, metadata and definitions when the transaction commits. Each statement is
first checked against the catalog, so that no file is written for a name that is in use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial

from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import StructType

from trinitylake import _core
from trinitylake.base.properties import change_properties
from trinitylake.base.qualified_names import full_name
from trinitylake.definitions import (
    METADATA_LOCATION,
    Schema,
    SchemaLike,
    TableDef,
    as_schema,
    new_table_def,
    parse_table_def,
    read_definition,
    serialize,
    to_iceberg_schema,
)
from trinitylake.errors import CommitConflict, CorruptFile, InvalidArgument, TrinityLakeError, Winner
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import with_defaults
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import set_and_remove
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.initial_metadata import new_metadata
from trinitylake.iceberg_storage.staging.staged_table import StagedTable, TableConflict
from trinitylake.tables.append_batch import Batch
from trinitylake.tables.partitioning_and_sorting import partition_spec, sort_order
from trinitylake.tables.table_definition import describe, with_primary_key
from trinitylake.tables.table_locks import table_locks
from trinitylake.tables.transaction_table import TransactionTable


def _check_kept(open_core: Callable[[], _core.Transaction]) -> None:
    """Raise an error if garbage collection may have deleted a missing file (`check_retained`)."""
    # A named function instead of a lambda, so that pickling fails with a clear error.
    open_core().check_retained()


class StagedTables:
    """The tables of one transaction, by namespace and name."""

    def __init__(
        self, lakehouse: _core.Lakehouse, storage: _core.Storage, open_core: Callable[[], _core.Transaction]
    ) -> None:
        self._lakehouse = lakehouse
        # The storage handle of this transaction: the commit waits for the files that are written through this handle.
        self._storage = storage
        self._open_core = open_core
        self._tables: dict[tuple[str, str], TransactionTable] = {}
        self._dropped: list[TransactionTable] = []
        self._metadata_paths: list[str] = []
        self._metadata_files: list[tuple[str, bytes]] = []  # metadata files that the next commit or save writes
        self._absent: dict[tuple[str, str], None] = {}  # table names that must not exist when the transaction commits
        self._unused: list[str] = []  # files of changes that were dropped

    @cached_property
    def _io(self) -> LakehouseFileIO:
        return LakehouseFileIO(self._storage, check_kept=partial(_check_kept, self._open_core))

    def open(self, namespace: str, name: str, definition: bytes) -> TransactionTable:
        """The table in the state that the transaction sees. Every call returns the same handle."""
        key = (namespace, name)
        if key not in self._tables:
            table = TransactionTable(self._open_core, self._io, namespace, name, parse_table_def(definition))
            if table.type != "managed":
                # Scans of this table are not recorded, so the core watches the table's definition instead.
                self._open_core().exists("table", namespace, name)
            self._tables[key] = table
        return self._tables[key]

    def create(
        self,
        namespace: str,
        name: str,
        schema: SchemaLike,
        spec: PartitionSpec | str | Iterable[str] | None,
        order: SortOrder | str | Iterable[str] | None,
        properties: Mapping[str, str],
        primary_key: tuple[str, ...],
    ) -> None:
        """Stage a new managed table. Raises as `Statements.create_table` does."""
        declared = with_primary_key(as_schema(schema), primary_key)
        iceberg_schema = to_iceberg_schema(declared)
        if isinstance(schema, IcebergSchema):
            columns = with_defaults(iceberg_schema.as_struct(), schema.as_struct())
            assert isinstance(columns, StructType)
            iceberg_schema = IcebergSchema(*columns.fields, identifier_field_ids=iceberg_schema.identifier_field_ids)
        partitions, sorting = partition_spec(spec, iceberg_schema), sort_order(order, iceberg_schema)
        text = {str(key): str(value) for key, value in properties.items()}
        try:
            metadata = new_metadata(self._io, namespace, name, iceberg_schema, None, partitions, sorting, text)
        except TrinityLakeError:
            raise
        except (ValueError, ValidationError) as error:
            raise InvalidArgument(f"cannot create table {full_name(namespace, name)}: {error}") from error
        staged = StagedTable((*namespace.split("."), name), metadata, None, self._io.scoped())
        self.add(namespace, name, staged, new_table_def(str(metadata.table_uuid)), declared)

    def add(
        self, namespace: str, name: str, staged: StagedTable, definition: TableDef, declared: Schema | None = None
    ) -> None:
        """Stage a new managed table, which replaces a staged table of this name. Raises as `Statements.create_table`
        does.
        """
        describe(definition, staged.metadata, declared)
        # The commit adds the metadata location later, and writes the definition file then.
        self._open_core().create("table", namespace, name, serialize(definition))
        self._tables[namespace, name] = TransactionTable(self._open_core, self._io, namespace, name, definition, staged)

    def create_external(self, namespace: str, name: str, metadata_location: str, properties: Mapping[str, str]) -> None:
        """Stage a new external table, after reading its metadata."""
        definition = new_table_def(
            table_type="external", format_properties={METADATA_LOCATION: metadata_location}, properties=properties
        )
        self._describe_external(definition)
        self._open_core().create("table", namespace, name, serialize(definition))

    def _describe_external(self, definition: TableDef) -> None:
        from trinitylake.iceberg_storage.external_tables import load_external, require_none_inside

        external = load_external(definition)
        require_none_inside(external, self._io)
        describe(definition, external.metadata)

    def create_federated(
        self, namespace: str, name: str, catalog: Mapping[str, str], table: str, properties: Mapping[str, str]
    ) -> None:
        """Stage a new federated table, after reading its metadata from the other catalog."""
        from trinitylake.iceberg_storage.federated_tables import federated_properties, open_federated

        definition = new_table_def(
            table_type="federated", format_properties=federated_properties(catalog, table), properties=properties
        )
        describe(definition, open_federated(definition).metadata)
        self._open_core().create("table", namespace, name, serialize(definition))

    def alter(
        self,
        table: TransactionTable,
        properties: Mapping[str, str],
        removed: Iterable[str],
        metadata_location: str | None,
    ) -> None:
        """Set and remove properties: a managed table has them in Iceberg's metadata, other tables in the definition.

        A new `metadata_location` moves an external table to another metadata file.
        """
        if metadata_location is not None and table.type != "external":
            raise InvalidArgument(
                f"only an external table can be moved to other metadata; {table.name} is {table.type}"
            )
        if table.type == "managed":
            change_properties({}, properties, removed)
            with table._writing() as iceberg:
                set_and_remove(iceberg, properties, removed)
            return
        definition = table._definition
        change_properties(definition.properties, properties, removed)
        if metadata_location is not None:
            definition.format_properties[METADATA_LOCATION] = metadata_location
            self._describe_external(definition)
            table._forget()
        self._open_core().replace("table", table.namespace, table._own_name, serialize(definition))

    def rename(self, namespace: str, name: str, new_namespace: str, new_name: str) -> None:
        """Follow a rename that the core has done: the table's handle uses the new name from now on."""
        if table := self._tables.pop((namespace, name), None):
            table._rename(new_namespace, new_name)
            self._tables[new_namespace, new_name] = table

    def drop(self, namespace: str, name: str) -> None:
        """Follow a drop that the core has done: the table's handle refuses every use from now on."""
        if table := self._tables.pop((namespace, name), None):
            table._drop()
            self._dropped.append(table)

    @property
    def base_size_bytes(self) -> int:
        """Upper bound of the memory of the loaded tables, without their staged changes."""
        return sum(table._staged.base_size_bytes for table in self._tables.values() if table._staged is not None)

    def read(self) -> list[str]:
        """Sorted full names of the tables that the transaction scanned, or used without changing them."""
        changed = self._changed()
        live = [table for table in self._tables.values() if table._scans or (table._uses and table not in changed)]
        return sorted({table.name for table in [*live, *(table for table in self._dropped if table._scans)]})

    def uses(self) -> dict[TransactionTable, int]:
        """Number of uses of each table so far, for `watch_used_since`."""
        return {table: table._uses for table in self._tables.values()}

    def watch_used_since(self, uses: Mapping[TransactionTable, int]) -> None:
        """Read the unchanged tables that were used since `uses` was recorded, so that the core watches them."""
        changed = self._changed()
        for name, table in self._tables.items():
            if table not in changed and table._uses != uses.get(table, 0):
                self._open_core().exists("table", *name)

    def require_absent(self, namespace: str, name: str) -> None:
        """Fail the commit if another transaction creates a table of that name."""
        self._absent[namespace, name] = None

    @property
    def has_requirements(self) -> bool:
        """Whether the commit depends on tables that this transaction does not change."""
        return bool(self._absent) or any(table._is_required for table in self._tables.values())

    def watch_required(self) -> None:
        """Read the tables that the commit depends on, so that the core watches them.

        Raises `CommitConflict` for a table that must not exist.
        """
        core = self._open_core()
        for name, table in self._tables.items():
            if table._is_required:
                core.exists("table", *name)
        for name in self._absent:
            if core.exists("table", *name) and name not in self._tables:
                raise self._requirement_broken(name, None, "assert-create: another transaction created the table")

    def follow(self, before: _core.Version) -> None:
        """Move unchanged tables from the old base `before` to the new base of the transaction.

        Raises `CommitConflict` for a table whose requirements do not hold there.
        """
        base = self._open_core().base
        changed = self._changed()
        for name, table in list(self._tables.items()):
            location = base.locate("table", *name)
            if table in changed or location == before.locate("table", *name):
                continue
            if location is None:
                if table._is_required:
                    raise self._requirement_broken(name, before, "it was dropped")
                table._drop(by="another")
                del self._tables[name]
                self._dropped.append(table)
            else:
                winner = parse_table_def(read_definition(self._storage, location), location)
                self._take_over(name, table, winner, before)

    def _take_over(
        self, name: tuple[str, str], table: TransactionTable, winner: TableDef, before: _core.Version
    ) -> None:
        if not table._is_required:
            self._unused += table._take_over(winner)
            return
        if winner.id != table.id or winner.table_type != table._definition.table_type:
            raise self._requirement_broken(name, before, "it was dropped and created again")
        try:
            table._open_staged().reapply(winner.format_properties[METADATA_LOCATION])
        except TableConflict as conflict:
            raise self._requirement_broken(name, before, conflict.requirement) from conflict
        table._rebase(winner)

    @property
    def lone_append(self) -> TransactionTable | None:
        """The table, if appending files that a client wrote is the transaction's only change; otherwise None."""
        changed = self._changed()
        if len(changed) != 1 or self._dropped or self._absent or self.has_requirements or self._metadata_paths:
            return None
        staged = changed[0]._staged
        return changed[0] if staged is not None and staged.is_append_of_written_files else None

    def take_lone_rows(self) -> tuple[TransactionTable, Batch] | None:
        """The table and its waiting rows, if a small append is the transaction's only change; otherwise None."""
        waiting = [table for table in self._tables.values() if table._waiting_rows]
        others = any(table._staged is not None and table._staged.changed for table in self._tables.values())
        if len(waiting) != 1 or others or self._dropped or self._absent or self._metadata_paths:
            return None
        batch = waiting[0]._take_lone_rows()
        return None if batch is None else (waiting[0], batch)

    def rebase_on(self, version: _core.Version, table: TransactionTable) -> None:
        """Apply the changes of a table again to its state in `version`. Raises `TableConflict`."""
        location = version.locate("table", table.namespace, table._own_name)
        newer = None if location is None else parse_table_def(read_definition(self._storage, location), location)
        if newer is not None and newer.id == table.id and newer.table_type == table._definition.table_type:
            table._open_staged().reapply(newer.format_properties[METADATA_LOCATION])

    def locked(self) -> AbstractContextManager[None]:
        """Hold the locks of the changed tables, to commit them."""
        return table_locks.held(self._changed_ids())

    def locks_reserved(self) -> AbstractContextManager[None]:
        """Hold the locks of the changed tables for another transaction that begins and commits in the block."""
        return table_locks.reserved(self._changed_ids())

    @contextmanager
    def being_checked(self) -> Iterator[None]:
        """Context manager in which checks run. Raises `InvalidArgument` if a check writes to a table."""
        before = {name: table._staged.metadata for name, table in self._tables.items() if table._staged is not None}
        with table_locks.in_checks(self._changed_ids()):
            yield
        for name, table in self._tables.items():
            staged = table._staged
            if table._waiting_rows or (staged and staged.metadata is not before.get(name, staged.base)):
                raise InvalidArgument(f"a check has changed table {table.name}: a check must only read")

    def write(self) -> None:
        """Finish the metadata of every changed table, and put its definition into the transaction."""
        changed = self._changed()
        adopted = [path for table in changed if table._staged is not None for path in table._staged.take_adopted()]
        if adopted:
            self._open_core().adopt(adopted)
        self._finish_metadata(changed)
        for table in changed:
            self._open_core().replace("table", table.namespace, table._own_name, table._definition_to_commit())
            self._describe(table)

    def take_metadata(self) -> list[tuple[str, bytes]]:
        """Paths and contents of the metadata files that the commit or save has to write; each file is returned once."""
        files, self._metadata_files = self._metadata_files, []
        return files

    def saved(self) -> bytes:
        """The staged changes of all tables, for `resume`. To be called after `write`."""
        tables = [
            {"namespace": table.namespace, "name": table._own_name, "staged": table._open_staged().saved()}
            for table in self._tables.values()
            if table._is_required or (table._staged is not None and table._staged.changed)
        ]
        state = {"tables": tables, "metadata-paths": self._metadata_paths, "absent": list(self._absent)}
        return json.dumps(state).encode()

    def resume(self, saved: bytes) -> None:
        """Load the state that `saved` returned, perhaps in another process. Raises `CorruptFile`."""
        core = self._open_core()
        try:
            state = json.loads(saved)
            self._metadata_paths = list(state["metadata-paths"])
            self._absent = {(namespace, name): None for namespace, name in state.get("absent", ())}
            for one in state["tables"]:
                namespace, name = one["namespace"], one["name"]
                definition = parse_table_def(core.open_table(namespace, name) or b"")
                staged = StagedTable.resume((*namespace.split("."), name), one["staged"], self._io)
                table = TransactionTable(self._open_core, self._io, namespace, name, definition, staged)
                self._tables[namespace, name] = table
                metadata_location = definition.format_properties[METADATA_LOCATION]
                if table._is_required and metadata_location != staged.base_metadata_path:
                    self._take_over((namespace, name), table, definition, core.base)  # a commit came further
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(f"saved transaction {core.id}: its saved state of tables is damaged: {error}") from error

    def rebase(self, conflicts: Iterable[_core.ConflictingTable]) -> bool:
        """Apply the changes of these tables again to the state that others have committed.

        Returns whether any of the tables has new metadata. Raises `CommitConflict` for the first table whose changes
        cannot be applied.
        """
        redone = []
        is_new = False
        for conflicting in conflicts:
            name = (conflicting.namespace, conflicting.name)
            table = self._tables.get(name)
            location = conflicting.winner_location
            winner = parse_table_def(read_definition(self._storage, location), location)
            if table is None or table._staged is None or winner.table_type != table._definition.table_type:
                raise self._conflict(conflicting, "both changed its definition")
            if winner.id != table.id:
                raise self._conflict(conflicting, "it was dropped and created again")
            metadata_location = winner.format_properties[METADATA_LOCATION]
            # With equal metadata, the other transaction has written an unchanged definition.
            if metadata_location != table._staged.base_metadata_path:
                is_new = True
                try:
                    table._staged.reapply(metadata_location)
                except TableConflict as conflict:
                    raise self._conflict(conflicting, conflict.requirement) from conflict
                except FileNotFoundError as error:
                    why = f"a file is missing, as after a rollback of this transaction elsewhere: {error}"
                    raise self._conflict(conflicting, why) from error
            table._rebase(winner)
            redone.append((conflicting, table))
        self._finish_metadata([table for _, table in redone])
        for conflicting, table in redone:
            self._open_core().rebase(conflicting, table._definition_to_commit())
            self._describe(table)
        return is_new

    def committed(self, version: int) -> None:
        """After a commit: record the version, and try to delete the files that the commit does not use."""
        for table in self._tables.values():
            table._committed_version = version
            table._waiting_rows = []
            if table._staged is not None:
                self._delete(table._staged.superseded_paths)
        self._delete(self._unused)
        for table in self._dropped:
            if table._staged is not None:
                self._delete(table._staged.written_paths)

    def discard(self) -> None:
        """After a rollback: try to delete all files that the transaction has written or is still writing."""
        for table in [*self._tables.values(), *self._dropped]:
            table._waiting_rows = []
            if table._staged is not None:
                table._staged.io.discard()
        self._delete([*self._unused, *self._metadata_paths])

    @property
    def changed_names(self) -> list[str]:
        return [table.name for table in self._changed()]

    @property
    def changed_objects(self) -> list[tuple[str, str]]:
        """Namespace and name of each changed table."""
        return [(table.namespace, table._own_name) for table in self._changed()]

    def _changed(self) -> list[TransactionTable]:
        for table in self._tables.values():
            table._stage_waiting_rows()
        return [table for table in self._tables.values() if table._staged is not None and table._staged.changed]

    def _changed_ids(self) -> list[str]:
        return [table.id for table in self._changed()]

    def _describe(self, table: TransactionTable) -> None:
        if table._staged is not None:
            self._open_core().describe(table.namespace, table._own_name, table._staged.summarize())

    def _finish_metadata(self, tables: list[TransactionTable]) -> None:
        finished = [table._staged.finish() for table in tables if table._staged is not None]
        # A save has already written the files with known paths.
        files = [(path, data) for path, data in finished if path not in self._metadata_paths]
        self._metadata_paths += [path for path, _ in files]
        self._metadata_files += files

    def _delete(self, paths: Iterable[str]) -> None:
        self._storage.delete_unneeded(list(paths))

    def _requirement_broken(self, table: tuple[str, str], before: _core.Version | None, reason: str) -> CommitConflict:
        """The error for a table that this transaction depends on."""
        # `before` is a version in which the table meets the requirements; the error names the later commits that
        # changed it.
        name = full_name(*table)
        winners: list[Winner] = []
        if before is not None:
            location = before.locate("table", *table)
            for number in range(before.number + 1, self._open_core().base.number + 1):
                version = self._lakehouse.version(number)
                if (newer := version.locate("table", *table)) != location:
                    winners, location = winners + self._winners(version), newer
        with_whom = ", ".join(map(str, winners)) or "another transaction"
        return CommitConflict(
            f"conflict on table {name} with {with_whom}: this transaction depends on the table; {reason}",
            keys=[f"table {name}"],
            winners=winners,
        )

    def _winners(self, version: _core.Version) -> list[Winner]:
        won = version.info
        return [Winner(won.version, one.id, one.message or one.summary, one.author) for one in won.transactions]

    def _conflict(self, conflicting: _core.ConflictingTable, reason: str) -> CommitConflict:
        name = full_name(conflicting.namespace, conflicting.name)
        winners = self._winners(self._lakehouse.version(conflicting.version))
        return CommitConflict(
            f"conflict on table {name} with {', '.join(map(str, winners))}: "
            f"this transaction cannot be rebased; {reason}",
            keys=[f"table {name}"],
            winners=winners,
        )
