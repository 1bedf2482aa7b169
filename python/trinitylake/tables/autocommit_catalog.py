"""The PyIceberg catalog of `lake.table(…).iceberg`: each of its commits is a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from trinitylake.iceberg_storage.errors import pyiceberg_errors
from trinitylake.iceberg_storage.extended_pyiceberg.catalog import KeepsOldMetadata

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.staging.staged_table import StagedTable

    Commit: TypeAlias = Callable[[Sequence[TableRequirement], Sequence[TableUpdate], Table], StagedTable]


class AutocommitCatalog(KeepsOldMetadata, NoopCatalog):
    """A catalog of one table. It raises PyIceberg's errors, by which PyIceberg decides what to delete.

    After a `CommitFailedException` PyIceberg deletes the files that it wrote, after a `CommitStateUnknownException`
    nothing.

    Args:
        commit: commits updates with their requirements, for the table as the writer read it. Returns the staged table.
        newest: returns the PyIceberg table in the latest version. Raises `ObjectNotFound`.
        identifier: namespace parts and name of the table.
    """

    def __init__(self, commit: Commit, newest: Callable[[], Table], identifier: Identifier) -> None:
        super().__init__("trinitylake")
        self._commit = commit
        self._newest = newest
        self._own = identifier

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load the table from the latest version. Raises `NoSuchTableError` for another table, or if it was dropped."""
        if self.identifier_to_tuple(identifier) != self._own:
            raise NoSuchTableError(f"{identifier} is not the table {'.'.join(self._own)}")
        with pyiceberg_errors(missing=NoSuchTableError):
            return self._newest()

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Whether `identifier` is this table, and the table still exists."""
        try:
            self.load_table(identifier)
        except NoSuchTableError:
            return False
        return True

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit updates as one transaction. Raises as `TrinityLakeCatalog.commit_table` does."""
        with pyiceberg_errors(missing=NoSuchTableError):
            return self._commit(requirements, updates, table).response_after_commit()

    def supports_server_side_planning(self) -> bool:
        return False
