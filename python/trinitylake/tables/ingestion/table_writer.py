"""Writer that collects the rows of many calls and commits them in the background: `table.writer()`.

`write` converts rows to Arrow and puts them into a buffer. One thread takes the whole buffer and commits it in one
transaction, while the next rows are collected. A commit starts when the buffer is full. It also starts early enough to
make the oldest rows durable within `max_delay`, if it takes as long as the last commit. So memory holds at most one
buffer and the rows of one commit, and `write` waits while both are full.

The future of a write has the version in which the rows are durable, or an error. A commit that fails with a temporary
error is retried. If the outcome of a commit is unknown, the writer rolls the transaction back, which fails if the
transaction was committed.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - registers its exit function, which must run after `_close_all`
import functools
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import pyarrow as pa

from trinitylake._core import Lakehouse as CoreLakehouse
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.qualified_names import full_name, split
from trinitylake.errors import (
    CommitConflict,
    CommitStateUnknown,
    InvalidArgument,
    StorageError,
    TransactionExpired,
    TrinityLakeError,
)
from trinitylake.tables.ingestion.producers import Producer
from trinitylake.tables.ingestion.rejected_rows import EventRows
from trinitylake.tables.ingestion.writer_transaction import (
    Acknowledgement,
    DescribedTable,
    Staged,
    Target,
    Write,
    WritingTransaction,
    conforming,
    stage,
)

Result = TypeVar("Result")

#: How long commits are repeated while the store fails, in addition to the retries inside each commit.
RETRY_SECONDS = 600.0
#: The first and the longest pause between two attempts.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
#: Maximum number of Arrow schemas for which the writer remembers whether they fit the table.
KNOWN_SCHEMAS = 256
#: Number of commits after which the newest files are compacted into files of at most `NEWEST_FILE_SIZE_BYTES`, so that
#: scans of recent rows open few files, and number of commits after which all small files are compacted.
COMMITS_PER_COMPACTION, COMMITS_PER_FULL_COMPACTION = 5, 100
NEWEST_FILE_SIZE_BYTES = 8 << 20
#: Pause after a compaction, as a multiple of its duration.
PAUSES_PER_COMPACTION = 5
_MAX_SEQUENCE = (1 << 63) - 1


class WritableLakehouse(Protocol):
    """The parts of a lakehouse that a writer uses."""

    @property
    def _core(self) -> CoreLakehouse: ...
    def begin(self, *, message: str = "", author: str = "") -> Any: ...
    def _execute(self, statement: Callable[[Any], Result], note: CommitInfo = NO_COMMIT_INFO) -> Result: ...


@dataclass(slots=True)
class Limits:
    """Limits of a writer's buffer: age of its oldest rows until they are durable, rows, and bytes in memory."""

    max_delay_seconds: float
    max_rows: int
    max_size_bytes: int


@dataclass(slots=True)
class _Claim:
    """A producer that this writer has claimed.

    Attributes:
        stored: the greatest sequence number that the table had at the claim; None for no number.
        version: the version that committed the claim.
        last: the sequence number of the last accepted write.
        durable: the greatest sequence number that this writer found or committed.
        error: the error of the first failed write, after which all writes of the producer fail; None for no error.
    """

    stored: int | None
    version: int
    last: int | None
    durable: int | None
    error: BaseException | None = None


