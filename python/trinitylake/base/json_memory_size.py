"""Estimates the memory of parsed JSON, which can be thirty times the size of the JSON text (`[{},{},…]`)."""

from __future__ import annotations

#: Upper limit of the memory of one value. In a schema, a column of type map has 17 values and takes 4.9 KB.
_VALUE_SIZE_BYTES = 300
#: Size of the pieces in which a JSON text is scanned.
_PIECE_SIZE_BYTES = 1 << 20


def count_values(text: bytes | bytearray) -> int:
    """Number of values in a JSON text, without parsing. It can be too high, because commas in strings count, too."""
    if len(text) <= _PIECE_SIZE_BYTES:
        return len(text) - len(text.translate(None, b",[{:"))
    pieces = (text[begin : begin + _PIECE_SIZE_BYTES] for begin in range(0, len(text), _PIECE_SIZE_BYTES))
    return len(text) - sum(len(piece.translate(None, b",[{:")) for piece in pieces)


def parsed_size_bytes(text: bytes | bytearray) -> int:
    """Upper limit of the memory of the JSON text and its parsed values."""
    return len(text) + _VALUE_SIZE_BYTES * count_values(text)
