"""Casts of strings, at any depth, where Arrow cannot cast or would lose digits; also between UUIDs and strings.

Rows from JSON have strings for numbers, dates and times; DuckDB, Spark and JSON represent UUIDs as strings. The rules
are the same as for CSV in `trinitylake load` (`input_files/text_conversion.py`): a value is converted exactly, or is an
error. Only fractions are rounded, to the nearest floating-point number.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.definitions.arrow_types import is_list
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import has_part

#: Text of a number, as Arrow reads it.
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,17})?")
_INTEGER = r"^[-+]?\d+$"
_INFINITE = r"^(?i:[-+]?inf(inity)?)$"
_TIME = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6}0*)?)?$"
_OFFSET = r":\d{2}(\.\d+)? ?(Z|[-+]\d{2}(:?\d{2})?)$"
_DAY = r"^\d{4}-\d{2}-\d{2}$"
_SHOWN_CHARACTERS = 100


def is_parsed(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether `parsed` replaces Arrow's cast of strings to a type."""
    is_ = pa.types
    return given in (pa.string(), pa.large_string(), pa.string_view()) and (
        is_.is_boolean(kind) or is_.is_floating(kind) or is_.is_time(kind) or is_.is_timestamp(kind)
    )


def parsed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse strings as values of a type if `is_parsed`; otherwise return them unchanged. Raises for invalid strings."""
    if not is_parsed(texts.type, kind):
        return texts
    texts = texts.cast(pa.large_string())
    if pa.types.is_boolean(kind):  # Arrow also accepts 1 and 0
        _check(texts, r"^(?i:true|false)$", "is neither true nor false")
        return texts.cast(kind)
    if pa.types.is_floating(kind):
        return _floating(texts, kind)
    if pa.types.is_time(kind):
        _check(texts, _TIME, "is not a time of day such as 12:30:00.5")
        texts = _joined("1970-01-01T", texts)
        return _without_zeros(texts, 6).cast(pa.timestamp("us")).cast(kind)
    if kind.tz is not None:  # times without an offset are in UTC
        as_utc = pc.if_else(pc.match_substring_regex(texts, _DAY), "T00:00Z", "Z")
        as_utc = pc.if_else(pc.match_substring_regex(texts, _OFFSET), "", as_utc)
        texts = _joined(texts, as_utc)
    return _without_zeros(texts, 9 if kind.unit == "ns" else 6).cast(kind)


def _check(texts: pa.Array, pattern: str, problem: str) -> None:
    bad = texts.filter(pc.invert(pc.match_substring_regex(texts, pattern)))
    if len(bad):
        raise InvalidArgument(f"{bad[0].as_py()[:_SHOWN_CHARACTERS]!r} {problem}")


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*(pc.cast(part, pa.large_string()) for part in (*parts, "")))


def _without_zeros(texts: pa.Array, digits: int) -> pa.Array:
    """Remove zeros after the last digit of a fraction that the type can hold."""
    return pc.replace_substring_regex(texts, rf"(\.\d{{{digits}}})0+", r"\1")


def _floating(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse floating-point numbers. Raises for an integer that would be rounded, and for a number that is too large."""
    made = texts.cast(kind)
    if pc.any(pc.and_not(pc.is_inf(made), pc.match_substring_regex(texts, _INFINITE))).as_py():
        raise InvalidArgument("a number is out of range")
    is_large = pc.greater_equal(pc.abs(made), {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}[kind.bit_width])
    is_large = pc.and_(is_large, pc.match_substring_regex(texts, _INTEGER))
    for text, number in zip(texts.filter(is_large).to_pylist(), made.filter(is_large).to_pylist(), strict=True):
        if int(text) != number:
            raise InvalidArgument(f"the number {text[:_SHOWN_CHARACTERS]} would be rounded")
    return made


def plain_numbers(texts: pa.Array) -> pa.Array:
    """Rewrite numbers without exponents, because Arrow cannot read large exponents. Raises for more than 38 digits."""
    texts = texts.cast(pa.large_string())
    is_plain = pc.match_substring_regex(texts, r"^[-+]?(\d{1,38}|\d{1,19}\.\d{0,19}|\.\d{1,38})$")
    if pc.all(is_plain, min_count=0).as_py():
        return texts
    found = zip(texts.to_pylist(), is_plain.to_pylist(), strict=True)
    return pa.array([_plain_number(text) if plain is False else text for text, plain in found], pa.large_string())


def _plain_number(text: str) -> str:
    """Rewrite a number so that it has no exponent. Raises `InvalidArgument` if no decimal can hold it."""
    if not _NUMBER.fullmatch(text):
        raise InvalidArgument(f"{text[:_SHOWN_CHARACTERS]!r} is not a number")
    number = Decimal(text)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    if not number:
        return "0"
    if exponent + zeros < -38 or number.adjusted() >= 38 or number.adjusted() - exponent - zeros >= 38:
        raise InvalidArgument(f"{text[:_SHOWN_CHARACTERS]!r} has more than 38 digits")
    return f"{Decimal((sign, digits[: len(digits) - zeros], exponent + zeros)):f}"


#: Arrow's types of strings.
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_WITHOUT_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
_Convert = Callable[[pa.Array, pa.DataType], pa.Array]


def has_uuids(kind: pa.DataType) -> bool:
    return has_part(kind, lambda part: isinstance(part, pa.UuidType))


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
