"""Filters of scan plans: both forms of the REST specification, as expressions of PyIceberg.

The specification of 2026 writes operands as value expressions (`child`, `left` and `right`) and deprecates `term` and
`value`. In JSON a binary value is a string of hexadecimal digits, so only the schema of the table shows that it is
binary.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions import And, BooleanExpression, LiteralPredicate, Not, Or, SetPredicate, UnboundPredicate
from pyiceberg.expressions.literals import BinaryLiteral, Literal, StringLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType

from trinitylake.rest.errors import unsupported

#: Maximum number of predicates and values of a filter.
MAX_VALUES = 20_000
#: Maximum number of levels of a filter.
MAX_DEPTH = 200

_UNARY = ("is-null", "not-null", "is-nan", "not-nan")
_SETS = ("in", "not-in")
_COMPARISONS = ("eq", "not-eq", "lt", "lt-eq", "gt", "gt-eq", "starts-with", "not-starts-with")


def filter_of(document: Any) -> BooleanExpression:
    """The filter expression in a JSON document. Values are counted before they are converted.

    Raises `ValueError` for an invalid filter and one above the limits, and `RestError` 406 for a function or a
    reference by field id.
    """
    n_left = MAX_VALUES

    def count(n_values: int) -> None:
        nonlocal n_left
        if (n_left := n_left - n_values) < 0:
            raise ValueError(f"a filter has at most {MAX_VALUES} predicates and values: plan the scan at the client")

    def parsed(predicate: Any, depth: int) -> BooleanExpression:
        if depth > MAX_DEPTH:
            raise ValueError(f"a filter has at most {MAX_DEPTH} levels: plan the scan at the client")
        if isinstance(predicate, bool):
            return BooleanExpression.model_validate(predicate)
        kind = predicate.get("type") if isinstance(predicate, dict) else None
        if not isinstance(kind, str):
            raise ValueError("a predicate must be true, false or an object with a type")
        if kind in ("true", "false"):
            return BooleanExpression.model_validate(kind == "true")
        if kind in ("and", "or"):
            left, right = (parsed(predicate.get(side), depth + 1) for side in ("left", "right"))
            return And(left, right) if kind == "and" else Or(left, right)
        if kind == "not":
            return Not(parsed(predicate.get("child"), depth + 1))
        count(1)
        plain: dict[str, Any] = {"type": kind, "term": _column(kind, _first(predicate, "term", "child", "left"))}
        if kind in _SETS:
            values = predicate.get("values")
            if isinstance(values, dict) and values.get("type") == "literals":
                values = values.get("values")
            if not isinstance(values, list):
                raise ValueError(f"the values of {kind!r} must be a list")
            count(len(values))
            plain["values"] = [_value(kind, one) for one in values]
        elif kind in _COMPARISONS:
            plain["value"] = _value(kind, _first(predicate, "value", "right"))
        elif kind not in _UNARY:
            raise ValueError(f"unknown predicate {kind[:40]!r}")
        return BooleanExpression.model_validate(plain)

    return parsed(document, 0)


def _first(predicate: dict[str, Any], *names: str) -> Any:
    return next((predicate[name] for name in names if name in predicate), None)


def _column(kind: str, operand: Any) -> str:
    if isinstance(operand, str):
        return operand
    if isinstance(operand, dict) and operand.get("type") == "reference" and isinstance(operand.get("name"), str):
        return str(operand["name"])
    if isinstance(operand, dict) and operand.get("type") in ("reference", "apply", "transform"):
        raise unsupported(
            f"the server plans filters on names of columns, not on {operand['type']!r}: plan the scan at the client"
        )
    raise ValueError(f"the operand of {kind[:40]!r} must be the name of a column or a reference")


def _value(kind: str, literal: Any) -> bool | int | float | str:
    value = literal.get("value") if isinstance(literal, dict) and literal.get("type") == "literal" else literal
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"a value of {kind!r} must be a string, a number, true or false")
    return value


def with_binary_values(filter: BooleanExpression, schema: Schema, case_sensitive: bool) -> BooleanExpression:
    """The filter, with bytes instead of the hexadecimal strings that are compared with binary columns.

    Raises `ValueError` for a column that does not exist, and for a string that is not hexadecimal.
    """
    match filter:
        case And() | Or():
            left, right = (with_binary_values(one, schema, case_sensitive) for one in (filter.left, filter.right))
            return type(filter)(left, right)
        case Not():
            return Not(with_binary_values(filter.child, schema, case_sensitive))
        case UnboundPredicate():
            name = filter.term.name  # type: ignore[attr-defined]
            try:
                column = schema.find_field(name, case_sensitive)
            except ValueError as error:
                raise ValueError(f"the table has no column {name!r}") from error
            if isinstance(column.field_type, BinaryType | FixedType):
                if isinstance(filter, LiteralPredicate):
                    return type(filter)(filter.term, _binary(filter.literal))
                if isinstance(filter, SetPredicate):
                    return type(filter)(filter.term, {_binary(one) for one in filter.literals})
    return filter


def _binary(literal: Literal[Any]) -> Literal[Any]:
    return BinaryLiteral(bytes.fromhex(literal.value)) if isinstance(literal, StringLiteral) else literal
