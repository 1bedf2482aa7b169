"""Stages the writes of a `TableWriter` in one transaction: rows, dead letters and sequence numbers of producers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation

from trinitylake import _core
from trinitylake.base.qualified_names import Identifier, full_name, split
from trinitylake.definitions import Schema
from trinitylake.errors import ObjectNotFound, ProducerFenced, TrinityLakeError
from trinitylake.tables import input_rows
from trinitylake.tables.declared_limits import limits_of
from trinitylake.tables.ingestion.producers import Producer
from trinitylake.tables.ingestion.rejected_rows import EventRows, RejectedRow, fit_rows

DEAD_LETTER_SCHEMA = pa.schema(
    [
        ("error", pa.string()),
        ("row", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("producer", pa.string()),
        ("sequence", pa.int64()),
    ]
)


class DescribedTable(Protocol):
    """The parts of a table's schema that a writer uses."""

    @property
    def schema(self) -> Schema: ...
    def _schema(self) -> IcebergSchema: ...


def sequence_numbers(table: StagedTable) -> tuple[int, int]:
    """Iceberg sequence numbers of the newest snapshot and of the last compaction; 0 for none."""
    metadata = table._iceberg().metadata
    compactions = [
        snapshot.sequence_number or 0
        for snapshot in metadata.snapshots
        if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
    ]
    return getattr(metadata, "last_sequence_number", 0), max(compactions, default=0)


class StagedTable(DescribedTable, Protocol):
    """The parts of a transaction's table that a writer uses."""

    @property
    def id(self) -> str: ...
    def _iceberg(self) -> IcebergTable: ...
    def _open_core(self) -> _core.Transaction: ...
    def append(self, data: Any) -> object: ...


