"""JSON files: the types of their fields, and the SQL that reads a file without rounding numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trinitylake.definitions.sql_types import Type
from trinitylake.errors import InvalidArgument
from trinitylake.tables.input_files import text_conversion as conversion
from trinitylake.tables.input_files.text_files import Source, TextOptions
from trinitylake.tables.sql_sandbox import literal, quoted

_JSON_NUMBERS = ("BIGINT", "UBIGINT", "HUGEINT", "UHUGEINT", "DOUBLE", "DECIMAL")
_JSON_TEXTS = ("VARCHAR", "UUID", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
#: Names that DuckDB makes for values that are not objects, for names that differ only in case, and for empty names.
_OWN_NAME = re.compile(r"json|.*_\d+|C\d+", re.DOTALL)
#: A nested type of DuckDB, or its type JSON for values of several kinds.
_NESTED = re.compile(r"^(STRUCT|MAP)\b|\[\]$|\bJSON\b")
#: DOUBLE in a nested type, or a quoted name of a field, which is group 1.
_DOUBLE = re.compile(r'("(?:[^"]|"")*")|\bDOUBLE(?=[],)[]|$)')
#: SQL that puts the numbers of a JSON text into quotes, because DuckDB rounds fractions to doubles. It uses the
#: character \1, which JSON cannot contain.
_EXACT_JSON = (
    "replace(replace(regexp_replace(json::VARCHAR, "
    r"""'("(?:[^"\\]|\\.)*")|(-?[0-9][-+0-9.eE]*)', '\1' || chr(1) || '\2' || chr(1), 'g'), """
    """chr(1) || chr(1), ''), chr(1), '"')"""
)


def json_source(connection: Any, file: str, path: Path, all_paths: Sequence[Path], options: TextOptions) -> Source:
    """Describe a JSON file for DuckDB: candidate types for strings and numbers, exact types for nested values.

    Nested values of `all_paths` have one type. Raises `InvalidArgument` for rows that are not objects with fields.
    """
    read = f"read_json({literal(str(path))}, sample_size = -1, convert_strings_to_integers = false"
    objects = f"read_json_objects({literal(str(path))})"
    described = _described(connection, f"{read})")
    if len(all_paths) > 1:
        files = f"[{', '.join(literal(str(one)) for one in all_paths)}]"
        of_all = _described(connection, f"{read.replace(literal(str(path)), files, 1)}, union_by_name = true)")
        described |= {name: of_all[name] for name in described if _NESTED.search(of_all.get(name, ""))}
    kinds: dict[str, str] = {name: type.partition("(")[0] for name, type in described.items()}
    if any(map(_OWN_NAME.fullmatch, kinds)):
        keys = connection.execute(f"SELECT DISTINCT unnest(json_keys(json)) FROM {objects}").fetchall()
        if not keys:
            raise InvalidArgument(f"{file}: no row of the file is an object with fields")
        if set(kinds) - {key for (key,) in keys}:
            raise InvalidArgument(
                f"{file}: rows of JSON are objects with fields, whose names are not empty and differ not only in case"
            )
    columns: dict[str, Sequence[Type] | str] = {}
    several_kinds = {}
    for name, type in described.items():
        kind = kinds[name]
        if "JSON" in type and name not in options.types:
            several_kinds[name] = type
        if kind == "BOOLEAN":
            columns[name] = (conversion.BOOLEAN,)
        elif kind in _JSON_NUMBERS:
            columns[name] = conversion.NUMBERS
        elif kind in _JSON_TEXTS:
            columns[name] = conversion.TIMES
        elif kind in ("JSON", '"NULL"'):  # values of several kinds, or none
            columns[name] = ()
        elif name in options.nested:
            columns[name] = _DOUBLE.sub(lambda found: found[1] or "VARCHAR", type)
        else:
            columns[name] = type
    declared = options.types
    json_columns = frozenset(
        name for name, types in columns.items() if isinstance(types, str) and ("DOUBLE" in types or name in declared)
    )
    read_as = {
        name: "JSON" if name in json_columns else types if isinstance(types, str) else "VARCHAR"
        for name, types in columns.items()
    }
    floats = {name for name in columns if name not in declared or declared[name].kind in ("real", "double")}
    with_fractions = {
        name: read_as[name]
        for name, type in described.items()
        if kinds[name] == "JSON"
        or (kinds[name] == "DOUBLE" and name not in floats)
        or (isinstance(columns[name], str) and columns[name] != type)
    }
    if with_fractions:
        values = []
        for name, type in read_as.items():
            value = f"{'exact' if name in with_fractions else 'inexact'}.{quoted(name)}"
            if name in with_fractions and type == "VARCHAR":  # nested values as text keep their numbers without quotes
                inexact = f"inexact.{quoted(name)}"
                value = f"CASE WHEN {inexact}[1] IN ('{{', '[') THEN {inexact} ELSE {value} END AS {quoted(name)}"
            values.append(value)
        text = (
            f"SELECT {', '.join(values)} FROM (SELECT from_json(json, {literal(json.dumps(read_as))}) AS inexact, "
            f"from_json({_EXACT_JSON}, {literal(json.dumps(with_fractions))}) AS exact FROM {objects})"
        )
    else:
        fields = ", ".join(f"{literal(name)}: {literal(type)}" for name, type in read_as.items())
        text = f"SELECT * FROM {read}, columns = {{{fields}}})"
    return Source(text, columns, json_columns, several_kinds)


def _described(connection: Any, query: str) -> dict[str, str]:
    """The columns of a query, with their types in DuckDB."""
    return {name: type for name, type, *_ in connection.execute(f"DESCRIBE SELECT * FROM {query}").fetchall()}
