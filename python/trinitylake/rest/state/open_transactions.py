"""Open transactions of clients; each is used by one request at a time.

One that was begun here is in this server's memory until it ends, or until nobody has used it for a while: then it is
saved. A saved one is in the storage and nowhere else: each request that works in it resumes it, and saves it again if
it wrote. So any server, and any program, goes on with it as it is, and asking for it takes no memory.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidArgument,
    ObjectNotFound,
    TransactionClosed,
    TrinityLakeError,
)
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.settings import check_isolation
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import RestError
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.state.served_catalog import commit

#: Of a commit: the principal who began the transaction.
OWNER_PROPERTY = "rest.principal"
#: Saved transactions are used one request at a time, by these many locks for all their ids.
_SAVED_LOCKS = 64
#: Of these many transactions that ended here it is known how.
_ENDED_MAX = 1000
#: How long a request waits for another one in the same transaction.
_LOCK_SECONDS = 30.0

logger = logging.getLogger("trinitylake.rest")


@dataclass
class _Entry:
    transaction: Transaction
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_ours: bool = True  # begun here, so ended here too
    owner: str = ""  # the principal who began it, "" for those of other programs
    used_at: float = field(default_factory=time.monotonic)


class OpenTransactions:
    """The open transactions of one lakehouse. Safe to share between threads."""

    def __init__(self, lake: Lakehouse, options: ServerOptions | None = None) -> None:
        self._lake = lake
        self._options = options or ServerOptions()
        self._entries: dict[str, _Entry] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()  # by id: how it ended
        self._lock = threading.Lock()
        self._saved_locks = [threading.RLock() for _ in range(_SAVED_LOCKS)]

    def add(self, transaction: Transaction) -> str:
        """Serve a transaction of this process; returns its warehouse. Its owner must not use it meanwhile.

        Raises `InvalidArgument` if it is of another lakehouse.
        """
        if transaction.storage.root != self._lake.uri:
            raise InvalidArgument(f"transaction {transaction.id} is not of the lakehouse {self._lake.uri!r}")
        transaction.state()
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
        """Begin a transaction.

        Raises:
            InvalidArgument: for an isolation or id that cannot be.
            RestError: 409 for an id that is open or saved, or with which somebody else has committed; 429 and 503 for
                more transactions than may be open.
        """
        transaction = self._lake.begin(
            isolation=None if isolation is None else check_isolation(isolation),
            message=message,
            author=author,
            id=id or uuid.uuid4().hex,  # chosen ids are recorded, so that its fate is found without the log
            properties=properties,
        )
        try:
            if id is not None:
                self._require_own(id, owner)
            self._put(_Entry(transaction, owner=owner))
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def list(self) -> list[tuple[Transaction, str]]:
        """The transactions in the memory of this server, by id, and the owner of each."""
        with self._lock:
            entries = [entry for _, entry in sorted(self._entries.items())]
        return [(entry.transaction, entry.owner) for entry in entries if entry.transaction.is_open]

    def owner(self, id: str) -> str:
        """The principal who began it; "" if nobody knows."""
        with self._lock:
            if (entry := self._entries.get(id)) is not None:
                return entry.owner
        if (found := self._committing_owner(id)) is not None:
            return found
        return self._saved_owner(id) or ""

    @contextmanager
    def borrowed(self, id: str, *, writes: bool = False) -> Iterator[Transaction]:
        """An open transaction, for the caller alone inside the block. `writes`: a saved one is saved again at its end.

        Raises:
            ObjectNotFound: it is neither open here nor saved.
            TransactionClosed, TransactionExpired: it has ended.
            CommitConflict: somebody else saved or ended it meanwhile; nothing of this block is in it.
            RestError: 503 if others work in it for too long.
        """
        with self._used(id) as (transaction, entry):
            if transaction is None:
                with self._lock:
                    end = self._ended.get(id)
                if end is not None:
                    raise TransactionClosed(f"transaction {id} has ended: it {end}")
                raise ObjectNotFound(f"there is no transaction {id} that is open or saved")
            if not transaction.is_open or transaction.version is not None:
                self._forget(id)
                raise TransactionClosed(f"transaction {id} has ended")
            yield transaction
            if entry is None and writes:
                transaction.save()

    def commit(self, id: str) -> int:
        """Commit; returns the version. One that was committed before answers with its version again.

        Raises as `Transaction.commit` does, `CommitConflict` for one that was committed and then undone, and
        `RestError` 409 for an id with which somebody else has committed something else.
        """
        with self._used(id) as (transaction, entry):
            if transaction is None or not transaction.is_open:
                return self._committed_before(id)
            if transaction.version is not None:
                return transaction.version
            end = "was not committed, because of an error"
            try:
                version = commit(transaction)
                end = f"was committed as version {version}"
            finally:
                self._forget(id, end)
            if entry is not None and entry.is_ours:
                self._require_committed_by(id, entry.owner)
            return version

    def rollback(self, id: str) -> None:
        """Roll back, also one that was only saved. Raises `ObjectNotFound`."""
        with self.borrowed(id) as transaction:
            try:
                transaction.rollback()
            finally:
                self._forget(id, "was rolled back")

    def release(self, id: str) -> None:
        """Know nothing of a transaction any more, without ending it: its owner saved it for others."""
        self._forget(id)

    def hand_over_idle(self) -> None:
        """Save those that nobody has used for long, so that they take no memory, and go on when somebody comes."""
        old = time.monotonic() - self._options.transaction_idle_seconds
        with self._lock:
            idle = [id for id, entry in self._entries.items() if entry.is_ours and entry.used_at < old]
        for id in idle:
            with self._lock:
                entry = self._entries.get(id)
            if entry is None or not entry.lock.acquire(blocking=False):
                continue  # somebody uses it
            try:
                if entry.used_at < old and self._hand_over(entry):
                    self._forget(id)
            finally:
                entry.lock.release()

    def close(self) -> None:
        """Hand over what was begun here: it is saved, so that the next server can go on with it."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            with entry.lock:
                if entry.is_ours:
                    self._hand_over(entry)

    def _hand_over(self, entry: _Entry) -> bool:
        """Save a transaction, if it has not ended. Returns whether nothing of it is here alone."""
        if not entry.transaction.is_open or entry.transaction.version is not None:
            return True
        try:
            entry.transaction.save()
        except TrinityLakeError as error:
            logger.warning("transaction %s cannot be saved: %s", entry.transaction.id, error)
            return False
        return True

    @contextmanager
    def _used(self, id: str) -> Iterator[tuple[Transaction | None, _Entry | None]]:
        """A transaction for the caller alone, and its entry here; without one it is resumed, if it is saved."""
        entry, lock = self._locked(id)
        try:
            if entry is None:
                yield self._resumed(id), None
            else:
                entry.used_at = time.monotonic()
                yield entry.transaction, entry
                entry.used_at = time.monotonic()
        finally:
            lock.release()

    def _locked(self, id: str) -> tuple[_Entry | None, threading.RLock]:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            with self._lock:
                entry = self._entries.get(id)
            lock = self._saved_locks[hash(id) % _SAVED_LOCKS] if entry is None else entry.lock
            if not lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                raise RestError(503, "ServiceUnavailableException", f"others work in transaction {id}: try again")
            with self._lock:
                if self._entries.get(id) is entry:
                    return entry, lock
            lock.release()  # it was handed over, or has ended, while this request waited

    def _resumed(self, id: str) -> Transaction | None:
        try:
            return self._lake.resume(id)
        except ObjectNotFound:
            return None

    def _saved_owner(self, id: str) -> str | None:
        """The principal who began a saved transaction; "" for those of other programs, None if none is saved."""
        saved = (one for one in self._lake.transactions() if one.id == id)
        return next((one.properties.get(OWNER_PROPERTY, "") for one in saved), None)

    def _committing_owner(self, id: str) -> str | None:
        """The principal who committed with that id; "" for other programs, None if nobody has, as far as is known."""
        if not self._lake.is_used(id) or (version := self._lake.outcome(id).version) is None:
            return None
        entries = self._lake.at(version=version).entry.transactions
        return next((one.properties.get(OWNER_PROPERTY, "") for one in entries if one.id == id), "")

    def _require_own(self, id: str, owner: str) -> None:
        """Refuse an id that somebody else has used, and one that is saved: it is there to go on with."""
        if (committed_by := self._committing_owner(id)) is not None and committed_by != owner:
            self._refuse(f"the id {id} is somebody else's, who has committed with it")
        if committed_by is None and self._saved_owner(id) is not None:
            self._refuse(f"transaction {id} is saved: go on with it as @txn/{id}")

    def _require_committed_by(self, id: str, owner: str) -> None:
        """Refuse to answer with a commit of somebody else who has used the same id elsewhere at the same time."""
        committed_by = self._committing_owner(id)
        if committed_by is not None and committed_by != owner:
            self._refuse(f"the id {id} is somebody else's, who has committed with it; nothing of this one is committed")

    def _refuse(self, message: str) -> NoReturn:
        raise RestError(409, "AlreadyExistsException", message)

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
        if outcome.status == "rolled back":
            raise ObjectNotFound(f"transaction {id} was rolled back")
        raise ObjectNotFound(f"transaction {id} is neither open nor committed")

    def _put(self, entry: _Entry) -> None:
        id = entry.transaction.id
        with self._lock:
            if id in self._entries:
                self._refuse(f"transaction {id} is open already")
            if len(self._entries) >= self._options.max_open_transactions_per_principal:
                self._entries = {key: one for key, one in self._entries.items() if one.transaction.is_open}
            if entry.is_ours:
                mine = sum(one.owner == entry.owner for one in self._entries.values())
                if mine >= self._options.max_open_transactions_per_principal:
                    message = f"{mine} transactions of {entry.owner} are open: end some first"
                    raise RestError(429, "TooManyRequestsException", message)
                if len(self._entries) >= self._options.max_open_transactions:
                    message = f"{self._options.max_open_transactions} transactions are open: try again later"
                    raise RestError(503, "ServiceUnavailableException", message)
            self._entries[id] = entry
            self._ended.pop(id, None)

    def _forget(self, id: str, end: str | None = None) -> None:
        with self._lock:
            self._entries.pop(id, None)
            if end is not None:
                self._ended[id] = end
                if len(self._ended) > _ENDED_MAX:
                    self._ended.popitem(last=False)
