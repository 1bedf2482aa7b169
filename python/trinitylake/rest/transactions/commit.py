"""The commit of a transaction, whose unknown outcome is always one kind of error."""

from __future__ import annotations

from trinitylake.base.foreign_errors import errors_as
from trinitylake.errors import CommitStateUnknown
from trinitylake.lakehouse.transaction import Transaction


def commit(transaction: Transaction) -> int:
    """Commit, and return the version.

    Raises as `Transaction.commit`, but `CommitStateUnknown` for every error after which the outcome is unknown.
    """

    def mapped(error: Exception) -> Exception | None:
        if isinstance(error, CommitStateUnknown) or not transaction.is_unknown:
            return None
        return CommitStateUnknown(f"the outcome of the commit is not known: {error}")

    with errors_as(mapped):
        return transaction.commit()
