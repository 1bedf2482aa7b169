"""**The rule for comparisons in filters**: those of SQL, as DuckDB and Spark have them.

- No comparison with an absent value is true, nor is its opposite.
- NaN equals itself and is larger than all other numbers; so what is not less than 2 is at least 2, or NaN.
- -0.0 equals 0.0.
- A number is compared as it is, also where the column could not have it.

PyIceberg decides that in several places, each its own way. By the counts of a file, all rows without a value match
`a != 1` and `a not in (1)`, so a file that has no others is deleted as a whole; by the rows themselves, which Arrow
compares, they do not match the first of these, and match the second. Bounds leave NaN out, of files and of groups of
rows alike, and few files say how many of their values are NaN. So what a filter means is said in the filter, by
predicates that all of these places understand alike. (`row_filters.py` has what Arrow is told besides.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import Literal, LongLiteral
from pyiceberg.expressions.visitors import rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType

from trinitylake.iceberg_storage.extended_pyiceberg.column_values import Beside, beside

_FLOATING = (FloatType, DoubleType)
_OPPOSITES = (NotEqualTo, NotIn, NotStartsWith, NotNaN)
_MET_BY_NAN = (NotEqualTo, NotIn, GreaterThan, GreaterThanOrEqual)
_MISSED_BY_NAN = (EqualTo, In, LessThan, LessThanOrEqual)


@dataclass(frozen=True)
class _Told:
    """What the filter around a predicate says of the rows that it is asked about, by the ids of columns."""

    not_null: frozenset[int] = frozenset()
    said_not_nan: frozenset[int] = frozenset()
    not_nan: frozenset[int] = frozenset()
    nan_beside: frozenset[int] = frozenset()  # rows of NaN match anyway


def as_sql_compares(
    filter: BooleanExpression, schema: Schema, case_sensitive: bool = True, *, proves: bool = False
) -> BooleanExpression:
    """A filter of the same rows for all who evaluate it, by bounds, by partitions and row by row.

    Args:
        filter: over the columns of `schema`; what does not fit them stays as it is, for who binds the filter to refuse.
        schema: of the table.
        case_sensitive: how the filter names columns.
        proves: whether bounds that leave room for no other rows are to prove that all rows match, as where files are
            deleted as a whole. They say nothing of absent values and NaN where these were not counted, so each
            comparison says itself that it leaves them out.

    What this returns it returns as it is when it is given it again.
    """
    return _Compared(schema, case_sensitive, proves).of(rewrite_not(filter), _Told())


class _Compared:
    def __init__(self, schema: Schema, case_sensitive: bool, proves: bool) -> None:
        self._schema = schema
        self._case_sensitive = case_sensitive
        self._proves = proves

    def of(self, filter: BooleanExpression, told: _Told, kind: type | None = None) -> BooleanExpression:
        if isinstance(filter, And):
            inside = told if kind is And else self._of_all(filter, told)
            return And(self.of(filter.left, inside, And), self.of(filter.right, inside, And))
        if isinstance(filter, Or):
            inside = told if kind is Or else self._of_any(filter, told)
            return Or(self.of(filter.left, inside, Or), self.of(filter.right, inside, Or))
        if isinstance(filter, UnboundPredicate):
            return self._predicate(filter, told)
        return filter

    def _of_all(self, filter: And, told: _Told) -> _Told:
        """What holds of the rows that the parts of a conjunction matter for."""
        not_null, said_not_nan, not_nan = set(told.not_null), set(told.said_not_nan), set(told.not_nan)
        for part in _parts(filter, And):
            if (id := self._id(part)) is None:
                continue
            if isinstance(part, NotNull):
                not_null.add(id)
            if isinstance(part, NotNaN):
                said_not_nan.add(id)
            if isinstance(part, NotNaN | IsNull | EqualTo | In | LessThan | LessThanOrEqual):
                not_nan.add(id)
        return _Told(frozenset(not_null), frozenset(said_not_nan), frozenset(not_nan), told.nan_beside)

    def _of_any(self, filter: Or, told: _Told) -> _Told:
        beside = {id for part in _parts(filter, Or) if isinstance(part, IsNaN) and (id := self._id(part)) is not None}
        return replace(told, nan_beside=told.nan_beside | beside)

    def _id(self, part: BooleanExpression) -> int | None:
        field = self._field(part) if isinstance(part, UnboundPredicate) else None
        return None if field is None else int(field.field_id)

    def _field(self, predicate: UnboundPredicate) -> Any:
        try:
            return predicate.term.bind(self._schema, self._case_sensitive).ref().field
        except ValueError:  # a column that is not there
            return None

    def _predicate(self, predicate: UnboundPredicate, told: _Told) -> BooleanExpression:
        field = self._field(predicate)
        if field is None or not field.field_type.is_primitive:
            return predicate
        term: Any = predicate.term
        made: BooleanExpression = predicate
        if isinstance(predicate, LiteralPredicate):
            if (place := beside(predicate.literal, field.field_type)) is not None:
                made = _placed(predicate, term, place)
        elif isinstance(predicate, SetPredicate):
            made = _of_column(predicate, term, field.field_type)
        id, is_floating = field.field_id, isinstance(field.field_type, _FLOATING)
        is_negative = isinstance(predicate, _OPPOSITES)
        is_comparison = isinstance(predicate, LiteralPredicate | SetPredicate | NotNaN)
        if is_floating and isinstance(predicate, _MET_BY_NAN) and id not in told.not_nan | told.nan_beside:
            made = Or(made, IsNaN(term=term))
        if is_floating and self._proves and isinstance(predicate, _MISSED_BY_NAN) and id not in told.said_not_nan:
            made = And(NotNaN(term=term), made)
        if (is_negative or (self._proves and is_comparison)) and id not in told.not_null:
            made = And(NotNull(term=term), made)
        return made


def _parts(filter: BooleanExpression, kind: type) -> Iterator[BooleanExpression]:
    rest = [filter]
    while rest:
        part = rest.pop()
        if isinstance(part, And | Or) and isinstance(part, kind):
            rest += part.right, part.left
        else:
            yield part


def _placed(predicate: LiteralPredicate, term: Any, place: Beside) -> BooleanExpression:
    """A comparison with a number as one with a value of the column, of which NaN is not one."""
    floor, ceiling = place.floor, place.ceiling
    if place.is_exact:
        assert floor is not None
        if _written(floor) == _written(predicate.literal):
            return predicate
        return _with(type(predicate), term, floor)
    match predicate:
        case LessThan() | LessThanOrEqual():
            return AlwaysFalse() if floor is None else _with(LessThanOrEqual, term, floor)
        case GreaterThan() | GreaterThanOrEqual():
            return AlwaysFalse() if ceiling is None else _with(GreaterThanOrEqual, term, ceiling)
        case EqualTo():
            return AlwaysFalse()
        case NotEqualTo():
            return NotNull(term=term)
    return predicate


def _of_column(predicate: SetPredicate, term: Any, type_: Any) -> BooleanExpression:
    """Whether a value is in a list, without the numbers that the column cannot have."""
    literals: set[Literal[Any]] = predicate.literals
    if isinstance(type_, IntegerType | LongType) and all(
        type(one) is LongLiteral and type_.min <= one.value <= type_.max for one in literals
    ):
        return predicate
    places = [beside(one, type_) for one in literals]
    if any(place is None for place in places):
        return predicate
    kept: set[Any] = {place.floor for place in places if place is not None and place.is_exact}
    if set(map(_written, kept)) == set(map(_written, literals)):
        return predicate
    if isinstance(predicate, NotIn):
        return NotIn(term=term, values=kept) if kept else NotNull(term=term)
    return In(term=term, values=kept) if kept else AlwaysFalse()


def _written(literal: Literal[Any]) -> tuple[type, str]:
    """How a number is written: 1.2 is no value of a column with two decimals for PyIceberg, 1.20 is."""
    return type(literal), str(literal.value)


def _with(kind: Any, term: Any, literal: Literal[Any]) -> BooleanExpression:
    made: BooleanExpression = kind(term=term, literal=literal)
    return made
