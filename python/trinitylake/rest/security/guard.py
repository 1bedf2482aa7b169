"""Authentication before every route: finds the principal of a request, or refuses it.

A request without a valid token is refused before its path is parsed. A server may do without tokens only on loopback.
Then it accepts programs and its own page, but no other page in a browser: another page sends another `Origin` or
`Sec-Fetch-Site`, and with DNS rebinding another `Host`.

Only `/healthz`, `/readyz` and the files of the page, which are the same for every lakehouse, need no authentication.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.rest.errors import error_response
from trinitylake.rest.security.authorization import ANYBODY, Principal
from trinitylake.rest.security.tokens import Tokens

if TYPE_CHECKING:
    from trinitylake.rest.security.jwt_bearer import JwtBearers

#: Authenticators that map a bearer token to a principal.
Bearers: TypeAlias = "Tokens | JwtBearers"

_LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)

#: Limits of requests whose tokens may need keys to be fetched: number of simultaneous fetches, and of such requests.
MAX_ASKING, MAX_WAITING = 4, 64

#: Key of the principal in the ASGI scope.
PRINCIPAL = "trinitylake.principal"


class Guard:
    """ASGI middleware that passes only requests of principals to `app`.

    Args:
        app: the application that gets the accepted requests.
        bearers: sources of the principals of tokens; empty for a server that is open to programs on this machine.
        probes: applications by path that need no authentication: health checks and the files of the page.
        is_read_only: whether every principal is at most a reader.
    """

    def __init__(
        self, app: ASGIApp, bearers: tuple[Bearers, ...], probes: Mapping[str, ASGIApp], is_read_only: bool = False
    ) -> None:
        self._app = app
        self._bearers = bearers
        self._probes = probes
        self._is_read_only = is_read_only
        self._limiter: CapacityLimiter | None = None
        self._n_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            return  # web sockets are not accepted
        elif (probe := self._probes.get(scope["path"])) is not None:
            await (probe if scope["method"] in ("GET", "HEAD") else _other_method())(scope, receive, send)
        else:
            found = await self._principal(scope)
            if isinstance(found, Principal):
                scope[PRINCIPAL] = found.as_reader() if self._is_read_only else found
                await self._app(scope, receive, send)
            else:
                await found(scope, receive, send)

    async def _principal(self, scope: Scope) -> Principal | ASGIApp:
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        if not self._bearers:
            hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
            is_here = len(hosts) == 1 and _LOOPBACK_HOST.fullmatch(hosts[0])
            if is_here and _is_no_other_page(headers, hosts[0]):
                return ANYBODY
            return error_response(403, "ForbiddenException", "only programs on this machine may use this server")
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) == 1:
            scheme, _, token = given[0].partition(b" ")
            if scheme.lower() == b"bearer":
                return await self._owner(token.strip()) or _unauthorized()
        return _unauthorized()

    async def _owner(self, token: bytes) -> Principal | ASGIApp | None:
        for bearers in self._bearers:
            if (principal := bearers.known(token)) is not None:
                return principal
        asking = [bearers for bearers in self._bearers if not isinstance(bearers, Tokens)]
        if asking and self._n_waiting >= MAX_WAITING:
            message = "the keys of the issuer of tokens are not available: try again"
            return error_response(503, "ServiceUnavailableException", message, {"Retry-After": "5"})
        self._limiter = self._limiter or CapacityLimiter(MAX_ASKING)
        self._n_waiting += 1
        try:
            for bearers in asking:
                if (principal := await run_sync(bearers.principal, token, limiter=self._limiter)) is not None:
                    return principal
        finally:
            self._n_waiting -= 1
        return None


def _is_no_other_page(headers: list[tuple[bytes, bytes]], host: str) -> bool:
    """Whether the request is not from a page of another origin, by headers that all browsers send."""
    origins = {value.decode("latin-1").lower() for name, value in headers if name == b"origin"}
    sites = {value for name, value in headers if name == b"sec-fetch-site"}
    own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
    return origins <= own and sites <= {b"same-origin", b"none"}


def _unauthorized() -> ASGIApp:
    message = "a bearer token is needed"
    return error_response(401, "NotAuthorizedException", message, {"WWW-Authenticate": "Bearer"})


def _other_method() -> ASGIApp:
    message = "this path supports only GET and HEAD"
    return error_response(405, "UnsupportedOperationException", message, {"Allow": "GET, HEAD"})


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
