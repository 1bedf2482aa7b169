"""Open transactions of clients; each is used by one request at a time, of somebody to whom it belongs.

One that was begun here is in this server's memory until it ends, or until nobody has used it for a while: then it is
saved. A saved one is in the storage and nowhere else: each request that works in it resumes it, and saves it again if
it wrote. So any server, and any program, goes on with it as it is, and asking for it takes no memory.

Nobody gets at a transaction but through `_used`, which asks whose it is (`ownership.py`). How much memory they take is
counted and limited (`memory.py`).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from trinitylake.base.foreign_errors import errors_as
from trinitylake.base.parsed_size import parsed_size_bytes
from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidArgument,
    ObjectNotFound,
    TransactionClosed,
)
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.settings import check_isolation
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import RestError
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.security.principals import Principal
from trinitylake.rest.transactions.memory import Entry, TransactionsInMemory
from trinitylake.rest.transactions.ownership import OWNER_PROPERTY, Ownership, not_theirs, require_roles

#: Saved transactions are used one request at a time, by these many locks for all their ids.
_SAVED_LOCKS = 64
#: How long a request waits for another one in the same transaction.
_LOCK_SECONDS = 30.0


class OpenTransactions:
    """The open transactions of one lakehouse. Safe to share between threads."""

    def __init__(self, lake: Lakehouse, options: ServerOptions | None = None) -> None:
        self._lake = lake
        self._options = options or ServerOptions()
        self._memory = TransactionsInMemory(self._options)
        self._saved_locks = [threading.RLock() for _ in range(_SAVED_LOCKS)]

    def add(self, transaction: Transaction) -> str:
        """Serve a transaction of this process to admins of everything; returns its warehouse. Whoever began it must
        not use it meanwhile.

        Raises `InvalidArgument` if it is of another lakehouse.
        """
        if transaction._storage.root != self._lake.uri:
            raise InvalidArgument(f"transaction {transaction.id} is not of the lakehouse {self._lake.uri!r}")
        transaction._state()
        self._memory.put(Entry(transaction, Ownership.of(transaction.properties), is_ours=False))
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
    ) -> Transaction:
        """Begin a transaction of a principal, which those others may work in as well.

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
            properties={**(properties or {}), **Ownership.properties(owner, shared_with)},
        )
        try:
            if id is not None:
                self._require_own(id, owner)
            self._memory.put(Entry(transaction, Ownership.of(transaction.properties)))
        except BaseException:
            transaction.rollback()
            raise
        return transaction

    def list(self, who: Principal) -> list[Transaction]:
        """Those in the memory of this server that somebody may work in, by id."""
        entries = self._memory.all()
        return [one.transaction for one in entries if one.transaction.is_open and one.ownership.may_work(who)]

    @property
    def count(self) -> int:
        """How many are in the memory of this server."""
        return len(self._memory.all())

    @property
    def size_bytes(self) -> int:
        """How much memory they take, at most."""
        return self._memory.size_bytes

    @contextmanager
    def borrowed(
        self, id: str, who: Principal, *, writes: bool = False, sent_size_bytes: int = 0, ends: bool = False
    ) -> Iterator[Transaction]:
        """An open transaction, for the caller alone inside the block.

        Args:
            id: of the transaction.
            who: for whom; it must be theirs.
            writes: a saved one is saved again at the end of the block.
            sent_size_bytes: of memory, for what the block puts into it.
            ends: the block ends it, which fewer may do.

        Raises:
            RestError: 403 if it is not theirs, or nobody knows it, which only an admin of everything is told; 413 if
                it holds as much as it may; 503 if others work in it for too long, or there is no room.
            ObjectNotFound: it is neither open here nor saved.
            TransactionClosed, TransactionExpired: it has ended.
            CommitConflict: somebody else saved or ended it meanwhile; nothing of this block is in it.
        """
        if sent_size_bytes:
            self._require_room(id)
        with self._used(id, who, ends) as (transaction, entry):
            if transaction is None:
                if (end := self._memory.ended(id)) is not None:
                    raise TransactionClosed(f"transaction {id} has ended: it {end[0]}")
                raise ObjectNotFound(f"there is no transaction {id} that is open or saved")
            if not transaction.is_open or transaction.version is not None:
                self._memory.forget(id)
                raise TransactionClosed(f"transaction {id} has ended")
            if sent_size_bytes:
                held = parsed_size_bytes(transaction._saved_state) if entry is None else entry.sent_size_bytes
                self._require_fits(id, held + sent_size_bytes)
            yield transaction
            if entry is not None:
                entry.sent_size_bytes += sent_size_bytes
                self._memory.make_room(entry.ownership.owner)
            elif writes:
                transaction.save()

    def commit(self, id: str, who: Principal) -> int:
        """Commit; returns the version. One that was committed before answers with its version again.

        Raises as `Transaction.commit` does, `CommitConflict` for one that was committed and then undone, and
        `RestError` 403 for one that is not theirs or changes what they may not change, 409 for an id with which
        somebody else has committed something else.
        """
        with self._used(id, who, ends=True) as (transaction, entry):
            if transaction is None or not transaction.is_open:
                return self._committed_before(id)
            if transaction.version is not None:
                return transaction.version
            require_roles(transaction, who)
            end = "was not committed, because of an error"
            try:
                version = committed_version(transaction)
                end = f"was committed as version {version}"
            finally:
                self._memory.forget(id, end, transaction.properties)
            if entry is not None and entry.is_ours:
                self._require_committed_by(id, entry.ownership.owner)
            return version

    def rollback(self, id: str, who: Principal) -> None:
        """Roll back, also one that was only saved. Raises as `borrowed` does."""
        with self.borrowed(id, who, ends=True) as transaction:
            try:
                transaction.rollback()
            finally:
                self._memory.forget(id, "was rolled back", transaction.properties)

    def release(self, id: str) -> None:
        """Know nothing of a transaction any more, without ending it: its owner saved it for others."""
        self._memory.forget(id)

    def hand_over_idle(self) -> None:
        """Save those that nobody has used for long, so that they take no memory, and go on when somebody comes."""
        self._memory.hand_over_idle()

    def close(self) -> None:
        """Hand over what was begun here: it is saved, so that the next server can go on with it."""
        self._memory.hand_over_all()

    def _require_room(self, id: str) -> None:
        """Raises `RestError` 503 if the transactions here take more memory than they may, and cannot be saved.

        Before anybody works in this one, which may be saved as well.
        """
        entry = self._memory.get(id)
        if entry is not None and not self._memory.make_room(entry.ownership.owner):
            message = "open transactions take all the memory that they may, and cannot be saved now: try again"
            raise RestError(503, "ServiceUnavailableException", message)

    def _require_fits(self, id: str, size_bytes: int) -> None:
        """Raises `RestError` 413 if a transaction would hold more than it may."""
        limit = self._options.max_transaction_size_bytes
        if size_bytes > limit:
            message = f"transaction {id} holds as much as it may, {limit} bytes of memory: commit it, and begin another"
            raise RestError(413, "RequestTooLargeException", message)

    @contextmanager
    def _used(self, id: str, who: Principal, ends: bool) -> Iterator[tuple[Transaction | None, Entry | None]]:
        """A transaction of somebody for the caller alone, and its entry here, if it has one; else it is resumed.

        None for one that has ended, of which it is known that it was theirs. Raises `RestError` 403.
        """
        entry, lock = self._locked(id, who, ends)
        try:
            if entry is None:
                with self._resumed(id, who, ends) as transaction:
                    yield transaction, None
            else:
                entry.used_at = time.monotonic()
                yield entry.transaction, entry
                entry.used_at = time.monotonic()
        finally:
            lock.release()

    def _locked(self, id: str, who: Principal, ends: bool) -> tuple[Entry | None, threading.RLock]:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            entry = self._memory.get(id)
            if entry is not None:
                _require(id, entry.ownership, who, ends)
            lock = self._saved_locks[hash(id) % _SAVED_LOCKS] if entry is None else entry.lock
            if not lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
                raise RestError(503, "ServiceUnavailableException", f"others work in transaction {id}: try again")
            if self._memory.get(id) is entry:
                return entry, lock
            lock.release()  # it was handed over, or has ended, while this request waited

    @contextmanager
    def _resumed(self, id: str, who: Principal, ends: bool) -> Iterator[Transaction | None]:
        try:
            core = self._lake._core.resume(id)
        except ObjectNotFound:
            self._require_past(id, who, ends)
            yield None
            return
        except CommitConflict:
            self._require_past(id, who, ends)
            raise
        _require(id, Ownership.of(core.properties), who, ends)
        with self._memory.room_for_saved(parsed_size_bytes(core.attachment)):
            yield Transaction(self._lake._core, core)

    def _require_past(self, id: str, who: Principal, ends: bool) -> None:
        """Refuse one that has ended and was not theirs, as far as is known. Raises `RestError` 403.

        Where the log cannot tell whether there was a commit, whoever asks for its outcome is told so.
        """
        if who.is_admin_of_everything:
            return
        end = self._memory.ended(id)
        ownership = end[1] if end is not None else Ownership(self._committing_owner(id) or "")
        if ends and ownership == Ownership() and self._lake.transactions.outcome(id).status == "unknown":
            return
        _require(id, ownership, who, ends)

    def _saved_owner(self, id: str) -> str | None:
        """The principal who began a saved transaction; "" for those of other programs, None if none is saved."""
        saved = (one for one in self._lake.transactions.list() if one.id == id)
        return next((one.properties.get(OWNER_PROPERTY, "") for one in saved), None)

    def _committing_owner(self, id: str) -> str | None:
        """The principal who committed with that id; "" for other programs, None if nobody has, as far as is known."""
        if (
            not self._lake.transactions.is_committed(id)
            or (version := self._lake.transactions.outcome(id).version) is None
        ):
            return None
        entries = self._lake.at(version).entry.transactions
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
        outcome = self._lake.transactions.outcome(id)
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


def committed_version(transaction: Transaction) -> int:
    """Commit, and return the version.

    Raises as `Transaction.commit`, but `CommitStateUnknown` for every error after which the outcome is unknown.
    """

    def mapped(error: Exception) -> Exception | None:
        if isinstance(error, CommitStateUnknown) or not transaction._is_unknown:
            return None
        return CommitStateUnknown(f"the outcome of the commit is unknown: {error}")

    with errors_as(mapped):
        return transaction.commit()


def _require(id: str, ownership: Ownership, who: Principal, ends: bool) -> None:
    if not (ownership.may_end(who) if ends else ownership.may_work(who)):
        raise not_theirs(id, who)
