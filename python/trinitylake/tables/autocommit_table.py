"""A table of the latest version: each write commits at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.definitions import parse_table_def, serialize
from trinitylake.errors import CommitConflict
from trinitylake.iceberg_storage.extended_pyiceberg.catalog_table import CatalogTable
from trinitylake.iceberg_storage.staging.handle_commits import commit_of_handle
from trinitylake.tables.autocommit_catalog import AutocommitCatalog
from trinitylake.tables.frozen_table import FrozenTable

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from trinitylake import _core
    from trinitylake.base.qualified_names import Identifier
    from trinitylake.definitions import TableDef
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.iceberg_storage.staging.staged_table import StagedTable
    from trinitylake.tables.table import Table
    from trinitylake.tables.transaction_table import TransactionTable

Result = TypeVar("Result")

#: For this long after the version was looked up, an append begins on it without another request.
SEEN_MAX_AGE_SECONDS = 1.0


class TransactionWithTables(Protocol):
    """An open transaction, as far as a table needs it."""

    def table(self, identifier: Identifier) -> Table:
        """A table, as the transaction sees it."""


class LatestVersion(Protocol):
    """What a table reads from, and what makes its writes a transaction: a lakehouse."""

    @property
    def _storage(self) -> _core.Storage:
        """The files of the lakehouse."""

    @property
    def version(self) -> int:
        """The number of the latest version."""

    def _state(self) -> _core.Version:
        """The latest version."""

    def _read_definition(self, kind: Literal["table"], namespace: str, name: str) -> bytes:
        """The definition of a table in the latest version. Raises `ObjectNotFound`."""

    def _execute(
        self,
        statement: Callable[[TransactionWithTables], Result],
        note: CommitInfo = NO_COMMIT_INFO,
        base: _core.Version | None = None,
    ) -> Result:
        """Run a statement in a separate transaction, again while it loses races.

        With `base` it begins there, without a look for a newer version.
        """

    def begin(self, *, message: str = "", author: str = "") -> AbstractContextManager[TransactionWithTables]:
        """A transaction that commits when the block ends."""


class AutocommitTable(FrozenTable):
    """A table from `lake.table(...)`.

    It reads the version that was the latest when it was opened, or what it last wrote, until `refresh`. A write
    begins a transaction on the latest version, and another one if it lost a race. It finds the table by its name, and
    raises `CommitConflict` if another table has that name now.

    Args:
        version: a version that has the table like this, if one is known.
        seen: the latest version, if that was just looked up. An append right afterwards begins on it, since appended
            rows are the same on a newer one; its commit finds out whether there is one.
    """

    def __init__(
        self,
        lakehouse: LatestVersion,
        namespace: str,
        name: str,
        definition: bytes,
        version: int | None = None,
        seen: _core.Version | None = None,
    ) -> None:
        super().__init__(lakehouse._storage, namespace, name, definition, version)
        self._lakehouse = lakehouse
        self._seen = (seen, time.monotonic())

    def _shown_version(self) -> int:
        return self._lakehouse.version

    def refresh(self) -> None:
        """Read the latest version from now on. Raises `ObjectNotFound` if the table is gone."""
        latest, version = self._latest()
        self._show(parse_table_def(latest), version)

    def __reduce__(self) -> tuple[Callable[..., FrozenTable], tuple[Any, ...]]:
        definition = serialize(self._definition)
        return AutocommitTable, (self._lakehouse, self._namespace, self._name, definition, self._version)

    _repeats_writes = True

    def _write(
        self, operation: Callable[[IcebergTable], Result], *, is_append: bool = False, note: CommitInfo = NO_COMMIT_INFO
    ) -> Result:
        def statement(transaction: TransactionWithTables) -> tuple[Result, Table]:
            table = self._in(transaction)
            with table._writing() as iceberg:
                return operation(iceberg), table

        seen, moment = self._seen
        self._seen = (None, 0.0)
        # A write to a table in another catalog cannot be repeated.
        is_fresh = is_append and self.type == "managed" and time.monotonic() - moment < SEEN_MAX_AGE_SECONDS
        try:
            result, written = self._lakehouse._execute(statement, note, seen if is_fresh else None)
        except _AnotherTable as error:
            raise self._conflict() from error
        self._show_written(written)
        return result

    @contextmanager
    def _writing(self, note: CommitInfo = NO_COMMIT_INFO) -> Iterator[IcebergTable]:
        try:
            with self._lakehouse.begin(message=note.message, author=note.author) as transaction:
                table = self._in(transaction)
                with table._writing() as iceberg:
                    yield iceberg
        except _AnotherTable as error:
            raise self._conflict() from error
        self._show_written(table)

    def _handle(
        self, identifier: tuple[str, ...], metadata: TableMetadata, uri: str, io: LakehouseFileIO
    ) -> IcebergTable:
        return CatalogTable(identifier, metadata, uri, io, AutocommitCatalog(self._commit, self._newest, identifier))

    def _commit(
        self, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate], base: IcebergTable
    ) -> StagedTable:
        """Commit the changes of a PyIceberg table as a transaction; returns the staged table.

        `base` is the table as its writer saw it. Raises `CommitConflict` if another table has the name now, and as
        `StagedTable.commit_from` does.
        """

        def statement(transaction: TransactionWithTables) -> tuple[StagedTable, Table]:
            table = cast("TransactionTable", self._in(transaction))
            staged = table._open_staged()
            commit_of_handle(staged, requirements, updates, base)
            return staged, table

        try:
            staged, written = self._lakehouse._execute(statement)
        except _AnotherTable as error:
            raise self._conflict() from error
        self._show_written(written)
        return staged

    def _newest(self) -> IcebergTable:
        """The PyIceberg table in the latest version. Raises `ObjectNotFound`."""
        latest, version = self._latest()
        return AutocommitTable(self._lakehouse, self._namespace, self._name, latest, version).iceberg

    def _latest(self) -> tuple[bytes, int]:
        """The definition in the latest version, and its number. Raises `ObjectNotFound` if the table is gone."""
        state = self._lakehouse._state()
        definition = state.read("table", self._namespace, self._name)
        if definition is None:
            definition = self._lakehouse._read_definition("table", self._namespace, self._name)
        return definition, state.number

    def _show_written(self, written: Table) -> None:
        self._show(written._definition, cast("TransactionTable", written)._committed_version)

    def _show(self, definition: TableDef, version: int | None) -> None:
        """Show this state of the table from now on, which a version has."""
        self._definition = definition
        self._version = version
        self._opened = None

    def _in(self, transaction: TransactionWithTables) -> Table:
        table = transaction.table((self._namespace, self._name))
        if table.id != self.id:
            raise _AnotherTable
        return table

    def _conflict(self) -> CommitConflict:
        message = f"table {self.name} was dropped, and another table has its name now: open it again"
        return CommitConflict(message, keys=[f"table {self.name}"])


class _AnotherTable(Exception):
    """Another table has the name. Not a `CommitConflict`, which would repeat a statement that cannot succeed."""
