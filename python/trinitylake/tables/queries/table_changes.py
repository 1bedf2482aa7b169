"""The table function `table_changes('shop.orders', 3, 7)`: the change feed in SQL (`change_feed`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.parsed_query import Constants, shortened, tree_of
from trinitylake.tables.queries.statement_text import Cursor
from trinitylake.tables.queries.tokens import end_of_brackets, tokens_of
from trinitylake.tables.sql_sandbox import quoted

if TYPE_CHECKING:
    from trinitylake.tables.queries.named_objects import Names
    from trinitylake.tables.queries.scanned_rows import ArrowRows
    from trinitylake.tables.table import Table

FUNCTION = "table_changes"


def with_change_feeds(
    connection: Any, sql: str, names: Names, default_namespace: str, constants: Constants
) -> tuple[str, dict[str, ArrowRows]]:
    """Replace the calls of `table_changes` in a query by names. Returns the query and the rows of each name.

    Args:
        connection: DuckDB connection for parsing.
        sql: the query.
        names: the version or transaction in which tables are looked up.
        default_namespace: of tables without a namespace.
        constants: computes the arguments.

    Raises `InvalidArgument` for other arguments than constants, and as `Table.changes`.
    """
    feeds: dict[str, ArrowRows] = {}
    if FUNCTION not in sql.lower():
        return sql, feeds
    text = sql.encode()
    for call in sorted(_calls(tree_of(connection, sql)), key=lambda one: int(one["query_location"]), reverse=True):
        begin = int(call["query_location"])
        tokens = tokens_of(text.decode())
        opening = next(at for at, one in enumerate(tokens) if one.start > begin and one.text.startswith("("))
        end = tokens[end_of_brackets(tokens, opening)].start + 1
        arguments = Cursor(text[tokens[opening].start : end].decode()).in_brackets()
        table, *versions = [constants.text(one, sql) for one in arguments]
        if not 1 <= len(versions) <= 2:
            raise InvalidArgument(
                f"{shortened(sql)}: {FUNCTION} takes a table, the version before and the last version"
            )
        name = f"{FUNCTION} {len(feeds)}"
        is_full = "." in table or not default_namespace
        feeds[name] = _feed(names.table(table if is_full else f"{default_namespace}.{table}"), *versions)
        alias = "" if call.get("alias") else f" AS {FUNCTION}"
        text = text[:begin] + f"{quoted(name)}{alias}".encode() + text[end:]
    return text.decode(), feeds


def _feed(table: Table, since: Any, until: Any = None) -> ArrowRows:
    from trinitylake.tables.queries.scanned_rows import ArrowRows

    schema = table.changes(since, until).schema
    own = set(table.changes(since, until, columns=[]).schema.names)

    def read(names: list[str]) -> Iterator[pa.RecordBatch]:
        rows = table.changes(since, until, columns=[name for name in names if name not in own])
        for batch in rows:
            yield batch.select(names)

    return ArrowRows(schema, read, table._subject)


def _calls(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for child in node:
            yield from _calls(child)
    elif isinstance(node, dict):
        function = node.get("function") if node.get("type") == "TABLE_FUNCTION" else None
        if function and str(function.get("function_name")).lower() == FUNCTION and not function.get("schema"):
            yield node
        for child in node.values():
            yield from _calls(child)
