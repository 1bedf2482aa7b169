"""The transactions that one server has in memory: how many, how long, and how much memory they take.

One that nobody has used for a while is saved, and then it is in the storage and nowhere else. So are those that nobody
has used for longest, where the transactions of one principal, or all together, take more memory than they may.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from trinitylake.errors import TrinityLakeError
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import RestError
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.transactions.ownership import OWNERSHIP_PROPERTIES, Ownership

#: Of these many transactions that ended here it is known how.
_ENDED_MAX = 1000
#: How long a request waits for others that work in large saved transactions.
_WAIT_SECONDS = 20.0

logger = logging.getLogger("trinitylake.rest")


@dataclass
class Entry:
    """One transaction.

    Attributes:
        lock: whoever works in it has this.
        is_ours: it was begun here, so it is saved here, too.
        sent_size_bytes: of memory, for what clients have sent into it.
    """

    transaction: Transaction
    ownership: Ownership
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_ours: bool = True
    used_at: float = field(default_factory=time.monotonic)
    sent_size_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, at most."""
        return self.sent_size_bytes + self.transaction._base_size_bytes


class TransactionsInMemory:
    """The transactions that this server has in memory, by id. Safe to share between threads."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._entries: dict[str, Entry] = {}
        self._ended: OrderedDict[str, tuple[str, str, str]] = OrderedDict()  # how, and what tells whose it was
        self._lock = threading.Lock()
        self._saved_at_work_size_bytes = 0
        self._room_for_saved = threading.Condition()

    def get(self, id: str) -> Entry | None:
        """The transaction with that id, if it is here."""
        with self._lock:
            return self._entries.get(id)

    def all(self) -> list[Entry]:
        """All of them, by id."""
        with self._lock:
            return [entry for _, entry in sorted(self._entries.items())]

    def ended(self, id: str) -> tuple[str, Ownership] | None:
        """How a transaction ended here, and whose it was; None if that is not known."""
        with self._lock:
            found = self._ended.get(id)
        return (
            None if found is None else (found[0], Ownership.of(dict(zip(OWNERSHIP_PROPERTIES, found[1:], strict=True))))
        )

    @property
    def size_bytes(self) -> int:
        """How much memory they take, at most."""
        return sum(entry.size_bytes for entry in self.all())

    def put(self, entry: Entry) -> None:
        """Take one more. Raises `RestError` 409 for an id that is here already, 429 and 503 for too many."""
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
                    message = f"{self._options.max_open_transactions} transactions are open: try again later"
                    raise RestError(503, "ServiceUnavailableException", message)
            self._entries[id] = entry
            self._ended.pop(id, None)

    def forget(self, id: str, end: str | None = None, properties: Mapping[str, str] | None = None) -> None:
        """Know nothing of it any more, but for how it ended, if it did, and what its properties tell of its owner."""
        with self._lock:
            self._entries.pop(id, None)
            if end is not None:
                owner, shared = (properties.get(name, "") if properties else "" for name in OWNERSHIP_PROPERTIES)
                self._ended[id] = end, owner, shared
                if len(self._ended) > _ENDED_MAX:
                    self._ended.popitem(last=False)

    def hand_over_idle(self) -> None:
        """Save those that nobody has used for long."""
        old = time.monotonic() - self._options.transaction_idle_seconds
        for entry in self.all():
            if entry.is_ours and entry.used_at < old:
                self._try_to_hand_over(entry, old)

    def hand_over_all(self) -> None:
        """Save those that were begun here, and forget all."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            with entry.lock:
                if entry.is_ours:
                    _hand_over(entry)

    def make_room(self, owner: str) -> bool:
        """Save transactions, the least recently used first, until those of a principal, and all, weigh what they may.

        Returns whether they do. Those that other threads use stay.
        """
        entries = sorted((entry for entry in self.all() if entry.is_ours), key=lambda entry: entry.used_at)
        mine = [entry for entry in entries if entry.ownership.owner == owner]
        all_fits = True
        for group, limit in (
            (mine, self._options.max_transactions_size_bytes_per_principal),
            (entries, self._options.max_transactions_size_bytes),
        ):
            sizes = {id(entry): entry.size_bytes for entry in group if self._is_here(entry)}
            for entry in group:
                if sum(sizes.values()) <= limit:
                    break
                if id(entry) in sizes and self._try_to_hand_over(entry):
                    del sizes[id(entry)]
            all_fits = all_fits and sum(sizes.values()) <= limit
        return all_fits

    @contextmanager
    def room_for_saved(self, size_bytes: int) -> Iterator[None]:
        """Room for a saved transaction, as long as the block works in it. Waits for it; raises `RestError` 503 if that
        takes too long."""
        limit = self._options.max_transactions_size_bytes

        def has_room() -> bool:
            at_work = self._saved_at_work_size_bytes
            return not at_work or at_work + size_bytes <= limit  # one alone always fits

        with self._room_for_saved:
            if not self._room_for_saved.wait_for(has_room, _WAIT_SECONDS):
                message = "too many requests work in large saved transactions: try again"
                raise RestError(503, "ServiceUnavailableException", message)
            self._saved_at_work_size_bytes += size_bytes
        try:
            yield
        finally:
            with self._room_for_saved:
                self._saved_at_work_size_bytes -= size_bytes
                self._room_for_saved.notify_all()

    def _is_here(self, entry: Entry) -> bool:
        return self.get(entry.transaction.id) is entry

    def _try_to_hand_over(self, entry: Entry, unused_since: float | None = None) -> bool:
        """Save one that no other thread uses, and forget it. Returns whether it is gone from here."""
        if not entry.lock.acquire(blocking=False):
            return False
        try:
            if not self._is_here(entry) or (unused_since is not None and entry.used_at >= unused_since):
                return False
            if _hand_over(entry):
                self.forget(entry.transaction.id)
                return True
            return False
        finally:
            entry.lock.release()


def _hand_over(entry: Entry) -> bool:
    """Save a transaction, if it has not ended. Returns whether nothing of it is here alone."""
    if not entry.transaction.is_open or entry.transaction.version is not None:
        return True
    try:
        entry.transaction.save()
    except TrinityLakeError as error:
        logger.warning("transaction %s cannot be saved: %s", entry.transaction.id, error)
        return False
    return True
