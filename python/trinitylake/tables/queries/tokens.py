"""Splits SQL into tokens with DuckDB."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trinitylake.base.optional_dependencies import optional_dependency

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
ANY_WORD = re.compile(r"[^\W\d][\w$]*")
_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)


def first_word(sql: str) -> str:
    """The first word of a text in upper case, or ""."""
    first = _FIRST_WORD.match(sql)
    return first[1].upper() if first is not None else ""


@dataclass(frozen=True)
class Token:
    """A token, with the space and comments up to the next token.

    Attributes:
        start: index of the first byte in the SQL.
        text: the token, and all characters up to the next token.
        word: the token in upper case if it is an unquoted word, else "".
        depth: number of brackets and of CASE … END around it.
    """

    start: int
    text: str
    word: str
    depth: int


def tokens_of(sql: str) -> list[Token]:
    """The tokens of a statement, without semicolons at its end."""
    with optional_dependency("SQL over a lakehouse"):
        import duckdb

    data = sql.encode()
    # A comment belongs to the token before it; DuckDB 1.5 has no token for it.
    starts = [start for start, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    tokens: list[Token] = []
    depth = 0
    for start, end in zip(starts, [*starts, len(data)][1:], strict=True):
        text = data[start:end].decode(errors="replace")
        match = ANY_WORD.match(text)
        word = match[0].upper() if match is not None else ""
        if text[:1] in _CLOSE or word == "END":
            depth -= 1
        tokens.append(Token(start, text, word, depth))
        if text[:1] in _OPEN or word == "CASE":
            depth += 1
    while tokens and tokens[-1].text.startswith(";"):
        tokens.pop()
    return tokens


def end_of_brackets(tokens: list[Token], at: int) -> int:
    """Index of the token that closes the bracket at index `at`."""
    return next(
        (place for place in range(at + 1, len(tokens)) if tokens[place].depth <= tokens[at].depth), len(tokens) - 1
    )
