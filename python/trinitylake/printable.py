"""Escapes untrusted text for terminals, by the same rule as summaries of the log (format §4).

Names and messages may contain escape sequences, marks of writing direction and invisible characters. Such characters
are printed as codes.
"""

from __future__ import annotations

import unicodedata


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


def _is_plain(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
