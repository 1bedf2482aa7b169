"""Filters given as text, read by PyIceberg's parser.

The parser takes `_` in a pattern of LIKE for a letter, where SQL means any one character. A filter cannot express that,
so it is refused.
"""

from __future__ import annotations

import re
from itertools import pairwise

from pyiceberg.expressions import BooleanExpression

from trinitylake.errors import InvalidArgument

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|\S""")


def parsed_filter(words: str) -> BooleanExpression:
    """A filter such as `"month = 1 and carrier in ('AA', 'UA')"`.

    Raises `InvalidArgument` for a pattern that a filter cannot express, and the parser's errors.
    """
    from pyiceberg.expressions.parser import parse

    tokens = _TOKEN.findall(words)
    for word, pattern in pairwise(tokens):
        if word.lower() == "like" and pattern[0] in "'\"" and "_" in pattern:
            raise InvalidArgument(
                f"LIKE {pattern[:100]} is not read in a filter: _ stands for any character, and filters only know what "
                "a text begins with ('abc%'). Use lake.sql, or filter the rows that the scan returns"
            )
    parsed: BooleanExpression = parse(words)
    return parsed
