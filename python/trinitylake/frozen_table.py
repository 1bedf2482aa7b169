"""A table as one version has it, for reading."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from trinitylake.definitions import from_proto, parse_table_def
from trinitylake.errors import InvalidArgument
from trinitylake.table import Table

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from trinitylake import _core
    from trinitylake.definitions import Schema


class FrozenTable(Table):
    """A read-only table; its Iceberg metadata is read when it is first needed."""

    def __init__(self, storage: _core.Storage, namespace: str, name: str, definition: bytes, version: int) -> None:
        super().__init__(namespace, name, parse_table_def(definition))
        self._storage = storage
        self._version = version
        self._opened: IcebergTable | None = None

    @property
    def schema(self) -> Schema:
        """The columns, in TrinityLake's types. Raises as `Table.schema` does."""
        if self._definition.HasField("schema") and self.type != "federated":
            return from_proto(self._definition.schema, tuple(self._definition.primary_keys))
        return super().schema

    def _iceberg(self) -> IcebergTable:
        if self._opened is None:
            from trinitylake.iceberg.open_table import open_table

            self._opened = open_table(self._storage, self.name, self._definition)
        return self._opened

    def _writing(self) -> AbstractContextManager[IcebergTable]:
        raise InvalidArgument(
            f"table {self.name} is read-only here: it belongs to version {self._version}; write in a transaction"
        )
