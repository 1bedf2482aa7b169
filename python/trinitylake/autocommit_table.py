"""A table of the latest version: each write is a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from trinitylake.definitions import parse_table_def
from trinitylake.frozen_table import FrozenTable

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from trinitylake.lakehouse import Lakehouse
    from trinitylake.transaction import Transaction

Result = TypeVar("Result")


class AutocommitTable(FrozenTable):
    """A table from `lake.table(...)`.

    It reads the version that was the latest when it was opened or last written through, until `refresh`. A write
    begins a transaction on the latest version, and begins another one there if it lost a race, so it goes by the
    table's name, not by what this handle has read.
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
            return transaction.table((self._namespace, self._name))._write(operation)

        result = self._lakehouse._execute(statement, replayable=replayable)
        self.refresh()
        return result

    @contextmanager
    def _writing(self) -> Iterator[IcebergTable]:
        with (
            self._lakehouse.begin() as transaction,
            transaction.table((self._namespace, self._name))._writing() as iceberg,
        ):
            yield iceberg
        self.refresh()
