"""Base class of table handles.

A handle from a transaction writes into it; a handle from the lakehouse commits each write; a handle from `at(...)` is
read-only.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, overload

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction as IcebergTransaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.spec import UpdateSpec

from trinitylake import _core
from trinitylake.base.arguments import checked, checked_as, flag, hint, text, texts, whole_number
from trinitylake.base.commit_info import NO_COMMIT_INFO, CommitInfo
from trinitylake.base.durations import Duration, milliseconds
from trinitylake.base.markup import shown
from trinitylake.base.qualified_names import Identifier, full_name
from trinitylake.base.tracing import span, traced
from trinitylake.base.version_reference import VersionReference, check_order, find_version
from trinitylake.definitions import SHARED_FOLDERS, Schema, TableDef
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE
from trinitylake.iceberg_storage.data_files.schema_projection import with_wider_types
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.scan import scan_of
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import SchemaUpdate, StagedTransaction
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.tables import input_rows as rows
from trinitylake.tables.change_feed.table_versions import (
    TableName,
    TableState,
    net_step_of_table,
    state_in,
    state_of,
    steps_of_table,
)
from trinitylake.tables.declared_limits import limits_of
from trinitylake.tables.merge import Merge, UpsertResult, WriteResult
from trinitylake.tables.merging.clauses import Clause
from trinitylake.tables.merging.engine import merge
from trinitylake.tables.merging.join_keys import check_unique
from trinitylake.tables.merging.row_changes import FoundKeys, PlacedRows, RowChanges, change_rows
from trinitylake.tables.scan import Scan
from trinitylake.tables.schema_evolution import follow
from trinitylake.tables.table_html import snapshot_list, table_html

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame
    from polars import LazyFrame as PolarsLazyFrame

    from trinitylake.tables.change_feed.feed import ChangeFeed, Names
    from trinitylake.tables.ingestion.table_writer import Limits, TableWriter
    from trinitylake.tables.maintenance import TableMaintenance

TableType = Literal["managed", "external", "federated"]
Result = TypeVar("Result")
_AT_LEAST_ONE = partial(whole_number, minimum=1)
#: An append of at most this size can share a commit with other appends.
FEW_ROWS_SIZE_BYTES = 1 << 20


class _Input:
    """Rows with the columns of the table, in memory or as a stream. `count` is complete after all rows were read."""

    def __init__(self, rows: pa.Table | pa.RecordBatchReader) -> None:
        is_table = isinstance(rows, pa.Table)
        self.count = rows.num_rows if is_table else 0
        self.rows: Any = rows if is_table else pa.RecordBatchReader.from_batches(rows.schema, self._counted(rows))
        self.parts = [self.rows] if is_table else self.rows

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.count += batch.num_rows
            yield batch


class Table(ABC):
    """A table and its rows (`TableDef`, format §6 and §9)."""

    def __init__(self, namespace: str, name: str, definition: TableDef) -> None:
        self._namespace = namespace
        self._name = name
        self._definition = definition

    @abstractmethod
    def _iceberg(self) -> IcebergTable:
        """The PyIceberg table in the state that reads see."""

    @abstractmethod
    def _writing(self, note: CommitInfo = NO_COMMIT_INFO) -> AbstractContextManager[IcebergTable]:
        """PyIceberg table whose changes are committed at the end of the block, with a summary in the log.

        Raises `InvalidArgument` if the table is read-only, and for a note within a transaction, because the transaction
        has its own message and author.
        """

    #: Whether a write runs again if another commit changed the table at the same time.
    _repeats_writes: ClassVar[bool] = False

    def _write(
        self, operation: Callable[[IcebergTable], Result], *, is_append: bool = False, note: CommitInfo = NO_COMMIT_INFO
    ) -> Result:
        """Run one write. `is_append` means that the result does not depend on the rows and files of the table."""
        with self._writing(note) as iceberg:
            return operation(iceberg)

    @abstractmethod
    def _shown_version(self) -> int:
        """The version of the lakehouse that error messages about the table name."""

    def _note_scan(self, filter: BooleanExpression, snapshot_id: int | None) -> None:
        """Called before rows are read."""
        return

    def _note_whole(self) -> None:
        """Called before anything other than columns, specs, properties and rows is read, such as snapshots."""
        return

    def _subject(self) -> str:
        return f"table {self.name} in version {self._shown_version()}"

    # Description

    @property
    def name(self) -> str:
        """The full name, such as `"nyc.flights"`."""
        return full_name(self._namespace, self._name)

    @property
    def namespace(self) -> str:
        """The namespace of the table."""
        return self._namespace

    @property
    def id(self) -> str:
        """Id of the table. A rename keeps the id; a table that is dropped and created again has another id."""
        return self._definition.id

    @property
    def type(self) -> TableType:
        """The table type: managed (the lakehouse owns the data), external, or federated (a table of another catalog)
        (format §9).
        """
        types: tuple[TableType, ...] = ("managed", "external", "federated")
        return types[self._definition.table_type]

    @property
    def iceberg(self) -> IcebergTable:
        """The PyIceberg table, for features of PyIceberg that this class does not wrap.

        In a transaction its writes are part of the transaction. From `lake.table(…)`, each commit of PyIceberg is a
        separate transaction, which raises PyIceberg's errors: `CommitFailedException` for a lost race. It is read-only
        for a past version and for an external table.
        """
        self._note_whole()
        return self._iceberg()

    @property
    def schema(self) -> Schema:
        """The columns, in TrinityLake's types."""
        return Schema.from_iceberg(self._iceberg().schema())

    @property
    def partition_spec(self) -> PartitionSpec:
        """The current PyIceberg partition spec."""
        return self._iceberg().spec()

    @property
    def sort_order(self) -> SortOrder:
        """The current PyIceberg sort order."""
        return self._iceberg().sort_order()

    @property
    def primary_key(self) -> list[str]:
        """The columns that identify a row. `upsert` matches rows by them; other writes do not check uniqueness."""
        return list(self.schema.primary_key)

    @property
    def properties(self) -> dict[str, str]:
        """The table properties, including those of Iceberg."""
        return dict(self._definition.properties) | dict(self._iceberg().properties)

    @property
    def location(self) -> str:
        """URI of the folder with the table's data and metadata."""
        return self._iceberg().location()

    def refresh(self) -> None:
        """Read the latest version from now on. Has no effect on a table of a transaction or of a past version."""
        return

    def snapshots(self) -> list[Snapshot]:
        """Iceberg snapshots still in the table's metadata, oldest first."""
        ordered = sorted(self.iceberg.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        return snapshot_list(ordered, self.name)

    # Reading

    @checked
    def scan(
        self,
        filter: str | BooleanExpression | None = None,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        *,
        snapshot_id: int | None = None,
    ) -> Scan:
        """Rows that match `filter` (SQL-like text or a PyIceberg expression), at most `limit` of them.

        As in SQL, NULL matches no comparison: `"a != 1"` and `"a not in (1)"` exclude it. NaN is larger than all other
        numbers: it matches `"f > 1"` and `"f != 1"`. `delete` and `overwrite` follow the same rules.

        Raises `InvalidArgument` for a filter that cannot be parsed, or for an unknown column.
        """
        matching = AlwaysTrue() if filter is None else parse_filter(filter)
        scan = self._scan(matching, columns, limit, snapshot_id)
        self._note_scan(matching, snapshot_id)
        return scan

    def _scan(
        self,
        matching: BooleanExpression,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        snapshot_id: int | None = None,
    ) -> Scan:
        """A scan; the caller calls `_note_scan` before it reads rows."""
        with translated():
            scan = scan_of(
                self._iceberg(),
                row_filter=matching,
                selected_fields=("*",) if columns is None else tuple(columns),
                snapshot_id=snapshot_id,
                limit=limit,
            )
            try:
                scan.projection()  # an unknown column is refused here rather than on the first row
            except ValueError:
                known = self._iceberg().schema().column_names
                readable = {*known, *(field.name for field in LINEAGE)}
                unknown = next((one for one in columns or () if one not in readable), None)
                if unknown is None:
                    raise
                raise InvalidArgument(f"{self._subject()} has no column {unknown!r}; {hint(unknown, known)}") from None
        return Scan(scan, self._subject, self.name)

    def count(self) -> int:
        """The number of rows, computed from metadata if possible."""
        return self.scan().count()

    @checked
    def head(self, limit: int = 10) -> pa.Table:
        """The first rows, in no particular order."""
        return self.scan(limit=limit).to_arrow()

    def to_arrow(self) -> pa.Table:
        """All rows, in no particular order; `scan` reads some rows or columns, or a stream."""
        return self.scan().to_arrow()

    def to_pandas(self, **options: Any) -> PandasFrame:
        """All rows as a pandas frame; `options` go to `pyarrow.Table.to_pandas`."""
        return self.scan().to_pandas(**options)

    @overload
    def to_polars(self, *, lazy: Literal[False] = False) -> PolarsFrame: ...
    @overload
    def to_polars(self, *, lazy: Literal[True]) -> PolarsLazyFrame: ...
    def to_polars(self, *, lazy: bool = False) -> PolarsFrame | PolarsLazyFrame:
        """All rows as a polars frame; `lazy` as for `Scan.to_polars`."""
        return self.scan().to_polars(lazy=True) if lazy else self.scan().to_polars()

    @checked_as(net=flag)
    def changes(
        self,
        since: VersionReference,
        until: VersionReference | None = None,
        *,
        columns: Iterable[str] | None = None,
        net: bool = False,
        names: Names = "trinitylake",
    ) -> pa.RecordBatchReader:
        """The rows that changed after version `since`, up to and including version `until`.

        Applied to the rows of `since`, these changes give the rows of `until`. Versions come in order. Each row has the
        columns of the table in version `until`, followed by:

        - `_change_type`: "insert", "delete", or "update_preimage" followed by "update_postimage" for an updated row,
          which is recognised by its row id (format version 3) or its primary key; without these an update is a delete
          and an insert;
        - `_version`, `_committed_at` (UTC) and `_transaction_id` of the commit.

        Rows that were only moved to other files did not change. The table is followed by its id through renames. A
        version that drops it deletes its rows, and one that restores it inserts them. Memory is bounded.

        Args:
            since: a version as for `lake.at`: a number, a time or a tag. Its own changes are not included.
            until: the last version, by default the latest version that this handle can see.
            columns: columns of the table to return, by default all but variants.
            net: compare only the versions `since` and `until`: each row has at most one change, and a row that was
                inserted and deleted in between has none. `_version` is then `until`, `_committed_at` its time, and
                `_transaction_id` is null. Versions in between may have expired.
            names: "iceberg" for the columns of Iceberg's `create_changelog_view`: `_change_type` ("INSERT", "DELETE",
                "UPDATE_BEFORE", "UPDATE_AFTER"), `_change_ordinal` and `_commit_snapshot_id`.

        Raises:
            VersionExpired: a version after `since` has expired.
            InvalidArgument: the table is in another catalog, `until` is older than `since`, or a column is unknown.
        """
        core, newest = self._history()
        first = find_version(core, since)
        last = newest if until is None else find_version(core, until)
        check_order(first.number, last.number)
        key = TableName(self._namespace, self._name)
        then, now = state_of(first, key, self.id), state_in(core, self.id, key, last, newest)
        feed = self._change_feed(core, first.number, now, columns, names, then)
        find = net_step_of_table if net else steps_of_table
        return feed.reader(find(core, self.id, key, first, last))

    def _change_feed(
        self,
        core: _core.Lakehouse,
        kept: int,
        now: TableState | None,
        columns: Iterable[str] | None = None,
        names: Names = "trinitylake",
        then: TableState | None = None,
    ) -> ChangeFeed:
        """A feed with the columns of the table in the state `now`, or in the present state if `now` is None."""
        # A column whose type was wider in the earlier state `then` (a rollback makes types narrower) has the wider
        # type.
        from trinitylake.tables.change_feed.feed import ChangeFeed

        if self.type == "federated":
            raise InvalidArgument(f"table {self.name} is in another catalog, so its changes have no versions here")
        schema = (self._iceberg() if now is None else self._past(now)).schema()
        if then is not None:
            schema = with_wider_types(schema, self._past(then).schema())
        chosen = None if columns is None else tuple(columns)
        return ChangeFeed(core.storage, self._past, schema, chosen, names, kept, self._subject)

    @checked_as(consumer=text, net=flag)
    def consume(self, consumer: str, *, net: bool = False) -> pa.RecordBatchReader:
        """The rows that changed since a consumer's last call; the transaction advances the consumer's position.

        ```python
        with lake.transaction() as txn:
            changed = txn.table("shop.orders").consume("billing")
            txn.table("shop.bills").upsert(bills_of(changed))
        ```

        The commit of the transaction advances the position to its base version, so each change is processed exactly
        once. If two transactions advance the same consumer, one fails with `CommitConflict`. The first call returns all
        rows of the table as inserted. Rows that the transaction itself wrote are returned by the next transaction.

        The position is a property of the namespace `_consumers.NAME`, with the id of the table as its key. So a
        rollback of the lakehouse also rolls the position back. Drop the namespace to begin again.

        Args:
            consumer: the name of the consumer.
            net: as for `changes`.

        Raises:
            VersionExpired: the version at the consumer's position has expired.
            InvalidArgument: the table is not from a transaction, or the position belongs to another lakehouse.
        """
        raise InvalidArgument(f"changes of table {self.name} are consumed in a transaction: txn.table(…).consume(…)")

    @abstractmethod
    def _history(self) -> tuple[_core.Lakehouse, _core.Version]:
        """The handle of the lakehouse, and the latest version that the table can see."""

    @abstractmethod
    def _past(self, state: TableState) -> IcebergTable:
        """The read-only table in the state of a version."""

    # Writing

    def _schema(self) -> IcebergSchema:
        return self._iceberg().schema()

    @traced("append")
    @checked
    def append(self, data: Any, *, evolve_schema: bool = False, message: str = "", author: str = "") -> WriteResult:
        """Add rows: Arrow data (pyarrow, polars, pandas, duckdb), a dict of columns, a list or iterator of dicts.

        A stream (a reader, an iterator of record batches, a polars LazyFrame, a DuckDB relation) is written batch by
        batch, in bounded memory. Outside of a transaction it is first read to its end, into a temporary file if it is
        large, because the append may have to be repeated. Returns the number of rows and the version; without rows, no
        version is committed. Raises `InvalidArgument` for data that does not fit the columns.

        Args:
            data: the rows.
            evolve_schema: in the same transaction, add columns of the data that the table lacks, and widen columns as
                Iceberg allows (int to long, float to double, more digits of a decimal).
        """
        with rows.taken(data, repeatable=self._repeats_writes, schema=self._schema) as given:
            info = CommitInfo(message, author)
            is_few = isinstance(given, pa.Table) and given.get_total_buffer_size() <= FEW_ROWS_SIZE_BYTES
            if not evolve_schema and is_few:
                return self._append_few(given, info)
            return self._append(given, info, evolve_schema)

    def _append_few(self, given: pa.Table, info: CommitInfo) -> WriteResult:
        return self._append(given, info)

    def _append(self, given: rows.Rows, info: CommitInfo, evolve_schema: bool = False) -> WriteResult:
        def operation(iceberg: IcebergTable) -> WriteResult:
            with translated(self._subject), iceberg.transaction() as change:
                if evolve_schema:
                    with change.update_schema() as update:
                        follow(update, iceberg.schema(), given.schema, iceberg.metadata.format_version)
                given_rows = self._conformed(given, change)
                if isinstance(change, StagedTransaction):
                    change.append_rows(given_rows.parts)
                else:
                    change.append(given_rows.rows)
            return WriteResult(0, 0, given_rows.count)

        return self._write(operation, is_append=not evolve_schema, note=info)

    @checked_as(max_rows=_AT_LEAST_ONE, max_size_bytes=_AT_LEAST_ONE, producer=text, compact=flag)
    def writer(
        self,
        *,
        max_delay: Duration = "1 second",
        max_rows: int = 100_000,
        max_size_bytes: int = 64 << 20,
        producer: str | None = None,
        dead_letter_table: Identifier | None = None,
        compact: bool = True,
        message: str = "",
        author: str = "",
    ) -> TableWriter:
        """A writer for streams of small writes, which commits the rows of many writes together in the background.

        ```python
        with lake.table("raw.events").writer(producer="sensor-7") as writer:
            for event in events_after(writer.last_sequence()):
                writer.write([event.row], sequence=event.number)
        ```

        `writer.write(rows)` returns a future of the version in which the rows are durable. With a producer each
        sequence number is written exactly once: it is stored in the same commit, and `writer.last_sequence()` returns
        it after a restart. A second writer of the same producer takes it over, and the first one fails with
        `ProducerFenced`. docs/guide/ingestion.md has more.

        Args:
            max_delay: time after which rows are durable, such as "1 second", if a commit takes less than half of it.
            max_rows: number of collected rows that starts a commit earlier. `write` waits while this number of rows is
                collected and another commit is running.
            max_size_bytes: the same limit for the memory of the rows.
            producer: the name of the stream of rows, if its writes have sequence numbers.
            dead_letter_table: a table for rows that do not fit this table, written in the same commit. It is created
                if it does not exist, with the columns error, row (JSON), time, producer and sequence. Without it a
                row that does not fit makes its write fail.
            compact: compact small files in the background, as the maintenance policy says (`maintenance.compact`).
            message: message of the commits in the log.
            author: author of the commits in the log.

        Raises `InvalidArgument` for a table of a transaction, of a past version or that is not managed.
        """
        from trinitylake.tables.ingestion.table_writer import Limits

        limits = Limits(milliseconds(max_delay, "max_delay") / 1000, max_rows, max_size_bytes)
        return self._open_writer(limits, producer, dead_letter_table, compact, CommitInfo(message, author))

    def _open_writer(
        self, limits: Limits, producer: str | None, dead_letters: Identifier | None, compact: bool, note: CommitInfo
    ) -> TableWriter:
        raise InvalidArgument(
            f"a writer commits its own transactions, and this table belongs to a transaction or a past version: use "
            f"lake.table({self.name!r}).writer()"
        )

    @traced("overwrite")
    @checked
    def overwrite(
        self, data: Any, filter: str | BooleanExpression | None = None, *, message: str = "", author: str = ""
    ) -> WriteResult:
        """Replace the rows that match `filter`, or all rows, by the rows of `data`, in the forms that `append` accepts.

        Returns how many rows were deleted and inserted, and the version. An unchanged row counts in both numbers.
        """
        matching = AlwaysTrue() if filter is None else parse_filter(filter)
        with rows.taken(data, repeatable=self._repeats_writes, schema=self._schema) as given:

            def operation(iceberg: IcebergTable) -> WriteResult:
                with translated(self._subject), iceberg.transaction() as change:
                    given_rows = self._conformed(given, change)
                    deleted = _rows_deleted(iceberg, change, matching)
                    if isinstance(change, StagedTransaction):
                        change.overwrite_rows(given_rows.parts, matching)
                    else:
                        with _no_match_is_fine(self.type):
                            change.overwrite(given_rows.rows, overwrite_filter=matching)
                    return WriteResult(0, deleted(), given_rows.count)

            return self._write(operation, note=CommitInfo(message, author))

    def _conformed(self, given: rows.Rows, change: IcebergTransaction) -> _Input:
        """`given` with the columns and types that the table has after the previous steps of `change`."""
        schema, spec, limits = change.table_metadata.schema(), change.table_metadata.spec(), limits_of(self.schema)
        # PyIceberg cannot stream into partitions, and requires the columns that they are computed from.
        parts = {name for field in spec.fields if (name := schema.find_column_name(field.source_id))}
        can_stream = isinstance(change, StagedTransaction) or spec.is_unpartitioned()
        return _Input(rows.conform(given, schema, limits=limits, stream=can_stream, needed=parts))

    @traced("delete")
    @checked
    def delete(self, filter: str | BooleanExpression, *, message: str = "", author: str = "") -> WriteResult:
        """Remove the rows that match `filter`; `pyiceberg.expressions.AlwaysTrue()` removes all rows.

        Returns the number of deleted rows and the version.
        """
        matching = parse_filter(filter)

        def operation(iceberg: IcebergTable) -> WriteResult:
            with translated(self._subject), iceberg.transaction() as change, _no_match_is_fine(self.type):
                deleted = _rows_deleted(iceberg, change, matching)
                change.delete(matching)
                return WriteResult(0, deleted(), 0)

        return self._write(operation, note=CommitInfo(message, author))

    @traced("upsert")
    @checked
    def upsert(
        self, data: Any, on: Iterable[str] | None = None, *, message: str = "", author: str = ""
    ) -> UpsertResult:
        """Update the rows whose key exists, insert the others.

        The key is `on`, or else the primary key. A column that `data` lacks keeps its value in updated rows, and is
        null in inserted rows. A key with a null matches no row, as in SQL; NaN equals NaN. Rows that would not change
        are not counted. Only files that can hold a key are read, and only files with changed rows are rewritten.

        Raises `InvalidArgument` if there is no key, if two rows of `data` have the same key, and as `append` does.
        """
        columns = None if on is None else texts(on, "on")
        schema = self._schema()
        with rows.taken(data, repeatable=True, joined_with=schema, schema=lambda: schema) as given:

            def operation(iceberg: IcebergTable) -> UpsertResult:
                with translated(self._subject):
                    keys = self._merge_keys(iceberg, columns)
                    source = rows.with_table_types(rows.conform(given, iceberg.schema()), iceberg.schema())
                    limits = limits_of(self.schema)
                    self._check_keys(source, keys)
                    check_unique(source, keys)
                    clauses = [Clause("update")], [Clause("insert")]
                    done = merge(iceberg, source, keys, *clauses, limits=limits, statement="upsert", only_changes=True)
                return UpsertResult(done.updated, done.inserted)

            return self._write(operation, note=CommitInfo(message, author))

    @checked
    def merge(self, data: Any, on: Iterable[str] | None = None, *, message: str = "", author: str = "") -> Merge:
        """SQL's MERGE: match `data` with the table by a key, with clauses for matched and unmatched rows.

        ```python
        table.merge(data, on="id").when_matched_update().when_not_matched_insert().execute()
        ```

        Args:
            data: as for `append`; read when the merge is executed. It may have columns that the table does not have,
                for conditions.
            on: the columns that are compared; by default the primary key.

        Raises `InvalidArgument` for a column in `on` that the table does not have.
        """
        columns = None if on is None else self._known_columns(texts(on, "on"))

        def run(matched: Sequence[Clause], not_matched: Sequence[Clause]) -> WriteResult:
            schema = self._schema()
            taken = rows.taken(data, repeatable=True, joined_with=schema, schema=lambda: schema)
            with span("merge", self.name), taken as given:

                def operation(iceberg: IcebergTable) -> WriteResult:
                    with translated(self._subject):
                        keys = self._merge_keys(iceberg, columns)
                        source = rows.with_table_types(given, iceberg.schema())
                        self._check_keys(source, keys)
                        done = merge(iceberg, source, keys, matched, not_matched, limits=limits_of(self.schema))
                    return WriteResult(done.updated, done.deleted, done.inserted)

                return self._write(operation, note=CommitInfo(message, author))

        return Merge(run)

    def _change_rows(
        self,
        filter: BooleanExpression,
        find: Callable[[PlacedRows], RowChanges],
        statement: str,
        keys: FoundKeys | None = None,
    ) -> WriteResult:
        """Change the rows that `find` finds by their positions, for SQL statements (`merging/row_changes.py`)."""

        def operation(iceberg: IcebergTable) -> WriteResult:
            with translated(self._subject):
                done = change_rows(iceberg, filter, find, statement, limits_of(self.schema), keys)
            return WriteResult(done.updated, done.deleted, done.inserted)

        return self._write(operation)

    def _merge_keys(self, iceberg: IcebergTable, on: Sequence[str] | None) -> list[str]:
        keys = sorted(iceberg.schema().identifier_field_names()) if on is None else self._known_columns(on)
        if not keys:
            raise InvalidArgument(f"table {self.name} has no primary key: name the columns to compare, on=[…]")
        if len(set(keys)) < len(keys):
            raise InvalidArgument(f"a column of the key is named twice: {', '.join(keys)}")
        return keys

    def _check_keys(self, source: pa.Table, keys: Sequence[str]) -> None:
        if missing := [name for name in keys if name not in source.column_names]:
            raise InvalidArgument(f"columns of the key are missing from the data: {', '.join(missing)}")

    def _known_columns(self, names: Iterable[str]) -> list[str]:
        known = self.schema.names
        if unknown := [name for name in names if name not in known]:
            raise InvalidArgument(f"table {self.name} has no column {', '.join(unknown)}; it has {', '.join(known)}")
        return list(names)

    @property
    def maintenance(self) -> TableMaintenance:
        """Compaction and metadata maintenance: `table.maintenance.compact()`, `.expire_snapshots()`, …"""
        from trinitylake.tables.maintenance import TableMaintenance

        return TableMaintenance(self._write, self._subject, self._shared_folders)

    def _shared_folders(self) -> list[str]:
        return self._definition.format_properties.get(SHARED_FOLDERS, "").splitlines()

    # Changing the table itself

    @contextmanager
    def update_schema(self, *, message: str = "", author: str = "") -> Iterator[UpdateSchema]:
        """PyIceberg's schema update: `with table.update_schema() as update: update.add_column("delay", "bigint")`.

        Types are SQL's, as in `create_table`, or PyIceberg's.
        """
        with translated(), self._writing(CommitInfo(message, author)) as iceberg, iceberg.update_schema() as update:
            update.__class__ = SchemaUpdate  # PyIceberg's own, of a federated table, accepts no SQL types
            yield update

    @contextmanager
    def update_spec(self, *, message: str = "", author: str = "") -> Iterator[UpdateSpec]:
        """PyIceberg's update of the partition spec: `with table.update_spec() as update: update.add_field(…)`."""
        with translated(), self._writing(CommitInfo(message, author)) as iceberg, iceberg.update_spec() as update:
            yield update

    @shown
    def _repr_html_(self) -> str:
        """HTML for notebooks. An external or federated table shows only what the lakehouse itself stores."""
        if self.type == "managed":
            return table_html(self.name, self.type, self.schema, self.iceberg)
        schema = self.schema if self._definition.HasField("schema") and self.type == "external" else None
        return table_html(self.name, self.type, schema, None)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        kind = "" if self.type == "managed" else f", {self.type}"
        return f"Table({self.name!r}{kind})"


@contextmanager
def _no_match_is_fine(type: TableType) -> Iterator[None]:
    """Suppress PyIceberg's warning that a delete in the table of another catalog matched no rows."""
    # Our own transactions do not warn, so the filters of warnings, which all threads share, are not changed for them.
    if type == "managed":
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        yield


def _rows_deleted(iceberg: IcebergTable, change: IcebergTransaction, filter: BooleanExpression) -> Callable[[], int]:
    """A function to call after a delete, which returns the number of deleted rows."""
    # PyIceberg does not count them for a table of another catalog, so the matching rows are counted in advance.
    if isinstance(change, StagedTransaction):
        before = change.n_deleted
        return lambda: change.n_deleted - before
    count = scan_of(iceberg, row_filter=filter).count()
    return lambda: count
