"""The catalog that handlers use: PyIceberg's methods, with commits that report their outcome for the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from trinitylake.definitions import TableDef
from trinitylake.errors import CommitConflict
from trinitylake.iceberg.catalog import TrinityLakeCatalog
from trinitylake.lakehouse.handle import STATEMENT_MAX_ATTEMPTS
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import client_faults
from trinitylake.rest.metadata_limits import BoundedForeignFileIO
from trinitylake.rest.transactions.open_transactions import committed_version
from trinitylake.rest.workers.foreign_files import ForeignFileIO, load_federated_table
from trinitylake.rest.workers.pool import WorkerPool

Result = TypeVar("Result")


@dataclass
class Commit:
    """What a request tells of the commit that it makes, and what became of it.

    Attributes:
        message, author, properties: for the log of the lakehouse.
        id: of the transaction, if the client must be able to send the request twice.
        version: that the request has committed.
        is_own: it has done so now, in a transaction that it began.
        transaction_id: of the transaction that it worked in.
        names: of objects in the body, for the audit log.
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
    """A catalog for one request, over the latest version, one version, or an open transaction.

    Args:
        source: what it shows.
        commit: what to tell of the commit, if the request makes one.
        workers: that read files outside of the lakehouse.
    """

    def __init__(self, source: Lakehouse | LakehouseVersion | Transaction, commit: Commit, workers: WorkerPool) -> None:
        # Without `TrinityLakeCatalog.__init__`, which looks for a configuration file at every call.
        self.name = "rest"
        self.properties = {}
        self._source = source
        self._storage_options = None
        self._commit = commit
        self._workers = workers

    def _guarded(self, io: FileIO) -> FileIO:
        # Whoever can write there is nobody whom this server knows.
        return BoundedForeignFileIO(ForeignFileIO(io, self._workers))

    def _federated(self, definition: TableDef) -> Table:
        if (table := load_federated_table(definition, self._workers, self._guarded)) is None:
            table = super()._federated(definition)
            table.io = self._guarded(table.io)
        return table

    def write(self, statement: Callable[[Transaction], Result]) -> Result:
        """Run a statement: in the transaction that is shown, or in one of its own.

        A race that is lost starts it again, so requirements are checked against what won.

        Raises:
            CommitStateUnknown: for whatever a commit can raise that leaves its outcome open.
        """
        source = self._writable()
        told = self._commit
        if isinstance(source, Transaction):
            told.transaction_id = source.id
            with client_faults("the request"):
                return statement(source)
        lost: Transaction | None = None
        for attempt in range(1, STATEMENT_MAX_ATTEMPTS + 1):
            # Before it begins: what it saw while it waited would be what others have changed since, once more.
            with nullcontext() if lost is None else lost._locks_reserved():
                transaction = source.begin(
                    message=told.message, author=told.author, id=told.id, properties=told.properties
                )
                try:
                    with client_faults("the request"):
                        result = statement(transaction)
                except BaseException:
                    transaction.rollback()
                    raise
                try:
                    told.version = committed_version(transaction)
                except CommitConflict:
                    if attempt == STATEMENT_MAX_ATTEMPTS:
                        raise
                    lost = transaction
                else:
                    told.is_own, told.transaction_id = True, transaction.id
                    return result
        raise AssertionError("the last attempt returns or raises")
