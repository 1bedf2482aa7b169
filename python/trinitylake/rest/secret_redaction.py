"""Removes secrets from messages before they are logged or sent. Errors of libraries may contain signed URLs.

A secret is the value after a secret name and `=` or `:`, and the word after an authentication scheme, as in `Bearer
eyJ…`. A fixed list has the ordinary words that may follow a scheme, as in `a bearer token is needed`.

Clients can put long text into messages, so redaction takes linear time: one pass over at most `MESSAGE_MAX_LENGTH`
characters.
"""

from __future__ import annotations

import logging
import re

from trinitylake.base.secret_values import is_secret_name

MESSAGE_MAX_LENGTH = 1 << 16
_NAME_MAX_LENGTH = 64

_SCHEMES = ("bearer", "basic")
#: Words that extend the name of a scheme, as in `bearer token`. All are shorter than a token of this server.
_ABOUT_SCHEMES = frozenset(("auth", "authentication", "authorization", "header", "scheme", "token", "tokens"))
#: Other words that may follow a scheme without being a secret.
_OTHER_WORDS = (
    "a about again an and are as at be before but by can cannot did does expired failed for from had has if in instead "
    "invalid is it may method methods missing must needed needs no not of off on or realm rejected required sent "
    "should so than that the then there this to type types until was were when which will with without"
)
_ORDINARY = _ABOUT_SCHEMES | frozenset(_OTHER_WORDS.split())
#: Maximum number of these other words after a scheme that are skipped in the search for a secret.
_OTHERS_AFTER_SCHEME = 4
_PUNCTUATION, _END_OF_SENTENCE = ".:!?", ".!?"
#: After one of the other words, a shorter word does not count as a token.
_TOKEN_MIN_LENGTH = 8

_WORD = re.compile(r"[\w-]+")
#: Separator between a secret name and its value.
_ASSIGNMENT = re.compile(r"""['"]?\s{0,4}[=:]\s{0,4}['"]?(?:(?:bearer|basic)\s{1,4})?""", re.IGNORECASE)
_WORD_AFTER_SCHEME = re.compile(r"""\s{0,4}['"]?([^ \t\r\n\f\v'"&,;)]{0,64})""")
_VALUE = re.compile(r"""[^ \t\r\n\f\v'"&,;)]+""")
#: The value after a quote.
_QUOTED_VALUE = {"'": re.compile(r"[^'\n]+"), '"': re.compile(r'[^"\n]+')}


def without_secrets(text: str) -> str:
    """The text, cut at `MESSAGE_MAX_LENGTH`, with `***` instead of each secret."""
    if len(text) > MESSAGE_MAX_LENGTH:
        text = f"{text[:MESSAGE_MAX_LENGTH]}… and {len(text) - MESSAGE_MAX_LENGTH} more characters"
    kept: list[str] = []
    position = 0
    for word in _WORD.finditer(text):
        start = _start_of_value(text, word)
        # A start before `position` is in a value that is already replaced.
        if start is not None and start >= position:
            value = _QUOTED_VALUE.get(text[start - 1], _VALUE).match(text, start)
            if value is not None:
                kept += text[position:start], "***"
                position = value.end()
    return "".join([*kept, text[position:]])


class Redaction(logging.Filter):
    """Removes secrets from log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = without_secrets(record.getMessage())
        record.args = ()
        return True


def _start_of_value(text: str, word: re.Match[str]) -> int | None:
    """Start of the secret that follows a word; None if no secret follows."""
    name = word.group()[-_NAME_MAX_LENGTH:]
    if name.lower() in _SCHEMES and text[word.end() : word.end() + 1].isspace():
        return _start_after_scheme(text, word.end())
    if is_secret_name(name) and (assignment := _ASSIGNMENT.match(text, word.end())) is not None:
        return assignment.end()
    return None


def _start_after_scheme(text: str, position: int) -> int | None:
    """Start of the secret after a scheme, which is the first word that is not ordinary; None for no secret.

    After one of `_OTHER_WORDS`, as in `bearer token is …`, only a word that looks like a token is a secret.
    """
    is_about, n_others = True, 0
    while n_others < _OTHERS_AFTER_SCHEME and (found := _WORD_AFTER_SCHEME.match(text, position)) is not None:
        start, position = found.span(1)
        word = found.group(1).rstrip(_PUNCTUATION)
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
