"""JSON Web Tokens as bearer tokens, from OpenID Connect or another issuer.

A token is valid if a public key of the key set verifies its signature, if it has the expected issuer and audience and a
subject, and if it has not expired. The operator chooses the claim that contains the grants; a token without that claim
has no rights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from trinitylake.errors import InvalidArgument
from trinitylake.rest.security.authorization import Principal
from trinitylake.rest.security.key_set import FetchedKeySet, FileKeySet

logger = logging.getLogger("trinitylake.rest")

#: Algorithms with a public key. Shared secrets and unsigned tokens are refused.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
MAX_TOKEN_SIZE_BYTES = 16 << 10
#: Maximum length of a subject.
_NAME_MAX_LENGTH = 200


@dataclass(frozen=True)
class JwtSettings:
    """Rules for valid tokens.

    Attributes:
        issuer, audience: required values of `iss` and `aud`.
        jwks: the key set: a file, or an `https://` URL (`key_set.py`).
        grants_claim: the claim with the grants: a list of `role:pattern`, or one string of grants separated by spaces.
        leeway_seconds: allowed difference between clocks.
    """

    issuer: str
    audience: str
    jwks: str
    grants_claim: str = "trinitylake"
    leeway_seconds: int = 30


class JwtBearers:
    """Verifies tokens. Thread-safe; may block to fetch keys."""

    def __init__(self, settings: JwtSettings, names_of_others: Collection[str] = ()) -> None:
        """Create a verifier. A token is invalid if its subject is in `names_of_others`, the principals of other tokens.

        Raises `InvalidArgument` for a key set that cannot be used.
        """
        self._names_of_others = frozenset(names_of_others)
        if not settings.issuer or not settings.audience:
            raise InvalidArgument("tokens need an issuer and an audience to be checked against")
        self._settings = settings
        if "://" not in settings.jwks:
            self._keys: FileKeySet | FetchedKeySet = FileKeySet(Path(settings.jwks))
        elif settings.jwks.startswith("https://"):
            self._keys = FetchedKeySet(settings.jwks)
        else:
            raise InvalidArgument(f"keys come from a file or an https:// URL, not {settings.jwks!r}")

    def known(self, token: bytes) -> Principal | None:
        """The principal of a token, by the cached keys; None for an invalid token or an unknown key. Never waits."""
        return self._principal(token, self._keys.known)

    def principal(self, token: bytes) -> Principal | None:
        """The principal of a token; None for an invalid one. May wait for keys."""
        return self._principal(token, self._keys.find)

    def _principal(self, token: bytes, key: Callable[[str | None], jwt.PyJWK | None]) -> Principal | None:
        if len(token) > MAX_TOKEN_SIZE_BYTES or token.count(b".") != 2:
            return None
        try:
            text = token.decode("ascii")
            if (found := key(jwt.get_unverified_header(text).get("kid"))) is None:
                return None
            claims = self._claims(text, found)
            return Principal.of(self._name(claims), self._grants(claims))
        except Exception as error:  # libraries raise many kinds of errors for invalid tokens
            logger.debug("invalid token: %s", type(error).__name__)
            return None

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
        """The subject of a token: owner of transactions, and author in logs and commits."""
        name = claims["sub"]
        is_name = isinstance(name, str) and 0 < len(name) <= _NAME_MAX_LENGTH and name.isprintable()
        if not is_name or name != name.strip() or name in self._names_of_others:
            raise ValueError("invalid subject")
        return str(name)

    def _grants(self, claims: dict[str, Any]) -> list[str]:
        grants = claims.get(self._settings.grants_claim, [])
        if isinstance(grants, str):
            return grants.split()
        if not isinstance(grants, list) or not all(isinstance(one, str) for one in grants):
            raise ValueError("grants are a list of strings, or a string")
        return grants
