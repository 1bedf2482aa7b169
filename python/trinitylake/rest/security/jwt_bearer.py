"""JSON Web Tokens as bearer tokens, from OpenID Connect or another issuer.

A token counts if its signature is of a key in the key set, by an algorithm with a public key, and if it names the
expected issuer and audience, has not expired, and says who it is about. The claim with the grants is the operator's
choice; a token without it may do nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from trinitylake.errors import InvalidArgument
from trinitylake.rest.security.key_set import FetchedKeySet, FileKeySet
from trinitylake.rest.security.principals import Principal

logger = logging.getLogger("trinitylake.rest")

#: Those with a public key. A shared secret, or none, is never a signature here.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
MAX_TOKEN_SIZE_BYTES = 16 << 10
#: Of whom a token is about.
_NAME_MAX_LENGTH = 200
_KEEP_TOKENS = 1000
#: After which a token is verified again, because its key may have been withdrawn.
_KEEP_SECONDS = 300


@dataclass(frozen=True)
class JwtSettings:
    """Which tokens count.

    Attributes:
        issuer, audience: what `iss` and `aud` must be.
        jwks: the key set: a file, or an `https://` URL (`key_set.py`).
        grants_claim: the claim with the grants: a list, or a text with blanks between, of `role:pattern`.
        leeway_seconds: by how much clocks may differ.
    """

    issuer: str
    audience: str
    jwks: str
    grants_claim: str = "trinitylake"
    leeway_seconds: int = 30


class JwtBearers:
    """Verifies tokens. Safe to share between threads; may block to fetch keys."""

    def __init__(self, settings: JwtSettings, names_of_others: Collection[str] = ()) -> None:
        """Tokens about `names_of_others` do not count: these are principals who have tokens of another kind.

        Raises `InvalidArgument` for a key set that cannot be used.
        """
        self._names_of_others = frozenset(names_of_others)
        if not settings.issuer or not settings.audience:
            raise InvalidArgument("tokens need an issuer and an audience to be checked against")
        self._settings = settings
        self._verified: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._lock = threading.Lock()
        if "://" not in settings.jwks:
            self._keys: FileKeySet | FetchedKeySet = FileKeySet(Path(settings.jwks))
        elif settings.jwks.startswith("https://"):
            self._keys = FetchedKeySet(settings.jwks)
        else:
            raise InvalidArgument(f"keys come from a file or an https:// URL, not {settings.jwks!r}")

    def known(self, token: bytes) -> Principal | None:
        """Whose token it is, by the keys that are known; None for one that does not count, or not yet. Never waits."""
        return self._principal(token, self._keys.known)

    def principal(self, token: bytes) -> Principal | None:
        """Whose token it is; None for one that does not count. May wait for keys."""
        return self._principal(token, self._keys.find)

    def _principal(self, token: bytes, key: Callable[[str | None], jwt.PyJWK | None]) -> Principal | None:
        if len(token) > MAX_TOKEN_SIZE_BYTES or token.count(b".") != 2:
            return None
        with self._lock:
            known = self._verified.get(token)
            if known is not None and known[0] > time.time():
                self._verified.move_to_end(token)
                return known[1]
        try:
            text = token.decode("ascii")
            if (found := key(jwt.get_unverified_header(text).get("kid"))) is None:
                return None
            claims = self._claims(text, found)
            principal = Principal.of(self._name(claims), self._grants(claims))
            verified_until = min(float(claims["exp"]), time.time() + _KEEP_SECONDS)
        except Exception as error:  # whatever a library makes of a token that anybody may have sent
            logger.debug("a token does not count: %s", type(error).__name__)
            return None
        with self._lock:
            self._verified[token] = verified_until, principal
            while len(self._verified) > _KEEP_TOKENS:
                self._verified.popitem(last=False)
        return principal

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            audience=self._settings.audience,
            issuer=self._settings.issuer,
            leeway=self._settings.leeway_seconds,
            options={"require": ["exp", "iss", "aud", "sub"]},
        )
        return claims

    def _name(self, claims: dict[str, Any]) -> str:
        """Who a token is about: what belongs to them is found by this name, and logs and commits show it."""
        name = claims["sub"]
        is_name = isinstance(name, str) and 0 < len(name) <= _NAME_MAX_LENGTH and name.isprintable()
        if not is_name or name != name.strip() or name in self._names_of_others:
            raise ValueError("nobody can be called so")
        return str(name)

    def _grants(self, claims: dict[str, Any]) -> list[str]:
        grants = claims.get(self._settings.grants_claim, [])
        if isinstance(grants, str):
            return grants.split()
        if not isinstance(grants, list) or not all(isinstance(one, str) for one in grants):
            raise ValueError("grants are a list of texts, or a text")
        return grants
