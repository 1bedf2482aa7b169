"""Open transactions of clients. Requests use a transaction one at a time.

A transaction that this server began is in memory until it ends or is idle. An idle transaction is saved and removed
from memory. A request in a saved transaction resumes it, and saves it again if the request wrote. So any server or
program can continue a saved transaction, and it takes no memory between requests.

All uses pass `_used`, which checks the ownership (`ownership.py`). `memory.py` limits the memory.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from trinitylake.base.foreign_errors import errors_as
from trinitylake.base.json_memory_size import parsed_size_bytes
from trinitylake.errors import CommitConflict, CommitStateUnknown, InvalidArgument, ObjectNotFound, TransactionClosed
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.settings import check_isolation
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import RestError, too_large, unavailable
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.security.authorization import Principal
from trinitylake.rest.transactions.memory import Entry, TransactionsInMemory
from trinitylake.rest.transactions.ownership import OWNER_PROPERTY, Ownership, not_theirs, require_roles

#: Number of locks that serialize requests in saved transactions, by the hash of the id.
_SAVED_LOCKS = 64
#: How long a request waits for another request in the same transaction.
_LOCK_SECONDS = 30.0


class OpenTransactions:
    """The open transactions of one lakehouse. Thread-safe.

    Attributes:
        memory: the transactions in memory.
    """

    def __init__(self, lake: Lakehouse, options: ServerOptions | None = None) -> None:
        self._lake = lake
        self._options = options or ServerOptions()
        self.memory = TransactionsInMemory(self._options)
        self._saved_locks = [threading.RLock() for _ in range(_SAVED_LOCKS)]

    def add(self, transaction: Transaction) -> str:
        """Serve a transaction of this process to admins of `*`. Returns its warehouse.

        The process must not use the transaction at the same time. Raises `InvalidArgument` for a transaction of another
        lakehouse.
        """
        if transaction._storage.root != self._lake.uri:
            raise InvalidArgument(
                f"transaction {transaction.id} belongs to another lakehouse, not to {self._lake.uri!r}"
            )
        transaction._state()
        self.memory.put(Entry(transaction, Ownership.of(transaction.properties), is_ours=False))
        return f"@txn/{transaction.id}"

    def begin(
        self,
        *,
        owner: str = "",
        shared_with: Collection[str] = (),
        isolation: str | None = None,
        message: str = "",
        author: str = "",
        id: str | None = None,
        properties: Mapping[str, str] | None = None,
        restart: bool = False,
    ) -> Transaction:
        """Begin a transaction of a principal, which `shared_with` may use too.

        With `restart`, a transaction of this id that was not committed is discarded. If the id was committed,
        statements have no effect, and `commit` returns the version of that commit.

        Raises:
            InvalidArgument: for an invalid isolation or id.
            RestError: 409 for an id that is open or saved, or that another principal has committed; 429 and 503 for
                too many open transactions.
        """
        restarts = restart and id is not None and not self._lake.transactions.is_committed(id)
        if restarts and id is not None:
            self._discard(id, owner)
        transaction = self._lake.begin(
            restart=restarts,
            isolation=None if isolation is None else check_isolation(isolation),
            message=message,
            author=author,
            # With an explicit id the commit writes a transaction record, so the outcome is found without the log.
            id=id or uuid.uuid4().hex,
            properties={**(properties or {}), **Ownership.properties(owner, shared_with)},
        )
        try:
            if id is not None and not restarts:
                self._require_own(id, owner)
            self.memory.put(Entry(transaction, Ownership.of(transaction.properties)))
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def list(self, principal: Principal) -> list[Transaction]:
        """The transactions in memory that a principal may use, by id."""
        entries = self.memory.all()
        return [one.transaction for one in entries if one.transaction.is_open and one.ownership.may_work(principal)]

    @contextmanager
    def borrowed(
        self, id: str, principal: Principal, *, writes: bool = False, sent_size_bytes: int = 0, ends: bool = False
    ) -> Iterator[Transaction]:
        """Context manager: an open transaction, used exclusively by the caller.

        Args:
            id: of the transaction.
            principal: the principal that uses it.
            writes: whether the block writes. A resumed transaction is saved again after a block that writes, and always
                if it is serializable.
            sent_size_bytes: memory that the block adds to the transaction.
            ends: whether the block ends the transaction, which only its owner may do.

        Raises:
            RestError: 403 if the principal may not use the transaction, or if the transaction is unknown and the
                principal is not an admin of `*`; 413 if the transaction has used up its memory; 503 after a long wait
                for other requests or for memory.
            ObjectNotFound: the transaction is neither open in this server nor saved.
            TransactionClosed, TransactionExpired: the transaction has ended.
            CommitConflict: another process saved or ended the transaction during the block. The changes of the block
                are lost.
        """
        if sent_size_bytes:
            self._require_room(id)
        with self._used(id, principal, ends) as (transaction, entry):
            if transaction is None:
                if (end := self.memory.ended(id)) is not None:
                    raise TransactionClosed(f"transaction {id} has ended: it {end[0]}")
                raise ObjectNotFound(f"there is no transaction {id} that is open or saved")
            if not transaction.is_open or transaction.version is not None:
                self.memory.forget(id)
                raise TransactionClosed(f"transaction {id} has ended")
            if sent_size_bytes:
                held = parsed_size_bytes(transaction._saved_state) if entry is None else entry.sent_size_bytes
                self._require_fits(id, held + sent_size_bytes)
            yield transaction
            if entry is not None:
                entry.sent_size_bytes += sent_size_bytes
                self.memory.make_room(entry.ownership.owner)
            elif writes or transaction.isolation == "serializable":  # the saved state contains what was read
                transaction.save()

    def commit(self, id: str, principal: Principal) -> int:
        """Commit, and return the version. For a committed transaction, return the same version again.

        Raises as `Transaction.commit`, `CommitConflict` for a commit that a rollback undid, and `RestError` 403 without
        the right to commit the transaction or to make one of its changes, 409 for an id that another principal has
        committed.
        """
        with self._used(id, principal, ends=True) as (transaction, entry):
            if transaction is None or not transaction.is_open:
                return self._committed_before(id)
            if transaction.version is not None:
                return transaction.version
            require_roles(transaction, principal)
            end = "was not committed, because of an error"
            try:
                version = committed_version(transaction)
                end = f"was committed as version {version}"
            finally:
                self.memory.forget(id, end, transaction.properties)
            if entry is not None and entry.is_ours:
                self._require_committed_by(id, entry.ownership.owner)
            return version

    def rollback(self, id: str, principal: Principal) -> None:
        """Roll back, also a saved transaction. Raises as `borrowed`."""
        with self.borrowed(id, principal, ends=True) as transaction:
            try:
                transaction.rollback()
            finally:
                self.memory.forget(id, "was rolled back", transaction.properties)

    def _require_room(self, id: str) -> None:
        """Raise `RestError` 503 if the transactions exceed their memory and cannot be saved.

        Must be called before the transaction `id` is used, because this call may save and remove it too.
        """
        entry = self.memory.get(id)
        if entry is not None and not self.memory.make_room(entry.ownership.owner):
            raise unavailable("the memory for open transactions is exhausted, and they cannot be saved now: try again")

    def _require_fits(self, id: str, size_bytes: int) -> None:
        """Raise `RestError` 413 if a transaction would exceed its memory."""
        limit = self._options.max_transaction_size_bytes
        if size_bytes > limit:
            message = f"transaction {id} has used its {limit} bytes of memory: commit it, and begin another"
            raise too_large(message)

    @contextmanager
    def _used(self, id: str, principal: Principal, ends: bool) -> Iterator[tuple[Transaction | None, Entry | None]]:
        """Context manager for the exclusive use of a transaction. Yields the transaction and its entry.

        The entry is None for a resumed transaction. The transaction is None if it belonged to the principal and has
        ended. Raises `RestError` 403 if the principal may not use it.
        """
        entry, lock = self._locked(id, principal, ends)
        try:
            if entry is None:
                with self._resumed(id, principal, ends) as transaction:
                    yield transaction, None
            else:
                entry.used_at = time.monotonic()
                yield entry.transaction, entry
                entry.used_at = time.monotonic()
        finally:
            lock.release()

    def _locked(self, id: str, principal: Principal, ends: bool) -> tuple[Entry | None, threading.RLock]:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            entry = self.memory.get(id)
            if entry is not None:
                _require(id, entry.ownership, principal, ends)
            lock = self._saved_locks[hash(id) % _SAVED_LOCKS] if entry is None else entry.lock
            if not lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                raise unavailable(f"transaction {id} is in use: try again")
            if self.memory.get(id) is entry:
                return entry, lock
            lock.release()  # the transaction was saved and removed, or ended, while this request waited

    @contextmanager
    def _resumed(self, id: str, principal: Principal, ends: bool) -> Iterator[Transaction | None]:
        try:
            core = self._lake._core.resume(id)
        except ObjectNotFound:
            self._require_past(id, principal, ends)
            yield None
            return
        except CommitConflict:
            self._require_past(id, principal, ends)
            raise
        _require(id, Ownership.of(core.properties), principal, ends)
        with self.memory.room_for_saved(parsed_size_bytes(core.attachment)):
            yield Transaction(self._lake._core, core)

    def _require_past(self, id: str, principal: Principal, ends: bool) -> None:
        """Raise `RestError` 403 if a transaction has ended and, as far as is known, belonged to another principal.

        If neither the owner nor the outcome is known, `ends` is allowed: every principal may learn that the outcome is
        unknown.
        """
        if principal.is_admin_of_everything:
            return
        end = self.memory.ended(id)
        ownership = end[1] if end is not None else Ownership(self._committing_owner(id) or "")
        if ends and ownership == Ownership() and self._lake.transactions.outcome(id).status == "unknown":
            return
        _require(id, ownership, principal, ends)

    def _saved_owner(self, id: str) -> str | None:
        """Owner of a saved transaction; "" if no server began it, None if no transaction with this id is saved."""
        saved = (one for one in self._lake.transactions.list() if one.id == id)
        return next((one.properties.get(OWNER_PROPERTY, "") for one in saved), None)

    def _committing_owner(self, id: str) -> str | None:
        """Principal that committed with an id; "" for a commit without a server, None if no commit is known."""
        if (
            not self._lake.transactions.is_committed(id)
            or (version := self._lake.transactions.outcome(id).version) is None
        ):
            return None
        entries = self._lake.at(version).entry.transactions
        return next((one.properties.get(OWNER_PROPERTY, "") for one in entries if one.id == id), "")

    def _require_own(self, id: str, owner: str) -> None:
        """Raise `RestError` 409 for an id that another principal committed, or of a saved transaction."""
        if (committed_by := self._committing_owner(id)) is not None and committed_by != owner:
            self._refuse(f"another principal has committed with the id {id}")
        if committed_by is None and self._saved_owner(id) is not None:
            self._refuse(f"transaction {id} is saved: continue it as @txn/{id}")

    def _discard(self, id: str, owner: str) -> None:
        """Roll back an open transaction of this principal with this id.

        Raises `RestError` 409 if the id belongs to an open or saved transaction of another principal.
        """
        entry = self.memory.get(id)
        if (entry is not None and entry.ownership.owner != owner) or self._saved_owner(id) not in (None, owner):
            self._refuse(f"the id {id} belongs to an open transaction of another principal")
        if entry is not None:
            with entry.lock:
                if entry.transaction.is_open:
                    entry.transaction.rollback()
                self.memory.forget(id)

    def _require_committed_by(self, id: str, owner: str) -> None:
        """Raise `RestError` 409 if another principal, which used the same id at the same time, made the commit."""
        committed_by = self._committing_owner(id)
        if committed_by is not None and committed_by != owner:
            self._refuse(f"another principal has committed with the id {id}; nothing of this transaction is committed")

    def _refuse(self, message: str) -> NoReturn:
        raise RestError(409, "AlreadyExistsException", message)

    def _committed_before(self, id: str) -> int:
        outcome = self._lake.transactions.outcome(id)
        if outcome.status == "undone":
            raise CommitConflict(
                f"transaction {id} was committed as version {outcome.version}, which a rollback has undone"
            )
        if outcome.version is not None:
            return outcome.version
        if outcome.status == "unknown":
            raise CommitStateUnknown(f"it is unknown whether transaction {id} was committed")
        if outcome.status == "rolled back":
            raise ObjectNotFound(f"transaction {id} was rolled back")
        raise ObjectNotFound(f"transaction {id} is neither open nor committed")


def committed_version(transaction: Transaction, in_group: bool = False) -> int:
    """Commit, and return the version. With `in_group`, the commit may share a version with appends of other clients.

    Raises as `Transaction.commit`, but `CommitStateUnknown` for every error after which the outcome is unknown.
    """

    def mapped(error: Exception) -> Exception | None:
        if isinstance(error, CommitStateUnknown) or not transaction._is_unknown:
            return None
        return CommitStateUnknown(f"the outcome of the commit is unknown: {error}")

    with errors_as(mapped):
        return transaction._commit_in_group() if in_group else transaction.commit()


def _require(id: str, ownership: Ownership, principal: Principal, ends: bool) -> None:
    if not (ownership.may_end(principal) if ends else ownership.may_work(principal)):
        raise not_theirs(id, principal)
