"""Iceberg types with boundary values, partition transforms, and the types to which Iceberg widens them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg import types
from pyiceberg.expressions import literals

NAN, INF = float("nan"), float("inf")
_DAY = 86_400_000_000
#: Microseconds of 0001-01-01, of 9999-12-31, of a day in year 12000, and of a day 1200 years before year 1.
_MOMENTS = [
    -62_135_596_800_000_000,
    253_402_300_799_999_999,
    316_516_204_800_000_000,
    -100_000_000_000_000_000,
    -1,
    0,
    1_582_934_400_123_456,
]
_NANOSECONDS = [-9_000_000_000_000_000_001, 9_000_000_000_000_000_001, 0, -1, 1_582_934_400_123_456_789]


@dataclass(frozen=True)
class Kind:
    """Column type.

    Attributes:
        iceberg, arrow, duckdb: the type in these systems.
        values: boundary values, as accepted by Arrow.
        transforms: partition expressions of `create_table` for the column `v`.
        wider: name of the kind to which Iceberg widens the type.
        format_version: first format version with the type.
        is_in_sql: whether DuckDB has the type.
    """

    iceberg: types.IcebergType
    arrow: pa.DataType
    duckdb: str
    values: Sequence[Any]
    transforms: tuple[str, ...]
    wider: str = ""
    format_version: int = 1
    is_in_sql: bool = True

    @property
    def is_nested(self) -> bool:
        """Whether the type is nested, so that filters and keys cannot use the column."""
        return not isinstance(self.iceberg, types.PrimitiveType)

    @property
    def compared(self) -> list[Any]:
        """Values for comparisons in filters. PyIceberg has no literal for NaN."""
        return [] if self.is_nested else [value for value in self.values if value == value]

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Values and nulls as an Arrow array."""
        if pa.types.is_temporal(self.arrow):
            width = pa.int32() if self.arrow.bit_width == 32 else pa.int64()
            return pa.array(values, width).cast(self.arrow)
        if isinstance(self.arrow, pa.UuidType):
            stored = [None if value is None else value.bytes for value in values]
            return pa.ExtensionArray.from_storage(self.arrow, pa.array(stored, pa.binary(16)))
        return pa.array(values, self.arrow)

    def literal(self, value: Any) -> literals.Literal[Any]:
        """A value as a literal for Iceberg's filters."""
        made: type[Any] = _LITERALS[type(self.iceberg)]
        literal: literals.Literal[Any] = made(value.bytes if isinstance(value, uuid.UUID) else value)
        return literal


_LITERALS: dict[type[types.IcebergType], type[Any]] = {
    types.BooleanType: literals.BooleanLiteral,
    types.IntegerType: literals.LongLiteral,
    types.LongType: literals.LongLiteral,
    types.FloatType: literals.DoubleLiteral,
    types.DoubleType: literals.DoubleLiteral,
    types.DecimalType: literals.DecimalLiteral,
    types.DateType: literals.DateLiteral,
    types.TimeType: literals.TimeLiteral,
    types.TimestampType: literals.TimestampLiteral,
    types.TimestamptzType: literals.TimestampLiteral,
    types.TimestampNanoType: literals.LongLiteral,
    types.TimestamptzNanoType: literals.LongLiteral,
    types.StringType: literals.StringLiteral,
    types.BinaryType: literals.BinaryLiteral,
    types.FixedType: literals.BinaryLiteral,
    types.UUIDType: literals.UUIDLiteral,
}
_OF_DAYS = ("v", "year(v)", "month(v)", "day(v)", "bucket(3, v)")
_OF_MOMENTS = (*_OF_DAYS, "hour(v)")
_TEXTS = ["", "a", "é", "\ud7ff" * 20, "x" * 300, "a_b%", "\U0010ffff" * 20]
_FLOATS = [NAN, -0.0, 0.0, -INF, INF, 0.10000000149011612, 3.4028234663852886e38, -3.4028234663852886e38]

