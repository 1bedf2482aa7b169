"""Filters row by row: what Arrow is told, where it would not answer as `sql_comparisons.py` says.

It compares UUIDs neither with each other nor with what a file says of itself. They are compared by their bytes. A
Parquet file has bounds of them, too, and Arrow looks at the bounds of whatever column a filter names before it reads a
row, and fails. So rows of such a file are filtered when they have been read.

Of a group of rows whose bounds are equal Arrow takes every row to have that value, but NaN is not in the bounds. So are
filtered, too, the rows of files that may hold NaN, if the filter looks for it. In a list it finds -0.0 and 0.0 apart.

A delete keeps the rows that its filter does not match. PyIceberg adds to these the rows without a value, or with NaN,
in any column that the filter names, also where the filter matches them for another reason.

In manifests PyIceberg reads a partition's value as a `UUID`, and in filters as bytes, which equal none: a filter by the
column of an identity partition found no file. What is left of a filter in a partition without a value could not be
told, since nothing compares with None. Whether all rows of a file match a filter could not be told of a part of a
structure, so that none was deleted by it. A filter by a list or a map, which can be null, could not be told, since
PyIceberg asks for such a column by its parts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundIsNaN,
    BoundReference,
    Not,
    Or,
)
from pyiceberg.expressions.visitors import ResidualVisitor, _StrictMetricsEvaluationVisitor, extract_field_ids
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, ListType, MapType, NestedField, UUIDType

from trinitylake.iceberg_storage.extended_pyiceberg.null_values import keep_nulls_here

_value_of = BoundReference.eval


def _as_in_filters(self: BoundReference, struct: Any) -> Any:
    value = _value_of(self, struct)
    return value.bytes if isinstance(value, UUID) else value


BoundReference.eval = _as_in_filters  # type: ignore[method-assign]


def _of_values(compared: Callable[..., BooleanExpression]) -> Callable[..., BooleanExpression]:
    @wraps(compared)
    def visit(self: ResidualVisitor, term: Any, literal: Any) -> BooleanExpression:
        return AlwaysFalse() if term.eval(self.struct) is None else compared(self, term, literal)

    return visit


for _name in ("visit_less_than", "visit_less_than_or_equal", "visit_greater_than", "visit_greater_than_or_equal"):
    setattr(ResidualVisitor, _name, _of_values(getattr(ResidualVisitor, _name)))


def _field_of(self: _StrictMetricsEvaluationVisitor, field_id: int) -> NestedField:
    return self.struct.field(field_id) or Schema(*self.struct.fields).find_field(field_id)


_StrictMetricsEvaluationVisitor._get_field = _field_of  # type: ignore[method-assign]


@cache
def compare_as_sql_here() -> None:
    """Have PyIceberg filter rows so wherever it reads, deletes or overwrites them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyiceberg.io.pyarrow as arrow

    keep_nulls_here()
    size = pa.uuid().storage_type
    nothing_deleted = [pa.chunked_array([], pa.int64())]
    read = arrow._task_to_record_batches

    class Translated(arrow._ConvertToArrowExpression):
        """PyIceberg's translation of a filter, with UUIDs as their bytes, and zeros that equal each other in lists."""

        def visit_in(self, term: Any, literals: set[Any]) -> pc.Expression:
            if not _is_uuid(term):
                # A set has one of the zeros, which equal each other.
                is_zero = isinstance(term.ref().field.field_type, FloatType | DoubleType) and 0.0 in literals
                values: Any = [*literals, -0.0, 0.0] if is_zero else literals
                return super().visit_in(term, values)
            return self._column(term).isin(pa.array(map(_bytes, literals), size))

        def visit_not_in(self, term: Any, literals: set[Any]) -> pc.Expression:
            return ~self.visit_in(term, literals)

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
        if not positional_deletes and (
            _names_uuid(bound_row_filter, table_schema) or _looks_for_nan(bound_row_filter, task.file)
        ):
            positional_deletes = nothing_deleted  # then it filters what it has read
        return read(
            io,
            task,
            bound_row_filter,
            projected_schema,
            table_schema,
            projected_field_ids if bound_row_filter == AlwaysTrue() else _with_parts(projected_field_ids, table_schema),
            positional_deletes,
            *rest,
            **more,
        )

    def remaining(expr: BooleanExpression, schema: Schema | None = None) -> pc.Expression:
        return ~pc.coalesce(arrow.expression_to_pyarrow(expr, schema), pc.scalar(False))

    arrow._ConvertToArrowExpression = Translated  # type: ignore[misc]
    arrow._task_to_record_batches = batches
    arrow._expression_to_complementary_pyarrow = remaining


def _with_parts(ids: Iterable[int], schema: Schema) -> set[int]:
    """The ids of some columns, with those of the parts of lists and maps in their place."""
    found: set[int] = set()
    known = schema.field_ids  # a column that is read may be one of an older schema, and no list
    for id in ids:
        match schema.find_type(id) if id in known else None:
            case ListType(element_id=element):
                found |= _with_parts([element], schema)
            case MapType(key_id=key, value_id=value):
                found |= _with_parts([key, value], schema)
            case _:
                found.add(id)
    return found


def _is_uuid(term: Any) -> bool:
    return isinstance(term.ref().field.field_type, UUIDType)


def _names_uuid(filter: BooleanExpression, schema: Any) -> bool:
    if filter == AlwaysTrue():
        return False
    return any(isinstance(schema.find_type(id), UUIDType) for id in extract_field_ids(filter))


def _looks_for_nan(filter: BooleanExpression, file: DataFile) -> bool:
    """Whether a filter asks for NaN in a column of a file that may have it."""
    counts, rest = file.nan_value_counts or {}, [filter]
    while rest:
        match rest.pop():
            case And(left=left, right=right) | Or(left=left, right=right):
                rest += left, right
            case Not(child=child):
                rest.append(child)
            case BoundIsNaN(term=term) if counts.get(term.ref().field.field_id) != 0:
                return True
    return False


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes(value.bytes)
