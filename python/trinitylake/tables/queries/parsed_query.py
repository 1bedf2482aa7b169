"""Parses a query: finds the names and parameters in it, and checks whether the query is allowed.

DuckDB parses the query, and this module checks the syntax tree. Two rules confine a query to the lakehouse: the
connection has no access to other data (`sql_sandbox.py`), and this module only accepts one SELECT over tables and views
of the lakehouse. It refuses functions that read files, settings or memory addresses, or that execute SQL from a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from trinitylake.base.optional_dependencies import optional_dependency
from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.tokens import end_of_brackets, tokens_of
from trinitylake.tables.sql_sandbox import folded, literal, nodes_of, quoted

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
    return (str(node.get("identifier")) for node in nodes_of(tree) if node.get("class") == "PARAMETER")


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


#: Functions that a query may call in the place of a table.
TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
#: Functions that a query may not call: they read settings of the process, or execute SQL from a string.
REFUSED_FUNCTIONS = frozenset(
    {"current_setting", "getenv", "json_serialize_plan", "parse_duckdb_log_message", "which_secret", "write_log"}
)
#: Functions whose result differs between runs of a query.
_TIME_FUNCTIONS = frozenset(
    {
        *("age", "clock_timestamp", "current_date", "current_localtime", "current_localtimestamp", "current_time"),
        *("current_timestamp", "get_current_time", "get_current_timestamp", "localtime", "localtimestamp", "now"),
        *("today", "transaction_timestamp", "txid_current"),
    }
)

_TOO_MANY_PARTS = 'a name has more than three parts: write a nested namespace in quotes, as in "a.b.c".t'

#: A name in a query: catalog, schema and table, of which the first two may be "".
Parts = tuple[str, str, str]


@dataclass(frozen=True)
class AtClause:
    """The clause `AT (VERSION => 14)` or `AT (TIMESTAMP => …)` after a table.

    Attributes:
        begin, end: the bytes of the clause in the query.
        unit: "VERSION" or "TIMESTAMP".
        expression: the SQL after `=>`.
    """

    begin: int
    end: int
    unit: str
    expression: str


@dataclass(frozen=True)
class Reference:
    """A place in the text that names a table or view.

    Attributes:
        parts: the name as DuckDB reads it.
        position: index of the first byte; None if DuckDB's tree does not have it.
        at: the AT clause, if any.
    """

    parts: Parts
    position: int | None
    at: AtClause | None = None


@dataclass
class Parsed:
    """A parsed query that is allowed to run.

    Attributes:
        sql: the text of the query.
        tree: DuckDB's syntax tree.
        references: the named tables and views, in order.
        columns: the named columns as parts of the name, with the index of the first byte.
        depends_on_time: whether the result depends on the current time.
    """

    sql: str
    tree: dict[str, Any]
    references: list[Reference]
    columns: list[tuple[tuple[str, ...], int | None]] = field(default_factory=list)
    depends_on_time: bool = False

    @property
    def is_description(self) -> bool:
        """Whether the statement is DESCRIBE or SUMMARIZE."""
        table = self.tree["statements"][0]["node"].get("from_table") or {}
        return bool(table.get("type") == "SHOW_REF")

    def renamed(self, new_name: Callable[[Reference], str | None]) -> str:
        """The text with tables renamed by `new_name` (None for no change), and without their AT clauses."""
        changes: list[tuple[int, int, str]] = []
        written_at = _Names(self.sql)
        for reference in self.references:
            if (name := new_name(reference)) is not None:
                written = [part for part in reference.parts if part]
                end = written_at.end_of(reference.position, written)
                changes.append((reference.position or 0, end, name))
                if reference.at is not None:
                    changes.append((reference.at.begin, reference.at.end, ""))
        known = {reference.parts: new_name(reference) for reference in self.references}
        for names, position in self.columns:
            for length in (3, 2):
                parts = ("",) * (3 - length) + names[:length]
                if len(names) > length and len(parts) == 3 and (name := known.get(parts)) is not None:
                    end = written_at.end_of(position, list(names[:length]))
                    changes.append((position or 0, end, name))
                    break
        text = self.sql.encode()
        for start, end, name in sorted(changes, reverse=True):
            text = text[:start] + name.encode() + text[end:]
        return text.decode()


def parsed(connection: Any, sql: str, *, is_open: bool = False, allowing_option: str = "") -> Parsed:
    """Parse and check a query.

    Args:
        sql: one statement that reads.
        is_open: whether the query may call any function.
        allowing_option: the option that would allow a refused function, for the error; "" for no option.

        Raises `InvalidArgument` unless the text is one statement that reads, and for a function that is not allowed.
    """
    tree = tree_of(connection, sql)
    if tree["error"]:
        words = _words(tree, sql)
        has_at = "syntax error" in words and "AT" in [one.word for one in tokens_of(sql)]
        raise InvalidArgument(
            f"{shortened(sql)}: {words}" + ("\nAn alias stands before AT: t AS x AT (…)" if has_at else "")
        )
    if len(tree.get("statements", ())) != 1:
        raise InvalidArgument(f"{shortened(sql)}: expected one statement")
    query = Parsed(sql, tree, [])
    try:
        nodes = list(_nodes(tree, frozenset()))
    except RecursionError:
        raise InvalidArgument(f"{shortened(sql)}: it is nested too deeply") from None
    for node, hidden in nodes:
        match node.get("type"):
            case "SHOW_REF" if node.get("show_type") == "SHOW":  # `SHOW t` in DuckDB 2.0, which 1.5 calls DESCRIBE
                query.references.append(Reference(_parts(node, sql), _position(node)))
            case "BASE_TABLE":
                parts = _parts(node, sql)
                if any(parts[:2]) or folded(parts[2]) not in hidden:
                    query.references.append(Reference(parts, _position(node), _at_clause(node, sql)))
            case "SHOW_REF" if not node.get("query") and not is_open:
                raise InvalidArgument(
                    f"{shortened(sql)}: SHOW cannot be part of a query: read information_schema.tables"
                )
            case "TABLE_FUNCTION" if not is_open:
                name = str(node.get("function", {}).get("function_name", "")).lower()
                if name not in TABLE_FUNCTIONS:
                    raise InvalidArgument(
                        f"{shortened(sql)}: {_refusal(f'the table function {name}', allowing_option)}"
                    )
            case "COLUMN_REF":
                names = tuple(node.get("column_names", ()))
                query.columns.append((names, _position(node)))
                query.depends_on_time |= len(names) == 1 and names[0].lower() in _TIME_FUNCTIONS
        if node.get("class") == "FUNCTION":
            name = str(node.get("function_name", "")).lower()
            query.depends_on_time |= name in _TIME_FUNCTIONS
            if name in REFUSED_FUNCTIONS and not is_open:
                raise InvalidArgument(f"{shortened(sql)}: {_refusal(f'the function {name}', allowing_option)}")
    return query


def tree_of(connection: Any, sql: str) -> dict[str, Any]:
    """DuckDB's syntax tree of a text, or its error. Raises `InvalidArgument` for a text that is nested too deeply."""
    [(given,)] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    try:
        tree: dict[str, Any] = json.loads(given)
    except RecursionError:
        raise InvalidArgument(f"{shortened(sql)}: it is nested too deeply") from None
    return tree


