"""Filters by columns of UUIDs, which Arrow compares neither with each other nor with what a file says of itself.

UUIDs are compared by their bytes. A Parquet file has bounds of them, too, and Arrow looks at the bounds of whatever
column a filter names before it reads a row, and fails. So rows of such a file are filtered when they have been read.

In manifests PyIceberg reads a partition's value as a `UUID`, and in filters as bytes, which equal none: a filter by the
column of an identity partition found no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, wraps
from typing import Any
from uuid import UUID

from pyiceberg.expressions import AlwaysTrue, BooleanExpression, BoundReference
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.types import UUIDType

_value_of = BoundReference.eval


def _as_in_filters(self: BoundReference, struct: Any) -> Any:
    value = _value_of(self, struct)
    return value.bytes if isinstance(value, UUID) else value


BoundReference.eval = _as_in_filters  # type: ignore[method-assign]


@cache
def compare_uuids_here() -> None:
    """Have PyIceberg compare UUIDs, wherever it reads, deletes or overwrites rows."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyiceberg.io.pyarrow as arrow

    size = pa.uuid().storage_type
    nothing_deleted = [pa.chunked_array([], pa.int64())]
    read = arrow._task_to_record_batches

    class ByBytes(arrow._ConvertToArrowExpression):
        """PyIceberg's translation of a filter, with UUIDs as their bytes."""

        def visit_in(self, term: Any, literals: set[Any]) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_in(term, literals)
            return self._column(term).isin(pa.array(map(_bytes, literals), size))

        def visit_not_in(self, term: Any, literals: set[Any]) -> pc.Expression:
            return ~self.visit_in(term, literals) if _is_uuid(term) else super().visit_not_in(term, literals)

        def visit_equal(self, term: Any, literal: Any) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_equal(term, literal)
            return self._column(term) == self._value(literal)

        def visit_not_equal(self, term: Any, literal: Any) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_not_equal(term, literal)
            return self._column(term) != self._value(literal)

        def visit_greater_than_or_equal(self, term: Any, literal: Any) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_greater_than_or_equal(term, literal)
            return self._column(term) >= self._value(literal)

        def visit_greater_than(self, term: Any, literal: Any) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_greater_than(term, literal)
            return self._column(term) > self._value(literal)

        def visit_less_than(self, term: Any, literal: Any) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_less_than(term, literal)
            return self._column(term) < self._value(literal)

        def visit_less_than_or_equal(self, term: Any, literal: Any) -> pc.Expression:
            if not _is_uuid(term):
                return super().visit_less_than_or_equal(term, literal)
            return self._column(term) <= self._value(literal)

        def _column(self, term: Any) -> pc.Expression:
            return pc.field(self._get_field_name(term)).cast(size)

        def _value(self, literal: Any) -> pa.Scalar:
            return pa.scalar(_bytes(literal.value), size)

    @wraps(read)
    def batches(
        io: Any,
        task: Any,
        bound_row_filter: BooleanExpression,
        projected_schema: Any,
        table_schema: Any,
        projected_field_ids: set[int],
        positional_deletes: list[pa.ChunkedArray] | None,
        *rest: Any,
        **more: Any,
    ) -> Iterator[pa.RecordBatch]:
        if not positional_deletes and _names_uuid(bound_row_filter, table_schema):
            positional_deletes = nothing_deleted  # then it filters what it has read
        return read(
            io,
            task,
            bound_row_filter,
            projected_schema,
            table_schema,
            projected_field_ids,
            positional_deletes,
            *rest,
            **more,
        )

    arrow._ConvertToArrowExpression = ByBytes  # type: ignore[misc]
    arrow._task_to_record_batches = batches


def _is_uuid(term: Any) -> bool:
    return isinstance(term.ref().field.field_type, UUIDType)


def _names_uuid(filter: BooleanExpression, schema: Any) -> bool:
    if filter == AlwaysTrue():
        return False
    return any(isinstance(schema.find_type(id), UUIDType) for id in extract_field_ids(filter))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(value.bytes)
