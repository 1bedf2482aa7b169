"""Iceberg's types as Spark's, and Arrow batches as Spark's JVM takes them."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema, SchemaVisitorPerPrimitiveType, visit
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from trinitylake.errors import InvalidArgument


def spark_schema(schema: Schema) -> spark.StructType:
    """An Iceberg schema as Spark's, with nullability. Raises `InvalidArgument` for a type that Spark has not."""
    result = visit(schema, _ToSpark())
    assert isinstance(result, spark.StructType)
    return result


def to_spark_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The columns of `target` in its order and types. `target` is `arrow_schema_of` what Spark expects."""
    selected = batch.select(target.names)
    if selected.schema.types == target.types:
        return pa.RecordBatch.from_arrays(selected.columns, schema=target)
    columns = [_cast(column, field) for column, field in zip(selected.columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def arrow_schema_of(schema: spark.StructType) -> pa.Schema:
    """The Arrow types that Spark's JVM reads as the types of `schema`."""
    arrow: pa.Schema = to_arrow_schema(schema)
    return arrow


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):  # UUIDs, which Spark shows as text
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], field.type)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise InvalidArgument(f"column {field.name}: cannot read {column.type} as {field.type}: {error}") from error


class _ToSpark(SchemaVisitorPerPrimitiveType[spark.DataType]):
    def schema(self, schema: Schema, struct_result: spark.DataType) -> spark.DataType:
        return struct_result

    def struct(self, struct: StructType, field_results: list[spark.DataType]) -> spark.DataType:
        return spark.StructType(
            [
                spark.StructField(field.name, result, not field.required, {"comment": field.doc} if field.doc else None)
                for field, result in zip(struct.fields, field_results, strict=True)
            ]
        )

    def field(self, field: NestedField, field_result: spark.DataType) -> spark.DataType:
        return field_result

    def list(self, list_type: ListType, element_result: spark.DataType) -> spark.DataType:
        return spark.ArrayType(element_result, not list_type.element_required)

    def map(self, map_type: MapType, key_result: spark.DataType, value_result: spark.DataType) -> spark.DataType:
        return spark.MapType(key_result, value_result, not map_type.value_required)

    def visit_fixed(self, fixed_type: FixedType) -> spark.DataType:
        return spark.BinaryType()

    def visit_decimal(self, decimal_type: DecimalType) -> spark.DataType:
        return spark.DecimalType(decimal_type.precision, decimal_type.scale)

    def visit_boolean(self, boolean_type: BooleanType) -> spark.DataType:
        return spark.BooleanType()

    def visit_integer(self, integer_type: IntegerType) -> spark.DataType:
        return spark.IntegerType()

    def visit_long(self, long_type: LongType) -> spark.DataType:
        return spark.LongType()

    def visit_float(self, float_type: FloatType) -> spark.DataType:
        return spark.FloatType()

    def visit_double(self, double_type: DoubleType) -> spark.DataType:
        return spark.DoubleType()

    def visit_date(self, date_type: DateType) -> spark.DataType:
        return spark.DateType()

    def visit_time(self, time_type: TimeType) -> spark.DataType:
        raise InvalidArgument("Spark has no type for a column of type time: leave it out with .schema(...)")

    def visit_timestamp(self, timestamp_type: TimestampType) -> spark.DataType:
        return spark.TimestampNTZType()

    def visit_timestamptz(self, timestamptz_type: TimestamptzType) -> spark.DataType:
        return spark.TimestampType()

    def visit_timestamp_ns(self, timestamp_ns_type: TimestampNanoType) -> spark.DataType:
        return spark.TimestampNTZType()

    def visit_timestamptz_ns(self, timestamptz_ns_type: TimestamptzNanoType) -> spark.DataType:
        return spark.TimestampType()

    def visit_string(self, string_type: StringType) -> spark.DataType:
        return spark.StringType()

    def visit_uuid(self, uuid_type: UUIDType) -> spark.DataType:
        return spark.StringType()

    def visit_binary(self, binary_type: BinaryType) -> spark.DataType:
        return spark.BinaryType()

    def visit_unknown(self, unknown_type: UnknownType) -> spark.DataType:
        return spark.NullType()
