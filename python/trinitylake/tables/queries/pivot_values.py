"""Adds the values of pivoted columns to statements such as `PIVOT t ON c USING sum(v)`, which do not list them.

DuckDB runs such a PIVOT as two statements, and so cannot prepare it. With the values, it is one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.parsed_query import shortened
from trinitylake.tables.queries.tokens import Token, first_word, tokens_of
from trinitylake.tables.sql_sandbox import literal

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
        sql: any statement.
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
