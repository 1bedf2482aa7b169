"""**The rule for values of rows outside of Arrow**: exact, and the same wherever they are shown.

Python has no dates outside of the years 1 to 9999 and no nanoseconds: such values become texts, as DuckDB does it. JSON
has no bytes, no decimals and no NaN: they become texts, bytes in hexadecimal digits, numbers as `NaN`, `Infinity` and
`-Infinity`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa

from trinitylake.printable import printable_json


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python objects."""
    if not _has_nanoseconds(column.type):
        try:
            return column.to_pylist()  # type: ignore[no-any-return]
        except (OverflowError, ValueError):
            pass
    return [_value(scalar) for scalar in column]


def json_value(value: Any) -> Any:
    """A Python value as a JSON value."""
    match value:
        case float() if not math.isfinite(value):
            return float_text(value)
        case None | str() | int() | float():
            return value
        case bytes():
            return value.hex()
        case date() | datetime() | time():
            return value.isoformat()
        case dict():
            return {str(json_value(key)): json_value(one) for key, one in value.items()}
        case list() | tuple():
            return [json_value(one) for one in value]
    return str(value)


def float_text(number: float) -> str:
    """A number as text, on its own and within JSON: `1.0`, `1e+300`, `NaN`, `Infinity` or `-Infinity`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return f"{number:.1f}" if number == int(number) and abs(number) < 1e15 else repr(number)


def json_texts(batch: pa.RecordBatch) -> Iterator[str]:
    """The rows of a batch, each as an object of JSON."""
    columns = [python_values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        document = dict(zip(batch.schema.names, map(json_value, row), strict=True))
        yield printable_json(json.dumps(document, ensure_ascii=False, allow_nan=False))


def for_csv(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch for CSV: bytes and UUIDs become texts, and nested values JSON."""
    columns = [_for_csv(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _for_csv(column: pa.Array) -> pa.Array:
    kind, is_ = column.type, pa.types
    if is_.is_nested(kind):
        return pa.array(map(json_text, python_values(column)), pa.string())
    is_bytes = is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind)
    if is_bytes or isinstance(kind, pa.BaseExtensionType):
        return pa.array((None if one is None else str(json_value(one)) for one in python_values(column)), pa.string())
    return column


def json_text(value: Any) -> str | None:
    """A value as JSON text; None for None."""
    return None if value is None else json.dumps(json_value(value), ensure_ascii=False)


def _has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether Arrow would use pandas for a value, if pandas is installed."""
    return getattr(kind, "unit", "") == "ns" or any(
        _has_nanoseconds(kind.field(number).type) for number in range(kind.num_fields)
    )


def _value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    kind, is_ = scalar.type, pa.types
    if is_.is_struct(kind):
        return {name: _value(part) for name, part in scalar.items()}
    if is_.is_map(kind):
        return [(_value(entry["key"]), _value(entry["value"])) for entry in scalar.values]
    if is_.is_nested(kind):
        return [_value(part) for part in scalar.values]
    if getattr(kind, "unit", "") != "ns":
        try:
            return scalar.as_py()
        except (OverflowError, ValueError):
            pass
    return _moment_text(scalar)


def _moment_text(scalar: pa.Scalar) -> str:
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "+00:00"  # of an instant
        return f"{np.datetime64(scalar.value, kind.unit)}{zone}"
    if pa.types.is_date32(kind):
        return str(np.datetime64(scalar.value, "D"))
    return str(scalar.cast(pa.string()).as_py())
