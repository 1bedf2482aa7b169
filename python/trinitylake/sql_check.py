"""A check in SQL: DuckDB answers it from tables and views of the transaction, named as in the lakehouse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.identifier import full_name

if TYPE_CHECKING:
    from trinitylake.transaction import Transaction
    from trinitylake.view import View


def first_row(transaction: Transaction, sql: str) -> tuple[Any, ...] | None:
    """The first row of the result, or None if it is empty.

    Raises `InvalidArgument` for what DuckDB refuses, and as `Transaction.table` does for what it names.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InvalidArgument("a check in SQL needs DuckDB: pip install 'trinitylake[sql]'") from error
    connection: Any = duckdb.connect()
    try:
        _Catalog(connection, transaction).provide(sql, "")
        row: tuple[Any, ...] | None = connection.execute(sql).fetchone()
        return row
    except duckdb.Error as error:
        raise InvalidArgument(f"check {sql!r}: {error}") from error
    finally:
        connection.close()


class _Catalog:
    """Tables and views in a DuckDB connection: a namespace is a schema, and a view is a table of its rows."""

    def __init__(self, connection: Any, transaction: Transaction) -> None:
        self._connection = connection
        self._transaction = transaction
        self._provided: set[tuple[str, str]] = set()
        self._views: list[str] = []

    def provide(self, sql: str, default_namespace: str) -> None:
        """All that the text names, and what the views among it name."""
        for namespace, name in self._names(sql):
            namespace = namespace or default_namespace
            if (namespace, name) in self._provided:
                continue
            identifier = (namespace, name) if namespace else name
            if self._transaction.kind(identifier) == "view":
                self._provide_view(self._transaction.view(identifier))
            else:
                rows = self._transaction.table(identifier).scan().to_arrow()
                number = len(self._provided)
                self._connection.register(f"trinitylake_{number}", rows)
                self._create("VIEW", namespace, name, f"SELECT * FROM temp.main.trinitylake_{number}")
            self._provided.add((namespace, name))

    def _provide_view(self, view: View) -> None:
        if view.name in self._views:
            raise InvalidArgument(f"view {view.name} is made of itself")
        try:
            sql = view.sql_for("duckdb")
        except ObjectNotFound:
            sql = view.sql
        default_namespace = view.default_namespace or view.namespace
        # Whoever wrote the view is not who runs the check, and has no business in the files of this machine.
        self._connection.execute("SET enable_external_access = false")
        self._views.append(view.name)
        self.provide(sql, default_namespace)
        self._views.pop()
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(default_namespace)}")
        self._connection.execute(f"USE memory.{_quoted(default_namespace)}")
        self._create("TABLE", view.namespace, view.name.removeprefix(f"{view.namespace}."), sql.rstrip("; \n"))
        self._connection.execute("USE memory.main")

    def _create(self, what: str, namespace: str, name: str, sql: str) -> None:
        schema = f"memory.{_quoted(namespace)}"
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        self._connection.execute(f"CREATE {what} {schema}.{_quoted(name)} AS {sql}")

    def _names(self, sql: str) -> Iterator[tuple[str, str]]:
        """Namespace, perhaps empty, and name of what a query names, each once."""
        (parsed,) = self._connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        tree = json.loads(parsed)
        if tree["error"]:
            raise InvalidArgument(f"{sql!r}: {tree['error_message']}")
        if len(tree["statements"]) != 1:
            raise InvalidArgument(f"{sql!r}: expected one statement")
        for table in dict.fromkeys(_tables(tree, frozenset())):
            catalog, namespace, name = table
            if catalog:
                nested = f'"{full_name(catalog, namespace)}".{name}'
                raise InvalidArgument(f"{sql!r}: write a nested namespace in quotes, as in {nested}")
            yield namespace, name


def _tables(node: Any, hidden: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """Catalog, schema and name of each table below a node of a parsed query, but for what `WITH` defines."""
    if isinstance(node, list):
        for child in node:
            yield from _tables(child, hidden)
    elif isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            table = node["catalog_name"], node["schema_name"], node["table_name"]
            if any(table[:2]) or table[2].lower() not in hidden:
                yield table
        for entry in node.get("cte_map", {}).get("map", []):
            name = entry["key"].lower()
            query = entry["value"]["query"]
            is_recursive = query["node"]["type"] == "RECURSIVE_CTE_NODE"
            yield from _tables(query, hidden | {name} if is_recursive else hidden)
            hidden |= {name}
        for key, child in node.items():
            if key != "cte_map":
                yield from _tables(child, hidden)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
