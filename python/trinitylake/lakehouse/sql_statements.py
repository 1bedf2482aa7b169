"""Statements in SQL that write: INSERT, UPDATE, DELETE, MERGE, CREATE and DROP, in a transaction.

DuckDB computes the rows. They are written by the same statements that Python has, such as `append` and `create_table`;
changes of rows are in `tables/queries/changes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from trinitylake.base.markup import element, framed, shown
from trinitylake.base.qualified_names import Identifier
from trinitylake.errors import InvalidArgument
from trinitylake.tables.merge import WriteResult, with_version
from trinitylake.tables.queries.changes import Changes
from trinitylake.tables.queries.column_types import with_uuids
from trinitylake.tables.queries.named_objects import Names
from trinitylake.tables.queries.parameters import numbered
from trinitylake.tables.queries.parsed_query import shortened
from trinitylake.tables.queries.planning import planning
from trinitylake.tables.queries.prepared import NEEDS, PreparedQuery, QueryOptions
from trinitylake.tables.queries.query import SHOWN_ROWS, Query
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
    statement_of,
)
from trinitylake.tables.queries.tokens import tokens_of
from trinitylake.tables.sql_sandbox import arrow_result, quoted, refusals, sandbox
from trinitylake.tables.table import Table

if TYPE_CHECKING:
    from trinitylake.lakehouse.namespace import Namespace
    from trinitylake.lakehouse.view import View

_WRITING = frozenset({"CREATE", "DELETE", "DROP", "INSERT", "MERGE", "TRUNCATE", "UPDATE"})
_NO_KEY: tuple[str, ...] = ()
_NO_ROWS = WriteResult(0, 0, 0)
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)


def writing_statement(sql: str) -> Statement | None:
    """Parse a text as a writing statement; None for a query. Raises `InvalidArgument` for an unsupported statement."""
    first = _FIRST_WORD.match(sql)
    word = first[1].upper() if first is not None else ""
    if word not in _WRITING and word != "WITH":
        return None
    with planning(NEEDS) as connection, refusals(f"statement {shortened(sql)}", quotes_rows=False):
        if word == "WITH" and not any(one.word in _WRITING and not one.depth for one in tokens_of(sql)):
            return None
        return statement_of(connection, numbered(sql))


class Transaction(Names, Protocol):
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
    """Result of a statement as rows of a query: one row with the fields of `WriteResult`. Its text describes it.

    Args:
        done: None for a statement that changes no rows; then the numbers are 0.
        version, base_version: of the transaction; `version` is None if that is still open.
    """

    def __init__(self, names: Names, done: WriteResult | None, version: int | None, base_version: int) -> None:
        result = with_version(done or _NO_ROWS, version, base_version)
        rows = pa.table({name: pa.array([value], pa.int64()) for name, value in result._asdict().items()})
        super().__init__(PreparedQuery("SELECT * FROM done", names, QueryOptions(given={"done": rows})))
        self._has_rows = done is not None
        self._is_committed = version is not None
        self._result = result

    def text(self, limit: int = SHOWN_ROWS, width: int | None = None, *, one_by_one: bool = False) -> str:
        """The numbers of changed rows, and the version."""
        updated, deleted, inserted, version = self._result
        suffix = "" if version is None else f" in version {version}"
        if not self._has_rows:
            return f"done{suffix}" if suffix or not self._is_committed else "nothing changed"
        counts = {"updated": updated, "deleted": deleted, "inserted": inserted}
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
        options: of the queries in them; positional parameters are named by their numbers.
    """

    def __init__(self, transaction: Transaction, options: QueryOptions) -> None:
        self._transaction = transaction
        self._options = options

    def run(self, statement: Statement) -> WriteResult | None:
        """Run one statement; None if it changes no rows. Raises as the statements in Python do, and as queries do."""
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
                    f"{shortened(statement.sql)}: the query has {len(given)} columns, and {len(columns)} are expected: "
                    f"{', '.join(columns)}"
                )
        if len(set(columns)) != len(columns):
            raise InvalidArgument(f"{shortened(statement.sql)}: a column is named twice")
        names = ", ".join(f"c{number}" for number in range(len(columns)))
        casts = ", ".join(
            f"CAST(c{number} AS {changes.types[name]}) AS {quoted(name)}" for number, name in enumerate(columns)
        )
        rows = self._prepared(f"SELECT {casts} FROM ({statement.query}\n) AS source({names})")
        return self._transaction.table(self._name(statement)).append(Query(rows).to_arrow_batch_reader())

    def _create_table(self, statement: CreateTable) -> WriteResult | None:
        name = self._name(statement)
        query = self._prepared(statement.query) if statement.query else None
        rows = Query(query).to_arrow_batch_reader() if query is not None else None
        if not self._may_create(statement, name):
            return _NO_ROWS if rows is not None else None
        if query is not None and rows is not None:
            schema, keys = _as_in_table(rows.schema, [kind for _, kind in query.columns]), _NO_KEY
        else:
            schema, keys = _declared(statement)
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
        """Whether to create an object with a name, after dropping one that it replaces."""
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

    def _prepared(self, sql: str) -> PreparedQuery:
        return PreparedQuery(sql, self._transaction, self._options)

    def _name(self, statement: Statement) -> tuple[str, str]:
        *namespace, name = statement.name
        if not namespace and self._options.default_namespace:
            return self._options.default_namespace, name
        if not namespace:
            raise InvalidArgument(f"{shortened(statement.sql)}: {name} has no namespace: write it as namespace.{name}")
        return ".".join(namespace), name


def _as_in_table(schema: pa.Schema, types: Sequence[str]) -> pa.Schema:
    with planning(NEEDS) as connection:
        return with_uuids(schema, types, connection)


def _declared(statement: CreateTable) -> tuple[pa.Schema, tuple[str, ...]]:
    """Columns and primary key of a declared table. Raises `InvalidArgument` for unsupported constraints."""
    subject = f"statement {shortened(statement.sql)}"
    with sandbox(subject, needs=NEEDS, quotes_rows=True) as connection:
        connection.execute(f"CREATE TABLE declared ({', '.join(statement.columns or [])}\n)")
        kinds = connection.execute("SELECT DISTINCT constraint_type FROM duckdb_constraints()").fetchall()
        if others := {kind for (kind,) in kinds} - {"NOT NULL", "PRIMARY KEY"}:
            raise InvalidArgument(f"{subject}: tables have no constraint {', '.join(sorted(others))}")
        described: list[tuple[Any, ...]] = connection.execute("DESCRIBE declared").fetchall()
        schema: pa.Schema = arrow_result(connection, "SELECT * FROM declared").to_arrow_table().schema
        schema = with_uuids(schema, [kind for _, kind, *_ in described], connection)
    if defaults := [name for name, *_, default, _ in described if default is not None]:
        raise InvalidArgument(f"{subject}: columns have no default values here: {', '.join(defaults)}")
    fields = [
        field.with_nullable(nullable == "YES") for field, (_, _, nullable, *_) in zip(schema, described, strict=True)
    ]
    keys = tuple(name for name, _, _, key, *_ in described if key == "PRI")
    return pa.schema(fields), keys
