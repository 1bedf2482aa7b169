"""Lists and maps of structures that are null stay null: PyIceberg reads and writes them as empty ones.

It makes such a list anew of the places where its elements begin and end, which do not tell whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any


@cache
def keep_null_lists_here() -> None:
    """Have PyIceberg keep them wherever it reads or writes rows."""
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    for name in ("list", "map"):
        setattr(ArrowProjectionVisitor, name, _with_nulls(getattr(ArrowProjectionVisitor, name)))


def _with_nulls(made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def visit(self: Any, kind: Any, given: Any, *parts: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        result = made(self, kind, given, *parts)
        if result is None or result.null_count == given.null_count:
            return result
        is_null = pa.concat_arrays([given.is_null(), pa.array([False])])
        offsets = pc.if_else(is_null, pa.scalar(None, result.offsets.type), result.offsets)
        if isinstance(result, pa.MapArray):
            return pa.MapArray.from_arrays(offsets, result.keys, result.items, result.type)
        return type(result).from_arrays(offsets, result.values, type=result.type)

    return visit
