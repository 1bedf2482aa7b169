"""Filters that DuckDB's optimizer pushes into the scan of a table, as Iceberg expressions.

A predicate without an exact counterpart is replaced by one that matches more rows, so a filter excludes only rows that
the query does not need. In DuckDB, NaN equals NaN and is greater than all numbers. But bounds of files and row groups
ignore NaN, and in Arrow NaN matches no comparison. So predicates that NaN satisfies are left to DuckDB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotNull,
    Or,
    Reference,
)

from trinitylake.tables.sql_sandbox import nodes_of

#: A table of a plan: its schema and its name.
TableOfPlan = tuple[str, str]


@dataclass
class Pushed:
    """Filters that are pushed into the scans of one table.

    Attributes:
        filter: matches each row that any of the scans needs.
        matched_by_nan: the numbers of columns with a predicate that NaN satisfies.
    """

    filter: BooleanExpression
    matched_by_nan: set[int]


_COMPARISONS: dict[str, Callable[..., BooleanExpression]] = {
    "COMPARE_EQUAL": EqualTo,
    "COMPARE_NOTEQUAL": NotEqualTo,
    "COMPARE_GREATERTHAN": GreaterThan,
    "COMPARE_GREATERTHANOREQUALTO": GreaterThanOrEqual,
    "COMPARE_LESSTHAN": LessThan,
    "COMPARE_LESSTHANOREQUALTO": LessThanOrEqual,
}
_MISSED_BY_NAN = frozenset({"COMPARE_EQUAL", "COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"})
_FLOATING = frozenset({"FLOAT", "DOUBLE"})
_WHOLE_NUMBERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})
_EPOCH = datetime(1970, 1, 1)


class NoLiteral(Exception):
    """A value without an exact Iceberg literal."""


def pushed_filters(plan: str, columns: Mapping[TableOfPlan, Sequence[str | None]]) -> dict[TableOfPlan, Pushed]:
    """For each table in a plan, the filters that are pushed into its scans.

    Args:
        plan: from DuckDB's `json_serialize_plan`. It may be an error, which has no filters.
        columns: Iceberg's names of the columns of each table, in order; None for a column that cannot be filtered.
    """
    found: dict[TableOfPlan, Pushed] = {}
    try:
        scans = [node for node in nodes_of(json.loads(plan)) if node.get("type") == "LOGICAL_GET"]
    except ValueError:  # DuckDB cannot export the plan, for example with a constant of type BIT
        return {}
    for scan in scans:
        data = scan.get("function_data", {})
        table = data.get("schema", ""), data.get("table", "")
        one = _pushed(scan, columns.get(table, ()))
        if (other := found.get(table)) is not None:
            one = Pushed(Or(other.filter, one.filter), other.matched_by_nan | one.matched_by_nan)
        found[table] = one
    return found


def _pushed(scan: dict[str, Any], columns: Sequence[str | None]) -> Pushed:
    types = scan.get("returned_types", [])
    pushed = Pushed(AlwaysTrue(), set())
    for one in scan.get("table_filters", {}).get("filters", []):
        number = one["key"]
        if scan.get("table_filters_by_projection"):  # since DuckDB 2.0: the number of a column that the scan reads
            number = scan["column_indexes"][number]["index"]
        if number >= min(len(columns), len(types)):
            continue
        if types[number]["id"] in _FLOATING and not _excludes_nan(one["value"]):
            pushed.matched_by_nan.add(number)
        elif (name := columns[number]) is not None:
            pushed.filter = And(pushed.filter, _translated(one["value"], name, types[number]))
    return pushed


def _excludes_nan(filter: dict[str, Any]) -> bool:
    """Whether a filter on a numeric column cannot match NaN, and contains no NaN constant."""
    constants = filter.get("values", [])
    match _kind(filter):
        case "CONSTANT_COMPARISON":
            constants = [filter["constant"]]
            is_missed = filter["comparison_type"] in _MISSED_BY_NAN
        case "CONJUNCTION_AND":
            return any(_excludes_nan(one) for one in filter["child_filters"])
        case "CONJUNCTION_OR":
            return all(_excludes_nan(one) for one in filter["child_filters"])
        case "OPTIONAL_FILTER":
            return _excludes_nan(filter.get("child_filter") or {})
        case kind:
            is_missed = kind in ("IN_FILTER", "IS_NULL")
    values = [one.get("value") for one in constants]
    return is_missed and all(isinstance(one, float | int) and math.isfinite(one) for one in values)


def _kind(filter: dict[str, Any]) -> str:
    """The type of a filter, without the prefix that DuckDB 2.0 adds."""
    return str(filter.get("filter_type")).removeprefix("LEGACY_")


def _translated(filter: dict[str, Any], name: str, type: dict[str, Any]) -> BooleanExpression:
    parts: Sequence[BooleanExpression]
    match _kind(filter):
        case "CONSTANT_COMPARISON":
            return _comparison(filter["comparison_type"], filter["constant"], name, type)
        case "IN_FILTER":
            try:
                return In(term=Reference(name), values={_value(one, type) for one in filter["values"]})
            except NoLiteral:
                return AlwaysTrue()
        case "OPTIONAL_FILTER":
            return _translated(filter.get("child_filter") or {}, name, type)
        case "IS_NULL":
            return IsNull(term=Reference(name))
        case "IS_NOT_NULL":
            return NotNull(term=Reference(name))
        case "CONJUNCTION_AND":
            parts = [_translated(one, name, type) for one in filter["child_filters"]]
            return And(*parts) if len(parts) > 1 else parts[0]
        case "CONJUNCTION_OR":
            parts = [_translated(one, name, type) for one in filter["child_filters"]]
            return Or(*parts) if len(parts) > 1 else parts[0]
        case "EXPRESSION_FILTER":
            return _expression(filter.get("expr", {}), name)
    return AlwaysTrue()


def _comparison(comparison: str, constant: dict[str, Any], name: str, type: dict[str, Any]) -> BooleanExpression:
    try:
        value = _value(constant, type)
        made = _COMPARISONS[comparison](Reference(name), value)
    except (NoLiteral, KeyError):
        return AlwaysTrue()
    return made


def _expression(expression: dict[str, Any], name: str) -> BooleanExpression:
    (child,) = children if len(children := expression.get("children", [])) == 1 else ({},)
    if child.get("type") == "BOUND_REF":
        if expression.get("type") == "OPERATOR_IS_NOT_NULL":
            return NotNull(term=Reference(name))
        if expression.get("type") == "OPERATOR_IS_NULL":
            return IsNull(term=Reference(name))
    return AlwaysTrue()


def _value(constant: dict[str, Any], type: dict[str, Any]) -> Any:
    """A constant of a plan as a value for Iceberg's filters. Raises `NoLiteral`."""
    value = constant.get("value")
    if constant.get("is_null") or value is None or constant.get("type") != type:
        raise NoLiteral
    match type["id"], value:
        case "BOOLEAN", bool():
            return value
        case kind, int() if kind in _WHOLE_NUMBERS:
            return value
        case (("FLOAT" | "DOUBLE"), (float() | int())) if math.isfinite(value):
            return float(value)
        case "DECIMAL", int():
            return Decimal(value).scaleb(-type.get("type_info", {}).get("scale", 0))
        case "VARCHAR", str():
            return value
        case kind, int():
            return _moment(kind, value)
    raise NoLiteral


def _moment(kind: str, value: int) -> str:
    """A date or time in Iceberg's format. Raises `NoLiteral`."""
    try:
        if kind == "DATE":
            return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
        if kind == "TIMESTAMP":
            return (_EPOCH + timedelta(microseconds=value)).isoformat(timespec="microseconds")
        if kind == "TIMESTAMP WITH TIME ZONE":
            return (_EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=value)).isoformat(timespec="microseconds")
    except OverflowError:
        pass
    raise NoLiteral
