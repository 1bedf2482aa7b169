"""Filters with the semantics of SQL. A filter is compiled once, and applied to rows and to column summaries.

- A comparison with NULL is NULL, and so is its negation.
- NaN equals itself and is greater than every other number. -0.0 equals 0.0.
- Numbers are compared exactly. A literal is never narrowed to the type of a column or file. Instead, values of rows are
  promoted to the types in the schema of the table.

The same compiled filter is applied to rows, row groups, files and manifests.
"""

from __future__ import annotations

import math
import re
import struct
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import reduce
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LiteralPredicate,
    Not,
    Or,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import (
    DecimalLiteral,
    DoubleLiteral,
    FloatLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from trinitylake.base.arguments import hint
from trinitylake.definitions.iceberg_types import sql_text
from trinitylake.iceberg_storage.column_summary import ColumnSummary
from trinitylake.iceberg_storage.datetime_text import is_moment, units_since_epoch
from trinitylake.iceberg_storage.filter_text import WrittenInteger, decimal_of

#: Possible results of a filter for a row, as bits of a set.
TRUE, FALSE, NULL = 1, 2, 4
Summaries: TypeAlias = Callable[[int], ColumnSummary]

_NUMBERS = (LongLiteral, FloatLiteral, DoubleLiteral, DecimalLiteral)
_NUMERIC = (IntegerType, LongType, FloatType, DoubleType, DecimalType)
#: Strings that are numbers.
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_SPECIAL_NUMBER = re.compile(r"[+-]?(inf|infinity|nan)", re.IGNORECASE)
_LARGEST_FLOAT = (2 - 2.0**-23) * 2.0**127
_BITS = {IntegerType: 31, LongType: 63}
_MAX_DIGITS = 400
#: Predicates that become a `_Test`. Each other predicate is the negation of one of these.
_KINDS = (IsNull, IsNaN, StartsWith, In, EqualTo, GreaterThan, GreaterThanOrEqual)


@dataclass(frozen=True)
class RowFilter:
    """A filter over the columns of one schema.

    Attributes:
        field_ids: ids of the compared columns.
        size: number of predicates and values.
    """

    _root: _Node
    field_ids: frozenset[int]
    size: int

    @classmethod
    def of(cls, filter: BooleanExpression, schema: Schema, case_sensitive: bool = True) -> RowFilter:
        """Compile a filter. Raises `ValueError` or `TypeError` for a column or value that does not fit."""
        compiling = _Compiling(schema, case_sensitive)
        try:
            root = compiling.node(filter)
        except RecursionError:
            raise ValueError("the filter is nested too deeply") from None
        return cls(root, frozenset(compiling.field_ids), compiling.size)

    @classmethod
    def among(cls, schema: Schema, values: Mapping[str, Sequence[Any]]) -> RowFilter:
        """A filter for rows that have one of the values in each column.

        The values are encoded as in column summaries, ascending, and without NaN.
        """
        fields = [(schema.find_field(name), found) for name, found in values.items()]
        paths = dict(_paths(schema.as_struct(), ()))
        tests = [_Test(one.field_id, one.field_type, paths[one.field_id], In, found) for one, found in fields]
        return cls(_Joined([_Constant(True), *tests], FALSE), frozenset(one.id for one in tests), len(tests))

    def and_also(self, other: RowFilter) -> RowFilter:
        """A filter for rows that match both filters."""
        root = _Joined([self._root, other._root], FALSE)
        return RowFilter(root, self.field_ids | other.field_ids, self.size + other.size)

    def outcomes(self, summaries: Summaries) -> int:
        """The set of possible results for rows. `summaries` returns the summary of a column by its id."""
        return self._root.outcomes(summaries)

    def may_match(self, summaries: Summaries) -> bool:
        return bool(self.outcomes(summaries) & TRUE)

    def matches(self, rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
        """The result for each row: true, false or null. A row with null does not match.

        Args:
            rows: rows with the columns of the filter, promoted to the types in the schema.
        """
        found = self._root.matches(_Rows(rows))
        return pa.repeat(found, rows.num_rows) if isinstance(found, pa.Scalar) else found

    def matching(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(self.matches(rows))

    def others(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pc.invert(pc.fill_null(self.matches(rows), False)))


class _Rows:
    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self._columns: dict[tuple[str, ...], Any] = {}

    def column(self, path: tuple[str, ...]) -> Any:
        if path not in self._columns:
            self._columns[path] = self._found(path)
        return self._columns[path]

    def _found(self, path: tuple[str, ...]) -> Any:
        column = self._rows.column(self._rows.schema.get_field_index(path[0]))
        for name in path[1:]:
            column = pc.struct_field(column, [column.type.get_field_index(name)])
        if not isinstance(column.type, pa.BaseExtensionType):
            return column
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        return column.storage


class _Node(ABC):
    """A part of a compiled filter."""

    @abstractmethod
    def outcomes(self, summaries: Summaries) -> int:
        """The set of possible results for rows with these summaries."""

    @abstractmethod
    def matches(self, rows: _Rows) -> Any:
        """The result for each row: true, false or null."""


@dataclass(frozen=True)
class _Constant(_Node):
    value: bool

    def outcomes(self, summaries: Summaries) -> int:
        return TRUE if self.value else FALSE

    def matches(self, rows: _Rows) -> Any:
        return pa.scalar(self.value)


@dataclass(frozen=True)
class _Not(_Node):
    part: _Node

    def outcomes(self, summaries: Summaries) -> int:
        found = self.part.outcomes(summaries)
        return (found & NULL) | (TRUE if found & FALSE else 0) | (FALSE if found & TRUE else 0)

    def matches(self, rows: _Rows) -> Any:
        return pc.invert(self.part.matches(rows))


@dataclass(frozen=True)
class _Joined(_Node):
    """A conjunction or disjunction.

    Attributes:
        decides: the result of one part that decides the whole: FALSE in a conjunction, TRUE in a disjunction.
    """

    parts: list[_Node]
    decides: int

    def outcomes(self, summaries: Summaries) -> int:
        decides, neutral = self.decides, TRUE + FALSE - self.decides
        found = neutral
        for part in self.parts:
            more = part.outcomes(summaries)
            has_null = (found & NULL and more & (NULL | neutral)) or (more & NULL and found & (NULL | neutral))
            found = (found & more & neutral) | ((found | more) & decides) | (NULL if has_null else 0)
            if found == decides:
                break
        return found

    def matches(self, rows: _Rows) -> Any:
        join = pc.and_kleene if self.decides == FALSE else pc.or_kleene
        return reduce(join, (part.matches(rows) for part in self.parts))


@dataclass(frozen=True)
class _Test(_Node):
    """A comparison of one column.

    Attributes:
        id, kind_of_value: id and type of the column.
        path: names of the structs that contain the column, outermost first, and of the column.
        kind: `IsNull`, `IsNaN`, `StartsWith`, `In`, `GreaterThan` or `GreaterThanOrEqual`.
        values: the values to compare with, encoded as in column summaries, ascending and without NaN. Empty if no value
            of the column can satisfy the comparison.
        has_nan: whether NaN is one of the values.
    """

    id: int
    kind_of_value: IcebergType
    path: tuple[str, ...]
    kind: type
    values: Sequence[Any] = ()
    has_nan: bool = False

    def outcomes(self, summaries: Summaries) -> int:
        column = summaries(self.id)
        found = 0
        if column.nulls:
            found |= TRUE if self.kind is IsNull else NULL
        if column.nans and isinstance(self.kind_of_value, FloatType | DoubleType):
            found |= TRUE if self._of_nan() else FALSE
        if column.values:
            try:
                found |= self._of_values(column)
            except TypeError:  # bounds of another type: every result is possible
                found |= TRUE | FALSE
        return found or FALSE

    def _of_nan(self) -> bool:
        """Whether NaN satisfies the comparison."""
        if self.kind in (In, GreaterThan):
            return self.has_nan == (self.kind is In)
        return self.kind in (IsNaN, GreaterThanOrEqual)

    def _of_values(self, column: ColumnSummary) -> int:
        lower, upper = column.lower, column.upper
        if self.kind is In:
            return self._among(column)
        if not self.values:  # a test for NULL or NaN, or a comparison that no value can satisfy
            return FALSE
        (value,) = self.values
        if self.kind is StartsWith:
            size = len(value)
            may = (upper is None or upper >= value) and (lower is None or lower[:size] <= value)
            must = lower is not None and upper is not None and lower[:size] == value == upper[:size]
        elif self.kind is GreaterThan:
            may, must = upper is None or upper > value, lower is not None and lower > value
        else:
            may, must = upper is None or upper >= value, lower is not None and lower >= value
        return (TRUE if may else 0) | (0 if must else FALSE)

    def _among(self, column: ColumnSummary) -> int:
        lower, upper, values = column.lower, column.upper, self.values
        first = 0 if lower is None else bisect_left(values, lower)
        may = first < len(values) and (upper is None or values[first] <= upper)
        if may and column.buckets:
            inside = values[first:] if upper is None else values[first : bisect_left(values, upper) + 1]
            may = any(map(column.has_bucket_of, inside))
        must = may and lower is not None and lower == upper
        return (TRUE if may else 0) | (0 if must else FALSE)

    def matches(self, rows: _Rows) -> Any:
        column, values = rows.column(self.path), self.values
        if self.kind is IsNull:
            return pc.is_null(column)
        is_floating = isinstance(self.kind_of_value, FloatType | DoubleType)
        if self.kind is In and len(values) != 1:
            zeros = [0.0, -0.0] if is_floating and 0.0 in values else []  # Arrow distinguishes them in value sets
            found = _known(column, pc.is_in(column, value_set=_array([*values, *zeros], column.type)))
        elif not values:
            found = _known(column, False)
        elif self.kind is StartsWith:
            found = pc.starts_with(column, _array(values, column.type)[0].as_py())
        else:
            comparisons: dict[type, Any] = {In: pc.equal, GreaterThan: pc.greater, GreaterThanOrEqual: pc.greater_equal}
            found = comparisons[self.kind](column, _array(values, column.type)[0])
        return pc.or_(found, pc.is_nan(column)) if is_floating and self._of_nan() else found


def _known(column: Any, answer: Any) -> Any:
    """Return `answer` where `column` is not NULL, and NULL elsewhere."""
    return pc.if_else(pc.is_valid(column), answer, pa.scalar(None, pa.bool_()))


def _array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """An array of values in the encoding of column summaries, in which dates and times are numbers."""
    if pa.types.is_date32(type):
        return pa.array(values, pa.int32()).cast(type)
    if pa.types.is_temporal(type):
        return pa.array(values, pa.int64()).cast(type)
    return pa.array(values, type)


class _Compiling:
    def __init__(self, schema: Schema, case_sensitive: bool) -> None:
        self._schema = schema
        self._case_sensitive = case_sensitive
        self._paths = dict(_paths(schema.as_struct(), ()))
        self.field_ids: set[int] = set()
        self.size = 0

    def node(self, filter: BooleanExpression) -> _Node:
        match filter:
            case AlwaysTrue() | AlwaysFalse():
                return _Constant(isinstance(filter, AlwaysTrue))
            case Not(child=child):
                return _Not(self.node(child))
            case And():
                return _Joined([self.node(part) for part in _parts(filter, And)], FALSE)
            case Or():
                return _Joined([self.node(part) for part in _parts(filter, Or)], TRUE)
            case UnboundPredicate():
                return self._predicate(filter)
        raise TypeError(
            f"a filter cannot contain a {type(filter).__name__}: expected And, Or, Not or a predicate on a column"
        )

    def _unknown_column(self, term: Any) -> str:
        return f"there is no column {term.name!r}; {hint(term.name, self._schema.column_names)}"

    def _predicate(self, predicate: UnboundPredicate) -> _Node:
        self.size += 1
        try:
            field = predicate.term.bind(self._schema, self._case_sensitive).ref().field
        except ValueError:
            raise ValueError(self._unknown_column(predicate.term)) from None
        self.field_ids.add(field.field_id)
        if isinstance(predicate, _KINDS):
            return self._test(field, predicate)
        return _Not(self._test(field, ~predicate))

    def _test(self, field: NestedField, predicate: BooleanExpression) -> _Test:
        path = self._paths[field.field_id]
        kind: type = next(one for one in _KINDS if isinstance(predicate, one))
        values: list[Any] = []
        try:
            if isinstance(predicate, SetPredicate):
                self.size += len(predicate.literals)
                compared = [_compared(In, literal, field.field_type) for literal in predicate.literals]
                values = list({value for _, found in compared for value in found})
            elif isinstance(predicate, LiteralPredicate):
                kind, values = _compared(In if kind is EqualTo else kind, predicate.literal, field.field_type)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column {'.'.join(path)!r}: {error}") from None
        numbers = sorted(value for value in values if not _is_nan(value))
        return _Test(field.field_id, field.field_type, path, kind, numbers, len(numbers) < len(values))


def _parts(filter: BooleanExpression, kind: type) -> Iterator[BooleanExpression]:
    rest = [filter]
    while rest:
        part = rest.pop()
        if isinstance(part, And | Or) and isinstance(part, kind):
            rest += part.right, part.left
        else:
            yield part


def _paths(struct: StructType, above: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for one in struct.fields:
        path = (*above, one.name)
        yield one.field_id, path
        if isinstance(one.field_type, StructType):
            yield from _paths(one.field_type, path)


def _compared(kind: type, literal: Literal[Any], type: IcebergType) -> tuple[type, list[Any]]:
    """Convert a comparison to one with a value of the column's type. No value is returned if no row can match."""
    if kind is StartsWith and not isinstance(type, StringType | BinaryType):
        raise TypeError(f"`like` needs a column of strings, not of type {sql_text(type)}")
    if isinstance(literal, StringLiteral) and isinstance(type, _NUMERIC):
        literal = _number(literal, type)
    nearest = _floor_and_ceiling(literal, type)
    if nearest is None:
        return kind, [_value(literal, type)]
    floor, ceiling = nearest
    if floor is not None and (floor == ceiling or _is_nan(floor)):
        return kind, [floor]
    if kind in (GreaterThan, GreaterThanOrEqual):
        return GreaterThanOrEqual, [] if ceiling is None else [ceiling]
    return kind, []


def _number(literal: StringLiteral, type: IcebergType) -> Literal[Any]:
    """The number in a string. PyIceberg would cut `'1.5'` to an integer, and infinity to the largest number."""
    text = literal.value.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return DecimalLiteral(decimal_of(text))
    if _SPECIAL_NUMBER.fullmatch(text):
        return DoubleLiteral(float(text))
    raise _not_comparable(literal, type)


def _not_comparable(literal: Literal[Any], type: IcebergType) -> ValueError:
    written = str(literal.value).lower() if isinstance(literal.value, bool) else repr(literal.value)
    advice = ""
    if isinstance(type, StringType):
        advice = f"; write the string in quotes: '{written}'"
    elif is_moment(type):
        advice = "; write a string in quotes, such as '2026-11-28'"
    return ValueError(f"a column of type {sql_text(type)} cannot be compared with {written}{advice}")


def _value(literal: Literal[Any], type: IcebergType) -> Any:
    """The value of a literal for a type that is not numeric. Raises `ValueError` or `TypeError` if it does not fit."""
    if isinstance(literal, StringLiteral) and is_moment(type):
        return units_since_epoch(literal.value, type)
    if isinstance(literal, WrittenInteger) and is_moment(type):
        raise _not_comparable(literal, type)
    if isinstance(type, TimestampNanoType | TimestamptzNanoType):
        micros = TimestampType() if isinstance(type, TimestampNanoType) else TimestamptzType()
        return literal.value if isinstance(literal, LongLiteral) else literal.to(micros).value * 1000
    try:
        value = literal.to(type).value
    except (TypeError, ValueError):
        raise _not_comparable(literal, type) from None
    return value.bytes if isinstance(value, UUID) else value


def _floor_and_ceiling(literal: Literal[Any], type: IcebergType) -> tuple[Any, Any] | None:
    """The largest number of a type that is at most the literal, and the smallest that is at least the literal."""
    # Both are equal if the literal is a number of the type. A missing number is None. The result is None unless literal
    # and type are numeric.
    if not isinstance(literal, _NUMBERS):
        return None
    value = literal.value
    if _is_nan(value) and isinstance(type, IntegerType | LongType | DecimalType):
        raise ValueError(f"a column of type {sql_text(type)} cannot be compared with NaN")
    match type:
        case IntegerType() | LongType():
            most = 2 ** _BITS[type.__class__] - 1
            return _among(value, 0, -most - 1, most, int)
        case DecimalType():
            most = 10**type.precision - 1
            return _among(value, type.scale, -most, most, Decimal)
        case DoubleType():
            return (_as_double(value),) * 2
        case FloatType():
            return _among_floats(_as_double(value))
    return None


def _among(value: Any, scale: int, least: int, most: int, made: Callable[[Decimal], Any]) -> tuple[Any, Any]:
    """Floor and ceiling of `value` among the numbers n · 10^-scale with n from `least` to `most`."""
    if isinstance(value, float) and math.isinf(value):
        floor: Any = math.inf if value > 0 else -math.inf
        is_exact = False
    else:
        with localcontext() as context:
            context.prec = _MAX_DIGITS
            scaled = Decimal(value).scaleb(scale)
            floor = int(scaled.to_integral_value(rounding=ROUND_FLOOR))
            is_exact = floor == scaled

    def of(number: int) -> Any:
        with localcontext() as context:
            context.prec = _MAX_DIGITS
            return made(Decimal(number).scaleb(-scale))

    if floor > most:
        return of(most), None
    if floor < least:
        return None, of(least)
    if is_exact:
        return of(floor), of(floor)
    return of(floor), of(floor + 1) if floor < most else None


def _as_double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _among_floats(value: float) -> tuple[Any, Any]:
    if math.isinf(value) or math.isnan(value):
        return value, value
    if value > _LARGEST_FLOAT:
        return _LARGEST_FLOAT, math.inf
    if value < -_LARGEST_FLOAT:
        return -math.inf, -_LARGEST_FLOAT
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return rounded, rounded


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | Decimal) and math.isnan(value)
