"""Saved transactions and the outcomes of all transactions: `lake.transactions`."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from trinitylake.base.arguments import checked
from trinitylake.base.timestamps import time_of

if TYPE_CHECKING:
    from trinitylake.lakehouse.handle import Handle


@dataclass(frozen=True, slots=True)
class SavedTransaction:
    """A saved transaction that can be resumed, from `lake.transactions()`."""

    id: str
    isolation: str
    message: str
    author: str
    properties: dict[str, str] = field(repr=False)
    base_version: int
    began_at: datetime
    expires_at: datetime
    times_saved: int


OutcomeStatus: TypeAlias = Literal["committed", "undone", "rolled back", "not committed", "unknown"]


class Outcome(NamedTuple):
    """Outcome of a transaction.

    `status` is one of:

    - "committed": the transaction was committed in `version`.
    - "undone": the transaction was committed in `version`, and a later rollback of the lakehouse has undone it.
    - "rolled back": the transaction ended without effect, and can never be committed.
    - "not committed": the transaction is not in the log, but a running writer may still commit it.
    - "unknown": versions that could contain the transaction have expired.
    """

    status: OutcomeStatus
    version: int | None


class Transactions:
    """The saved transactions of a lakehouse, and the outcomes of all transactions: `lake.transactions`."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def list(self) -> builtins.list[SavedTransaction]:
        """The saved transactions that can be resumed, sorted by id."""
        return [
            SavedTransaction(
                id=saved.id,
                isolation=saved.isolation,
                message=saved.message,
                author=saved.author,
                properties=dict(saved.properties),
                base_version=saved.base_version,
                began_at=time_of(saved.began_at_millis),
                expires_at=time_of(saved.expire_at_millis),
                times_saved=saved.sequence,
            )
            for saved in self._handle.core.saved_transactions()
        ]

    @checked
    def outcome(self, transaction_id: str) -> Outcome:
        """Outcome of a transaction, after a `CommitStateUnknown` or a crash of its process.

        Reads the log back to the oldest kept version. Raises `InvalidName` for a string that cannot be an id.
        """
        return Outcome(*self._handle.core.outcome(transaction_id))

    @checked
    def is_committed(self, transaction_id: str) -> bool:
        """Whether a kept version committed a transaction with this chosen id, even if a later rollback has undone it.

        This takes one look-up in the latest version, whereas `outcome` reads the log. Raises `InvalidName` for an
        invalid id.
        """
        return self._handle.core.is_committed(transaction_id)
