"""The transactions that are open in this server, each to be used by one request at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidArgument,
    ObjectNotFound,
    TransactionClosed,
    TrinityLakeError,
)
from trinitylake.lakehouse import Lakehouse
from trinitylake.rest.errors import RestError
from trinitylake.rest.served_catalog import commit
from trinitylake.settings import check_isolation
from trinitylake.transaction import Transaction

#: More would let a client that forgets to end them fill the memory.
MAX_OPEN = 1000
#: Of a commit: the principal who began the transaction.
OWNER_PROPERTY = "rest.principal"

logger = logging.getLogger("trinitylake.rest")


@dataclass
class _Entry:
    transaction: Transaction
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_ours: bool = True  # begun or resumed here, so ended here too
    owner: str = ""  # the principal who began it, "" for those of other programs


class OpenTransactions:
    """The registry of open transactions of one lakehouse. Safe to share between threads.

    A transaction that is saved but not open here is picked up when somebody asks for it.
    """

    def __init__(self, lake: Lakehouse) -> None:
        self._lake = lake
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def add(self, transaction: Transaction) -> str:
        """Serve a transaction of this process; returns its warehouse. Its owner must not use it meanwhile.

        Raises `InvalidArgument` if it is of another lakehouse.
        """
        if transaction._lakehouse.storage.root != self._lake.uri:
            raise InvalidArgument(f"transaction {transaction.id} is not of the lakehouse {self._lake.uri!r}")
        transaction._open_core()
        self._put(_Entry(transaction, is_ours=False))
        return f"@txn/{transaction.id}"

    def begin(
        self,
        *,
        owner: str = "",
        isolation: str | None = None,
        message: str = "",
        author: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Transaction:
        """Begin a transaction. Raises `InvalidArgument`, and `RestError` 409 if one of that id is open."""
        transaction = self._lake.begin(
            isolation=None if isolation is None else check_isolation(isolation),
            message=message,
            author=author,
            id=id,
            properties=properties,
        )
        try:
            self._put(_Entry(transaction, owner=owner))
        except RestError:
            transaction.rollback()
            raise
        return transaction

    def list(self) -> list[tuple[Transaction, str]]:
        """The transactions that are open here, by id, and the owner of each."""
        with self._lock:
            entries = [entry for _, entry in sorted(self._entries.items())]
        return [(entry.transaction, entry.owner) for entry in entries if entry.transaction.is_open]

    def owner(self, id: str) -> str:
        """The principal who began it; "" if nobody knows."""
        with self._lock:
            if (entry := self._entries.get(id)) is not None:
                return entry.owner
        if (version := self._lake.outcome(id).version) is not None:
            entries = self._lake.at(version=version).entry.transactions
            return next((one.properties.get(OWNER_PROPERTY, "") for one in entries if one.id == id), "")
        return self._saved_owner(id)

    @contextmanager
    def borrowed(self, id: str) -> Iterator[Transaction]:
        """An open transaction, for the caller alone inside the block.

        Raises:
            ObjectNotFound: it is neither open here nor saved.
            TransactionClosed, TransactionExpired: it has ended.
        """
        entry = self._entry(id)
        with entry.lock:
            if not entry.transaction.is_open or entry.transaction.version is not None:
                self._forget(id)
                raise TransactionClosed(f"transaction {id} has ended")
            yield entry.transaction

    def commit(self, id: str) -> int:
        """Commit; returns the version. One that was committed before answers with its version again.

        Raises as `Transaction.commit` does, and `CommitConflict` for one that was committed and then undone.
        """
        try:
            entry = self._entry(id)
        except ObjectNotFound:
            return self._committed_before(id)
        with entry.lock:
            if not entry.transaction.is_open:
                self._forget(id)
                return self._committed_before(id)
            try:
                return commit(entry.transaction)
            finally:
                self._forget(id)

    def rollback(self, id: str) -> None:
        """Roll back, also one that was only saved. Raises `ObjectNotFound`."""
        with self.borrowed(id) as transaction:
            try:
                transaction.rollback()
            finally:
                self._forget(id)

    def release(self, id: str) -> None:
        """Know nothing of a transaction any more, without ending it: its owner saved it for others."""
        self._forget(id)

    def close(self) -> None:
        """Hand over what was begun here: it is saved, so that the next server can go on with it."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            with entry.lock:
                if entry.is_ours and entry.transaction.is_open and entry.transaction.version is None:
                    try:
                        entry.transaction.save()
                    except TrinityLakeError as error:
                        logger.warning("transaction %s is lost: %s", entry.transaction.id, error)

    def _saved_owner(self, id: str) -> str:
        saved = (one for one in self._lake.transactions() if one.id == id)
        return next((one.properties.get(OWNER_PROPERTY, "") for one in saved), "")

    def _committed_before(self, id: str) -> int:
        outcome = self._lake.outcome(id)
        if outcome.status == "undone":
            raise CommitConflict(
                f"transaction {id} was committed as version {outcome.version}, which was undone by a rollback since"
            )
        if outcome.version is not None:
            return outcome.version
        if outcome.status == "unknown":
            raise CommitStateUnknown(f"nothing tells any more whether transaction {id} was committed")
        raise ObjectNotFound(f"transaction {id} is neither open nor committed")

    def _entry(self, id: str) -> _Entry:
        with self._lock:
            if (entry := self._entries.get(id)) is not None:
                return entry
        transaction = self._lake.resume(id)
        if transaction.version is not None:
            raise TransactionClosed(f"transaction {id} was committed as version {transaction.version}")
        try:
            return self._put(_Entry(transaction, owner=self._saved_owner(id)))
        except RestError:
            with self._lock:  # another request was faster
                if (entry := self._entries.get(id)) is not None:
                    return entry
            raise

    def _put(self, entry: _Entry) -> _Entry:
        id = entry.transaction.id
        with self._lock:
            if id in self._entries:
                raise RestError(409, "AlreadyExistsException", f"transaction {id} is open already")
            if len(self._entries) >= MAX_OPEN:
                self._entries = {key: one for key, one in self._entries.items() if one.transaction.is_open}
            if len(self._entries) >= MAX_OPEN:
                raise RestError(503, "ServiceUnavailableException", f"{MAX_OPEN} transactions are open: end some first")
            self._entries[id] = entry
        return entry

    def _forget(self, id: str) -> None:
        with self._lock:
            self._entries.pop(id, None)