KINDS = {
    "boolean": Kind(types.BooleanType(), pa.bool_(), "BOOLEAN", [True, False], ("v",)),
    "int": Kind(
        types.IntegerType(),
        pa.int32(),
        "INTEGER",
        [-(2**31), 2**31 - 1, 0, -1, 7],
        ("v", "bucket(3, v)", "truncate(10, v)"),
        "long",
    ),
    "long": Kind(
        types.LongType(),
        pa.int64(),
        "BIGINT",
        [-(2**63), 2**63 - 1, 0, -1, 2**31],
        ("v", "bucket(3, v)", "truncate(10, v)"),
    ),
    "float": Kind(types.FloatType(), pa.float32(), "FLOAT", _FLOATS, ("v",), "double"),
    "double": Kind(types.DoubleType(), pa.float64(), "DOUBLE", [*_FLOATS, 0.1, 1e300, 5e-324], ("v",)),
    "decimal": Kind(
        types.DecimalType(9, 2),
        pa.decimal128(9, 2),
        "DECIMAL(9, 2)",
        [Decimal("-9999999.99"), Decimal("9999999.99"), Decimal("0.00"), Decimal("-0.01"), Decimal("1.10")],
        ("v", "bucket(3, v)", "truncate(50, v)"),
        "decimal38",
    ),
    "decimal38": Kind(
        types.DecimalType(38, 2),
        pa.decimal128(38, 2),
        "DECIMAL(38, 2)",
        [Decimal("-" + "9" * 36 + ".99"), Decimal("9" * 36 + ".99"), Decimal("0.00"), Decimal("1.10")],
        ("v", "bucket(3, v)", "truncate(50, v)"),
    ),
    "date": Kind(types.DateType(), pa.date32(), "DATE", [-719_162, 2_932_896, 3_663_382, -1_157_408, 0, -1], _OF_DAYS),
    "time": Kind(types.TimeType(), pa.time64("us"), "TIME", [0, _DAY - 1, 3_723_000_004], ("v", "bucket(3, v)")),
    "timestamp": Kind(types.TimestampType(), pa.timestamp("us"), "TIMESTAMP", _MOMENTS, _OF_MOMENTS),
    "timestamptz": Kind(types.TimestamptzType(), pa.timestamp("us", "UTC"), "TIMESTAMPTZ", _MOMENTS, _OF_MOMENTS),
    "timestamp_ns": Kind(
        types.TimestampNanoType(), pa.timestamp("ns"), "TIMESTAMP_NS", _NANOSECONDS, _OF_MOMENTS, format_version=3
    ),
    "timestamptz_ns": Kind(
        types.TimestamptzNanoType(),
        pa.timestamp("ns", "UTC"),
        "TIMESTAMP_NS",
        _NANOSECONDS,
        _OF_MOMENTS,
        format_version=3,
        is_in_sql=False,
    ),
    "struct": Kind(
        types.StructType(
            types.NestedField(101, "a", types.DoubleType()), types.NestedField(102, "b c", types.StringType())
        ),
        pa.struct([("a", pa.float64()), ("b c", pa.large_string())]),
        'STRUCT(a DOUBLE, "b c" VARCHAR)',
        [
            {"a": number, "b c": text}
            for number, text in zip([NAN, -0.0, INF, None], ["", "é", None, "x" * 300], strict=True)
        ],
        (),
    ),
    "list": Kind(
        types.ListType(103, types.DoubleType(), element_required=False),
        pa.large_list(pa.float64()),
        "DOUBLE[]",
        [[], [None], [NAN, -0.0, 0.1], [1e300] * 50],
        (),
    ),
    "map": Kind(
        types.MapType(104, types.StringType(), 105, types.LongType(), value_required=False),
        pa.map_(pa.large_string(), pa.int64()),
        "MAP(VARCHAR, BIGINT)",
        [[], [("", None)], [("é", -(2**63)), ("x" * 300, 2**63 - 1)]],
        (),
    ),
    "nested": Kind(
        types.ListType(
            106,
            types.StructType(
                types.NestedField(107, "d", types.DecimalType(38, 10)),
                types.NestedField(
                    108,
                    "m",
                    types.MapType(109, types.DateType(), 110, types.ListType(111, types.TimestampType(), False), False),
                ),
            ),
            element_required=False,
        ),
        pa.large_list(
            pa.struct([("d", pa.decimal128(38, 10)), ("m", pa.map_(pa.date32(), pa.large_list(pa.timestamp("us"))))])
        ),
        "STRUCT(d DECIMAL(38, 10), m MAP(DATE, TIMESTAMP[]))[]",
        [
            [],
            [None, {"d": None, "m": None}, {"d": Decimal("-" + "9" * 28 + "." + "9" * 10), "m": []}],
            [{"d": Decimal("1E-10"), "m": [(date(1970, 1, 1), None), (date(1, 1, 1), [None, datetime(9999, 12, 31)])]}],
        ],
        (),
    ),
    "string": Kind(types.StringType(), pa.large_string(), "VARCHAR", _TEXTS, ("v", "bucket(3, v)", "truncate(2, v)")),
    "binary": Kind(
        types.BinaryType(),
        pa.large_binary(),
        "BLOB",
        [b"", b"\0", b"\xff" * 20, b"abc", b"x" * 300],
        ("v", "bucket(3, v)", "truncate(2, v)"),
    ),
    "fixed": Kind(
        types.FixedType(4), pa.binary(4), "BLOB", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"abcd"], ("v", "bucket(3, v)")
    ),
    "uuid": Kind(
        types.UUIDType(),
        pa.uuid(),
        "UUID",
        [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")],
        ("v", "bucket(3, v)"),
    ),
}
