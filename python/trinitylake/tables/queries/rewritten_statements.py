"""Statements that are rewritten before DuckDB prepares them: PIVOT without values, and calls of `table_changes`.

DuckDB runs `PIVOT t ON c USING sum(v)` as two statements, and so cannot prepare it. With the values, it is one
statement. The table function `table_changes('shop.orders', 3, 7)` is the change feed in SQL (`change_feed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.parsed_query import Constants, shortened, tree_of
from trinitylake.tables.queries.statement_text import Cursor
from trinitylake.tables.queries.tokens import Token, end_of_brackets, first_word, tokens_of
from trinitylake.tables.sql_sandbox import literal, nodes_of, quoted

if TYPE_CHECKING:
    from trinitylake.tables.queries.named_objects import Names
    from trinitylake.tables.queries.source import ArrowRows
    from trinitylake.tables.table import Table

_END_OF_COLUMNS = {"USING", "GROUP", "ORDER", "LIMIT", "OFFSET"}


def columns_without_values(sql: str) -> Iterator[tuple[int, str, str]]:
    """For each column of a PIVOT without values: index of the byte after it, its SQL, and a query for its values.

    The statement may begin with WITH. A PIVOT in a subquery or after FROM is left to DuckDB, which requires the values.
    """
    if "PIVOT" not in sql.upper() or first_word(sql) not in ("PIVOT", "PIVOT_WIDER", "WITH"):
        return
    text = sql.encode()
    tokens = [one for one in tokens_of(sql) if one.depth == 0]
    words = [one.word for one in tokens]
    pivot = next((at for at, word in enumerate(words) if word in ("PIVOT", "PIVOT_WIDER", "SELECT", "FROM")), -1)
    if pivot < 0 or words[pivot] in ("SELECT", "FROM") or "ON" not in words[pivot:]:
        return
    on = words.index("ON", pivot)
    end = next((at for at in range(on + 1, len(words)) if words[at] in _END_OF_COLUMNS), len(words))
    before, source = text[: tokens[pivot].start].decode(), _between(text, tokens, pivot + 1, on)
    start = on + 1
    for at in range(on + 1, end + 1):
        if at == end or tokens[at].text.startswith(","):
            if "IN" not in words[start:at]:
                column = _between(text, tokens, start, at).rstrip("; \n\t")
                query = f"{before}SELECT DISTINCT CAST(({column}\n) AS VARCHAR) FROM {source} ORDER BY 1"
                yield tokens[start].start + len(column.encode()), column, query
            start = at + 1


def with_pivot_values(sql: str, values_of: Callable[[str], list[str | None]]) -> str:
    """A PIVOT statement with the values of its columns. Raises `InvalidArgument` if a column has none.

    Args:
        values_of: runs a query, and returns the strings in its only column.
    """
    text = sql.encode()
    for end, column, query in reversed(list(columns_without_values(sql))):
        if not (values := [one for one in values_of(query) if one is not None]):
            raise InvalidArgument(
                f"{shortened(sql)}: {column} has no values; write them after it: {column} IN ('a', 'b')"
            )
        listed = ", ".join(map(literal, values))
        # DuckDB 2.0 reads `a % 2 IN (…)` as a comparison of the remainder.
        text = text[: end - len(column.encode())] + f"({column}\n) IN ({listed})".encode() + text[end:]
    return text.decode()


def _between(text: bytes, tokens: list[Token], start: int, end: int) -> str:
    last = tokens[end].start if end < len(tokens) else len(text)
    return text[tokens[start].start : last].decode()


FUNCTION = "table_changes"


def with_change_feeds(
    connection: Any, sql: str, names: Names, default_namespace: str, constants: Constants
) -> tuple[str, dict[str, ArrowRows]]:
    """Replace the calls of `table_changes` in a query by names. Returns the query and the rows of each name.

    Args:
        names: the version or transaction in which tables are looked up.

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
    from trinitylake.tables.queries.source import ArrowRows

    schema = table.changes(since, until).schema
    own = set(table.changes(since, until, columns=[]).schema.names)

    def read(names: list[str]) -> Iterator[pa.RecordBatch]:
        rows = table.changes(since, until, columns=[name for name in names if name not in own])
        for batch in rows:
            yield batch.select(names)

    return ArrowRows(schema, read, table._subject)


def _calls(tree: Any) -> Iterator[dict[str, Any]]:
    for node in nodes_of(tree):
        function = node.get("function") if node.get("type") == "TABLE_FUNCTION" else None
        if function and str(function.get("function_name")).lower() == FUNCTION and not function.get("schema"):
            yield node
