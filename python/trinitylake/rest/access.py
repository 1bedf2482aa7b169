"""Who may use the server: a guard before every route, whatever the route is.

A request without the right token ends here, before its path is looked at. Without tokens, which only the loopback
interface permits, a request must come from a program and not from a page in a browser: browsers send `Origin`, and the
name in `Host` is not the machine's own when somebody's DNS points at it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.errors import InvalidArgument
from trinitylake.rest.errors import error_response

TOKEN_MIN_LENGTH = 16
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


class Tokens:
    """The tokens that open the server. Only their hashes are kept. Made from texts, or by `from_file`."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests: list[bytes] = []
        for token in tokens:
            if hashed := _HASHED.fullmatch(token):
                self._digests.append(bytes.fromhex(hashed[1]))
            elif len(token) >= TOKEN_MIN_LENGTH and token.isascii() and token.isprintable() and " " not in token:
                self._digests.append(_digest(token.encode()))
            else:
                raise InvalidArgument(
                    f"a token is printable ASCII without blanks, of at least {TOKEN_MIN_LENGTH} characters, "
                    "or sha256: and the 64 hexadecimal digits of its hash"
                )
        if not self._digests:
            raise InvalidArgument("there is no token")

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """One token a line, as it is or as `sha256:<hex>`; empty lines and those with `#` in front do not count.

        Raises `InvalidArgument` for a file that others may read, cannot be read, or holds no token.
        """
        try:
            mode = path.stat().st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise InvalidArgument(f"the token file {path} can be read by others: chmod 600 it")
            lines = [line.strip() for line in path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the token file {path} cannot be read: {error}") from error
        return cls(line for line in lines if line and not line.startswith("#"))

    def permit(self, authorization: bytes | None) -> bool:
        """Whether the header holds one of the tokens. Takes the same time wherever the difference is."""
        scheme, _, token = (authorization or b"").partition(b" ")
        given = _digest(token.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


class Guard:
    """ASGI middleware that lets nothing through to `app` but requests that are permitted."""

    def __init__(self, app: ASGIApp, tokens: Tokens | None) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            return  # a web socket that is never accepted
        elif (refusal := self._refusal(scope["headers"])) is not None:
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> ASGIApp | None:
        found = [(name.lower(), value) for name, value in headers]
        if self._tokens is not None:
            given = [value for name, value in found if name == b"authorization"]
            if len(given) == 1 and self._tokens.permit(given[0]):
                return None
            message = "a bearer token is needed"
            return error_response(401, "NotAuthorizedException", message, {"WWW-Authenticate": "Bearer"})
        hosts = [value.decode("latin-1") for name, value in found if name == b"host"]
        if len(hosts) != 1 or not _LOOPBACK_HOST.fullmatch(hosts[0]) or any(name == b"origin" for name, _ in found):
            return error_response(403, "ForbiddenException", "only programs on this machine may use this server")
        return None


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
