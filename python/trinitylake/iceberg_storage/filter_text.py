r"""Parses and writes filters as text. The grammar is a part of SQL's, as in `"month = 1 and carrier in ('AA', 'UA')"`.

    filter     = and-part { OR and-part }
    and-part   = not-part { AND not-part }
    not-part   = NOT not-part | "(" filter ")" | condition | TRUE | FALSE
    condition  = column ( operator value | [NOT] IN "(" value { "," value } ")" | [NOT] BETWEEN value AND value
               | [NOT] LIKE text | IS [NOT] ( NULL | NAN ) )
               | value operator column

A column is one or more names separated by dots. A name with characters other than letters, digits and `_` is written in
double quotes. A value is a number, a string in single quotes, TRUE or FALSE. Conditions that Iceberg cannot express are
refused. LIKE supports only prefixes: `%` at the end, and no `_`. `\%` and `\_` are literal characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, TypeAlias

from pyiceberg import expressions
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, Not, Or, Reference
from pyiceberg.expressions.literals import BooleanLiteral, DecimalLiteral, Literal, LongLiteral, StringLiteral

from trinitylake.base.arguments import text
from trinitylake.errors import InvalidArgument

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+")|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"""
    r"""|(?P<word>[^\W\d][\w$]*)|(?P<sign>[=<>!]+|[(),.]))""",
    re.IGNORECASE,
)
#: Makes a predicate of a column and a value.
_Predicate: TypeAlias = Callable[..., BooleanExpression]
_MADE: Any = expressions
#: Predicates of an operator: with the column on its left, and with the column on its right.
_OPERATORS: dict[str, tuple[_Predicate, _Predicate]] = {
    "=": (_MADE.EqualTo, _MADE.EqualTo),
    "==": (_MADE.EqualTo, _MADE.EqualTo),
    "!=": (_MADE.NotEqualTo, _MADE.NotEqualTo),
    "<>": (_MADE.NotEqualTo, _MADE.NotEqualTo),
    "<": (_MADE.LessThan, _MADE.GreaterThan),
    "<=": (_MADE.LessThanOrEqual, _MADE.GreaterThanOrEqual),
    ">": (_MADE.GreaterThan, _MADE.LessThan),
    ">=": (_MADE.GreaterThanOrEqual, _MADE.LessThanOrEqual),
}
#: SQL operator of each predicate, for `filter_text`.
_WORDS = {
    "EqualTo": "=",
    "NotEqualTo": "!=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "IN",
    "NotIn": "NOT IN",
    "StartsWith": "LIKE",
    "NotStartsWith": "NOT LIKE",
    "IsNull": "IS NULL",
    "NotNull": "IS NOT NULL",
    "IsNaN": "IS NAN",
    "NotNaN": "IS NOT NAN",
}
_KEYWORDS = frozenset({"AND", "OR", "NOT", "IN", "IS", "LIKE", "BETWEEN", "NULL", "NAN", "TRUE", "FALSE"})
#: Maximum nesting of NOT and parentheses, because filters are evaluated recursively.
_MAX_DEPTH = 100
_SHOWN_CHARACTERS = 100
_MOST_DIGITS = 400
_A_VALUE = "a value: a number, a string in quotes, true or false; for NULL write `is null`"


class WrittenInteger(LongLiteral):
    """An integer in the text of a filter. In contrast to other integers, it is never a date, a time or a timestamp."""


class _Token(NamedTuple):
    """A token and its position. Its kind is the name of its group in `_TOKEN`, or "end" after the last token."""

    kind: str
    text: str
    position: int

    @property
    def word(self) -> str:
        """The text in upper case if it is a word without quotes."""
        return self.text.upper() if self.kind == "word" else ""


def parse_filter(filter: str | BooleanExpression) -> BooleanExpression:
    """Parse a filter; an expression is returned unchanged.

    Raises `InvalidArgument` with the position of the first error, and for a condition that a filter cannot express.
    """
    if isinstance(filter, BooleanExpression):
        return filter
    parser = _Parser(text(filter, "filter"))
    found = parser.filter(0)
    if parser.next.kind != "end":
        raise parser.unexpected("and, or, or the end")
    return found


