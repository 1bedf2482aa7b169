"""The catalog of one request: PyIceberg's methods, and statements with commits whose outcome is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from trinitylake.definitions import TableDef
from trinitylake.errors import CommitConflict
from trinitylake.iceberg.bound_catalog import names_checked
from trinitylake.iceberg.catalog import TrinityLakeCatalog
from trinitylake.iceberg.namespaces import object_name
from trinitylake.lakehouse.handle import STATEMENT_MAX_ATTEMPTS
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import client_faults
from trinitylake.rest.transactions.open_transactions import committed_version
from trinitylake.rest.workers.foreign_files import ForeignFileIO, load_federated_table
from trinitylake.rest.workers.pool import WorkerPool
from trinitylake.tables.transaction_table import TransactionTable

Result = TypeVar("Result")


@dataclass
class Commit:
    """Input and outcome of the commit of a request.

    Attributes:
        message, author, properties: commit info for the log of the lakehouse.
        id: id for the transaction, if the request has an idempotency key.
        version: the version that the request committed.
        is_own: whether this request itself committed `version`, in a transaction that it began.
        transaction_id: id of the transaction that the request used.
        names: objects in the body, for the audit log.
    """

    message: str = ""
    author: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    version: int | None = None
    is_own: bool = False
    transaction_id: str | None = None
    names: list[str] = field(default_factory=list)


class ServedCatalog(TrinityLakeCatalog):
    """The catalog of one request over the latest version, one version, or an open transaction.

    Args:
        source: the latest version, one version, or the open transaction.
        commit: input and outcome of the commit, if the request makes one.
        workers: read files outside of the lakehouse.

    Attributes:
        has_tracked_scans: whether the server plans all scans of the client, so that opening a table counts as no read
            of rows.
    """

    def __init__(self, source: Lakehouse | LakehouseVersion | Transaction, commit: Commit, workers: WorkerPool) -> None:
        # Does not call `TrinityLakeCatalog.__init__`, which would search for a configuration file in each request.
        self.name = "rest"
        self.properties = {}
        self._source = source
        self._storage_options = None
        self._commit = commit
        self._workers = workers
        self.has_tracked_scans = False

    def _guarded(self, io: FileIO) -> FileIO:
        return ForeignFileIO(io, self._workers)

    def _federated(self, definition: TableDef) -> Table:
        return load_federated_table(definition, self._workers)

    def definition(self, namespace: str, name: str) -> bytes | None:
        source = self._source
        if not (self.has_tracked_scans and isinstance(source, Transaction)):
            return super().definition(namespace, name)
        if source._find_table(namespace, name) is not None:
            return source._state().open_table(namespace, name)
        # To read the metadata table `db.t.snapshots`, a client first asks for a table `snapshots` in `db.t`. Then it
        # loads `db.t` and reads the metadata itself, so the whole table counts as read.
        if (table := self.tracked_table(*namespace.rpartition(".")[::2])) is not None:
            table._note_whole()
        return None

    def tracked_table(self, namespace: str, name: str) -> TransactionTable | None:
        """A managed table whose reads the transaction tracks; None if it does not exist or is not tracked."""
        source = self._source
        if not (self.has_tracked_scans and isinstance(source, Transaction) and source.isolation == "serializable"):
            return None
        table = source._find_table(namespace, name) if namespace else None
        return table if table is not None and table.type == "managed" else None

    def table_exists(self, identifier: str | Identifier) -> bool:
        if not self.has_tracked_scans:
            return super().table_exists(identifier)
        with names_checked(NoSuchTableError):
            return self.definition(*object_name(identifier, NoSuchTableError)) is not None

    def write(self, statement: Callable[[Transaction], Result]) -> Result:
        """Run a statement in the open transaction, or in a new transaction that is committed.

        After a lost race the statement runs again, so requirements are checked on the newer version.

        Raises:
            CommitStateUnknown: for every error of the commit after which the outcome is unknown.
        """
        source = self._writable()
        outcome = self._commit
        if isinstance(source, Transaction):
            outcome.transaction_id = source.id
            with client_faults("the request"):
                return statement(source)
        lost: Transaction | None = None
        for attempt in range(1, STATEMENT_MAX_ATTEMPTS + 1):
            # Wait for the table lock before the transaction begins, so that it starts on the version that won.
            with nullcontext() if lost is None else lost._locks_reserved():
                transaction = source.begin(
                    message=outcome.message, author=outcome.author, id=outcome.id, properties=outcome.properties
                )
                try:
                    with client_faults("the request"):
                        result = statement(transaction)
                except BaseException:
                    transaction.rollback()
                    raise
                try:
                    outcome.version = committed_version(transaction, in_group=outcome.id is None)
                except CommitConflict:
                    if attempt == STATEMENT_MAX_ATTEMPTS:
                        raise
                    lost = transaction
                else:
                    outcome.is_own, outcome.transaction_id = True, transaction.id
                    return result
        raise AssertionError("the last attempt returns or raises")
