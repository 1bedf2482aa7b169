"""The open transactions in memory, with limits on their number, memory and idle time.

An idle transaction is saved and removed from memory. If the transactions of one principal, or of all principals, exceed
their memory limit, the least recently used ones are saved and removed too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import RestError, unavailable
from trinitylake.rest.limits import Lease, SharedLimit
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.transactions.ownership import OWNERSHIP_PROPERTIES, Ownership

#: Number of ended transactions whose outcome is cached.
_ENDED_MAX = 1000
#: How long a request waits for others that use large saved transactions.
_WAIT_SECONDS = 20.0

logger = logging.getLogger("trinitylake.rest")


@dataclass
class Entry:
    """One open transaction.

    Attributes:
        lock: held while a request uses the transaction.
        is_ours: whether this server began the transaction. Only such transactions are saved.
        sent_size_bytes: memory of the requests of clients in the transaction.
    """

    transaction: Transaction
    ownership: Ownership
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_ours: bool = True
    used_at: float = field(default_factory=time.monotonic)
    sent_size_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Upper bound of the memory of the transaction."""
        return self.sent_size_bytes + self.transaction._base_size_bytes


class TransactionsInMemory:
    """The open transactions in memory, by id. Thread-safe."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._entries: dict[str, Entry] = {}
        self._ended: OrderedDict[str, tuple[str, str, str]] = OrderedDict()  # end, and ownership properties
        self._lock = threading.Lock()
        limit = options.max_transactions_size_bytes
        self._resumed = SharedLimit(limit, limit, "too many requests work in large saved transactions: try again")

    def get(self, id: str) -> Entry | None:
        with self._lock:
            return self._entries.get(id)

    def all(self) -> list[Entry]:
        """All transactions by id."""
        with self._lock:
            return [entry for _, entry in sorted(self._entries.items())]

    def ended(self, id: str) -> tuple[str, Ownership] | None:
        """Outcome and ownership of a transaction of this server that has ended; None if unknown."""
        with self._lock:
            found = self._ended.get(id)
        return (
            None if found is None else (found[0], Ownership.of(dict(zip(OWNERSHIP_PROPERTIES, found[1:], strict=True))))
        )

    @property
    def size_bytes(self) -> int:
        """Upper bound of the memory of all transactions."""
        return sum(entry.size_bytes for entry in self.all())

    def put(self, entry: Entry) -> None:
        """Add a transaction. Raises `RestError` 409 if its id is in memory, and 429 or 503 above a limit."""
        id, owner = entry.transaction.id, entry.ownership.owner
        with self._lock:
            if id in self._entries:
                raise RestError(409, "AlreadyExistsException", f"transaction {id} is open already")
            if len(self._entries) >= self._options.max_open_transactions_per_principal:
                self._entries = {key: one for key, one in self._entries.items() if one.transaction.is_open}
            if entry.is_ours:
                mine = sum(one.ownership.owner == owner for one in self._entries.values())
                if mine >= self._options.max_open_transactions_per_principal:
                    message = f"{mine} transactions of {owner} are open: end some first"
                    raise RestError(429, "TooManyRequestsException", message)
                if len(self._entries) >= self._options.max_open_transactions:
                    raise unavailable(f"{self._options.max_open_transactions} transactions are open: try again later")
            self._entries[id] = entry
            self._ended.pop(id, None)

    @property
    def count(self) -> int:
        """Number of transactions."""
        return len(self._entries)

    def forget(self, id: str, end: str | None = None, properties: Mapping[str, str] | None = None) -> None:
        """Remove a transaction. If it has ended, cache its outcome `end` and its ownership from `properties`."""
        with self._lock:
            self._entries.pop(id, None)
            if end is not None:
                owner, shared = (properties.get(name, "") if properties else "" for name in OWNERSHIP_PROPERTIES)
                self._ended[id] = end, owner, shared
                if len(self._ended) > _ENDED_MAX:
                    self._ended.popitem(last=False)

    def hand_over_idle(self) -> None:
        """Save and remove idle transactions."""
        old = time.monotonic() - self._options.transaction_idle_seconds
        for entry in self.all():
            if entry.is_ours and entry.used_at < old:
                self._try_to_hand_over(entry, old)

    def hand_over_all(self) -> None:
        """Save the transactions that this server began, and remove all transactions."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            with entry.lock:
                if entry.is_ours:
                    _hand_over(entry)

    def make_room(self, owner: str) -> bool:
        """Save and remove least recently used transactions until the memory limits of `owner` and of all hold.

        Returns whether the limits hold. Transactions in use stay in memory.
        """
        entries = sorted((entry for entry in self.all() if entry.is_ours), key=lambda entry: entry.used_at)
        mine = [entry for entry in entries if entry.ownership.owner == owner]
        all_fits = True
        for group, limit in (
            (mine, self._options.max_transactions_size_bytes_per_principal),
            (entries, self._options.max_transactions_size_bytes),
        ):
            sizes = {id(entry): entry.size_bytes for entry in group if self._is_in_memory(entry)}
            for entry in group:
                if sum(sizes.values()) <= limit:
                    break
                if id(entry) in sizes and self._try_to_hand_over(entry):
                    del sizes[id(entry)]
            all_fits = all_fits and sum(sizes.values()) <= limit
        return all_fits

    def room_for_saved(self, size_bytes: int) -> AbstractContextManager[Lease]:
        """Context manager that reserves memory for a resumed transaction. Raises `RestError` 503 after
        `_WAIT_SECONDS`.
        """
        return self._resumed.lease("", size_bytes, _WAIT_SECONDS)

    def _is_in_memory(self, entry: Entry) -> bool:
        return self.get(entry.transaction.id) is entry

    def _try_to_hand_over(self, entry: Entry, unused_since: float | None = None) -> bool:
        """Save and remove a transaction that no other thread uses. Returns whether it was removed."""
        if not entry.lock.acquire(blocking=False):
            return False
        try:
            if not self._is_in_memory(entry) or (unused_since is not None and entry.used_at >= unused_since):
                return False
            if _hand_over(entry):
                self.forget(entry.transaction.id)
                return True
            return False
        finally:
            entry.lock.release()


def _hand_over(entry: Entry) -> bool:
    """Save a transaction, unless it has ended. Returns False if saving failed, so that it must stay in memory."""
    if not entry.transaction.is_open or entry.transaction.version is not None:
        return True
    try:
        entry.transaction.save()
    except TrinityLakeError as error:
        logger.warning("transaction %s cannot be saved: %s", entry.transaction.id, error)
        return False
    return True
