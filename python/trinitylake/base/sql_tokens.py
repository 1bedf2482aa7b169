"""Tokens of an SQL statement, as far as names of catalogs need them."""

from __future__ import annotations

import re

#: Text and comments, in which nothing is a name; names in backticks; plain words; any other character.
_TOKEN = re.compile(
    r"""(?P<other>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|--[^\n]*|/\*.*?\*/|\s+)"""
    r"""|(?P<quoted>`(?:[^`]|``)*`)|(?P<word>\w+)|(?P<sign>.)""",
    re.DOTALL,
)


def tokens_of(statement: str) -> list[tuple[str, str]]:
    """Kind and text of each token; the texts make up the statement. Kinds: other, quoted, word, sign."""
    return [(match.lastgroup or "", match.group()) for match in _TOKEN.finditer(statement)]
