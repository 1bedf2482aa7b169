"""Parameters of queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.tables.sql_sandbox import literal

Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any] | None"


def numbered(sql: str) -> str:
    """Replace `?` by `$1`, `$2`, … in SQL, so that it can be divided into parts."""
    with optional_dependency("SQL over a lakehouse"):
        import duckdb

    data = sql.encode()
    starts = duckdb.tokenize(sql)
    pieces, number = [], 0
    for (start, kind), end in zip(starts, [*(start for start, _ in starts[1:]), len(data)], strict=True):
        piece = data[start:end]
        if kind == duckdb.token_type.operator:
            while b"?" in piece:
                number += 1
                piece = piece.replace(b"?", f"${number}".encode(), 1)
        pieces.append(piece)
    return (data[: starts[0][0]] + b"".join(pieces)).decode() if starts else sql


def by_name(parameters: Parameters) -> dict[str, Any]:
    """The values by name. The name of a positional value is its number."""
    if isinstance(parameters, Mapping):
        return dict(parameters)
    return {str(number): value for number, value in enumerate(parameters or (), 1)}


def names_in(tree: Any) -> Iterator[str]:
    """The names of the parameters in a parsed query."""
    if isinstance(tree, list):
        for child in tree:
            yield from names_in(child)
    elif isinstance(tree, dict):
        if tree.get("class") == "PARAMETER":
            yield str(tree.get("identifier"))
        for child in tree.values():
            yield from names_in(child)


def replaced(node: Any, values: Mapping[str, Any]) -> Any:
    """A parsed query with values instead of parameters."""
    if isinstance(node, list):
        return [replaced(child, values) for child in node]
    if isinstance(node, dict):
        if node.get("class") == "PARAMETER" and str(node.get("identifier")).lower() in values:
            return values[str(node["identifier"]).lower()] | {"alias": node.get("alias", "")}
        return {key: replaced(child, values) for key, child in node.items()}
    return node


def in_sql(value: Any) -> str | None:
    """A value as an SQL literal, for planning; None for an unsupported type."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return f"{value!r}::DOUBLE"
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case str() if "\0" not in value:
            return literal(value)
        case datetime() if value.tzinfo is None:
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        case datetime():
            return f"TIMESTAMP WITH TIME ZONE '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
    return None
