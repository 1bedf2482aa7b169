"""Conversion of text to typed values in DuckDB: without rounding, and with types detected from a sample.

DuckDB's casts round `1.5` to the integer 2 and read `1_000` as 1000. So this module has a pattern for each type that
the text must match before it is cast. A value is converted exactly, or is an error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from trinitylake.definitions.sql_types import Type, parse_type
from trinitylake.errors import InvalidArgument
from trinitylake.tables.sql_sandbox import literal, quoted

_DATE = r"\d{4}-\d{1,2}-\d{1,2}"
_CLOCK = r"([01]?\d|2[0-3]):\d{2}(:\d{2}(\.\d{1,6}0*)?)?"
_ZONE = r" ?(Z|UTC|[+-]\d{2}(:?\d{2})?)"
_INTEGER = r"[+-]?\d+"
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
_SPECIAL = r"[+-]?(?i:nan|inf|infinity)"
#: A number without superfluous leading zeros. Codes such as `00123` have such zeros and must remain strings.
_PLAIN_INTEGER = r"[+-]?(0|[1-9]\d*)"
_PLAIN_NUMBER = r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?"
_JSON_STRING = r'"(?:[^"\\]|\\.)*"'
#: Number of significant digits that a double preserves.
_DOUBLE_DIGITS = 17
#: DuckDB's time to plan the tests grows with the square of their number. For 1,500 columns it takes 275 s in one query
#: and 5 s in queries of this size.
_COLUMNS_AT_ONCE = 20
#: Kind -> pattern and DuckDB type.
_CASTS = {
    "smallint": (_INTEGER, "SMALLINT"),
    "int": (_INTEGER, "INTEGER"),
    "bigint": (_INTEGER, "BIGINT"),
    "real": (_NUMBER, "REAL"),
    "double": (_NUMBER, "DOUBLE"),
    "boolean": ("(?i:true|false)", "BOOLEAN"),
    "date": (_DATE, "DATE"),
    "time": (_CLOCK, "TIME"),
    "timestamp": (f"{_DATE}([ T]{_CLOCK})?", "TIMESTAMP"),
    "timestamptz": (f"{_DATE}([ T]{_CLOCK}({_ZONE})?)?", "TIMESTAMPTZ"),
}
#: Detected types in order: the first type that fits all values of the sample is chosen.
BOOLEAN, TEXT, _DOUBLE = map(parse_type, ("boolean", "varchar", "double"))
NUMBERS = (parse_type("bigint"), parse_type("decimal(38,0)"), _DOUBLE)
TIMES = tuple(map(parse_type, ("date", "timestamp", "timestamptz", "time")))


def is_convertible(type: Type) -> bool:
    """Whether text can be converted to the type. It cannot for bytes, nested types and nanoseconds."""
    return type.iceberg == "uuid" or (not type.iceberg and type.kind in {*_CASTS, "varchar", "char", "decimal"})


def conversion(text: str, type: Type, decimal: str = ".") -> str:
    """SQL expression that converts a text expression to a type; NULL where the text is not a value of the type.

    Raises `InvalidArgument` unless `is_convertible`.
    """
    if type.kind in ("varchar", "char"):
        return f"CASE WHEN length({text}) <= {type.length} THEN {text} END" if type.length else text
    if type.iceberg == "uuid":
        return f"TRY_CAST({text} AS UUID)"
    if type.kind == "decimal":
        fraction = rf"(\.\d{{0,{type.scale}}}0*)?"
        only_fraction = rf"\.\d{{1,{type.scale}}}0*" if type.scale else r"\.0+"
        pattern, target = rf"[+-]?(\d+{fraction}|{only_fraction})", f"DECIMAL({type.precision},{type.scale})"
    elif is_convertible(type):
        pattern, target = _CASTS[type.kind]
    else:
        raise InvalidArgument(
            f"text cannot be converted to {type}: load the column as VARCHAR, or convert it in --select"
        )
    if type.kind in ("decimal", "real", "double"):
        text = _with_point(text, decimal)
    cast = f"TRY_CAST({text} AS {target})"
    if type.kind in ("real", "double"):  # the cast makes a number that is out of range infinite
        special = f"WHEN regexp_full_match({text}, {literal(_SPECIAL)}) THEN {cast}"
        integer = f"regexp_full_match({text}, {literal(_INTEGER)})"  # an integer must be exact
        is_exact = f"(NOT {integer} OR TRY_CAST({cast} AS HUGEINT) = TRY_CAST({text} AS HUGEINT))"
        is_number = f"regexp_full_match({text}, {literal(pattern)}) AND isfinite({cast}) AND {is_exact}"
        return f"CASE WHEN {is_number} THEN {cast} {special} END"
    return f"CASE WHEN regexp_full_match({text}, {literal(pattern)}) THEN {cast} END"


def _with_point(text: str, decimal: str) -> str:
    """SQL expression with a point for the decimal separator. A point in the text is replaced, so it is no number."""
    return text if decimal == "." else f"translate({text}, {literal('.' + decimal)}, {literal(decimal + '.')})"


def detected_types(
    connection: Any,
    sample: str,
    columns: Mapping[str, Sequence[Type]],
    *,
    decimal: str = ".",
    has_time_zone: bool = False,
) -> dict[str, Type | None]:
    """The type of each column: the first candidate that fits all values of the sample, otherwise text.

    None for a column without a value. Text with a superfluous leading zero is not a number, and a number with more
    digits than a double can hold is not a double.

    Args:
        sample: SQL of the rows, all columns as text.
        has_time_zone: whether times without an offset have a time zone.
    """
    candidates = {
        name: [one for one in types if not (has_time_zone and one.kind == "timestamp")]
        for name, types in columns.items()
    }
    found: dict[str, Type | None] = {}
    connection.execute(f"CREATE OR REPLACE TEMP TABLE sample AS {sample}")
    names = list(candidates)
    for begin in range(0, len(names), _COLUMNS_AT_ONCE):
        some = [(name, candidates[name]) for name in names[begin : begin + _COLUMNS_AT_ONCE]]
        tests = [
            [f"count({quoted(name)})", *(f"count(*) FILTER ({_fits(quoted(name), one, decimal)})" for one in types)]
            for name, types in some
        ]
        [row] = connection.execute(f"SELECT {', '.join(chain(*tests))} FROM sample").fetchall()
        counts = iter(row)
        for name, types in some:
            values, *fitting = islice(counts, 1 + len(types))
            fits = (one for one, count in zip(types, fitting, strict=True) if count == values)
            found[name] = next(fits, TEXT) if values else None
    connection.execute("DROP TABLE sample")
    return found


def _fits(text: str, type: Type, decimal: str) -> str:
    """SQL condition: whether a text is a value of the candidate type."""
    condition = f"{conversion(text, type, decimal)} IS NOT NULL"
    if type in NUMBERS:
        number = _with_point(text, decimal)
        pattern = f"{_PLAIN_NUMBER}|{_SPECIAL}" if type is _DOUBLE else _PLAIN_INTEGER
        condition += f" AND regexp_full_match({number}, {literal(pattern)})"
    if type is _DOUBLE:
        digits = f"regexp_replace(regexp_replace({text}, '[eE].*', ''), '[^0-9]', '', 'g')"
        condition += f" AND length({digits}) <= {_DOUBLE_DIGITS}"
    return condition


def converted(
    source: str,
    types: Mapping[str, Type | str],
    columns: Collection[str],
    bad: str,
    decimal: str = ".",
    detected: Collection[str] = (),
    nested: Collection[str] = (),
    required: Collection[str] = (),
) -> str:
    """SQL that converts the text columns of `source`.

    The result also has the column `bad`. It is NULL for a valid row. Otherwise it is a JSON object with `row` and
    `fault`, which has the first `column` whose text is not a value of its type, and its `value`.

    Args:
        types: types of the columns of the result. A string is a type of DuckDB: the column is copied or `nested`.
        columns: columns that the source has; the others are NULL.
        detected: columns with a detected type, for which all rows must satisfy the rules of detection.
        nested: columns that are JSON in `source`. Long integers in them must not be rounded, nor numbers be infinite.
        required: columns that must not be NULL.
    """
    results, faults = [], []
    row = f"json_object({', '.join(f'{literal(name)}, {quoted(name)}' for name in columns)})"
    for name, type in types.items():
        column = quoted(name)
        if name not in columns:
            column = f"CAST(NULL AS {type})" if isinstance(type, str) else conversion("CAST(NULL AS VARCHAR)", type)
        elif name in nested and isinstance(type, str):
            value = f"from_json({column}, {literal(json.dumps(type))})"  # a missing field is NULL
            integers = [
                f"regexp_extract_all({text}::VARCHAR, '[0-9]{{16,}}')" for text in (column, f"to_json({value})")
            ]
            numbers = f"regexp_replace(to_json({value})::VARCHAR, {literal(_JSON_STRING)}, '', 'g')"
            is_changed = f"NOT list_has_all({integers[1]}, {integers[0]}) OR contains({numbers}, 'Infinity')"
            faults.append(f"WHEN {is_changed} THEN {_fault(name, column)}")
            column = value
        elif not isinstance(type, str) and (value := conversion(column, type, decimal)) != column:
            if name in detected:
                value = f"CASE WHEN {_fits(column, type, decimal)} THEN {value} END"
            faults.append(f"WHEN {column} IS NOT NULL AND {value} IS NULL THEN {_fault(name, column)}")
            column = value
        if name in required and name in columns:
            faults.append(f"WHEN {quoted(name)} IS NULL THEN {_fault(name, 'NULL')}")
        results.append(f"{column} AS {quoted(name)}")
    fault = f"CASE {' '.join(faults)} END" if faults else "NULL"
    found = f"CASE WHEN {fault} IS NOT NULL THEN json_object('fault', {fault}, 'row', {row})::VARCHAR END"
    return f"SELECT {', '.join(results)}, {found} AS {quoted(bad)} FROM ({source})"


def _fault(column: str, value: str) -> str:
    return f"{{'column': {literal(column)}, 'value': {value}::VARCHAR}}"
