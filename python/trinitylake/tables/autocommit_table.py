"""A table of the latest version: each write is a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from trinitylake.definitions import parse_table_def
from trinitylake.errors import CommitConflict
from trinitylake.tables.frozen_table import FrozenTable

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from trinitylake import _core
    from trinitylake.names import Identifier
    from trinitylake.tables.table import Table

Result = TypeVar("Result")


class TransactionWithTables(Protocol):
    """An open transaction, as far as a table needs it."""

    def table(self, identifier: Identifier) -> Table:
        """A table, as the transaction sees it."""


class LatestVersion(Protocol):
    """What a table reads from, and what makes its writes a transaction: a lakehouse."""

    @property
    def storage(self) -> _core.Storage:
        """The files of the lakehouse."""

    @property
    def version(self) -> int:
        """The number of the latest version."""

    def read_definition(self, kind: Literal["table"], namespace: str, name: str) -> bytes:
        """The definition of a table in the latest version. Raises `ObjectNotFound`."""

    def execute(self, statement: Callable[[TransactionWithTables], Result]) -> Result:
        """Run a statement in a transaction of its own, again as long as it loses races."""

    def begin(self) -> AbstractContextManager[TransactionWithTables]:
        """A transaction that commits when the block ends."""


class AutocommitTable(FrozenTable):
    """A table from `lake.table(...)`.

    It reads the version that was the latest when it was opened or last written through, until `refresh`. A write
    begins a transaction on the latest version, and begins another one there if it lost a race. It goes by the table's
    name there, and raises `CommitConflict` if that is the name of another table by now.
    """

    def __init__(self, lakehouse: LatestVersion, namespace: str, name: str, definition: bytes) -> None:
        super().__init__(lakehouse.storage, namespace, name, definition, -1)
        self._lakehouse = lakehouse

    def _shown_version(self) -> int:
        return self._lakehouse.version

    def refresh(self) -> None:
        """Read the latest version from now on. Raises `ObjectNotFound` if the table is gone."""
        latest = self._lakehouse.read_definition("table", self._namespace, self._name)
        self._definition = parse_table_def(latest)
        self._opened = None

    _repeats_writes = True

    def _write(self, operation: Callable[[IcebergTable], Result]) -> Result:
        def statement(transaction: TransactionWithTables) -> Result:
            with self._in(transaction).writing() as iceberg:
                return operation(iceberg)

        try:
            result = self._lakehouse.execute(statement)
        except _AnotherTable as error:
            raise self._conflict() from error
        self.refresh()
        return result

    @contextmanager
    def writing(self) -> Iterator[IcebergTable]:
        try:
            with self._lakehouse.begin() as transaction, self._in(transaction).writing() as iceberg:
                yield iceberg
        except _AnotherTable as error:
            raise self._conflict() from error
        self.refresh()

    def _in(self, transaction: TransactionWithTables) -> Table:
        table = transaction.table((self._namespace, self._name))
        if table.id != self.id:
            raise _AnotherTable
        return table

    def _conflict(self) -> CommitConflict:
        message = f"table {self.name} was dropped, and another table has its name now: open it again"
        return CommitConflict(message, keys=[f"table {self.name}"])


class _AnotherTable(Exception):
    """Not a conflict yet, because a statement that lost a race starts again, and this one cannot win."""
