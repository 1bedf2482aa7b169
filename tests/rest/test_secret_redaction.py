"""Secrets are removed from messages, and ordinary words are not.

`bearer token` in an ordinary message became `bearer ***`; and in `bearer token eyJ…` the word was removed and the token
stayed.
"""

from __future__ import annotations

import base64
import random
import string

import pytest

from trinitylake.rest.secret_redaction import without_secrets

TOKENS = string.ascii_letters + string.digits + "-_.~+/="

#: Messages of Python, Iceberg and this library about authentication schemes.
ORDINARY = [
    "a bearer token is needed",
    "Bearer token missing",
    "the bearer token has expired, and was rejected",
    "Invalid bearer token.",
    "only bearer authentication is supported",
    "Basic authentication failed for user ana",
    "basic auth is not supported: use bearer tokens",
    "bearer tokens must have at least 16 characters",
    "basic types",
    "the authentication scheme is bearer",
    "Bearer, or basic",
    "bearer token was not accepted by any two-factor service",
    "Bearer AUTHENTICATION REQUIRED",
]


def test_ordinary_messages_are_unchanged() -> None:
    for text in ORDINARY:
        assert without_secrets(text) == text
        assert without_secrets(f"400: {text}; try again") == f"400: {text}; try again"


#: Texts with a token, as in headers, errors of libraries and settings.
AROUND = [
    "Bearer {}",
    "bearer {} was rejected",
    "BEARER\t{}",
    "Authorization: Bearer {}",
    "authorization=bearer {}",
    "'Authorization': 'Bearer {}'",
    '{{"Authorization": "Basic {}"}}',
    "invalid bearer token {}",
    "Bearer Token {}.",
    "bearer token: {}",
    "bearer token '{}' has expired",
    "bearer '{}'",
    'basic "{}"',
    "Basic {}",
    "bearer authentication header token {}",
    "bearer token token token token token {}",
]


@pytest.mark.parametrize("around", AROUND)
def test_tokens_are_redacted(around: str) -> None:
    chance = random.Random(around)
    for length in [4, 6, 8, 12, 16, 40, 200] * 40:
        alphabet = chance.choice([TOKENS, string.ascii_lowercase, string.hexdigits, string.ascii_letters])
        token = chance.choice(string.ascii_letters) + "".join(chance.choice(alphabet) for _ in range(length))
        shown = without_secrets(around.format(token))
        assert token not in shown, shown
        assert token.rstrip(".=")[:-1] not in shown, shown
        assert "***" in shown


def test_passwords_are_redacted() -> None:
    chance = random.Random(7)
    for _ in range(500):
        user, password = ("".join(chance.choice(string.ascii_lowercase) for _ in range(3)) for _ in range(2))
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        assert credentials not in without_secrets(f"Basic {credentials} was refused")


@pytest.mark.parametrize("words", ["is", "was", "has been replaced by", "must not be", "expired:"])
def test_tokens_after_ordinary_words_are_redacted(words: str) -> None:
    chance = random.Random(words)
    for _ in range(300):
        token = "eyJ" + "".join(chance.choice(TOKENS[:62]) for _ in range(chance.randrange(10, 60)))
        shown = without_secrets(f"the bearer token {words.split()[0]} {token}")
        assert token not in shown, shown


def test_messages_of_ordinary_words_are_never_changed() -> None:
    """Random ordinary words, with an authentication scheme only before its usual words."""
    sentence = "the table shop.orders has 12 columns and snapshot 8421 of version 3 is not there any more"
    words = sentence.split()
    about = ["bearer token", "bearer tokens", "basic auth", "Bearer authentication", "basic authentication header"]
    chance = random.Random(3)
    for _ in range(500):
        mixed = [chance.choice(words) for _ in range(12)]
        mixed.insert(chance.randrange(12), chance.choice(about) + chance.choice([" is", " was", ",", ".", " and"]))
        text = " ".join(mixed)
        assert without_secrets(text) == text