def _refusal(what: str, allowing_option: str) -> str:
    refusal = f"{what} is not allowed in queries, which are confined to the lakehouse"
    return f"{refusal}; {allowing_option} allows it" if allowing_option else refusal


def _parts(node: dict[str, Any], sql: str) -> Parts:
    """The name of a table or view. Raises `InvalidArgument` for a name of more than three parts."""
    if len(node.get("qualified_name", {}).get("path", ())) > 3:  # in DuckDB 2.0; 1.5 does not parse it
        raise InvalidArgument(f"{shortened(sql)}: {_TOO_MANY_PARTS}")
    return node.get("catalog_name", ""), node.get("schema_name", ""), node.get("table_name", "")


def _at_clause(node: dict[str, Any], sql: str) -> AtClause | None:
    """The AT clause of a table. Its position is searched in the text, because DuckDB's tree does not have it."""
    if not (clause := node.get("at_clause")):
        return None
    tokens = tokens_of(sql)
    begin = next(at for at, token in enumerate(tokens) if token.start >= (_position(node) or 0))
    while not (tokens[begin].word == "AT" and tokens[begin + 1].text.startswith("(")):
        begin += 1
    end = tokens[end_of_brackets(tokens, begin + 1)].start + 1
    arrow = next(token for token in tokens[begin:] if token.text.startswith("=>"))
    expression = sql.encode()[arrow.start + len("=>") : end - 1].decode()
    return AtClause(tokens[begin].start, end, clause["unit"], expression)


