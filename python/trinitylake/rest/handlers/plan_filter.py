"""Filters of scan plans: both forms of the REST specification, as expressions of PyIceberg.

The specification of 2026 writes operands as value expressions (`child`, `left` and `right`) and deprecates `term` and
`value`, which PyIceberg reads. Values are JSON: a binary value is text of hexadecimal digits, so its type is known only
with the schema of the table.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    LiteralPredicate,
    Not,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import BinaryLiteral, Literal, StringLiteral
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, FixedType

from trinitylake.rest.errors import RestError

_CONSTANTS = {"true": True, "false": False}


def with_terms(predicate: Any) -> Any:
    """JSON of a predicate in the form of PyIceberg. What is no predicate is returned as it is, to be refused there.

    Raises `RestError` 406 for a function or a reference by field id, and `ValueError` for an invalid operand.
    """
    if not isinstance(predicate, dict):
        return predicate
    kind = predicate.get("type")
    if kind in _CONSTANTS:
        return _CONSTANTS[kind]
    if kind in ("and", "or"):
        return {"type": kind, "left": with_terms(predicate.get("left")), "right": with_terms(predicate.get("right"))}
    if kind == "not":
        return {"type": kind, "child": with_terms(predicate.get("child"))}
    found: dict[str, Any] = {"type": kind}
    for name, value in predicate.items():
        if name in ("term", "child", "left"):
            found["term"] = _column(value)
        elif name in ("value", "right"):
            found["value"] = _value(value)
        elif name == "values":
            values = value.get("values") if isinstance(value, dict) and value.get("type") == "literals" else value
            found["values"] = [_value(one) for one in values] if isinstance(values, list) else values
    return found


def _column(operand: Any) -> str:
    """The name of a column. Raises as `with_terms`."""
    if isinstance(operand, str):
        return operand
    if isinstance(operand, dict) and operand.get("type") == "reference" and isinstance(operand.get("name"), str):
        return str(operand["name"])
    if isinstance(operand, dict) and operand.get("type") in ("reference", "apply", "transform"):
        raise RestError(
            406,
            "UnsupportedOperationException",
            f"the server plans filters on names of columns, not on {operand['type']!r}: plan the scan at the client",
        )
    raise ValueError("an operand must be the name of a column or a reference")


def _value(literal: Any) -> Any:
    return literal.get("value") if isinstance(literal, dict) and literal.get("type") == "literal" else literal


def with_binary_values(filter: BooleanExpression, schema: Schema, case_sensitive: bool) -> BooleanExpression:
    """The filter with bytes where a text of hexadecimal digits is compared with a binary column.

    Raises `ValueError` for a column that does not exist and for other texts.
    """
    match filter:
        case And() | Or():
            left, right = (with_binary_values(one, schema, case_sensitive) for one in (filter.left, filter.right))
            return type(filter)(left, right)
        case Not():
            return Not(with_binary_values(filter.child, schema, case_sensitive))
        case UnboundPredicate():
            column = schema.find_field(filter.term.name, case_sensitive)  # type: ignore[attr-defined]
            if isinstance(column.field_type, BinaryType | FixedType):
                if isinstance(filter, LiteralPredicate):
                    return type(filter)(filter.term, _binary(filter.literal))
                if isinstance(filter, SetPredicate):
                    return type(filter)(filter.term, {_binary(one) for one in filter.literals})
    return filter


def _binary(literal: Literal[Any]) -> Literal[Any]:
    return BinaryLiteral(bytes.fromhex(literal.value)) if isinstance(literal, StringLiteral) else literal
