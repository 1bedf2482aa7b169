"""A table of the latest version: each write is a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from trinitylake.definitions import parse_table_def
from trinitylake.errors import CommitConflict
from trinitylake.frozen_table import FrozenTable

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from trinitylake.lakehouse import Lakehouse
    from trinitylake.table import Table
    from trinitylake.transaction import Transaction

Result = TypeVar("Result")


class AutocommitTable(FrozenTable):
    """A table from `lake.table(...)`.

    It reads the version that was the latest when it was opened or last written through, until `refresh`. A write
    begins a transaction on the latest version, and begins another one there if it lost a race. It goes by the table's
    name there, and raises `CommitConflict` if that is the name of another table by now.
    """

    def __init__(self, lakehouse: Lakehouse, namespace: str, name: str, definition: bytes) -> None:
        super().__init__(lakehouse._storage, namespace, name, definition, -1)
        self._lakehouse = lakehouse

    def refresh(self) -> None:
        """Read the latest version from now on. Raises `ObjectNotFound` if the table is gone."""
        latest = self._lakehouse._read("table", self._namespace, self._name)
        self._definition = parse_table_def(latest)
        self._opened = None

    def _write(self, operation: Callable[[IcebergTable], Result], *, replayable: bool = True) -> Result:
        def statement(transaction: Transaction) -> Result:
            return self._in(transaction)._write(operation)

        try:
            result = self._lakehouse._execute(statement, replayable=replayable)
        except _AnotherTable as error:
            raise self._conflict() from error
        self.refresh()
        return result

    @contextmanager
    def _writing(self) -> Iterator[IcebergTable]:
        try:
            with self._lakehouse.begin() as transaction, self._in(transaction)._writing() as iceberg:
                yield iceberg
        except _AnotherTable as error:
            raise self._conflict() from error
        self.refresh()

    def _in(self, transaction: Transaction) -> Table:
        table = transaction.table((self._namespace, self._name))
        if table.id != self.id:
            raise _AnotherTable
        return table

    def _conflict(self) -> CommitConflict:
        message = f"table {self.name} was dropped, and another table has its name now: open it again"
        return CommitConflict(message, keys=[f"table {self.name}"])


class _AnotherTable(Exception):
    """Not a conflict yet, because a statement that lost a race starts again, and this one cannot win."""
