"""The catalog behind the routes: PyIceberg's methods, with commits whose outcome a client can be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from trinitylake.errors import (
    CheckFailed,
    CommitConflict,
    CommitStateUnknown,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
    TransactionExpired,
)
from trinitylake.iceberg.catalog import TrinityLakeCatalog
from trinitylake.lakehouse import STATEMENT_MAX_ATTEMPTS, Lakehouse
from trinitylake.transaction import Transaction
from trinitylake.view_at import ViewAt

Result = TypeVar("Result")

#: Raised by a commit only if it is certain that nothing was committed.
_CERTAINLY_LOST = (
    CheckFailed,
    CommitConflict,
    NamespaceNotEmpty,
    ObjectAlreadyExists,
    ObjectNotFound,
    TransactionExpired,
)


class ServedCatalog(TrinityLakeCatalog):
    """A catalog for one request, over the latest version, one version, or an open transaction.

    Args:
        source: what it shows.
        message: for the log of the lakehouse, if the request commits.
    """

    def __init__(self, source: Lakehouse | ViewAt | Transaction, message: str = "") -> None:
        # Without `TrinityLakeCatalog.__init__`, which looks for a configuration file at every call.
        self.name = "rest"
        self.properties = {}
        self._source = source
        self._storage_options = None
        self._message = message

    def _write(self, statement: Callable[[Transaction], Result]) -> Result:
        """Run a statement: in the transaction that is shown, or in one of its own.

        A race that is lost starts it again, so requirements are checked against what won.

        Raises:
            CommitStateUnknown: for whatever a commit can raise that leaves its outcome open.
        """
        source = self._writable()
        if isinstance(source, Transaction):
            return statement(source)
        for attempt in range(1, STATEMENT_MAX_ATTEMPTS + 1):
            transaction = source.begin(message=self._message, author="rest")
            try:
                result = statement(transaction)
            except BaseException:
                transaction.rollback()
                raise
            try:
                commit(transaction)
            except CommitConflict:
                if attempt == STATEMENT_MAX_ATTEMPTS:
                    raise
            else:
                return result
        raise AssertionError("the last attempt returns or raises")


def commit(transaction: Transaction) -> int:
    """Commit; returns the version. Raises as `Transaction.commit`, but `CommitStateUnknown` for every open outcome."""
    try:
        return transaction.commit()
    except (*_CERTAINLY_LOST, CommitStateUnknown):
        raise
    except Exception as error:
        if transaction._closed == "was rolled back":  # it failed before the first root was tried
            raise
        raise CommitStateUnknown(f"the outcome of the commit is not known: {error}") from error
