"""A check in SQL: DuckDB answers it from tables and views of the transaction, named as in the lakehouse.

A check, or a view that it reads, may have been written by somebody other than the user who runs it: checks are saved
with transactions, and a server commits those of all its clients. So DuckDB runs in a sandbox. Its messages about a
query that has begun to run are not passed on, because they quote rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trinitylake.errors import InvalidArgument, ObjectNotFound
from trinitylake.qualified_names import full_name
from trinitylake.tables.sql_sandbox import quoted, sandbox

if TYPE_CHECKING:
    from trinitylake.lakehouse.reader import Reader
    from trinitylake.lakehouse.view import View


def first_row(transaction: Reader, sql: str) -> tuple[Any, ...] | None:
    """The first row of the result, or None if it is empty.

    Raises `InvalidArgument` for what DuckDB refuses, and as `Transaction.table` does for what it names.
    """
    with sandbox(f"check {sql!r}") as connection:
        _Catalog(connection, transaction).provide(sql, "")
        row: tuple[Any, ...] | None = connection.execute(sql).fetchone()
        return row


class _Catalog:
    """Tables and views in a DuckDB connection: a namespace is a schema, and a view is a table of its rows."""

    def __init__(self, connection: Any, transaction: Reader) -> None:
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
        self._views.append(view.name)
        self.provide(sql, default_namespace)
        self._views.pop()
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(default_namespace)}")
        self._connection.execute(f"USE memory.{quoted(default_namespace)}")
        self._create("TABLE", view.namespace, view.name.removeprefix(f"{view.namespace}."), sql.rstrip("; \n"))
        self._connection.execute("USE memory.main")

    def _create(self, what: str, namespace: str, name: str, sql: str) -> None:
        schema = f"memory.{quoted(namespace)}"
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        self._connection.execute(f"CREATE {what} {schema}.{quoted(name)} AS {sql}")

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
