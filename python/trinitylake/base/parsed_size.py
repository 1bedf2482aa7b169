"""How much memory JSON takes once it is parsed: objects of many times its size, `[{},{},…]` thirty times."""

from __future__ import annotations

#: What a value takes as an object, at most: a map in a schema takes 4.9 KB, which may be seventeen values.
_VALUE_SIZE_BYTES = 300


def count_values(text: bytes | bytearray) -> int:
    """How many values there are, without making any. Commas in texts count, which errs to the safe side."""
    return text.count(b",") + text.count(b"[") + text.count(b"{") + text.count(b":")


def parsed_size_bytes(text: bytes | bytearray) -> int:
    """How much memory it takes as objects, at most."""
    return len(text) + _VALUE_SIZE_BYTES * count_values(text)
