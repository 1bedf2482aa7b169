"""Decoder for the parts of Protocol Buffers that definition files use: varints, strings, messages and maps.

It implements only the wire format. `definition.py` assigns meanings to field numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

#: Name and kind of each field by number: "text", "bytes", "number", "flag", or a message.
Message: TypeAlias = dict[int, "Field"]

VARINT, FIXED_64, LENGTH_DELIMITED, FIXED_32 = 0, 1, 2, 5


class Field(NamedTuple):
    """Field of a message. With `map_value` it is a map from `kind` to `map_value`."""

    name: str
    kind: str | Message
    repeated: bool = False
    map_value: str | None = None


class NotTheMessage(ValueError):
    """The bytes do not encode a message with these fields."""


def parse(data: bytes, message: Message) -> dict[str, Any]:
    """Field values by name. Missing fields have the default of proto3; unknown fields are omitted."""
    values: dict[str, Any] = {field.name: _absent(field) for field in message.values()}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        value, at = _raw(data, at, wire_type)
        if (field := message.get(number)) is None:
            continue
        if field.map_value is not None:
            entry = parse(value, {1: Field("key", field.kind), 2: Field("value", field.map_value)})
            values[field.name][entry["key"]] = entry["value"]
        elif field.repeated:
            values[field.name].append(_value(value, field.kind))
        else:
            values[field.name] = _value(value, field.kind)
    return values


def _absent(field: Field) -> Any:
    if field.map_value is not None:
        return {}
    if field.repeated:
        return []
    if isinstance(field.kind, dict):
        return None
    return {"text": "", "bytes": b"", "number": 0, "flag": False}[field.kind]


def _value(raw: int | bytes, kind: str | Message) -> Any:
    if kind in ("number", "flag"):
        if not isinstance(raw, int):
            raise NotTheMessage(f"expected a varint, got {raw!r}")
        return bool(raw) if kind == "flag" else raw
    if not isinstance(raw, bytes):
        raise NotTheMessage(f"expected bytes, got {raw}")
    if isinstance(kind, dict):
        return parse(raw, kind)
    return raw.decode() if kind == "text" else raw


def _raw(data: bytes, at: int, wire_type: int) -> tuple[Any, int]:
    if wire_type == VARINT:
        return _varint(data, at)
    size = {FIXED_64: 8, FIXED_32: 4}.get(wire_type)
    if wire_type == LENGTH_DELIMITED:
        size, at = _varint(data, at)
    if size is None or at + size > len(data):
        raise NotTheMessage(f"wire type {wire_type} at byte {at} of {len(data)}")
    return data[at : at + size], at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise NotTheMessage(f"no varint at byte {at} of {len(data)}")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if not byte & 128:
            return value, at