class TableWriter:
    """Background writer of one table, returned by `table.writer()`. Threads may share it.

    A `with` block calls `close` at its end, even after an exception.
    """

    def __init__(
        self,
        lakehouse: WritableLakehouse,
        target: Target,
        table: DescribedTable,
        limits: Limits,
        producer: str | None,
        note: CommitInfo,
        compact: Callable[[int | None], object] | None,
    ) -> None:
        self._lakehouse = lakehouse
        self._target = target
        self._table = table
        self._fits = None if target.dead_letter_table is None else functools.lru_cache(KNOWN_SCHEMAS)(self._may_fit)
        self._limits = limits
        self._producer = producer
        self._note = note
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._buffer: list[Write] = []
        self._rows = self._size_bytes = 0
        self._due = 0.0  # `time.monotonic()` at which the commit of the buffer begins
        self._commit_seconds = limits.max_delay_seconds  # duration of the last commit, or a guess before the first
        self._accepted = self._done = self._flushed = 0  # numbers of writes; all up to `_flushed` are due
        self._failed: list[Acknowledgement] = []
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._compact = compact
        self._compacted = self._fully_compacted = 0  # Iceberg sequence numbers at the last compactions
        self._next_compaction = 0.0
        self._compaction: threading.Thread | None = None
        self._claiming = threading.Lock()
        self._claims: dict[str, _Claim] = {}

    def write(self, rows: Any, *, sequence: int | None = None, producer: str | None = None) -> Acknowledgement:
        """Add rows. Returns a future of the version in which they are durable.

        The rows are read before `write` returns. It waits while the buffer is full, for example if the store is slow. A
        row that does not fit the table makes the future fail, or goes to the dead-letter table if the writer has one.

        Args:
            rows: as for `Table.append`.
            sequence: number of this write, greater than the number of the producer's previous write. If the table
                already has rows with this number, nothing is written, and the returned future is done.
            producer: name of the producer; default: the producer of the writer.

        Raises:
            InvalidArgument: the writer is closed, or the sequence number is not greater than the last one.
            ProducerFenced: another writer took over the producer.
        """
        name = producer or self._producer
        if (name is None) != (sequence is None):
            missing = "producer" if name is None else "sequence"
            raise InvalidArgument(f"write() needs {missing}=…: a producer and a sequence number belong together")
        self._check_open()
        if name is None or sequence is None:
            return self._put(Write(self._read(rows)))
        if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence <= _MAX_SEQUENCE:
            raise InvalidArgument(f"sequence must be an integer from 0 to 2**63 - 1, not {sequence!r}")
        if self._target.writer is not None:
            claim = self._claim(name)
            if claim.stored is not None and sequence <= claim.stored:
                known = Acknowledgement()
                known.is_duplicate = True
                known.set_result(claim.version)
                return known
        return self._put(Write(self._read(rows), name, sequence))

    def flush(self) -> None:
        """Wait until all rows written so far are durable.

        Raises the error of the first write that failed and whose future no caller has read.
        """
        self._wait_for_writes()
        self._raise_unseen()

    def _wait_for_writes(self) -> None:
        self._check_process()
        if threading.current_thread() is self._thread:
            raise InvalidArgument("a callback of a write cannot wait for the writer, whose thread runs the callback")
        with self._changed:
            self._flushed = until = self._accepted
            self._changed.notify_all()
            while self._done < until:
                self._changed.wait()

    def last_sequence(self, producer: str | None = None) -> int | None:
        """The greatest sequence number of a producer whose rows are durable; None for no number.

        Waits for the rows written so far, and takes over the producer: from now on, other writers of the producer fail
        with `ProducerFenced`. Call it again when this writer gets a source back, such as a partition of a Kafka topic.

        Args:
            producer: name of the producer; default: the producer of the writer.

        Raises `InvalidArgument` without a producer and for a closed writer.
        """
        if (name := producer or self._producer) is None:
            raise InvalidArgument("last_sequence() needs producer=…: the writer has no producer")
        self._check_open()
        self._wait_for_writes()
        return self._claim(name, again=True).stored

    def close(self) -> None:
        """Commit the remaining rows and end the writer. Raises as `flush` does. Does nothing in a forked child."""
        if self._process != os.getpid():
            return  # the rows belong to the parent
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._compaction is not None:
            self._compaction.join()
        _open_writers.discard(self)
        self._raise_unseen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TrinityLakeError as failure:
            if error is None:
                raise
            error.add_note(f"some rows of the writer were not written: {failure}")

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise InvalidArgument(f"the writer belongs to process {self._process}: open another one after a fork")

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise InvalidArgument("the writer is closed: open another one")

    def _raise_unseen(self) -> None:
        with self._changed:
            unseen = [future for future in self._failed if not future.is_seen]
            self._failed = []
        if unseen and (error := unseen[0].exception()) is not None:
            if len(unseen) > 1:
                error.add_note(f"{len(unseen) - 1} more writes failed")
            raise error

    def _claim(self, name: str, again: bool = False) -> _Claim:
        """Take over a producer, if this writer has not done so yet or `again` is set."""
        with self._claiming:
            known = None if again else self._claims.get(name)
            if known is None:

                def statement(transaction: WritingTransaction) -> tuple[int | None, WritingTransaction]:
                    core = self._target.table_in(transaction)._open_core()
                    producer = Producer(core, name, self._target.id)
                    producer.claim(self._target.writer)
                    return producer.sequence, transaction

                sequence, transaction = self._lakehouse._execute(statement, self._note)
                assert transaction.version is not None
                known = self._claims[name] = _Claim(sequence, transaction.version, sequence, sequence)
            return known

    def _read(self, rows: Any) -> EventRows:
        return EventRows(rows, self._table._schema, self._fits)

    def _may_fit(self, schema: pa.Schema) -> bool:
        """Whether rows with this schema may fit the table in the state in which the writer was opened."""
        try:
            conforming(self._table)(schema.empty_table())
        except InvalidArgument:
            return False
        return True

    # The buffer

    def _put(self, write: Write) -> Acknowledgement:
        with self._changed:
            while self._is_full():
                self._changed.wait()
            self._check_open()  # another thread may have closed the writer during the wait
            if write.sequence is not None and (claim := self._claims.get(write.producer)) is not None:
                if claim.error is not None:
                    raise claim.error
                if claim.last is not None and write.sequence <= claim.last:
                    raise InvalidArgument(
                        f"sequence {write.sequence} of producer {write.producer} is not greater than the last one, "
                        f"{claim.last}"
                    )
                claim.last = write.sequence
            if not self._buffer:
                delay_seconds = self._limits.max_delay_seconds
                self._due = time.monotonic() + max(delay_seconds - self._commit_seconds, delay_seconds / 2)
            self._buffer.append(write)
            self._accepted += 1
            self._rows += write.rows.count
            self._size_bytes += write.rows.size_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trinitylake-writer", daemon=True)
                self._thread.start()
                _open_writers.add(self)
            if len(self._buffer) == 1 or self._is_full():
                self._changed.notify_all()
        return write.future

    def _is_full(self) -> bool:
        return self._rows >= self._limits.max_rows or self._size_bytes >= self._limits.max_size_bytes

    def _take(self) -> list[Write] | None:
        """Wait until the buffer is due, and take its content; None if the writer is closed and the buffer is empty."""
        with self._changed:
            while not self._buffer or not self._is_due():
                if self._is_closed and not self._buffer:
                    return None
                self._changed.wait(max(0.0, self._due - time.monotonic()) if self._buffer else None)
            writes, self._buffer = self._buffer, []
            self._rows = self._size_bytes = 0
            self._changed.notify_all()
            return writes

    def _is_due(self) -> bool:
        is_flushed = self._accepted - len(self._buffer) < self._flushed
        return is_flushed or self._is_closed or self._is_full() or time.monotonic() >= self._due

    # The thread that commits

    def _run(self) -> None:
        while (writes := self._take()) is not None:
            began = time.monotonic()
            self._commit(writes)
            self._commit_seconds = time.monotonic() - began
            with self._changed:
                self._done += len(writes)
                self._changed.notify_all()

    def _commit(self, writes: list[Write]) -> None:
        """Commit writes and complete their futures. Never raises."""
        valid = []
        for write in writes:
            claim = self._claims.get(write.producer)
            if claim is not None and claim.error is not None:
                self._fail(write, claim.error)
            else:
                valid.append(write)
        if not (writes := valid):
            return
        try:
            version, staged = self._committed(writes)
        except BaseException as error:
            if isinstance(error, InvalidArgument) and len(writes) > 1:  # commit halves, to find the invalid write
                half = len(writes) // 2
                self._commit(writes[:half])
                self._commit(writes[half:])
                return
            for write in writes:
                self._fail(write, error)
            return
        for name, sequence in staged.advanced.items():
            if name in self._claims:
                self._claims[name].durable = sequence
        for write in writes:
            if (failure := staged.failed.get(write)) is not None:
                self._fail(write, failure)
                continue
            write.future.is_duplicate = write in staged.duplicates
            write.future.rows_rejected = staged.rejected.get(write, 0)
            write.future.set_result(version)
        self._begin_compaction(staged)

    def _begin_compaction(self, staged: Staged) -> None:
        """Compact the table in another thread if all writers together made enough commits since the last time."""
        self._compacted = max(self._compacted, staged.compacted)
        is_running = self._compaction is not None and self._compaction.is_alive()
        if (
            self._compact is None
            or is_running
            or staged.newest - self._compacted < COMMITS_PER_COMPACTION
            or time.monotonic() < self._next_compaction
        ):
            return
        self._compacted = staged.newest
        target: int | None = NEWEST_FILE_SIZE_BYTES
        if staged.newest - self._fully_compacted >= COMMITS_PER_FULL_COMPACTION:
            self._fully_compacted, target = staged.newest, None
        self._compaction = threading.Thread(
            target=self._try_to_compact, args=(self._compact, target), name="trinitylake-compaction", daemon=True
        )
        self._compaction.start()

    def _try_to_compact(self, compact: Callable[[int | None], object], target: int | None) -> None:
        began = time.monotonic()
        try:
            compact(target)
        except CommitConflict:
            pass  # another writer compacted first; the next compaction takes the newer files
        except Exception as error:
            name = full_name(*split(self._target.name))
            warnings.warn(f"the small files of table {name} could not be compacted: {error}", stacklevel=2)
        ended = time.monotonic()
        self._next_compaction = ended + PAUSES_PER_COMPACTION * (ended - began)

    def _fail(self, write: Write, error: BaseException) -> None:
        """Fail a write, and let later writes of its producer fail, so that the table has no gap."""
        claim = self._claims.get(write.producer)
        if claim is not None:
            claim.error = claim.error or error
        with self._changed:
            self._failed = [*(future for future in self._failed if not future.is_seen), write.future]
        write.future.set_exception(error)

    def _committed(self, writes: list[Write]) -> tuple[int, Staged]:
        """Commit writes in one transaction, with retries after temporary errors. Returns the version."""
        deadline, pause = time.monotonic() + RETRY_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            transaction: WritingTransaction | None = None
            try:
                transaction = self._lakehouse.begin(**self._note._asdict())
                staged = stage(
                    transaction, self._target, writes, {name: one.durable for name, one in self._claims.items()}
                )
                return transaction.commit(), staged
            except CommitStateUnknown:
                assert transaction is not None
                if (version := self._settled(transaction, deadline)) is not None:
                    return version, staged
            except BaseException as error:
                if transaction is not None:
                    with suppress(TrinityLakeError):  # vacuum deletes the files that the rollback leaves
                        transaction.rollback()
                is_temporary = isinstance(error, CommitConflict | TransactionExpired) or (
                    isinstance(error, StorageError) and error.retryable
                )
                if not is_temporary or time.monotonic() >= deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _settled(self, transaction: WritingTransaction, deadline: float) -> int | None:
        """The version of a transaction whose outcome was unknown; None if this call rolled it back.

        Raises `CommitStateUnknown` if the store does not answer before the deadline.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                transaction.rollback()
                return None
            except (CommitConflict, CommitStateUnknown, StorageError) as error:
                if isinstance(error, CommitConflict):
                    with suppress(StorageError):
                        _, version = self._lakehouse._core.outcome(transaction.id)
                        if version is not None:
                            return version
                if time.monotonic() >= deadline:
                    raise CommitStateUnknown(f"the outcome of transaction {transaction.id} is unknown") from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


_open_writers: weakref.WeakSet[TableWriter] = weakref.WeakSet()


def _close_all() -> None:
    """Commit the rows of open writers at exit, while the interpreter can still start threads."""
    with ExitStack() as closing:  # closes all writers, even if one raises
        for writer in list(_open_writers):
            closing.callback(writer.close)


# `atexit` would run it too late, because a commit needs executors of `concurrent.futures`, which end earlier.
threading._register_atexit(_close_all)  # type: ignore[attr-defined] # noqa: SLF001