class WritingTransaction(Protocol):
    """The parts of a transaction that a writer uses."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    def table(self, identifier: Identifier) -> Any: ...
    def exists(self, identifier: Identifier) -> bool: ...
    def create_namespace(self, identifier: Identifier, *, exist_ok: bool) -> object: ...
    def create_table(self, identifier: Identifier, schema: pa.Schema) -> object: ...
    def commit(self) -> int: ...
    def rollback(self) -> None: ...


class Acknowledgement(Future[int]):
    """Future of the version that made the rows of one write durable.

    It cannot be cancelled. `asyncio.wrap_future` makes it awaitable.

    Attributes:
        rows_rejected: number of rows that went to the dead-letter table. Set when the future is done.
        is_duplicate: whether nothing was written because the table already had the sequence number. Set when the future
            is done.
        is_seen: whether a caller has read the outcome, waits for it, or has added a callback.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows_rejected = 0
        self.is_duplicate = False
        self.is_seen = False
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> int:
        """Wait for the version. Raises the error of the write, or `TimeoutError` after `timeout` seconds."""
        with self._seen():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error of the write; None if the rows are durable. Raises `TimeoutError` as `result` does."""
        with self._seen():
            return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[int]], object]) -> None:
        """Call `fn` with this future when it is done, in the thread of the writer."""
        self.is_seen = True
        super().add_done_callback(fn)

    def cancel(self) -> bool:
        """Return False. `asyncio` calls this if the waiting task is cancelled, so that it will not read the error."""
        self.is_seen = self.is_seen and self.done()
        return False

    @contextmanager
    def _seen(self) -> Iterator[None]:
        self.is_seen = True  # while the caller waits
        try:
            yield
        finally:
            self.is_seen = self.done()


@dataclass(eq=False, slots=True)
class Write:
    """One write that is not durable yet."""

    rows: EventRows
    producer: str = ""
    sequence: int | None = None
    future: Acknowledgement = field(default_factory=Acknowledgement)


class Target(NamedTuple):
    """The tables that a writer writes to.

    Attributes:
        name: name of the table.
        dead_letter_table: name of the table for rows that do not fit; None if such rows fail their writes.
        writer: the id of the writer; None for a server, which claims no producer.
    """

    name: Identifier
    id: str
    dead_letter_table: Identifier | None
    writer: str | None

    def table_in(self, transaction: WritingTransaction) -> StagedTable:
        """The table in a transaction. Raises `ObjectNotFound` if it was dropped, also if another table has its name."""
        table: StagedTable = transaction.table(self.name)
        if table.id != self.id:
            name = full_name(*split(self.name))
            raise ObjectNotFound(f"table {name} was dropped, and another table has its name: open another writer")
        return table


@dataclass(slots=True)
class Staged:
    """Result of `stage`.

    Attributes:
        failed: the error of each write that is not staged.
        duplicates: writes whose sequence numbers the table already had.
        rejected: the number of rejected rows of each write.
        advanced: the new sequence number of each producer.
        newest, compacted: Iceberg sequence numbers of the newest snapshot and of the last compaction, after the commit.
    """

    failed: dict[Write, TrinityLakeError] = field(default_factory=dict)
    duplicates: set[Write] = field(default_factory=set)
    rejected: dict[Write, int] = field(default_factory=dict)
    advanced: dict[str, int] = field(default_factory=dict)
    newest: int = 0
    compacted: int = 0


def conforming(table: DescribedTable) -> Callable[[pa.Table], pa.Table]:
    """Function that converts rows to the columns of a table, and raises `InvalidArgument` for rows that do not fit."""
    schema = table._schema()
    names = frozenset(schema.column_names)
    conform: Callable[..., Any] = partial(
        input_rows.conform, schema=schema, limits=limits_of(table.schema), needed=names
    )
    return conform


def stage(
    transaction: WritingTransaction, target: Target, writes: Sequence[Write], durable: Mapping[str, int | None]
) -> Staged:
    """Add writes to a transaction. If a write of a producer fails, later writes of this producer fail too.

    Args:
        writes: in the order of the calls of `write`.
        durable: the sequence number of each claimed producer, as the writer knows it; None for no number.

    Raises `ObjectNotFound` if the table was dropped.
    """
    table = target.table_in(transaction)
    staged = Staged()
    producers: dict[str, Producer] = {}
    new = _new_writes(table, target, writes, producers, durable, staged)
    conform = conforming(table)
    by_rows = {write.rows: write for write in new}
    found = fit_rows(by_rows, conform, splits=target.dead_letter_table is not None)
    if found.rejected and target.dead_letter_table is None:
        failed = {by_rows[rows]: rows.located(rejected[0]) for rows, rejected in found.rejected.items()}
        staged.failed.update(failed)
    if staged.failed:
        _fail_later_writes(writes, staged)
        new = [write for write in new if write not in staged.failed]
        found = fit_rows((write.rows for write in new), conform, splits=target.dead_letter_table is not None)
    alike: dict[pa.Schema, list[pa.Table]] = {}
    for one in found.tables:
        if one.num_rows:
            alike.setdefault(one.schema, []).append(one)
    # Before the append, because a transaction that reads the table after its append cannot commit in a group.
    newest, staged.compacted = sequence_numbers(table)
    staged.newest = newest + len(alike)
    for tables in alike.values():  # there are several schemas if some rows lack columns with default values
        table.append(pa.concat_tables(tables).combine_chunks())
    if target.dead_letter_table is not None and found.rejected:
        rejected = {by_rows[rows]: bad for rows, bad in found.rejected.items()}
        staged.rejected = {write: len(bad) for write, bad in rejected.items()}
        _append_dead_letters(transaction, target.dead_letter_table, rejected)
    staged.advanced = {write.producer: write.sequence for write in new if write.sequence is not None}
    checksums = {write.producer: write.rows.checksum for write in new}
    for name, sequence in staged.advanced.items():
        producers[name].store(sequence, target.writer, checksums[name])
    return staged


def _fail_later_writes(writes: Iterable[Write], staged: Staged) -> None:
    """Fail the later writes of a producer with a failed write, so that its stored number stays smaller."""
    errors: dict[str, TrinityLakeError] = {}
    for write in writes:
        if write.sequence is None or write in staged.duplicates:
            continue
        if (error := staged.failed.get(write) or errors.get(write.producer)) is not None:
            staged.failed[write] = errors[write.producer] = error


def _new_writes(
    table: StagedTable,
    target: Target,
    writes: Iterable[Write],
    producers: dict[str, Producer],
    durable: Mapping[str, int | None],
    staged: Staged,
) -> list[Write]:
    """The valid writes that are not duplicates. Adds the other writes to `staged`, and producers to `producers`."""
    new: list[Write] = []
    last: dict[str, int | None] = {}
    for write in writes:
        if write.sequence is not None:
            if write.producer not in producers:
                producers[write.producer] = Producer(table._open_core(), write.producer, target.id)
            producer = producers[write.producer]
            try:
                if target.writer is not None:
                    producer.check_writer(target.writer, durable[write.producer])
            except ProducerFenced as error:
                staged.failed[write] = error
                continue
            before = last.get(write.producer, producer.sequence)
            if before is not None and write.sequence <= before:
                staged.duplicates.add(write)
                continue
            last[write.producer] = write.sequence
        if write.rows.error is not None:
            staged.failed[write] = write.rows.error
        else:
            new.append(write)
    return new


def _append_dead_letters(
    transaction: WritingTransaction, name: Identifier, rejected: dict[Write, list[RejectedRow]]
) -> None:
    """Append rejected rows to the dead-letter table, which is created if it does not exist."""
    if not transaction.exists(name):
        transaction.create_namespace(split(name)[0], exist_ok=True)
        transaction.create_table(name, DEAD_LETTER_SCHEMA)
    now = datetime.now(UTC)
    rows: Sequence[tuple[Any, ...]] = [
        (str(bad.error), bad.text, now, write.producer or None, write.sequence)
        for write, of_write in rejected.items()
        for bad in of_write
    ]
    letters = [dict(zip(DEAD_LETTER_SCHEMA.names, row, strict=True)) for row in rows]
    transaction.table(name).append(pa.Table.from_pylist(letters, DEAD_LETTER_SCHEMA))
