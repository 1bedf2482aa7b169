"""Converts Spark's filters to Iceberg expressions.

A filter is converted only if Iceberg evaluates it exactly as Spark, also for nulls. Spark evaluates all other filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyiceberg.exceptions import ValidationError
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
    Not,
    NotEqualTo,
    NotNull,
    Or,
    Reference,
    SetPredicate,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import datasource as spark

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.row_lineage import LINEAGE
from trinitylake.iceberg_storage.filter_text import parse_filter
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE

ALL_ROWS: BooleanExpression = AlwaysTrue()

_COMPARISONS: dict[type[spark.Filter], type[BooleanExpression]] = {
    spark.EqualTo: EqualTo,
    spark.GreaterThan: GreaterThan,
    spark.GreaterThanOrEqual: GreaterThanOrEqual,
    spark.LessThan: LessThan,
    spark.LessThanOrEqual: LessThanOrEqual,
}
#: Iceberg types whose order and equality are the same as in Spark, with the Python types of values in Spark's filters.
#: Floating point types are missing, because in Spark NaN equals NaN.
_COMPARABLE: dict[type[IcebergType], type] = {
    BooleanType: bool,
    IntegerType: int,
    LongType: int,
    DecimalType: Decimal,
    StringType: str,
    DateType: date,
    TimestampType: datetime,
    TimestamptzType: datetime,
}


def column_named(name: str, schema: Schema) -> NestedField:
    """The column with this name, or else the column whose name differs only in case.

    Spark ignores case unless `spark.sql.caseSensitive` is set, which its Python workers cannot see. Raises
    `InvalidArgument` if there is no such column.
    """
    for case_sensitive in (True, False):
        with suppress(ValueError):
            return schema.find_field(name, case_sensitive)
    names = ", ".join(field.name for field in schema.fields)
    raise InvalidArgument(f"the table has no column {name!r}; it has {names}")


def readable_schema(metadata: TableMetadata) -> Schema:
    """The columns of a table, and the row lineage columns of format version 3."""
    schema = metadata.schema()
    lineage = LINEAGE if metadata.format_version >= ROW_IDS_SINCE else ()
    return Schema(*schema.fields, *(field for field in lineage if field.name not in schema.column_names))


def option_filter(text: str | None, schema: Schema) -> BooleanExpression:
    """The option `filter` as an expression. Raises `InvalidArgument` for an invalid filter or an unknown column."""
    return ALL_ROWS if text is None else _with_columns_of(schema, parse_filter(text))


def _with_columns_of(schema: Schema, filter: BooleanExpression) -> BooleanExpression:
    match filter:
        case And() | Or():
            return type(filter)(_with_columns_of(schema, filter.left), _with_columns_of(schema, filter.right))
        case Not():
            return Not(_with_columns_of(schema, filter.child))
        case UnboundPredicate(term=Reference() as column):
            known = schema.find_column_name(column_named(column.name, schema).field_id)
            renamed = Reference(known or column.name)
            if isinstance(filter, SetPredicate):  # pydantic cannot copy this class
                return type(filter)(renamed, filter.literals)
            return filter.model_copy(update={"term": renamed})
    return filter


def push(filters: Iterable[spark.Filter], schema: Schema) -> tuple[BooleanExpression, list[spark.Filter]]:
    """The filters that can be converted, as one expression, and the other filters, which Spark evaluates."""
    pushed = ALL_ROWS
    kept = []
    for filter in filters:
        # The value may not fit the column's type, or the table may not have the column.
        with suppress(ValueError, TypeError, ValidationError):
            if (expression := _translate(filter, schema)) is not None:
                RowFilter.of(expression, schema)
                pushed = And(pushed, expression)
                continue
        kept.append(filter)
    return pushed, kept


def _translate(filter: spark.Filter, schema: Schema) -> BooleanExpression | None:
    if isinstance(filter, spark.Not):
        return _negated(filter.child, schema)
    attribute: tuple[str, ...] = getattr(filter, "attribute", ())
    if len(attribute) != 1:
        return None
    field = column_named(attribute[0], schema)
    if not field.field_type.is_primitive:
        return None
    name = field.name
    if isinstance(filter, spark.IsNull):
        return _on(IsNull, name)
    if isinstance(filter, spark.IsNotNull):
        return _on(NotNull, name)
    if isinstance(filter, spark.In):
        # With a null in the list, Spark's result is null instead of false if no value matches, which selects no row.
        values = [value for value in filter.value if value is not None]
        fit = all(_fits(value, field.field_type) for value in values)
        return _on(In, name, values) if fit and type(field.field_type) in _COMPARABLE else None
    value = getattr(filter, "value", None)
    if isinstance(filter, spark.EqualNullSafe) and value is None:
        return _on(IsNull, name)
    if not _fits(value, field.field_type):
        return None
    if isinstance(filter, spark.StringStartsWith):
        return _on(StartsWith, name, value)
    if isinstance(filter, spark.EqualNullSafe):
        return _on(EqualTo, name, value)
    comparison = _COMPARISONS.get(type(filter))
    return None if comparison is None else _on(comparison, name, value)


def _fits(value: Any, kind: IcebergType) -> bool:
    """Whether a value has the column's type. Iceberg would truncate other values, such as 3.5 to 3."""
    if type(value) is not _COMPARABLE.get(type(kind)):
        return False
    if isinstance(value, Decimal) and isinstance(kind, DecimalType):
        exponent = value.as_tuple().exponent
        return isinstance(exponent, int) and -exponent <= kind.scale
    if isinstance(value, datetime):
        return (value.tzinfo is not None) == isinstance(kind, TimestamptzType)
    return True


def _on(predicate: Callable[..., BooleanExpression], *arguments: Any) -> BooleanExpression:
    """A predicate on a column by name, which the signatures that pydantic generates do not show."""
    return predicate(*arguments)


def _negated(filter: spark.Filter, schema: Schema) -> BooleanExpression | None:
    """The expression for NOT of a filter. In Spark's SQL, `NOT (a = 1)` selects no null, because `null = 1` is null."""
    if not isinstance(filter, spark.IsNull | spark.IsNotNull | spark.EqualTo):
        return None
    positive = _translate(filter, schema)
    if positive is None or not isinstance(filter, spark.EqualTo):
        return None if positive is None else ~positive
    name = column_named(filter.attribute[0], schema).name
    return And(_on(NotNull, name), _on(NotEqualTo, name, filter.value))
