"""Casts strings to other types where Arrow cannot, or would lose digits.

Rows from JSON have strings for numbers, dates and times, at any depth. The rules are the same as for CSV in
`trinitylake load` (`input_files/text_conversion.py`): a value is converted exactly, or is an error. Only fractions are
rounded, to the nearest floating-point number.
"""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.errors import InvalidArgument

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
    """Rewrite a number without an exponent. Raises `InvalidArgument` if no decimal can hold it."""
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
