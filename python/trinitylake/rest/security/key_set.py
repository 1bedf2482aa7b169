"""Public keys that sign JSON Web Tokens: in a file, or fetched from a URL by PyJWT, which follows no redirect.

Fetched keys stay valid while their issuer cannot be reached. They are fetched again after `MAX_AGE_SECONDS`, so that a
withdrawn key becomes invalid, and when a token names an unknown key, so that a new key is found. At least
`MIN_SECONDS_BETWEEN_FETCHES` pass between two fetches, because any client can send a token with an unknown key.
Requests whose tokens have a known key do not wait for a fetch.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import jwt

from trinitylake.errors import InvalidArgument

logger = logging.getLogger("trinitylake.rest")

MAX_AGE_SECONDS = 300
MIN_SECONDS_BETWEEN_FETCHES = 10
_FETCH_TIMEOUT_SECONDS = 5
RSA_MIN_BITS = 2048
#: Kinds of public keys, and their minimum number of bits. All curves for signatures have enough bits.
_MIN_BITS = {"RSA": RSA_MIN_BITS, "EC": 256, "OKP": 0}
#: Errors of PyJWT and JSON for a document that is not a key set.
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, jwt.PyJWTError)


class FileKeySet:
    """Keys in a file, read again when the file has changed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises `InvalidArgument` for a file without keys."""
        self._path = path
        self._keys: tuple[int, list[jwt.PyJWK]] | None = None
        self._read()

    def find(self, id: str | None) -> jwt.PyJWK:
        """The key with an id, or the only key for a token without one.

        Raises `jwt.InvalidKeyError` unless exactly one key matches, and `InvalidArgument` as the constructor does.
        """
        return _only(self._read(), id)

    def known(self, id: str | None) -> jwt.PyJWK | None:
        """Like `find`, but None unless exactly one key matches."""
        try:
            return self.find(id)
        except jwt.InvalidKeyError:
            return None

    def _read(self) -> list[jwt.PyJWK]:
        try:
            changed = self._path.stat().st_mtime_ns
            if self._keys is None or self._keys[0] != changed:
                self._keys = changed, _keys_of(json.loads(self._path.read_bytes()))
        except _UNREADABLE as error:
            raise InvalidArgument(f"the key set {self._path} cannot be read: {error}") from error
        return self._keys[1]


class FetchedKeySet:
    """Keys behind an `https://` URL. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=_FETCH_TIMEOUT_SECONDS)
        self._keys: list[jwt.PyJWK] = []
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = threading.Lock()

    def known(self, id: str | None) -> jwt.PyJWK | None:
        """The cached key with an id; None if `find` must be called. Never waits."""
        found = _matching(self._keys, id)
        is_old = time.monotonic() - self._fetched_at >= MAX_AGE_SECONDS
        return None if len(found) != 1 or (is_old and self._may_fetch()) else found[0]

    def find(self, id: str | None) -> jwt.PyJWK:
        """Like `FileKeySet.find`. May wait for a fetch if the key is unknown or old."""
        with self._lock:
            if self.known(id) is None and self._may_fetch():
                self._fetch()
        return _only(self._keys, id)

    def _may_fetch(self) -> bool:
        return time.monotonic() - self._tried_at >= MIN_SECONDS_BETWEEN_FETCHES

    def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        try:
            self._keys = _keys_of(self._client.fetch_data())
        except _UNREADABLE as error:
            logger.warning("cannot fetch the keys at %s, the known keys stay valid: %s", self._url, error)
        else:
            self._fetched_at = self._tried_at


def _keys_of(document: Any) -> list[jwt.PyJWK]:
    """The keys of a JWKS document that verify signatures, by their type and their declared use."""
    entries = [entry for entry in document["keys"] if "verify" in (entry.get("key_ops") or ["verify"])]
    found = [key for key in jwt.PyJWKSet(entries).keys if _is_for_signatures(key)]
    if not found:
        raise ValueError("it has no public key for signatures")
    return found


def _is_for_signatures(key: jwt.PyJWK) -> bool:
    min_bits = _MIN_BITS.get(key.key_type or "")  # None for a shared secret
    is_long = min_bits is not None and getattr(key.key, "key_size", RSA_MIN_BITS) >= min_bits
    return key.public_key_use in (None, "sig") and is_long


def _matching(keys: list[jwt.PyJWK], id: str | None) -> list[jwt.PyJWK]:
    return [key for key in keys if key.key_id == id] if id else keys


def _only(keys: list[jwt.PyJWK], id: str | None) -> jwt.PyJWK:
    found = _matching(keys, id)
    if len(found) != 1:
        raise jwt.InvalidKeyError("no key, or several keys, with that id")
    return found[0]
