"""Encodes Avro by functions that are made once for a schema. The bytes are those of PyIceberg's writers.

PyIceberg walks through a tree of writers for each record and writes number by number, byte by byte. For the small files
of a commit that is most of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeAlias

from pyiceberg.avro import writer as writers
from pyiceberg.avro.encoder import BinaryEncoder

#: Appends the bytes of a value to the parts of what is made.
Encode: TypeAlias = Callable[[Callable[[bytes], object], Any], None]


def _number(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append((rest & 0x7F) | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


#: Counts, ids and lengths are mostly as small.
_SMALL = [_number(value) for value in range(2048)]
_END = _SMALL[0]


def number(value: int) -> bytes:
    """A whole number of at most 64 bits: zig-zag, seven bits to a byte."""
    return _SMALL[value] if 0 <= value < 2048 else _number(value)


def encoder_of(writer: writers.Writer) -> Encode:
    """What a writer of PyIceberg writes, by a function that appends the same bytes.

    Writers that it does not know are asked themselves.
    """
    kind = type(writer)
    if kind in _NUMBERS:
        return _encode_number
    if kind is writers.StringWriter:
        return _encode_text
    if kind is writers.BinaryWriter:
        return _encode_bytes
    if isinstance(writer, writers.OptionWriter):
        return _optional(encoder_of(writer.option))
    if kind is writers.StructWriter:
        assert isinstance(writer, writers.StructWriter)
        return _struct([(position, encoder_of(field)) for position, field in writer.field_writers])
    if isinstance(writer, writers.ListWriter):
        return _list(encoder_of(writer.element_writer))
    if isinstance(writer, writers.MapWriter):
        return _map(encoder_of(writer.key_writer), encoder_of(writer.value_writer))
    return _asked(writer)


_NUMBERS = (
    writers.IntegerWriter,
    writers.DateWriter,
    writers.TimeWriter,
    writers.TimestampWriter,
    writers.TimestampNanoWriter,
    writers.TimestamptzWriter,
    writers.TimestamptzNanoWriter,
)


def _encode_number(append: Callable[[bytes], object], value: int) -> None:
    append(_SMALL[value] if 0 <= value < 2048 else _number(value))


def _encode_bytes(append: Callable[[bytes], object], value: bytes) -> None:
    append(number(len(value)))
    append(value)


def _encode_text(append: Callable[[bytes], object], value: str) -> None:
    _encode_bytes(append, value.encode())


def _optional(encode: Encode) -> Encode:
    null, there = _SMALL[0], _SMALL[1]

    def optional(append: Callable[[bytes], object], value: Any) -> None:
        if value is None:
            append(null)
        else:
            append(there)
            encode(append, value)

    return optional


def _struct(fields: list[tuple[int | None, Encode]]) -> Encode:
    def struct(append: Callable[[bytes], object], value: Any) -> None:
        for position, encode in fields:
            encode(append, None if position is None else value[position])

    return struct


def _list(encode: Encode) -> Encode:
    def elements(append: Callable[[bytes], object], value: Any) -> None:
        append(number(len(value)))
        for element in value:
            encode(append, element)
        if value:
            append(_END)

    return elements


def _map(encode_key: Encode, encode_value: Encode) -> Encode:
    def entries(append: Callable[[bytes], object], value: Any) -> None:
        append(number(len(value)))
        for key, one in value.items():
            encode_key(append, key)
            encode_value(append, one)
        if value:
            append(_END)

    return entries


def _asked(writer: writers.Writer) -> Encode:
    def asked(append: Callable[[bytes], object], value: Any) -> None:
        stream = BytesIO()
        writer.write(BinaryEncoder(stream), value)
        append(stream.getvalue())

    return asked
