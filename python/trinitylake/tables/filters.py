"""Filters as callers give them: text or expressions of PyIceberg."""

from __future__ import annotations

from pyiceberg.expressions import BooleanExpression

from trinitylake.base.arguments import text
from trinitylake.iceberg_storage.filter_text import parsed_filter


def parse_filter(expression: str | BooleanExpression) -> BooleanExpression:
    """A filter such as `"month = 1 and carrier in ('AA', 'UA')"`.

    Raises `InvalidArgument` that shows the place if it cannot be read.
    """
    if isinstance(expression, BooleanExpression):
        return expression
    return parsed_filter(text(expression, "filter"))
