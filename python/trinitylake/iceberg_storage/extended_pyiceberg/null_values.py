"""What is null stays null where PyIceberg brings rows from one schema to another, whenever it reads or writes.

It makes a list or a map of structures anew of the places where its elements begin and end, which do not tell whether
there is one: null became empty. Of a structure that a file does not have it makes the parts null, too, which they may
not be where they are required: such rows could be read and not written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from trinitylake.iceberg_storage.arrow_rows import nulls, requires_parts


@cache
def keep_nulls_here() -> None:
    """Have PyIceberg keep them."""
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor as Visitor

    Visitor.list = _with_null_lists(Visitor.list)  # type: ignore[method-assign]
    Visitor.map = _with_null_lists(Visitor.map)  # type: ignore[method-assign]
    Visitor.struct = _with_null_structures(Visitor.struct)  # type: ignore[method-assign]


def _with_null_lists(made: Callable[..., Any]) -> Callable[..., Any]:
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


def _with_null_structures(made: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(made)
    def visit(self: Any, kind: Any, given: Any, found: list[Any]) -> Any:
        import pyarrow as pa

        result = made(self, kind, given, found)
        if result is None:
            return None
        fields = list(result.type)
        missing = {
            number
            for number, part in enumerate(found)
            if part is None and requires_parts(fields[number].type) and result.field(number).null_count
        }
        if not missing:
            return result
        parts = [
            nulls(len(result), field.type) if number in missing else result.field(number)
            for number, field in enumerate(fields)
        ]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=result.is_null() if result.null_count else None)

    return visit
