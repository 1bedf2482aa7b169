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

    `status` is "committed" in `version`; "undone": committed in `version`, and undone by a later rollback; "rolled
    back": it ended without effect, and can never be committed; "not committed": it is not in the log, but a running
    writer may still commit it; or "unknown": the versions that could contain it have expired.
    """

    status: OutcomeStatus
    version: int | None


class Transactions:
    """The saved transactions of a lakehouse, and the outcomes of those that ended: `lake.transactions`."""

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

        Reads the log back to the oldest retained version. Raises `InvalidName` for a text that cannot be an id.
        """
        return Outcome(*self._handle.core.outcome(transaction_id))

    @checked
    def is_committed(self, transaction_id: str) -> bool:
        """Whether a transaction with this chosen id was committed in a kept version, even if a rollback undid it since.

        One look-up in the latest version, whereas `outcome` reads the log. Raises `InvalidName` for an invalid id.
        """
        return self._handle.core.is_committed(transaction_id)
