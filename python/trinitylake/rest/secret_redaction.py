"""Removes secrets from messages before they are logged or sent; libraries put signed URLs into theirs.

A secret is the value after a secret name and `=` or `:`, and the word after an authentication scheme, as in `Bearer
eyJ…`. The ordinary words after a scheme (`a bearer token is needed`) are a fixed list.

Messages may contain text of clients, so redaction takes linear time: one pass over at most `MESSAGE_MAX_LENGTH`
characters, which looks back by at most one word.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from trinitylake.base.secret_values import is_secret_name

MESSAGE_MAX_LENGTH = 1 << 16
_NAME_MAX_LENGTH = 64
_BLANKS_MAX_LENGTH = 4

_END_OF_VALUE = frozenset(" \t\r\n\f\v'\"&,;)")
_QUOTES = frozenset("'\"")
_SCHEMES = ("bearer", "basic")
#: Words about a scheme. All are shorter than a token of this server.
_ABOUT_SCHEMES = frozenset(("auth", "authentication", "authorization", "header", "scheme", "token", "tokens"))
#: Words that may follow such a word or a scheme without being a secret.
_OTHER_WORDS = (
    "a about again an and are as at be before but by can cannot did does expired failed for from had has if in instead "
    "invalid is it may method methods missing must needed needs no not of off on or realm rejected required sent "
    "should so than that the then there this to type types until was were when which will with without"
)
_ORDINARY = _ABOUT_SCHEMES | frozenset(_OTHER_WORDS.split())
#: Number of other words after a scheme that are examined.
_OTHERS_AFTER_SCHEME = 4
_PUNCTUATION, _END_OF_SENTENCE = ".:!?", ".!?"
#: Shorter words after an ordinary word are not treated as tokens.
_TOKEN_MIN_LENGTH = 8


def without_secrets(text: str) -> str:
    """The text with `***` for each secret, cut at `MESSAGE_MAX_LENGTH`."""
    if len(text) > MESSAGE_MAX_LENGTH:
        text = f"{text[:MESSAGE_MAX_LENGTH]}… and {len(text) - MESSAGE_MAX_LENGTH} more characters"
    kept: list[str] = []
    position = 0
    for start in _starts_of_values(text):
        if start < position:
            continue  # in a value that is already replaced
        ends = text[start - 1] + "\n" if text[start - 1] in _QUOTES else _END_OF_VALUE
        end = start
        while end < len(text) and text[end] not in ends:
            end += 1
        if end > start:
            kept += text[position:start], "***"
            position = end
    return "".join([*kept, text[position:]])


class Redaction(logging.Filter):
    """Removes secrets from log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = without_secrets(record.getMessage())
        record.args = ()
        return True


def _starts_of_values(text: str) -> Iterator[int]:
    """Start positions of secret values, ascending."""
    word_start = 0
    for position, character in enumerate(text):
        if _is_of_word(character):
            continue
        word = text[max(word_start, position - _NAME_MAX_LENGTH) : position]
        if word.lower() in _SCHEMES and character.isspace():
            if (start := _after_scheme(text, position)) is not None:
                yield start
        elif word and is_secret_name(word) and (separator := _separator(text, position)) is not None:
            yield _value(text, separator + 1)
        word_start = position + 1


def _after_scheme(text: str, position: int) -> int | None:
    """Start of the secret after a scheme: its first word that is not ordinary; None if there is none.

    After a word that is not about schemes, as in `bearer token is …`, only a word that looks like a token is a secret.
    """
    is_about, n_others = True, 0
    while n_others < _OTHERS_AFTER_SCHEME:
        start = _after_blanks(text, position)
        if text[start : start + 1] in _QUOTES:
            start += 1
        position = start
        while position < len(text) and position - start < _NAME_MAX_LENGTH and text[position] not in _END_OF_VALUE:
            position += 1
        word = text[start:position].rstrip(_PUNCTUATION)
        if word.lower() not in _ORDINARY and (is_about or _looks_like_token(word)):
            return start
        is_about = is_about and word.lower() in _ABOUT_SCHEMES
        n_others += not is_about
        if not text[position : position + 1].isspace() or text[position - 1] in _END_OF_SENTENCE:
            return None
    return None


def _looks_like_token(word: str) -> bool:
    """Whether a word has digits, or capitals among small letters."""
    is_mixed = not word.isupper() and any(character.isupper() for character in word[1:])
    return len(word) >= _TOKEN_MIN_LENGTH and (is_mixed or any(character.isdigit() for character in word))


def _separator(text: str, position: int) -> int | None:
    """Position of the `=` or `:` after a name, with a quote and some spaces between; None if there is none."""
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
