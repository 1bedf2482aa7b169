"""Casts between UUIDs and strings at any depth of a column, which Arrow does not support.

DuckDB, Spark and JSON represent UUIDs as strings.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.definitions.arrow_types import is_list

#: Arrow's types of strings.
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_WITHOUT_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
_Convert = Callable[[pa.Array, pa.DataType], pa.Array]


def has_uuids(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.UuidType):
        return True
    return any(has_uuids(kind.field(number).type) for number in range(kind.num_fields))


def uuids_of_texts(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert strings to UUIDs where the target type `kind` has UUIDs, at any depth; other values are unchanged.

    Raises `ValueError` for a string that is not a UUID.
    """
    return with_parts(values, kind, _uuids)


def texts_of_uuids(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert UUIDs to strings where the target type `kind` has strings, at any depth; other values are unchanged."""
    return with_parts(values, kind, _texts)


def decoded(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decode dictionaries, run-end encoding and list views at any depth, because Arrow cannot cast these."""
    return with_parts(values, kind, lambda leaf, _: leaf)


def simple_values(value: Any) -> Any:
    """Replace UUIDs by strings and integers by decimals in a Python value, at any depth.

    Arrow cannot convert UUID objects in structs or lists, nor integers beyond 64 bits.
    """
    if isinstance(value, UUID):
        return str(value)
    if type(value) is int:
        return Decimal(value)
    if isinstance(value, dict):
        return {name: simple_values(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [simple_values(part) for part in value]
    return value


def _uuids(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not isinstance(kind, pa.UuidType) or values.type not in _TEXTS:
        return values
    stored = [None if text is None else UUID(text).bytes for text in values.to_pylist()]
    return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))


def _texts(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not isinstance(values.type, pa.UuidType) or kind not in _TEXTS:
        return values
    return pa.array([None if value is None else str(value) for value in values.to_pylist()], kind)


def with_parts(values: pa.Array, kind: pa.DataType, convert: _Convert) -> pa.Array:
    """Replace the leaf values of a column by `convert(leaf values, their type in kind)`.

    The result has the nesting of `values`, also where `kind` has another one.
    """
    is_ = pa.types
    given = values.type
    if given == kind:
        return values
    if is_.is_run_end_encoded(given):
        return with_parts(pc.run_end_decode(values), kind, convert)
    if is_.is_dictionary(given):
        words = with_parts(values.dictionary, kind, convert)
        words = words.cast(_WITHOUT_VIEWS.get(words.type, words.type))  # Arrow's `take` does not support string views
        return pa.DictionaryArray.from_arrays(values.indices, words).dictionary_decode()
    if is_.is_struct(given) and is_.is_struct(kind):
        return _structures(values, kind, convert)
    if is_.is_map(given) and is_.is_map(kind):
        start, end = _ends(values.offsets)
        keys = with_parts(values.keys.slice(start, end - start), kind.key_type, convert)
        items = with_parts(values.items.slice(start, end - start), kind.item_type, convert)
        return pa.MapArray.from_arrays(pc.subtract(values.offsets, start), keys, items, mask=values.is_null())
    if is_list(given) and (is_.is_list(kind) or is_.is_large_list(kind)):
        lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        elements = with_parts(values.flatten(), kind.value_type, convert)
        return pa.LargeListArray.from_arrays(offsets, elements, mask=values.is_null())
    return convert(values, kind)


def _structures(values: pa.StructArray, kind: pa.StructType, convert: _Convert) -> pa.Array:
    parts, fields = [], []
    # When flattened, the fields of a null struct are null.
    for part, field in zip(values.flatten(), values.type, strict=True):
        number = kind.get_field_index(field.name)
        if number >= 0:
            part = with_parts(part, kind.field(number).type, convert)
        parts.append(part)
        fields.append(field.with_type(part.type))
    if not parts:
        return values
    return pa.StructArray.from_arrays(parts, fields=fields, mask=values.is_null())


def _ends(offsets: pa.Array) -> tuple[int, int]:
    return offsets[0].as_py(), offsets[-1].as_py()
