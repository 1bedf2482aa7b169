"""Parses filters given as text, and reports where one is wrong."""

from __future__ import annotations

import re

from pyiceberg.expressions import BooleanExpression
from pyparsing import ParseBaseException

from trinitylake.base.arguments import text
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.filter_text import parsed_filter

_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|[+-]?\d[\w.+-]*|[\w.]+|[<>=!]+|\S""")
_COMPARISONS = ("=", "==", "!=", "<>", "<", "<=", ">", ">=")
_WORDS = ("in", "not", "is", "like", "between")
#: What may follow a comparison or a word, as the beginning of a token, and how to say it.
_AFTER = {
    "in": (r"\(", "a list in parentheses"),
    "not": (r"(?i)(in|like|between)$", "in, like or between"),
    "is": (r"(?i)(null|nan|not)$", "null, not null, nan or not nan"),
    "like": (r"""['"].""", "a text in quotes"),
    "between": (r"""['"].|[+-]?\d""", "a value"),
}
_VALUE = (r"""['"].|[+-]?\d|(?i:true|false)$""", "a value: a number, a text in quotes, true or false")
_SHOWN_CHARACTERS = 100


def parse_filter(expression: str | BooleanExpression) -> BooleanExpression:
    """A filter such as `"month = 1 and carrier in ('AA', 'UA')"`.

    Raises `InvalidArgument` that shows the place if it cannot be read.
    """
    if isinstance(expression, BooleanExpression):
        return expression
    words = text(expression, "filter")
    try:
        with translated(f"filter {words[:_SHOWN_CHARACTERS]!r}"):
            return parsed_filter(words)
    except ParseBaseException as error:
        position, expected = _place(words, error)
        raise InvalidArgument(_complaint(words, position, expected)) from None
    except RecursionError:
        raise InvalidArgument("filter is nested too deeply") from None


def _place(words: str, error: ParseBaseException) -> tuple[int, str]:
    """The position of the first token that does not fit, and what would.

    PyIceberg's parser says where the condition begins that it cannot read, and lists every token of its grammar.
    """
    if "end of text" in str(error.msg) and str(error.msg).startswith("Expected end"):
        return error.loc, "and, or, or the end"
    if error.loc >= len(words.rstrip()):
        return len(words.rstrip()), "a condition, or the end of one"
    tokens = list(_TOKEN.finditer(words, error.loc))
    end = len(words.rstrip())
    while tokens and tokens[0][0].lower() in ("not", "("):
        del tokens[0]
    if not tokens or not re.match(r"""[\w'"]""", tokens[0][0]):
        return (tokens[0].start() if tokens else end), "a column"
    if len(tokens) < 2 or tokens[1][0].lower() not in (*_COMPARISONS, *_WORDS):
        position = tokens[1].start() if len(tokens) > 1 else end
        return position, f"a comparison: {' '.join(_COMPARISONS)}, in, is, like or between"
    pattern, expected = _AFTER.get(tokens[1][0].lower(), _VALUE)
    if len(tokens) < 3 or not re.match(pattern, tokens[2][0]):
        return (tokens[2].start() if len(tokens) > 2 else end), expected
    return error.loc, "a condition"


def _complaint(words: str, position: int, expected: str) -> str:
    line_start = words.rfind("\n", 0, position) + 1
    line = words[line_start:].partition("\n")[0]
    column = position - line_start
    cut = max(0, column - _SHOWN_CHARACTERS // 2)
    shown = line[cut : cut + _SHOWN_CHARACTERS]
    return f"cannot read the filter: expected {expected}\n  {shown}\n  {' ' * (column - cut)}^"
