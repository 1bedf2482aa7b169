"""Splits a writing SQL statement into parts that DuckDB can parse as queries or expressions.

DuckDB has already parsed the complete statement, so its syntax is correct. DuckDB also splits it into tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trinitylake.errors import InvalidArgument
from trinitylake.tables.queries.parsed_query import PIVOT_NEEDS_VALUES, shortened
from trinitylake.tables.queries.tokens import ANY_WORD, first_word, tokens_of
from trinitylake.tables.sql_sandbox import folded

#: A name or a string in quotes, and comments after it.
_QUOTED = re.compile(r"""(["'])((?:(?!\1).|\1\1)*)\1(?:\s|--[^\n]*|/\*.*?\*/)*""", re.DOTALL)
_NAME = re.compile(rf'"(?:[^"]|"")*"|{ANY_WORD.pattern}')


class Cursor:
    """Reads the tokens of a statement one after the other."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._data = sql.encode()
        self._tokens = tokens_of(sql)
        self._at = 0

    @property
    def word(self) -> str:
        """The next word in upper case, or ""."""
        return self._tokens[self._at].word if self._at < len(self._tokens) else ""

    @property
    def sign(self) -> str:
        """The first character of the next token, or ""."""
        return self._tokens[self._at].text[:1] if self._at < len(self._tokens) else ""

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._tokens)

    def peek_word(self, ahead: int) -> str:
        """A word after the next token, in upper case, or ""."""
        at = self._at + ahead
        return self._tokens[at].word if at < len(self._tokens) else ""

    def peek_sign(self, ahead: int) -> str:
        """The first character of a token after the next one, or ""."""
        at = self._at + ahead
        return self._tokens[at].text[:1] if at < len(self._tokens) else ""

    def skip(self) -> None:
        """Skip the next token."""
        self._at += 1

    def took(self, *words: str) -> bool:
        """Read these words if they are next. Returns whether they were read."""
        following = [token.word for token in self._tokens[self._at : self._at + len(words)]]
        if following != list(words):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Read these words. Raises `InvalidArgument` if other words follow."""
        if not self.took(*words):
            raise self.unexpected(f"expected {' '.join(words)}")

    def took_before(self, word: str, sign: str) -> bool:
        """Read the next word if it is this one and this sign follows. Returns whether it was read."""
        return self.peek_sign(1) == sign and self.took(word)

    def text(self) -> str:
        """Read a string in single quotes, and return its value."""
        if self.sign != "'":
            raise self.unexpected("expected a string in single quotes")
        self._at += 1
        return unquoted(self._tokens[self._at - 1].text)

    def refuse(self, words: str, why: str) -> None:
        """Raise `InvalidArgument` if these words are next."""
        if self.took(*words.split()):
            raise InvalidArgument(f"{shortened(self.sql)}: {words} is not supported for tables of a lakehouse: {why}")

    def unexpected(self, why: str) -> InvalidArgument:
        """Error for the next token."""
        there = self._tokens[self._at].text.strip()[:40] if not self.is_at_end else "the end"
        return InvalidArgument(f"{shortened(self.sql)}: {why}, not {there!r}")

    def name(self) -> tuple[str, ...]:
        """Read a name of one or several parts."""
        parts = [self._part()]
        while self.sign == ".":
            self._at += 1
            parts.append(self._part())
        return tuple(parts)

    def alias(self, *not_these: str) -> str:
        """Read an alias after a table; "" if no alias is next."""
        if self.took("AS") or (self.word and self.word not in not_these) or self.sign == '"':
            return self._part()
        return ""

    def _part(self) -> str:
        if self.is_at_end:
            raise self.unexpected("expected a name")
        match = _NAME.match(self._tokens[self._at].text)
        if match is None:
            raise self.unexpected("expected a name")
        self._at += 1
        return unquoted(match[0])

    def until(self, *words: str, or_comma: bool = False) -> str:
        """Read the text up to one of these words outside of brackets, or up to a comma, or up to the end."""
        begin = self._at
        depth = self._tokens[begin].depth if not self.is_at_end else 0
        while not self.is_at_end and not (self._at > begin and self._ends(depth, words, or_comma)):
            self._at += 1
        return self._between(begin, self._at)

    def _ends(self, depth: int, words: tuple[str, ...], or_comma: bool) -> bool:
        """Whether the next token is one of these words or a comma, outside of brackets and not in a condition."""
        token = self._tokens[self._at]
        is_distinct = token.word == "FROM" and self.peek_word(-1) == "DISTINCT"
        if token.depth > depth or is_distinct:
            return False
        return token.word in words or (or_comma and self.sign == ",")

    def in_brackets(self) -> list[str]:
        """Read the text in the next brackets, and return it split at commas."""
        if self.sign != "(":
            raise self.unexpected("expected (")
        depth = self._tokens[self._at].depth
        self._at += 1
        begin, parts = self._at, []
        while not self.is_at_end:
            token = self._tokens[self._at]
            if token.depth <= depth and token.text.startswith(")"):
                parts.append(self._between(begin, self._at))
                self._at += 1
                return parts
            if token.depth == depth + 1 and token.text.startswith(","):
                parts.append(self._between(begin, self._at))
                begin = self._at + 1
            self._at += 1
        raise self.unexpected("expected )")

    def assignments(self, *until: str) -> dict[str, str]:
        """Read columns and their new values, up to one of these words outside of brackets."""
        found: dict[str, str] = {}
        while True:
            if self.sign == "(":
                raise self.unexpected("expected a column, one for each value")
            column = self.name()[-1]
            if self.sign != "=":
                raise self.unexpected("expected =")
            self._at += 1
            value = self.until(*until, or_comma=True)
            if column in found:
                raise InvalidArgument(f"{shortened(self.sql)}: column {column} is set twice")
            found[column] = value
            if self.sign != ",":
                return found
            self._at += 1

    def rest(self) -> str:
        """Read the rest of the text."""
        begin, self._at = self._at, len(self._tokens)
        return self._between(begin, self._at)

    def _between(self, begin: int, end: int) -> str:
        """The text from one token to another, without space at its end."""
        start = self._tokens[begin].start if begin < len(self._tokens) else len(self._data)
        stop = self._tokens[end].start if end < len(self._tokens) else len(self._data)
        text = self._data[start:stop].decode()
        return text.rstrip("; \n\t\r") if end >= len(self._tokens) else text.strip()


@dataclass
class Written:
    """The table or view that a statement writes to."""

    sql: str
    name: tuple[str, ...]


@dataclass
class Insert(Written):
    """`INSERT INTO name (columns) query`."""

    columns: list[str] | None
    is_by_name: bool
    query: str


@dataclass
class Update(Written):
    """`UPDATE name AS alias SET values FROM others WHERE condition`."""

    alias: str
    values: dict[str, str]
    others: str
    condition: str
    before: str


@dataclass
class Delete(Written):
    """`DELETE FROM name AS alias USING others WHERE condition`."""

    alias: str
    others: str
    condition: str
    before: str


@dataclass
class When:
    """A clause of a MERGE.

    Attributes:
        side: "matched"; "source" for source rows without a match; "target" for rows of the table without a match.
        action: "update", "delete", "insert" or "nothing".
        values: SQL by column, or in the order of the table's columns; None for all columns that both have.
    """

    side: str
    condition: str
    action: str
    values: dict[str, str] | list[str] | None = None


@dataclass
class MergeInto(Written):
    """`MERGE INTO name AS alias USING source ON condition WHEN …`."""

    alias: str
    source: str
    condition: str
    clauses: list[When]
    before: str


@dataclass
class CreateTable(Written):
    """`CREATE TABLE name (columns)`, or `CREATE TABLE name AS query`."""

    or_replace: bool
    if_not_exists: bool
    columns: list[str] | None
    partitions: list[str]
    query: str


@dataclass
class CreateView(Written):
    """`CREATE VIEW name AS query`."""

    or_replace: bool
    if_not_exists: bool
    query: str


@dataclass
class CreateNamespace(Written):
    """`CREATE SCHEMA name`."""

    if_not_exists: bool


@dataclass
class Drop(Written):
    """`DROP TABLE name`."""

    kind: str
    if_exists: bool
    cascade: bool


Statement = Insert | Update | Delete | MergeInto | CreateTable | CreateView | CreateNamespace | Drop


def statement_of(connection: Any, sql: str) -> Statement | None:
    """Parse a writing statement; None for other or invalid SQL.

    Raises `InvalidArgument` for more than one statement, and for a statement that a lakehouse does not support.
    """
    import duckdb

    try:
        types = [str(one.type).rpartition(".")[2] for one in connection.extract_statements(sql)]
    except duckdb.Error:
        return None
    if not any(one in _READERS for one in types):
        return None
    if len(types) != 1:
        has_pivot = any(one.word.startswith("PIVOT") for one in tokens_of(sql))
        raise InvalidArgument(f"{shortened(sql)}: {PIVOT_NEEDS_VALUES if has_pivot else 'expected one statement'}")
    cursor = Cursor(sql)
    before = f"{cursor.until('INSERT', 'UPDATE', 'DELETE', 'MERGE')} " if cursor.word == "WITH" else ""
    found: Statement = _READERS[types[0]](cursor, before)
    if not cursor.is_at_end:
        raise cursor.unexpected("expected the end")
    if isinstance(found, Update | Delete | MergeInto) and found.alias == found.name[-1]:
        short = _with_short_names(sql, found.name)
        return found if short == sql else replace(statement_of(connection, short), sql=sql)  # type: ignore[type-var]
    return found


def split_explain(sql: str) -> tuple[str, str]:
    """EXPLAIN with its options, or "", and the rest of the statement."""
    if first_word(sql) != "EXPLAIN":
        return "", sql
    cursor = Cursor(sql)
    cursor.expect("EXPLAIN")
    words = ["EXPLAIN", *(["ANALYZE"] if cursor.took("ANALYZE") else [])]
    if cursor.sign == "(" and not _begins_query(cursor):
        words.append(f"({', '.join(cursor.in_brackets())})")
    return " ".join(words), cursor.rest()


def _with_short_names(sql: str, table: tuple[str, ...]) -> str:
    """The statement with columns of its table as `t.id` instead of `s.t.id`, because the table becomes a subquery."""
    tokens, data = tokens_of(sql), sql.encode()
    wanted = [part for name in map(folded, table) for part in (name, ".")]
    names = [folded(unquoted(token.text)) for token in tokens]
    pieces, begin = [], 0
    for at in range(1, len(tokens) - len(wanted)):
        if names[at : at + len(wanted)] == wanted and names[at - 1] != ".":
            pieces.append(data[begin : tokens[at].start])
            begin = tokens[at + len(wanted) - 2].start
    return b"".join([*pieces, data[begin:]]).decode()


def _insert(cursor: Cursor, before: str) -> Insert:
    cursor.expect("INSERT")
    cursor.refuse("OR", "use table.upsert, or MERGE")
    cursor.expect("INTO")
    name = cursor.name()
    cursor.refuse("AS", "the table of an INSERT needs no other name")
    cursor.refuse("DEFAULT VALUES", "name the columns")
    columns = None
    is_query = cursor.sign == "(" and _begins_query(cursor)
    if cursor.sign == "(" and not is_query:
        columns = [unquoted(one) for one in cursor.in_brackets()]
    is_by_name = cursor.took("BY", "NAME")
    if not is_by_name:
        cursor.took("BY", "POSITION")
    cursor.refuse("DEFAULT VALUES", "name the columns")
    query = cursor.until("RETURNING", "CONFLICT")
    cursor.refuse("RETURNING", "query the table afterwards, in the same transaction")
    cursor.refuse("CONFLICT", "use table.upsert, or MERGE")
    return Insert(cursor.sql, name, columns, is_by_name, f"{before}{query}")


def _begins_query(cursor: Cursor) -> bool:
    return cursor.peek_word(1) in ("SELECT", "WITH", "FROM", "VALUES", "TABLE") or cursor.peek_sign(1) == "("


def _update(cursor: Cursor, before: str) -> Update:
    cursor.expect("UPDATE")
    name = cursor.name()
    alias = cursor.alias("SET")
    cursor.expect("SET")
    values = cursor.assignments("FROM", "WHERE", "RETURNING")
    others = cursor.until("WHERE", "RETURNING") if cursor.took("FROM") else ""
    condition = cursor.until("RETURNING") if cursor.took("WHERE") else "true"
    cursor.refuse("RETURNING", "query the table afterwards, in the same transaction")
    return Update(cursor.sql, name, alias or name[-1], values, others, condition, before)


def _delete(cursor: Cursor, before: str) -> Delete:
    if cursor.took("TRUNCATE"):
        cursor.took("TABLE")
        name = cursor.name()
        return Delete(cursor.sql, name, name[-1], "", "true", "")
    cursor.expect("DELETE", "FROM")
    name = cursor.name()
    alias = cursor.alias("USING", "WHERE", "RETURNING")
    others = cursor.until("WHERE", "RETURNING") if cursor.took("USING") else ""
    condition = cursor.until("RETURNING") if cursor.took("WHERE") else "true"
    cursor.refuse("RETURNING", "query the table before, in the same transaction")
    return Delete(cursor.sql, name, alias or name[-1], others, condition, before)


def _merge(cursor: Cursor, before: str) -> MergeInto:
    cursor.expect("MERGE", "INTO")
    name = cursor.name()
    alias = cursor.alias("USING") or name[-1]
    cursor.expect("USING")
    source = cursor.until("ON", "USING", "WHEN")
    cursor.refuse("USING", "write the condition with ON")
    cursor.expect("ON")
    condition = cursor.until("WHEN")
    clauses = list(_clauses(cursor))
    return MergeInto(cursor.sql, name, alias, source, condition, clauses, before)


def _clauses(cursor: Cursor) -> Iterator[When]:
    while cursor.took("WHEN"):
        side = "matched"
        if cursor.took("NOT"):
            side = "source"
        cursor.expect("MATCHED")
        if side == "source" and cursor.took("BY"):
            side = "target" if cursor.took("SOURCE") else "source"
            if side == "source":
                cursor.expect("TARGET")
        condition = cursor.until("THEN") if cursor.took("AND") else "true"
        cursor.expect("THEN")
        if cursor.took("DELETE"):
            yield When(side, condition, "delete")
        elif cursor.took("DO", "NOTHING"):
            yield When(side, condition, "nothing")
        elif cursor.took("UPDATE"):
            yield When(side, condition, "update", _set(cursor))
        elif cursor.took("INSERT"):
            yield When(side, condition, "insert", _values(cursor))
        else:
            raise cursor.unexpected("expected UPDATE, DELETE, INSERT or DO NOTHING")
    cursor.refuse("RETURNING", "query the table afterwards, in the same transaction")


def _set(cursor: Cursor) -> dict[str, str] | None:
    if cursor.took("BY", "NAME") or not cursor.took("SET"):
        return None
    if cursor.sign == "*":
        cursor.skip()
        return None
    return cursor.assignments("WHEN", "RETURNING")


def _values(cursor: Cursor) -> dict[str, str] | list[str] | None:
    if cursor.sign == "*":
        cursor.skip()
        return None
    if cursor.took("BY", "NAME"):
        return None
    if cursor.took("VALUES"):
        return cursor.in_brackets()
    if cursor.sign != "(":
        if cursor.word in ("WHEN", "") and not cursor.sign:
            return None
        raise cursor.unexpected(
            'INSERT of a MERGE takes "(columns) VALUES (values)", "VALUES (values)", "BY NAME" or "*"'
        )
    columns = [unquoted(one) for one in cursor.in_brackets()]
    cursor.expect("VALUES")
    values = cursor.in_brackets()
    if len(columns) != len(values):
        raise InvalidArgument(f"{shortened(cursor.sql)}: {len(columns)} columns, but {len(values)} values")
    return dict(zip(columns, values, strict=True))


def _create(cursor: Cursor, before: str) -> CreateTable | CreateView | CreateNamespace:
    cursor.expect("CREATE")
    or_replace = cursor.took("OR", "REPLACE")
    if cursor.took("SCHEMA"):
        if_not_exists = cursor.took("IF", "NOT", "EXISTS")
        return CreateNamespace(cursor.sql, cursor.name(), if_not_exists)
    is_view = cursor.took("VIEW")
    if not is_view and not cursor.took("TABLE"):
        raise cursor.unexpected("a lakehouse has tables, views and schemas")
    if_not_exists = cursor.took("IF", "NOT", "EXISTS")
    name = cursor.name()
    if is_view:
        cursor.expect("AS")
        return CreateView(cursor.sql, name, or_replace, if_not_exists, cursor.rest())
    columns = cursor.in_brackets() if cursor.sign == "(" else None
    partitions = cursor.in_brackets() if cursor.took("PARTITIONED", "BY") else []
    query = cursor.rest() if cursor.took("AS") else ""
    if query and columns is not None:
        raise InvalidArgument(f"{shortened(cursor.sql)}: give the columns, or a query, not both")
    return CreateTable(cursor.sql, name, or_replace, if_not_exists, columns, partitions, query)


def _drop(cursor: Cursor, before: str) -> Drop:
    cursor.expect("DROP")
    kind = next((kind for kind in ("TABLE", "VIEW", "SCHEMA") if cursor.took(kind)), None)
    if kind is None:
        raise cursor.unexpected("a lakehouse has tables, views and schemas")
    if_exists = cursor.took("IF", "EXISTS")
    name = cursor.name()
    cascade = cursor.took("CASCADE")
    cursor.took("RESTRICT")
    return Drop(cursor.sql, name, kind.lower(), if_exists, cascade)


def unquoted(text: str) -> str:
    """A name or string without its quotes, and without comments after it."""
    match = _QUOTED.fullmatch(text.strip())
    return match[2].replace(match[1] * 2, match[1]) if match is not None else text.strip()


_READERS: dict[str, Any] = {
    "INSERT": _insert,
    "UPDATE": _update,
    "DELETE": _delete,
    "MERGE_INTO": _merge,
    "CREATE": _create,
    "DROP": _drop,
}
