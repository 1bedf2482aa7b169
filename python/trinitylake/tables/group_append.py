"""Group append: concurrent appends of few rows to one table share one commit.

There is no extra thread. A thread that finds no leader becomes the leader: it begins a transaction, takes the batches
of all waiting threads, writes the rows of all of them together, and commits. A thread that finds a leader prepares its
batch and waits. When the leader has finished, one of the waiting threads leads the next group. So an append without
concurrent appends never waits. Each group makes one data file per partition, one manifest, one snapshot and one
version, however many threads append.

Clients of the server write their data files themselves. Their appends form groups in the same way: the leader rebases
their snapshots onto its own (`Transaction._commit_in_group`), and writes one metadata file.

Each append is a transaction in the log. The transactions of the other members are companions of the leader's
transaction.

With the intent queue, a group that loses a race passes its rows to another process, or appends rows of other processes
together with its own (`AutocommitTable._append_in_queue`). While the rows are in the queue, another process may commit
them. So a group that fails is withdrawn from the queue before its threads get the error.

Invariants:
- A batch is in at most one group at a time, and a group commits as a whole or not at all.
- An invalid batch fails only its own append. A batch is prepared before it joins a group. If a group certainly
  committed nothing, each of its threads appends the rows that its caller gave again, without a group, and raises the
  error of its own batch.
- If the outcome of a group is unknown, each of its threads raises `CommitStateUnknown`.
- When the leader returns or raises, the next waiting thread leads. After Ctrl-C in a leader, its batches wait again.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from trinitylake import _core
from trinitylake.errors import CommitStateUnknown, TrinityLakeError

if TYPE_CHECKING:
    from trinitylake.tables.table import Table
    from trinitylake.tables.transaction_table import TransactionTable

#: Limits of one group. The root contains the message and author of every transaction.
MAX_MEMBERS = 256
MAX_ROWS = 1_000_000
MAX_SIZE_BYTES = 32 << 20
MAX_TEXT_LENGTH = 64 << 10
#: Maximum number of appends of files that clients wrote, in one group.
MAX_WRITTEN_APPENDS = 32
#: The leader waits for the threads of the last group to append again, for the duration of that group divided by this.
WAIT_DIVISOR = 4


class Sized(Protocol):
    """The rows of a member. `size` returns the number of rows, of bytes, and of characters of message and author."""

    def size(self) -> tuple[int, int, int]: ...


Payload = TypeVar("Payload", bound=Sized)


class LostRace(Exception):
    """Another process changed the table first. The append is then repeated through the queue."""


class Committed(NamedTuple):
    """The version that contains the rows, and the table in that version."""

    table: Table
    version: int


class Task(Enum):
    """The next step of a member's thread."""

    LEAD = "lead a group"
    ALONE = "append without a group"


class WrittenAppend(NamedTuple):
    """An append of files that a client wrote, in its own transaction, which becomes a companion.

    Attributes:
        table: the table in the transaction.
        transaction: the transaction in the core.
    """

    table: TransactionTable
    transaction: _core.Transaction

    def size(self) -> tuple[int, int, int]:
        """The size that the limits of a group count. It includes an equal share of the bytes, because the leader
        writes the manifests of the append again.
        """
        return 0, MAX_SIZE_BYTES // MAX_WRITTEN_APPENDS, 0


class Member(Generic[Payload]):
    """One append in a group. Its thread waits for the answer of a leader, or is the leader.

    Attributes:
        batch: the rows to append; None in a thread that leads without having waited.
        companion: the transaction of the append in the log, after a leader has taken the batch.
        repeats: whether the thread appends without a group if the group that it leads fails.
        answer: the answer of the leader; None until the leader answers.
        group: for a leader, the members whose batches it appends; None before it has taken them.
        table: for a leader, the table in the version that it commits.
    """

    def __init__(self) -> None:
        self.batch: Payload | None = None
        self.companion: _core.Transaction | None = None
        self.repeats = False
        self.answer: Committed | Task | TrinityLakeError | None = None
        self.group: list[Member[Payload]] | None = None
        self.table: Table | None = None
        self._answered = threading.Event()

    def settle(self, answer: Committed | Task | TrinityLakeError) -> None:
        """Set the answer, unless it is already set."""
        self.answer = self.answer or answer
        self._answered.set()

    def wait(self) -> None:
        self._answered.wait()