class Constants:
    """Values of constant expressions in a query, such as the version of an AT clause.

    Args:
        parameters: values of `$name`.

    Attributes:
        used: names of the parameters that these expressions need.
    """

    def __init__(self, connection: Any, parameters: Mapping[str, Any]) -> None:
        self._connection = connection
        self._parameters = parameters
        self.used: set[str] = set()

    def text(self, expression: str, sql: str) -> str:
        """The value of a constant expression as a string.

        Raises `InvalidArgument` for a column, a parameter without a value, and functions that are not allowed.
        """
        import duckdb

        names = set(names_in(parsed(self._connection, f"SELECT {expression}").tree))
        given = {name: value for name, value in self._parameters.items() if name in names}
        self.used |= names
        try:
            [(text,)] = self._connection.execute(f"SELECT CAST(({expression}\n) AS VARCHAR)", given).fetchall()
        except duckdb.Error as error:
            first = str(error).partition("\n")[0]
            raise InvalidArgument(f"{shortened(sql)}: {expression.strip()} is not a constant: {first}") from None
        return "NULL" if text is None else str(text)


def _position(node: dict[str, Any]) -> int | None:
    position = node.get("query_location")
    return position if isinstance(position, int) and position < 1 << 62 else None


def _nodes(node: Any, hidden: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Each node of a syntax tree, with the names that WITH clauses define for it, which are not tables."""
    if isinstance(node, list):
        for child in node:
            yield from _nodes(child, hidden)
    elif isinstance(node, dict):
        yield node, hidden
        for entry in node.get("cte_map", {}).get("map", []):
            # DuckDB 1.5 wraps the node in a statement, `query`.
            yield from _nodes(entry["value"].get("query") or entry["value"]["query_node"], hidden)
            hidden |= {folded(entry["key"])}
        # The name of a recursive query refers to the query only in its second part.
        again = {folded(node["cte_name"])} if node.get("type") == "RECURSIVE_CTE_NODE" else set()
        for key, child in node.items():
            if key != "cte_map":
                yield from _nodes(child, hidden | again if key == "right" else hidden)


#: Error for a PIVOT whose values DuckDB would look up with a second statement.
PIVOT_NEEDS_VALUES = "PIVOT needs its values here: PIVOT t ON c IN ('a', 'b') USING sum(v)"


def _words(tree: dict[str, Any], sql: str) -> str:
    """DuckDB's error for SQL that it cannot parse, with the position."""
    words = str(tree.get("error_message", "it cannot be read"))
    if words.startswith("Only SELECT") and "PIVOT" in [one.word for one in tokens_of(sql)]:
        return PIVOT_NEEDS_VALUES
    if words.startswith("Only SELECT"):
        return "expected one statement that reads, such as SELECT"
    if "NameListToString" in words:
        return _TOO_MANY_PARTS
    try:
        position = int(tree.get("position", ""))
    except ValueError:
        return words
    before = sql.encode()[:position].decode(errors="replace")
    line = before.rpartition("\n")[2] + sql[len(before) :].partition("\n")[0]
    column = len(before.rpartition("\n")[2])
    cut = max(0, column - 50)
    return f"{words}\n  {line[cut : cut + 100]}\n  {' ' * (column - cut)}^"


def shortened(sql: str) -> str:
    """The SQL in one line of at most 100 characters, for errors."""
    one_line = " ".join(sql.split())
    return repr(one_line if len(one_line) <= 100 else f"{one_line[:99]}…")


class _Names:
    def __init__(self, sql: str) -> None:
        self._text = sql.encode()

    def end_of(self, position: int | None, names: list[str]) -> int:
        """The end of a name with these parts at `position`. Raises `InvalidArgument` if the text has another name."""
        at = 0 if position is None else position
        for number, name in enumerate(names):
            if number:
                at = self._skipped(at, b".")
            at = self._skipped(at, *_spellings(name))
        return at

    def _skipped(self, position: int, *spellings: bytes) -> int:
        """The end of the next token, which must be one of `spellings`."""
        at = position
        while self._text[at : at + 1].isspace():
            at += 1
        for spelling in spellings:
            if self._text[at : at + len(spelling)].lower() == spelling.lower():
                return at + len(spelling)
        raise InvalidArgument(
            f"{shortened(self._text.decode())}: cannot find the position of a name in the statement: write the "
            'name without comments in it, and a nested namespace in quotes, as in "a.b".t'
        )


def _spellings(name: str) -> tuple[bytes, ...]:
    return quoted(name).encode(), literal(name).encode(), name.encode()
