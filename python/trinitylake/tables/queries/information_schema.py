"""`information_schema`, SHOW, and DESCRIBE without a name, which list the objects of a lakehouse as in DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from trinitylake.definitions.iceberg_types import sql_text
from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.parsed_query import tree_of
from trinitylake.tables.queries.tokens import tokens_of
from trinitylake.tables.sql_sandbox import literal

if TYPE_CHECKING:
    from trinitylake.base.qualified_names import Identifier
    from trinitylake.tables.table import Table


class Objects(Protocol):
    """A version or transaction whose objects are listed."""

    def namespaces(self) -> list[str]:
        """The full names of all namespaces."""

    def tables(self) -> list[str]:
        """The full names of all tables."""

    def views(self) -> list[str]:
        """The full names of all views."""

    def table(self, identifier: Identifier) -> Table: ...

    def view(self, identifier: Identifier) -> Any: ...


NAME = "information_schema"
_SHOW_VIEWS = re.compile(r"\bSHOW\s+VIEWS\b", re.IGNORECASE)
_CATALOG = ("catalog_name", pa.string())
_TABLE = [("table_catalog", pa.string()), ("table_schema", pa.string()), ("table_name", pa.string())]


def rows_of(names: Objects, table: str) -> pa.Table:
    """The rows of a table of `information_schema`. Raises `InvalidArgument` for an unknown table."""
    if (found := _TABLES.get(table.lower())) is None:
        raise InvalidArgument(f"{NAME} has no table {table}; it has {', '.join(_TABLES)}")
    columns, rows = found
    return pa.Table.from_pylist(list(rows(names)), pa.schema(columns))


def _schemata(names: Objects) -> Iterator[dict[str, Any]]:
    for one in names.namespaces():
        yield {"schema_name": one}


def _tables(names: Objects) -> Iterator[dict[str, Any]]:
    for kind, objects in (("BASE TABLE", names.tables()), ("VIEW", names.views())):
        for one in objects:
            schema, _, name = one.rpartition(".")
            yield {"table_schema": schema, "table_name": name, "table_type": kind}


def _views(names: Objects) -> Iterator[dict[str, Any]]:
    for one in names.views():
        schema, _, name = one.rpartition(".")
        yield {"table_schema": schema, "table_name": name, "view_definition": names.view((schema, name)).sql}


def _columns(names: Objects) -> Iterator[dict[str, Any]]:
    """The columns of tables. Columns of views are not listed, because they are known only after the SQL is bound."""
    for one in names.tables():
        schema, _, name = one.rpartition(".")
        for position, field in enumerate(names.table((schema, name)).schema.to_iceberg().fields, 1):
            yield {
                "table_schema": schema,
                "table_name": name,
                "column_name": field.name,
                "ordinal_position": position,
                "is_nullable": "NO" if field.required else "YES",
                "data_type": sql_text(field.field_type),
                "column_comment": field.doc or None,
            }


_TABLES: dict[str, tuple[list[tuple[str, pa.DataType]], Callable[[Objects], Iterator[dict[str, Any]]]]] = {
    "schemata": ([_CATALOG, ("schema_name", pa.string())], _schemata),
    "tables": ([*_TABLE, ("table_type", pa.string())], _tables),
    "views": ([*_TABLE, ("view_definition", pa.string())], _views),
    "columns": (
        [
            *_TABLE,
            ("column_name", pa.string()),
            ("ordinal_position", pa.int32()),
            ("is_nullable", pa.string()),
            ("data_type", pa.string()),
            ("column_comment", pa.string()),
        ],
        _columns,
    ),
}


def query_of_show(connection: Any, sql: str, default_namespace: str) -> str | None:
    """The query that answers SHOW TABLES, SHOW VIEWS, SHOW SCHEMAS or DESCRIBE without a name; None for other SQL.

    Raises `InvalidArgument` for other lists, such as SHOW DATABASES.
    """
    kind = "tables"
    if [one.word for one in tokens_of(sql)][:2] == ["SHOW", "VIEWS"]:  # DuckDB would describe a table `views`
        kind, sql = "views", _SHOW_VIEWS.sub("SHOW TABLES", sql, count=1)
    tree = tree_of(connection, sql)
    node = tree["statements"][0]["node"] if tree.get("statements") else {}
    shown = node.get("from_table") or {}
    if shown.get("type") != "SHOW_REF" or shown.get("query") or shown["show_type"] == "SHOW":
        return None
    what = shown["table_name"].strip('"')
    if shown["show_type"] == "SHOW_FROM" or (what == "tables" and default_namespace):
        namespace = ".".join(part for part in (shown["catalog_name"], shown["schema_name"]) if part)
        within = literal(namespace or default_namespace)
        return f"SELECT table_name AS name FROM {NAME}.{kind} WHERE table_schema = {within} ORDER BY ALL"
    if what == "tables":
        return f"SELECT table_schema || '.' || table_name AS name FROM {NAME}.{kind} ORDER BY ALL"
    if what == "schemas":
        return f"SELECT schema_name FROM {NAME}.schemata ORDER BY ALL"
    if what == "__show_tables_expanded":
        return (
            'SELECT table_schema AS "schema", table_name AS name, list(column_name ORDER BY ordinal_position) AS '
            "column_names, list(data_type ORDER BY ordinal_position) AS column_types "
            f"FROM {NAME}.columns GROUP BY ALL ORDER BY ALL"
        )
    raise InvalidArgument(f"SHOW {what.upper()} is not supported: SHOW lists TABLES, ALL TABLES, VIEWS and SCHEMAS")
