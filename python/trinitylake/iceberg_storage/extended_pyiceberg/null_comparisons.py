"""**The rule for absent values in filters**: as in SQL, no comparison with one is true, nor is its opposite.

PyIceberg decides that in several places, each its own way. By the counts of a file, all rows without a value match
`a != 1` and `a not in (1)`, so a file that has no others is deleted as a whole; by the rows themselves, which Arrow
compares, they do not match the first of these, and match the second. So what a filter means is said in the filter.
"""

from __future__ import annotations

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
)
from pyiceberg.expressions.visitors import rewrite_not


def as_sql_compares(filter: BooleanExpression) -> BooleanExpression:
    """A filter of the same rows for all who evaluate it: those without a value match no comparison with it."""
    return _guarded(rewrite_not(filter))


def _guarded(filter: BooleanExpression) -> BooleanExpression:
    if isinstance(filter, And):
        return And(_guarded(filter.left), _guarded(filter.right))
    if isinstance(filter, Or):
        return Or(_guarded(filter.left), _guarded(filter.right))
    if isinstance(filter, NotEqualTo | NotIn | NotStartsWith | NotNaN):
        return And(NotNull(term=filter.term), filter)
    return filter
