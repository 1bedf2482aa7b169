"""Text that may come from anybody, as it is shown to people: what cannot be seen, or changes how others are seen, is
written as a code, as in the summaries of the log (format §4).

Names and messages may hold escape sequences of terminals, marks that turn the direction of writing, and characters
without a width. None of them reaches a terminal.
"""

from __future__ import annotations

import unicodedata


def printable(text: str, keep: str = "") -> str:
    """`text` with `\\u{202e}` in the place of each character that cannot be seen, but for spaces and those to keep."""
    if text.isprintable():
        return text
    return "".join(one if _is_plain(one) or one in keep else f"\\u{{{ord(one):x}}}" for one in text)


def printable_json(document: str) -> str:
    """A JSON document with such characters as JSON's escapes: it says the same."""
    if document.isprintable():
        return document
    return "".join(one if _is_plain(one) or one == "\n" else _json_escape(one) for one in document)


def _is_plain(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _json_escape(character: str) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _utf16(character))


def _utf16(character: str) -> tuple[int, ...]:
    code = ord(character)
    if code < 0x10000:
        return (code,)
    return 0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)
