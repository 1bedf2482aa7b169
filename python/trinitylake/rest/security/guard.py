"""Authentication before every route: finds out which principal sent a request, or ends it.

A request without the right token ends here, before its path is looked at. Without tokens, which only the loopback
interface permits, a request must come from a program or from the server's own page, and not from any other page in a
browser: those send another `Origin`, or say in `Sec-Fetch-Site` that the request comes from elsewhere, and the name in
`Host` is not the machine's own when somebody's DNS points at it.

Only `/healthz` and `/readyz`, and the files of the page, which are the same for every lakehouse, are open to everybody.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.rest.errors import error_response
from trinitylake.rest.security.principals import ANYBODY, Principal
from trinitylake.rest.security.tokens import Tokens

_LOOPBACK_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)

#: Tokens whose keys must be asked for: at work at the same time, and with those that wait for that.
MAX_ASKING, MAX_WAITING = 4, 64

#: Where the guard leaves whom it let in.
PRINCIPAL = "trinitylake.principal"


class Bearers(Protocol):
    """Whoever knows whose a bearer token is."""

    def known(self, token: bytes) -> Principal | None:
        """Whose token it is, as far as that is known without waiting for anybody."""

    def principal(self, token: bytes) -> Principal | None:
        """Whose token it is, if anybody's. May wait."""


class Guard:
    """ASGI middleware that lets nothing through to `app` but requests of principals.

    Args:
        app: what is behind it.
        bearers: who knows the tokens; none of them opens the server to programs on this machine.
        probes: answers for paths that are open to everybody: whether the server works, and the files of the page.
    """

    def __init__(
        self, app: ASGIApp, bearers: tuple[Bearers, ...], probes: Mapping[str, Callable[[], Awaitable[ASGIApp]]]
    ) -> None:
        self._app = app
        self._bearers = bearers
        self._probes = probes
        self._limiter: CapacityLimiter | None = None
        self._n_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            return  # a web socket that is never accepted
        elif (probe := self._probes.get(scope["path"])) is not None:
            is_read = scope["method"] in ("GET", "HEAD")
            await (await probe() if is_read else _other_method())(scope, receive, send)
        else:
            found = await self._principal(scope)
            if isinstance(found, Principal):
                scope[PRINCIPAL] = found
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
            message = "the keys of the tokens' issuer are not known now"
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
    """Whether a request is not from a page of another origin, as far as browsers tell, which all do."""
    origins = {value.decode("latin-1").lower() for name, value in headers if name == b"origin"}
    sites = {value for name, value in headers if name == b"sec-fetch-site"}
    own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
    return origins <= own and sites <= {b"same-origin", b"none"}


def _unauthorized() -> ASGIApp:
    message = "a bearer token is needed"
    return error_response(401, "NotAuthorizedException", message, {"WWW-Authenticate": "Bearer"})


def _other_method() -> ASGIApp:
    message = "this path is only read"
    return error_response(405, "UnsupportedOperationException", message, {"Allow": "GET, HEAD"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
