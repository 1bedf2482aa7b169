"""Escapes untrusted text for terminals, by the same rule as summaries of the log (format §4).

Names and messages may contain escape sequences, marks of writing direction and invisible characters. Such characters
are printed as codes.
"""

from __future__ import annotations

import unicodedata
from typing import TextIO


def printable(text: str, keep: str = "") -> str:
    """Replace each invisible character by its code, such as `\\u{202e}`; spaces and `keep` are not replaced."""
    if text.isprintable():
        return text
    return "".join(one if _is_plain(one) or one in keep else f"\\u{{{ord(one):x}}}" for one in text)


def printable_json(document: str) -> str:
    """Write invisible characters of a JSON document as JSON escapes."""
    if document.isprintable():
        return document
    return "".join(one if _is_plain(one) or one == "\n" else _json_escape(one) for one in document)


class HarmlessStream:
    """A stream that escapes control characters of terminals."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text, keep="\n\t"))

    def flush(self) -> None:
        self._stream.flush()


def _is_plain(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _json_escape(character: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16(character))


def _utf16(character: str) -> tuple[int, ...]:
    code = ord(character)
    if code < 0x10000:
        return (code,)
    return 0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)
