"""Statements in SQL that write: INSERT, UPDATE, DELETE, MERGE, CREATE, DROP, ALTER and COMMENT, in a transaction.

DuckDB computes the rows, and the methods that Python programs call, such as `append` and `create_table`, write the
rows. UPDATE, DELETE and MERGE are in `tables/queries/changes.py`, ALTER and COMMENT in `sql_definitions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from trinitylake.base.markup import element, framed, shown
from trinitylake.base.qualified_names import Identifier
from trinitylake.errors import InvalidArgument
from trinitylake.lakehouse.sql_definitions import Alter, Definitions, declared_columns
from trinitylake.tables.merge import WriteResult, committed
from trinitylake.tables.queries.changes import Changes
from trinitylake.tables.queries.duckdb_types import with_uuids
from trinitylake.tables.queries.named_objects import Names
from trinitylake.tables.queries.parsed_query import shortened
from trinitylake.tables.queries.prepared import NEEDS, PreparedQuery, QueryOptions
from trinitylake.tables.queries.query import SHOWN_ROWS, Query
from trinitylake.tables.queries.running import planning
from trinitylake.tables.queries.statement_text import (
    CreateNamespace,
    CreateTable,
    CreateView,
    Delete,
    Drop,
    Insert,
    MergeInto,
    Statement,
    Update,
    Written,
)
from trinitylake.tables.sql_sandbox import quoted
from trinitylake.tables.table import FEW_ROWS_SIZE_BYTES, Table

if TYPE_CHECKING:
    from trinitylake.lakehouse.namespace import Namespace
    from trinitylake.lakehouse.view import View

_NO_KEY: tuple[str, ...] = ()
_NO_ROWS = WriteResult(0, 0, 0)


class Transaction(Definitions, Protocol):
    """The methods of an open transaction that SQL statements need."""

    def create_namespace(self, identifier: Identifier, *, exist_ok: bool) -> Namespace: ...
    def drop_namespace(self, identifier: Identifier, *, cascade: bool, missing_ok: bool) -> None: ...
    def create_table(
        self,
        identifier: Identifier,
        schema: pa.Schema,
        *,
        partition_spec: Iterable[str] | None,
        primary_key: Iterable[str],
    ) -> Table: ...
    def drop_table(self, identifier: Identifier, *, missing_ok: bool = False) -> None: ...
    def create_view(self, identifier: Identifier, sql: str, *, dialect: str) -> View: ...
    def drop_view(self, identifier: Identifier, *, missing_ok: bool = False) -> None: ...


class StatementDone(Query):
    """Result of a statement that writes. As a query it has one row: how many rows changed, and the version.

    `print` shows it as a sentence.

    Args:
        done: how many rows were changed; None for a statement that changes no rows.
        version: the version that the statement's transaction committed; None while the transaction is open.
        base_version: the base version of the transaction.
    """

    def __init__(self, names: Names, done: WriteResult | None, version: int | None, base_version: int) -> None:
        result = committed(done or _NO_ROWS, version, base_version)
        rows = pa.table(
            {
                name: pa.array([value], pa.int64())
                for name, value in (*result._asdict().items(), ("version", result.version))
            }
        )
        super().__init__(PreparedQuery("SELECT * FROM done", names, QueryOptions(given={"done": rows})))
        self._has_rows = done is not None
        self._is_committed = version is not None
        self._result = result

    def _text(self, limit: int = SHOWN_ROWS, width: int | None = None, *, one_by_one: bool = False) -> str:
        """The result as a sentence: how many rows changed, and the version."""
        suffix = "" if self._result.version is None else f" in version {self._result.version}"
        if not self._has_rows:
            return f"done{suffix}" if suffix or not self._is_committed else "nothing changed"
        counts = dict(zip(("updated", "deleted", "inserted"), self._result, strict=True))
        first, *others = [f"{count:,} {what}" for what, count in counts.items() if count] or ["0 changed"]
        number, _, what = first.partition(" ")
        return ", ".join([f"{number} row{'' if number == '1' else 's'} {what}", *others]) + suffix

    @shown
    def _repr_html_(self) -> str:
        return framed(element("div", repr(self)))


class SqlStatements:
    """Runs statements in one transaction.

    Args:
        transaction: the transaction.
        options: options for the queries in the statements; positional parameters have their numbers as names.
    """

    def __init__(self, transaction: Transaction, options: QueryOptions) -> None:
        self._transaction = transaction
        self._options = options

    def run(self, statement: Statement | Alter) -> WriteResult | None:
        """Run one statement; None if it changes no rows. Raises the errors of the Python methods and of queries."""
        match statement:
            case Insert():
                return self._insert(statement)
            case Update():
                return self._changes(statement).update(statement)
            case Delete():
                return self._changes(statement).delete(statement)
            case MergeInto():
                return self._changes(statement).merge(statement)
            case CreateTable():
                return self._create_table(statement)
            case CreateView():
                self._create_view(statement)
            case CreateNamespace():
                self._transaction.create_namespace(".".join(statement.name), exist_ok=statement.if_not_exists)
            case Drop():
                self._drop(statement)
            case Alter():
                self._alter(statement)
        return None

    def _changes(self, statement: Statement) -> Changes:
        namespace, name = self._name(statement)
        table = self._transaction.table((namespace, name))
        return Changes(self._transaction, table, (namespace, name), statement.sql, self._options)

    def _insert(self, statement: Insert) -> WriteResult:
        changes = self._changes(statement)
        query = self._prepared(statement.query)
        given = [name for name, _ in query.columns]
        if statement.is_by_name:
            columns = [changes.column(name) for name in given]
        else:
            columns = [changes.column(name) for name in statement.columns or changes.columns]
            if len(columns) != len(given):
                raise InvalidArgument(
                    f"{shortened(statement.sql)}: the query has {len(given)} column{'' if len(given) == 1 else 's'}, "
                    f"and {len(columns)} are expected: {', '.join(columns)}"
                )
        if len(set(columns)) != len(columns):
            raise InvalidArgument(f"{shortened(statement.sql)}: a column is named twice")
        names = ", ".join(map(quoted, columns))
        casts = ", ".join(f"CAST({quoted(name)} AS {changes.types[name]}) AS {quoted(name)}" for name in columns)
        rows = self._prepared(f"SELECT {casts} FROM ({statement.query}\n) AS source({names})")
        inserted = _in_memory_if_few(Query(rows).to_arrow_batch_reader())
        return self._transaction.table(self._name(statement)).append(inserted)

    def _create_table(self, statement: CreateTable) -> WriteResult | None:
        name = self._name(statement)
        query = self._prepared(statement.query) if statement.query else None
        rows = Query(query).to_arrow_batch_reader() if query is not None else None
        if not self._may_create(statement, name):
            return _NO_ROWS if rows is not None else None
        if query is not None and rows is not None:
            schema, keys = _as_in_table(rows.schema, [kind for _, kind in query.columns]), _NO_KEY
        else:
            schema, keys = declared_columns(statement.sql, statement.columns or [])
        partitions = [one.strip() for one in statement.partitions]
        table = self._transaction.create_table(name, schema, partition_spec=partitions or None, primary_key=keys)
        return None if rows is None else table.append(rows)

    def _create_view(self, statement: CreateView) -> None:
        name = self._name(statement)
        if self._options.parameters:
            raise InvalidArgument(f"{shortened(statement.sql)}: a view has no parameters")
        PreparedQuery(statement.query, self._transaction, QueryOptions(default_namespace=name[0]))
        if self._may_create(statement, name):
            self._transaction.create_view(name, statement.query, dialect="duckdb")

    def _may_create(self, statement: CreateTable | CreateView, name: tuple[str, str]) -> bool:
        """Whether the object must be created. If the statement replaces an existing object, drops that object first."""
        kind = "table" if isinstance(statement, CreateTable) else "view"
        if self._transaction._kind(name) != kind:
            return True
        if statement.or_replace:
            self._transaction.drop_table(name) if kind == "table" else self._transaction.drop_view(name)
        return not statement.if_not_exists or statement.or_replace

    def _drop(self, statement: Drop) -> None:
        if statement.kind == "schema":
            self._transaction.drop_namespace(
                ".".join(statement.name), cascade=statement.cascade, missing_ok=statement.if_exists
            )
        elif statement.kind == "view":
            self._transaction.drop_view(self._name(statement), missing_ok=statement.if_exists)
        else:
            self._transaction.drop_table(self._name(statement), missing_ok=statement.if_exists)

    def _alter(self, statement: Alter) -> None:
        name = statement.name if statement.kind == "namespace" else self._name(statement)
        if not statement.if_exists or self._transaction._kind(name) == statement.kind:
            statement.change(self._transaction, name)

    def _prepared(self, sql: str) -> PreparedQuery:
        return PreparedQuery(sql, self._transaction, self._options)

    def _name(self, statement: Written) -> tuple[str, str]:
        *namespace, name = statement.name
        if not namespace and self._options.default_namespace:
            return self._options.default_namespace, name
        if not namespace:
            raise InvalidArgument(f"{shortened(statement.sql)}: {name} has no namespace: write it as namespace.{name}")
        return ".".join(namespace), name


def _in_memory_if_few(rows: pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """The rows as a table if they are few, so that their append can share a commit; otherwise as a stream."""
    batches: list[pa.RecordBatch] = []
    while sum(batch.nbytes for batch in batches) <= FEW_ROWS_SIZE_BYTES:
        if (batch := next(rows, None)) is None:
            return pa.Table.from_batches(batches, rows.schema)
        batches.append(batch)
    return pa.RecordBatchReader.from_batches(rows.schema, chain(batches, rows))


def _as_in_table(schema: pa.Schema, types: Sequence[str]) -> pa.Schema:
    with planning(NEEDS) as connection:
        return with_uuids(schema, types, connection)
