"""Removes secrets from messages before they are logged or sent; libraries put signed URLs into theirs.

Messages may hold text that a client chose, so the time that this takes is linear in their length: one pass, which looks
back by at most one word, over at most `MESSAGE_MAX_LENGTH` characters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from trinitylake.secret_values import is_secret_name

MESSAGE_MAX_LENGTH = 1 << 16
_NAME_MAX_LENGTH = 64
_BLANKS_MAX_LENGTH = 4

_END_OF_VALUE = frozenset(" \t\r\n\f\v'\"&,;)")
_QUOTES = frozenset("'\"")
_SCHEMES = ("bearer", "basic")


def without_secrets(text: str) -> str:
    """The text with `***` for what looks like a secret, cut off where it is too long."""
    if len(text) > MESSAGE_MAX_LENGTH:
        text = f"{text[:MESSAGE_MAX_LENGTH]}… and {len(text) - MESSAGE_MAX_LENGTH} more characters"
    kept: list[str] = []
    position = 0
    for start in _starts_of_values(text):
        if start < position:
            continue  # in a value that is gone already
        ends = text[start - 1] + "\n" if text[start - 1] in _QUOTES else _END_OF_VALUE
        end = start
        while end < len(text) and text[end] not in ends:
            end += 1
        if end > start:
            kept += text[position:start], "***"
            position = end
    return "".join([*kept, text[position:]])


class Redaction(logging.Filter):
    """Takes secrets out of what is logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = without_secrets(record.getMessage())
        record.args = ()
        return True


def _starts_of_values(text: str) -> Iterator[int]:
    """Where the values of secrets begin, ascending."""
    word_start = 0
    for position, character in enumerate(text):
        if _is_of_word(character):
            continue
        word = text[max(word_start, position - _NAME_MAX_LENGTH) : position]
        if word.lower() in _SCHEMES and character.isspace():
            yield _after_blanks(text, position)
        elif word and is_secret_name(word) and (separator := _separator(text, position)) is not None:
            yield _value(text, separator + 1)
        word_start = position + 1


def _separator(text: str, position: int) -> int | None:
    """Where the `=` or `:` after a name is, with a quote and some blanks between; None if there is none."""
    if position < len(text) and text[position] in _QUOTES:
        position += 1
    position = _after_blanks(text, position)
    return position if position < len(text) and text[position] in "=:" else None


def _value(text: str, position: int) -> int:
    position = _after_blanks(text, position)
    if position < len(text) and text[position] in _QUOTES:
        position += 1
    for scheme in _SCHEMES:
        end = position + len(scheme)
        if text[position:end].lower() == scheme and text[end : end + 1].isspace():
            return _after_blanks(text, end)
    return position


def _after_blanks(text: str, position: int) -> int:
    end = min(position + _BLANKS_MAX_LENGTH, len(text))
    while position < end and text[position].isspace():
        position += 1
    return position


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character in "_-"
