"""Values of rows outside of Arrow: as Python values, in JSON, CSV and printed tables. Each value is shown exactly.

A time is written as in SQL: `2026-11-24 08:00:00`, with its fraction if it has one, and with `+00:00` if the column has
a time zone. Python has no dates outside of the years 1 to 9999 and no nanoseconds, so such values become strings, as in
DuckDB. JSON has no bytes, decimals and NaN. In JSON, bytes become strings of hexadecimal digits, decimals become
strings, and special numbers become `"NaN"`, `"Infinity"` and `"-Infinity"`.

In printed tables NULL is `NULL`, and strings that could be confused with it are quoted: `''`, `'NULL'`. In CSV, NULL is
an empty field, and an empty string is `""`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import date, datetime, time
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.iceberg_storage.data_files.arrow_schema import has_part
from trinitylake.printable import printable_json

_ZERO_FRACTION = re.compile(r"\.0+$")
#: Arrow writes "value out of range" for moments that are further from 1970: before the year -28829, or after 32767.
_ARROW_DAYS_MAX = 11_248_000
_UNITS_OF_DAY = {"D": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
#: DuckDB's infinite dates and timestamps, by their width in bits.
_INFINITE = {32: 2**31 - 1, 64: 2**63 - 1}


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    # For nanoseconds, Arrow would use pandas if it is installed.
    if not has_part(column.type, lambda part: getattr(part, "unit", "") == "ns"):
        try:
            return column.to_pylist()  # type: ignore[no-any-return]
        except (OverflowError, ValueError):
            pass
    return [_value(scalar) for scalar in column]


def json_value(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return float_text(value)
        case None | str() | int() | float():
            return value
        case bytes():
            return value.hex()
        case datetime():
            return str(value)
        case date() | time():
            return value.isoformat()
        case dict():
            return {str(json_value(key)): json_value(one) for key, one in value.items()}
        case list() | tuple():
            return [json_value(one) for one in value]
    return str(value)


def float_text(number: float) -> str:
    """Format a number for output and JSON: `1.0`, `1e+300`, `NaN`, `Infinity` or `-Infinity`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return f"{number:.1f}" if number == int(number) and abs(number) < 1e15 else repr(number)


def shown_text(value: Any) -> str:
    """Format a Python value for a printed table."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case str():
            is_unclear = value in ("", "NULL") or (value[0] == value[-1] == "'")
            return f"'{value}'" if is_unclear else value
        case dict() | list() | tuple():
            return json_text(value) or ""
    return str(json_value(value))


def json_texts(batch: pa.RecordBatch) -> Iterator[str]:
    """The rows of a batch as JSON objects. If two columns have the name `id`, the second one becomes `id_1`."""
    columns = [python_values(column) for column in batch.columns]
    names = _distinct(batch.schema.names)
    for row in zip(*columns, strict=True):
        document = dict(zip(names, map(json_value, row), strict=True))
        yield printable_json(json.dumps(document, ensure_ascii=False, allow_nan=False))


def _distinct(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        candidates = (f"{name}_{number}" for number in count(1))
        found.append(name if name not in found else next(one for one in candidates if one not in [*found, *names]))
    return found


def for_csv(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch for CSV: times, bytes and UUIDs become strings, and nested values become JSON."""
    columns = [_for_csv(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _for_csv(column: pa.Array) -> pa.Array:
    kind, is_ = column.type, pa.types
    if is_.is_nested(kind):
        return pa.array(map(json_text, python_values(column)), pa.string())
    if is_.is_timestamp(kind) or (is_.is_date32(kind) and _is_beyond_arrow(column)):
        return moment_texts(column)
    is_bytes = is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind)
    if is_bytes or isinstance(kind, pa.BaseExtensionType):
        return pa.array((None if one is None else str(json_value(one)) for one in python_values(column)), pa.string())
    return column


def moment_texts(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Format timestamps or dates as strings.

    Arrow's own formatter for time zones takes nine times as long, and always writes a fraction.
    """
    if _is_beyond_arrow(column):
        return pa.array((None if one is None else str(one) for one in python_values(column)), pa.string())
    if pa.types.is_date32(column.type):
        return column.cast(pa.string())
    unit = column.type.unit
    texts = column.cast(pa.timestamp(unit)).cast(pa.string())
    if unit != "s":
        texts = pc.replace_substring(texts, "." + "0" * {"ms": 3, "us": 6, "ns": 9}[unit], "")
    return texts if column.type.tz is None else pc.binary_join_element_wise(texts, "+00:00", "")


def _is_beyond_arrow(moments: pa.Array | pa.ChunkedArray) -> bool:
    is_date = pa.types.is_date32(moments.type)
    bounds = pc.min_max(moments.cast(pa.int32() if is_date else pa.int64()))
    limit = _ARROW_DAYS_MAX * _UNITS_OF_DAY["D" if is_date else moments.type.unit]
    return any(one.is_valid and abs(one.as_py()) > limit for one in bounds.values())


def json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(json_value(value), ensure_ascii=False)


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
    if not pa.types.is_time(kind) and abs(scalar.value) == _INFINITE.get(kind.bit_width):  # of DuckDB
        return "infinity" if scalar.value > 0 else "-infinity"
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "+00:00"  # of an instant
        text = str(np.datetime64(scalar.value, kind.unit)).replace("T", " ")
        return f"{_ZERO_FRACTION.sub('', text)}{zone}"
    if pa.types.is_date32(kind):
        return str(np.datetime64(scalar.value, "D"))
    return str(scalar.cast(pa.string()).as_py())
