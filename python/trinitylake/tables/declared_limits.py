"""Limits of declared types that Iceberg does not have: the range of smallint, the lengths of char, varchar and binary.

Iceberg stores a `smallint` as int and a `varchar(3)` as string. This library checks the declared limits for all rows
that it writes (`input_rows.py`). Files that other engines write are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from trinitylake.definitions import Schema, Type

#: The declared types of the columns that have a limit, by name.
Limits: TypeAlias = "Mapping[str, Type]"
NO_LIMITS: Limits = {}

_SMALLINT = -(1 << 15), (1 << 15) - 1
#: Maximum number of characters of a value that an error shows.
_SHOWN_LENGTH = 60


def limits_of(schema: Schema) -> Limits:
    return {column.name: column.type for column in schema.columns if _has_limit(column.type)}


def check_limit(column: pa.Array | pa.ChunkedArray, type: Type, path: str) -> None:
    """Raise `InvalidArgument` for the first value of a column that its declared type does not allow."""
    for values in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        _check(values, type, path)


def _has_limit(type: Type) -> bool:
    is_bounded = type.kind == "smallint" or (type.kind in ("char", "varchar", "binary") and type.length > 0)
    return is_bounded or any(_has_limit(child.type) for child in type.children)


def _check(values: pa.Array, type: Type, path: str) -> None:
    is_ = pa.types
    kind = values.type
    if type.kind == "smallint" and kind == pa.int32():  # a widened column has another Arrow type
        low, high = _SMALLINT
        _refuse(values, pc.or_(pc.less(values, low), pc.greater(values, high)), path, f"{type} is {low} to {high}")
    elif type.kind in ("char", "varchar") and type.length and (is_.is_string(kind) or is_.is_large_string(kind)):
        too_long = pc.greater(pc.utf8_length(values), type.length)
        _refuse(values, too_long, path, f"{type} has at most {type.length} characters")
    elif type.kind == "binary" and type.length and (is_.is_binary(kind) or is_.is_large_binary(kind)):
        too_long = pc.greater(pc.binary_length(values), type.length)
        _refuse(values, too_long, path, f"{type} has at most {type.length} bytes")
    elif type.kind == "struct" and is_.is_struct(kind):
        parts = dict(zip((field.name for field in kind), values.flatten(), strict=True))
        for child in type.children:
            if child.name in parts and _has_limit(child.type):
                _check(parts[child.name], child.type, f"{path}.{child.name}")
    elif type.kind == "map" and is_.is_map(kind):
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        for child, part in zip(type.children, (values.keys, values.items), strict=True):
            if _has_limit(child.type):
                _check(part.slice(start, end - start), child.type, f"{path}.{child.name}")
    elif type.kind == "list" and (is_.is_list(kind) or is_.is_large_list(kind)) and _has_limit(type.children[0].type):
        _check(values.flatten(), type.children[0].type, f"{path}.element")


def _refuse(values: pa.Array, is_outside: pa.Array, path: str, limit: str) -> None:
    place = pc.index(is_outside, True).as_py()
    if place >= 0:
        shown = repr(values[place].as_py())
        shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}…"
        raise InvalidArgument(f"column {path}: the value {shown} does not fit its declared type: {limit}")
