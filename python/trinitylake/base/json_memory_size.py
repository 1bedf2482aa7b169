"""Estimate of the memory of parsed JSON, which is up to thirty times its text (`[{},{},…]`)."""

from __future__ import annotations

#: Upper limit per value: a map in a schema takes 4.9 KB and consists of seventeen values.
_VALUE_SIZE_BYTES = 300
#: Size of the pieces in which a text is scanned.
_PIECE_SIZE_BYTES = 1 << 20


def count_values(text: bytes | bytearray) -> int:
    """Number of values, without parsing. Commas in texts count as well, so the result may be too high."""
    if len(text) <= _PIECE_SIZE_BYTES:
        return len(text) - len(text.translate(None, b",[{:"))
    pieces = (text[begin : begin + _PIECE_SIZE_BYTES] for begin in range(0, len(text), _PIECE_SIZE_BYTES))
    return len(text) - sum(len(piece.translate(None, b",[{:")) for piece in pieces)


def parsed_size_bytes(text: bytes | bytearray) -> int:
    """Upper limit of the memory of the parsed text."""
    return len(text) + _VALUE_SIZE_BYTES * count_values(text)
