"""Public keys that sign JSON Web Tokens: in a file, or fetched from a URL.

Fetched keys stay valid while their issuer cannot be reached. They are fetched again after `MAX_AGE_SECONDS`, so that a
withdrawn key becomes invalid, and when a token names an unknown key, so that a new one is found; but at most every
`MIN_SECONDS_BETWEEN_FETCHES`, because anybody can send such tokens. A token that names a known key never waits.

PyJWT parses the keys. Its `PyJWKClient` is not used: it drops old keys while their issuer is down and fetches again for
each token, and makes known keys wait for a fetch.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import jwt

from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from http.client import HTTPMessage

logger = logging.getLogger("trinitylake.rest")

MAX_AGE_SECONDS = 300
MIN_SECONDS_BETWEEN_FETCHES = 10
_FETCH_TIMEOUT_SECONDS = 5
_READ_SIZE_BYTES = 64 << 10
_MAX_SIZE_BYTES = 1 << 20
RSA_MIN_BITS = 2048
#: Kinds of public keys, and their minimal number of bits. All curves for signatures are long enough.
_MIN_BITS = {"RSA": RSA_MIN_BITS, "EC": 256, "OKP": 0}
_KINDS = frozenset(_MIN_BITS)


class FileKeySet:
    """Keys in a file, read again when the file has changed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises `InvalidArgument` for a file without keys."""
        self._path = path
        self._keys: tuple[int, list[jwt.PyJWK]] | None = None
        self._read()

    def find(self, id: str | None) -> jwt.PyJWK:
        """The key with an id, or the only key for a token without one.

        Raises `jwt.InvalidKeyError` if there is not exactly one, and `InvalidArgument` as the constructor does.
        """
        return _only(self._read(), id)

    def known(self, id: str | None) -> jwt.PyJWK | None:
        """As `find`, but None for no key."""
        try:
            return self.find(id)
        except jwt.InvalidKeyError:
            return None

    def _read(self) -> list[jwt.PyJWK]:
        try:
            changed = self._path.stat().st_mtime_ns
            if self._keys is None or self._keys[0] != changed:
                self._keys = changed, _keys_of(self._path.read_bytes())
        except (OSError, ValueError, TypeError, KeyError, AttributeError, jwt.PyJWTError) as error:
            raise InvalidArgument(f"the key set {self._path} cannot be read: {error}") from error
        return self._keys[1]


class FetchedKeySet:
    """Keys behind an `https://` URL. Thread-safe; may block for a fetch."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(_OverTls())
        self._keys: list[jwt.PyJWK] = []
        self._fetched_at = self._tried_at = float("-inf")
        self._lock = threading.Lock()

    def known(self, id: str | None) -> jwt.PyJWK | None:
        """The cached key with an id; None if `find` must be called. Never waits.

        Old keys are fetched again in the background. Keys of twice that age are used only if the last fetch failed.
        """
        found = _matching(self._keys, id)
        age_seconds = time.monotonic() - self._fetched_at
        if len(found) != 1 or (age_seconds >= 2 * MAX_AGE_SECONDS and self._tried_at <= self._fetched_at):
            return None
        if age_seconds >= MAX_AGE_SECONDS and self._is_time() and self._lock.acquire(blocking=False):
            threading.Thread(target=self._fetch_and_release, daemon=True).start()
        return found[0]

    def find(self, id: str | None) -> jwt.PyJWK:
        """As `FileKeySet.find`, with a fetch if the key is unknown or old."""
        is_known = len(_matching(self._keys, id)) == 1
        is_old = time.monotonic() - self._fetched_at >= MAX_AGE_SECONDS
        # With a known key, another thread that fetches is not waited for.
        if (is_old or not is_known) and self._lock.acquire(blocking=not is_known):
            self._fetch_and_release()
        return _only(self._keys, id)

    def _fetch_and_release(self) -> None:
        try:
            self._fetch()
        finally:
            self._lock.release()

    def _is_time(self) -> bool:
        return time.monotonic() - self._tried_at >= MIN_SECONDS_BETWEEN_FETCHES

    def _fetch(self) -> None:
        if not self._is_time():
            return
        self._tried_at = time.monotonic()
        try:
            self._keys = _keys_of(self._read())
        except (OSError, HTTPException, ValueError, TypeError, KeyError, AttributeError, jwt.PyJWTError) as error:
            logger.warning("cannot fetch the keys at %s, the known keys stay valid: %s", self._url, error)
        else:
            self._fetched_at = self._tried_at

    def _read(self) -> bytes:
        """The document, with limits on its size and duration."""
        deadline = time.monotonic() + _FETCH_TIMEOUT_SECONDS
        data = bytearray()
        with self._opener.open(self._url, timeout=_FETCH_TIMEOUT_SECONDS) as response:
            while part := response.read1(_READ_SIZE_BYTES):
                data += part
                if len(data) > _MAX_SIZE_BYTES:
                    raise ValueError(f"more than {_MAX_SIZE_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no complete response within {_FETCH_TIMEOUT_SECONDS} seconds")
        return bytes(data)


class _OverTls(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://"):
            raise ValueError(f"redirect to {newurl!r}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _keys_of(data: bytes) -> list[jwt.PyJWK]:
    """The keys of a JWKS document that verify signatures, by their type and their declared use."""
    try:
        document: Any = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    keys = zip(document["keys"], map(_key_of, document["keys"]), strict=True)
    found = [key for entry, key in keys if key is not None and _is_for_signatures(entry, key)]
    if not found:
        raise ValueError("it has no public key for signatures")
    return found


def _key_of(entry: Any) -> jwt.PyJWK | None:
    """The key of an entry; None for an unknown kind, such as some keys for encryption."""
    try:
        return jwt.PyJWK.from_dict(entry)
    except jwt.PyJWTError:
        return None


def _is_for_signatures(entry: Any, key: jwt.PyJWK) -> bool:
    operations = entry.get("key_ops")
    if key.public_key_use not in (None, "sig") or (operations is not None and "verify" not in operations):
        return False
    # Not shared secrets, and not short keys.
    return key.key_type in _KINDS and getattr(key.key, "key_size", RSA_MIN_BITS) >= _MIN_BITS[key.key_type]


def _matching(keys: list[jwt.PyJWK], id: str | None) -> list[jwt.PyJWK]:
    return [key for key in keys if key.key_id == id] if id else keys


def _only(keys: list[jwt.PyJWK], id: str | None) -> jwt.PyJWK:
    found = _matching(keys, id)
    if len(found) != 1:
        raise jwt.InvalidKeyError("no key, or several keys, with that id")
    return found[0]