class _Parser:
    def __init__(self, words: str) -> None:
        self._words = words
        self._tokens: list[_Token] = []
        position, end = 0, len(words.rstrip())
        while position < end and (match := _TOKEN.match(words, position)) is not None:
            kind = str(match.lastgroup)
            self._tokens.append(_Token(kind, match[kind], match.start(kind)))
            position = match.end()
        if position < end:
            position += len(words[position:]) - len(words[position:].lstrip())
            self._tokens.append(_Token("unknown", words[position], position))
        self._tokens.append(_Token("end", "", end))
        self._at = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._at]

    def unexpected(self, expected: str) -> InvalidArgument:
        position = self.next.position
        line_start = self._words.rfind("\n", 0, position) + 1
        line = self._words[line_start:].partition("\n")[0]
        column = position - line_start
        cut = max(0, column - _SHOWN_CHARACTERS // 2)
        shown = line[cut : cut + _SHOWN_CHARACTERS]
        return InvalidArgument(f"cannot read the filter: expected {expected}\n  {shown}\n  {' ' * (column - cut)}^")

    def filter(self, depth: int) -> BooleanExpression:
        parts = [self._and_part(depth)]
        while self._took("OR"):
            parts.append(self._and_part(depth))
        return Or(*parts) if len(parts) > 1 else parts[0]

    def _and_part(self, depth: int) -> BooleanExpression:
        parts = [self._not_part(depth)]
        while self._took("AND"):
            parts.append(self._not_part(depth))
        return And(*parts) if len(parts) > 1 else parts[0]

    def _not_part(self, depth: int) -> BooleanExpression:
        if depth > _MAX_DEPTH:
            raise InvalidArgument("filter is nested too deeply")
        if self._took("NOT"):
            return Not(self._not_part(depth + 1))
        if self._took("("):
            inside = self.filter(depth + 1)
            self._expect(")", "and, or, or ) behind a condition")
            return inside
        if self.next.word in ("TRUE", "FALSE") and self._tokens[self._at + 1].text not in _OPERATORS:
            return AlwaysTrue() if self._took("TRUE") else self._false()
        return self._condition()

    def _false(self) -> BooleanExpression:
        self._at += 1
        return AlwaysFalse()

    def _condition(self) -> BooleanExpression:
        if self.next.kind == "end":
            raise self.unexpected("a condition")
        if self.next.kind in ("text", "number") or self.next.word in ("TRUE", "FALSE"):
            value = self._value()
            _, made = self._operator()
            return made(self._column(), value)
        column = self._column()
        if self.next.text in _OPERATORS:
            made, _ = self._operator()
            return made(column, self._value())
        if self._took("IS"):
            is_not = self._took("NOT")
            if not (is_null := self._took("NULL")):
                self._expect("NAN", "null or nan" if is_not else "null, not null, nan or not nan")
            test = _MADE.IsNull(column) if is_null else _MADE.IsNaN(column)
            return Not(test) if is_not else test
        is_not = self._took("NOT")
        if self._took("IN"):
            found = self._among(column)
        elif self._took("LIKE"):
            found = self._like(column)
        elif self._took("BETWEEN"):
            low = self._value("a value")
            self._expect("AND", "and")
            found = And(_MADE.GreaterThanOrEqual(column, low), _MADE.LessThanOrEqual(column, self._value("a value")))
        else:
            raise self.unexpected(
                "in, like or between" if is_not else "a comparison: = == != <> < <= > >=, in, is, like or between"
            )
        return Not(found) if is_not else found

    def _operator(self) -> tuple[_Predicate, _Predicate]:
        if self.next.text not in _OPERATORS:
            raise self.unexpected("a comparison: = == != <> < <= > >=")
        self._at += 1
        return _OPERATORS[self._tokens[self._at - 1].text]

    def _column(self) -> Reference:
        names = [self._name()]
        while self._took("."):
            names.append(self._name())
        return Reference(".".join(names))

    def _name(self) -> str:
        token = self.next
        if token.kind == "quoted":
            self._at += 1
            return token.text[1:-1].replace('""', '"')
        if token.kind != "word" or token.word in _KEYWORDS:
            raise self.unexpected("a column")
        self._at += 1
        return token.text

    def _value(self, expected: str = _A_VALUE) -> Literal[Any]:
        token = self.next
        self._at += 1
        if token.kind == "text":
            return StringLiteral(token.text[1:-1].replace("''", "'"))
        if token.kind == "number":
            number = decimal_of(token.text)
            is_whole = token.text.lstrip("+-").isdecimal()
            return WrittenInteger(int(number)) if is_whole else DecimalLiteral(number)
        if token.word in ("TRUE", "FALSE"):
            return BooleanLiteral(token.word == "TRUE")
        self._at -= 1
        raise self.unexpected(expected)

    def _among(self, column: Reference) -> BooleanExpression:
        self._expect("(", "a list in parentheses")
        values = [self._value()]
        while self._took(","):
            values.append(self._value())
        self._expect(")", ", or )")
        found: BooleanExpression = _MADE.In(column, values)
        return found

    def _like(self, column: Reference) -> BooleanExpression:
        if self.next.kind != "text":
            raise self.unexpected("a string in quotes")
        pattern = self.next.text
        value = str(self._value().value)
        is_beginning = value.endswith("%") and not value.endswith("\\%")
        plain = value[:-1] if is_beginning else value
        if re.search(r"(?<!\\)[%_]", plain):
            raise InvalidArgument(
                f"LIKE {pattern[:_SHOWN_CHARACTERS]} is not supported in a filter: only a prefix is, such as 'abc%', "
                "and _ stands for any character. Use lake.sql, or filter the rows that the scan returns"
            )
        plain = plain.replace("\\%", "%").replace("\\_", "_")
        make: _Predicate = _MADE.StartsWith if is_beginning else _MADE.EqualTo
        return make(column, StringLiteral(plain))

    def _took(self, text: str) -> bool:
        """Read this word or sign if it is next. Returns whether it was read."""
        token = self.next
        if token.word != text and (token.kind != "sign" or token.text != text):
            return False
        self._at += 1
        return True

    def _expect(self, text: str, expected: str) -> None:
        if not self._took(text):
            raise self.unexpected(expected)


def decimal_of(text: str) -> Decimal:
    """Parse a number as a decimal without an exponent, because Iceberg's decimals have none.

    Raises `InvalidArgument` for an exponent that is too large for `Decimal`.
    """
    # Numbers above 10^400 become 10^400, and numbers nearer to 0 than 10^-400 become 10^-400; no type has such numbers.
    try:
        number = Decimal(text) or Decimal(0)
    except InvalidOperation:
        raise InvalidArgument(f"the exponent of {text[:_SHOWN_CHARACTERS]} is too large") from None
    if abs(number.adjusted()) > _MOST_DIGITS:
        number = Decimal(1).scaleb(_MOST_DIGITS if number.adjusted() > 0 else -_MOST_DIGITS).copy_sign(number)
    return Decimal(f"{number:f}")


def filter_text(filter: BooleanExpression) -> str:
    """The text of a filter. `parse_filter` is the inverse if all values are numbers, strings or booleans."""
    if isinstance(filter, AlwaysTrue | AlwaysFalse):
        return "TRUE" if isinstance(filter, AlwaysTrue) else "FALSE"
    if isinstance(filter, And | Or):
        parts = (
            f"({filter_text(one)})" if isinstance(one, Or) else filter_text(one) for one in (filter.left, filter.right)
        )
        return f" {type(filter).__name__.upper()} ".join(parts)
    if isinstance(filter, Not):
        return f"NOT ({filter_text(filter.child)})"
    predicate: Any = filter
    kind, column = type(predicate).__name__, predicate.term.name
    if re.fullmatch(r"[^\W\d][\w$.]*", column) is None or column.upper() in _KEYWORDS:
        column = '"' + column.replace('"', '""') + '"'
    if kind in ("In", "NotIn"):
        values = f"({', '.join(sorted(map(_value_text, predicate.literals)))})"
    elif kind in ("StartsWith", "NotStartsWith"):
        prefix = predicate.literal.value.replace("%", "\\%").replace("_", "\\_")
        values = _value_text(StringLiteral(f"{prefix}%"))
    else:
        values = _value_text(predicate.literal) if hasattr(predicate, "literal") else ""
    return f"{column} {_WORDS[kind]} {values}".rstrip()


def _value_text(value: Literal[Any]) -> str:
    if isinstance(value, StringLiteral):
        return "'" + value.value.replace("'", "''") + "'"
    if isinstance(value, BooleanLiteral | LongLiteral | DecimalLiteral):
        return str(value.value).upper()
    return repr(value)  # only filters built in Python can have such a value