class AppendGroups(Generic[Payload]):
    """The groups of one table and one handle of the lakehouse. They commit one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._waiting: deque[Member[Payload]] = deque()
        self._leader: Member[Payload] | None = None
        self._last_size, self._last_seconds, self._last_end = 0, 0.0, 0.0
        self._began = 0.0

    def append(
        self,
        prepare: Callable[[], Payload | None],
        lead: Callable[[Callable[[Callable[[Payload], bool]], list[Member[Payload]]], Member[Payload]], Committed],
    ) -> Committed | None:
        """Append as the leader of a group, or in the group of another thread.

        Returns None if nothing was appended, so that the caller must append without a group.

        Args:
            prepare: makes the batch of this thread, or returns None if the rows must not join a group. Called if
                another thread leads.
            lead: commits the rows of this thread as the leader. The first argument is a function that returns the
                members whose batches it must append too, and whose `companion` it must set. The second argument is the
                member of this thread. `lead` sets its `table`, and `repeats` if an error may be caused by other
                members.

        Raises the errors of `lead`, and the error that a leader has set as the answer.
        """
        own: Member[Payload] = Member()
        error: BaseException | None = None
        try:
            while not self._joins(own):
                if (batch := prepare()) is None:
                    return None
                own.batch = batch
            if self._leader is not own:
                self._wait(own)
            if isinstance(own.answer, TrinityLakeError):
                raise own.answer
            if isinstance(own.answer, Committed):
                return own.answer
            return None if own.answer is Task.ALONE else lead(partial(self._take, own), own)
        except BaseException as raised:
            error = raised
            companions = [one.companion for one in (own, *(own.group or ())) if one.companion is not None]
            has_committed = any(one.is_unknown or one.committed_version is not None for one in companions)
            if isinstance(error, Exception) and own.repeats and not has_committed:
                return None
            raise
        finally:
            try:
                self._leave(own, error)
            except BaseException:  # Ctrl-C
                self._leave(own, error)
                raise

    def _joins(self, own: Member[Payload]) -> bool:
        """Become the leader, or join the queue of the leader. Returns False if joining needs a batch first."""
        with self._changed:
            if self._leader is None:
                self._leader = own
                self._began = time.monotonic()
            elif own.batch is None:
                return False
            else:
                self._waiting.append(own)
                if self._is_complete():
                    self._changed.notify()
            return True

    def _wait(self, own: Member[Payload]) -> None:
        """Wait for the answer. Ctrl-C interrupts the wait only while no leader has taken the batch."""
        try:
            own.wait()
        except BaseException:
            with self._changed:
                is_taken = own not in self._waiting and self._leader is not own
            if is_taken:
                own.wait()
            raise

    def _take(self, own: Member[Payload], fits: Callable[[Payload], bool]) -> list[Member[Payload]]:
        """The members whose batches the leader appends. A second call returns the same members."""
        # A batch that does not fit the table, because the table has changed, is left out: its thread appends without a
        # group.
        with self._changed:
            if own.group is None:
                self._wait_for_last_group()
                self._gather(own)
        for member in own.group or ():
            if member.batch is not None and not fits(member.batch):
                member.settle(Task.ALONE)
        return [member for member in own.group or () if member.answer is None]

    def _wait_for_last_group(self) -> None:
        """Wait shortly if fewer threads wait than the last group had, because these usually append again at once."""
        seconds = self._last_end + self._last_seconds / WAIT_DIVISOR - time.monotonic()
        self._changed.wait_for(self._is_complete, max(seconds, 0))

    def _is_complete(self) -> bool:
        return len(self._waiting) + 1 >= self._last_size

    def _gather(self, own: Member[Payload]) -> None:
        """Move waiting members from the queue into the group, up to its limits."""
        taken: list[Member[Payload]] = []
        own.group = taken
        sizes, limits = [0, 0, 0], (MAX_ROWS, MAX_SIZE_BYTES, MAX_TEXT_LENGTH)
        while self._waiting and len(taken) < MAX_MEMBERS:
            batch = self._waiting[0].batch
            assert batch is not None
            sizes = [total + one for total, one in zip(sizes, batch.size(), strict=True)]
            if taken and any(size > limit for size, limit in zip(sizes, limits, strict=True)):
                break
            taken.append(self._waiting[0])
            self._waiting.popleft()

    def _leave(self, own: Member[Payload], error: BaseException | None) -> None:
        """End an append: leave the queue; a leader also answers its members and lets the next thread lead."""
        # A second call, after Ctrl-C in the first one, finishes the rest.
        with self._changed:
            if own in self._waiting:
                self._waiting.remove(own)
            if self._leader is not own:
                own.settle(Task.ALONE)  # otherwise a leader could put it back into the queue
                return
            for member in reversed(own.group or ()):
                companion = member.companion
                if companion is not None and (version := companion.committed_version) is not None:
                    assert own.table is not None
                    member.settle(Committed(own.table, version))
                elif companion is not None and companion.is_unknown:
                    member.settle(CommitStateUnknown(f"transaction {companion.id}, in a group append: {error}"))
                elif isinstance(error, Exception):
                    member.settle(Task.ALONE)
                elif member.answer is None and member not in self._waiting:
                    self._waiting.appendleft(member)
            self._last_size, self._last_end = len(own.group or ()) + 1, time.monotonic()
            self._last_seconds = self._last_end - self._began
            self._began = self._last_end
            if self._waiting:
                self._waiting[0].settle(Task.LEAD)
            self._leader = self._waiting.popleft() if self._waiting else None


_groups: WeakValueDictionary[tuple[int, str, type], AppendGroups[Any]] = WeakValueDictionary()
_guard = threading.Lock()


def groups_of(lakehouse: _core.Lakehouse, table_id: str, payload: type[Payload]) -> AppendGroups[Payload]:
    """The groups of a table for one kind of payload. The caller must keep the result while an append may wait."""
    with _guard:
        return _groups.setdefault((id(lakehouse), table_id, payload), AppendGroups[Payload]())


def _reset_after_fork() -> None:
    """Forget leaders and batches, because a forked child does not have their threads."""
    global _guard
    _guard = threading.Lock()
    _groups.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_reset_after_fork)
