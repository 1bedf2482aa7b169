"""The application: every route of the server, and the way of a request to its handler.

Paths are matched as they were sent, with their escapes, so that a name with `/` in it stays one segment. Handlers are
plain functions that block; they run on threads of which there are at most `MAX_THREADS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.lakehouse import Lakehouse
from trinitylake.rest import config, metrics, namespaces, tables, transactions, views
from trinitylake.rest.access import Guard, Tokens
from trinitylake.rest.call import Call, Service
from trinitylake.rest.errors import RestError, error_response, response_of
from trinitylake.rest.open_transactions import OpenTransactions
from trinitylake.rest.table_responses import TableResponses

MAX_THREADS = 64
MAX_BODY_SIZE_BYTES = 16 << 20

Handler = Callable[[Call], Response]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. `writes` is what the past and clients of the past do not have."""

    method: str
    path: str
    handler: Handler
    writes: bool = False


_NAMESPACES = "/v1/{prefix}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views/{{view}}"
_OPEN = "/trinitylake/v1/transactions"

#: The specification's, each with a prefix; they are served without one too, which is the latest version.
CATALOG = (
    Endpoint("GET", _NAMESPACES, namespaces.list_all),
    Endpoint("POST", _NAMESPACES, namespaces.create, writes=True),
    Endpoint("HEAD", _NAMESPACE, namespaces.exists),
    Endpoint("GET", _NAMESPACE, namespaces.load),
    Endpoint("DELETE", _NAMESPACE, namespaces.drop, writes=True),
    Endpoint("POST", f"{_NAMESPACE}/properties", namespaces.update_properties, writes=True),
    Endpoint("GET", f"{_NAMESPACE}/tables", tables.list_all),
    Endpoint("POST", f"{_NAMESPACE}/tables", tables.create, writes=True),
    Endpoint("POST", f"{_NAMESPACE}/register", tables.register, writes=True),
    Endpoint("HEAD", _TABLE, tables.exists),
    Endpoint("GET", _TABLE, tables.load),
    Endpoint("POST", _TABLE, tables.commit, writes=True),
    Endpoint("DELETE", _TABLE, tables.drop, writes=True),
    Endpoint("POST", f"{_TABLE}/metrics", metrics.report),
    Endpoint("POST", "/v1/{prefix}/tables/rename", tables.rename, writes=True),
    Endpoint("GET", f"{_NAMESPACE}/views", views.list_all),
    Endpoint("POST", f"{_NAMESPACE}/views", views.create, writes=True),
    Endpoint("POST", f"{_NAMESPACE}/register-view", views.register, writes=True),
    Endpoint("HEAD", _VIEW, views.exists),
    Endpoint("GET", _VIEW, views.load),
    Endpoint("POST", _VIEW, views.replace, writes=True),
    Endpoint("DELETE", _VIEW, views.drop, writes=True),
    Endpoint("POST", "/v1/{prefix}/views/rename", views.rename, writes=True),
    Endpoint("POST", "/v1/{prefix}/transactions/commit", transactions.commit_tables, writes=True),
)

#: Those without a prefix.
OTHERS = (
    Endpoint("GET", "/v1/config", config.config),
    Endpoint("GET", _OPEN, transactions.list_all),
    Endpoint("POST", _OPEN, transactions.begin),
    Endpoint("GET", f"{_OPEN}/{{id}}", transactions.load),
    Endpoint("POST", f"{_OPEN}/{{id}}/commit", transactions.commit),
    Endpoint("POST", f"{_OPEN}/{{id}}/rollback", transactions.rollback),
    Endpoint("GET", "/trinitylake/v1/metrics", metrics.list_all),
)


def create_app(
    lake: Lakehouse,
    tokens: Tokens | None,
    *,
    max_body_size_bytes: int = MAX_BODY_SIZE_BYTES,
    overrides_locations: bool = False,
) -> App:
    """The application that serves a lakehouse.

    Args:
        lake: what is served.
        tokens: one of them opens every route; None opens all of them to programs on this machine.
        max_body_size_bytes: of a request.
        overrides_locations: replace a location outside of the lakehouse instead of refusing it.
    """
    return App(lake, tokens, max_body_size_bytes, overrides_locations)


class App:
    """An ASGI application.

    Attributes:
        service: what requests share.
        router: the routes behind the guard.
    """

    def __init__(
        self, lake: Lakehouse, tokens: Tokens | None, max_body_size_bytes: int, overrides_locations: bool
    ) -> None:
        self.service = Service(
            lake=lake,
            transactions=OpenTransactions(lake),
            table_responses=TableResponses(),
            metrics=metrics.MetricsReports(),
            endpoints=[(one.method, one.path, one.writes) for one in CATALOG],
            overrides_locations=overrides_locations,
        )
        self._max_body_size_bytes = max_body_size_bytes
        self._limiter: anyio.CapacityLimiter | None = None
        without_prefix = [
            Endpoint(one.method, one.path.replace("/{prefix}", ""), one.handler, one.writes) for one in CATALOG
        ]
        self.router = Starlette(
            routes=[
                Route(one.path, self._endpoint(one), methods=[one.method])
                for one in (*OTHERS, *without_prefix, *CATALOG)
            ],
            exception_handlers={HTTPException: _no_such_route, Exception: _unexpected},
            lifespan=self._lifespan,
        )
        self.router.router.redirect_slashes = False
        self._guarded = Guard(_on_raw_path(self.router), tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    def _endpoint(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(MAX_THREADS)
            try:
                call = Call(
                    service=self.service,
                    method=endpoint.method,
                    route=request.url.path,
                    writes=endpoint.writes,
                    raw_names=dict(request.path_params),
                    query=request.query_params,
                    headers=request.headers,
                    body=await self._body(request),
                )
                # Not abandoned when the client goes away: a commit that has begun is finished.
                return await run_sync(endpoint.handler, call, limiter=self._limiter)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                return response_of(error)

        return answer

    async def _body(self, request: Request) -> bytes:
        limit = self._max_body_size_bytes
        length = request.headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:19]) > limit:
            raise RestError(413, "RequestTooLargeException", f"a body has at most {limit} bytes")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise RestError(413, "RequestTooLargeException", f"a body has at most {limit} bytes")
        return bytes(body)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await run_sync(self.service.transactions.close)


def _on_raw_path(app: ASGIApp) -> ASGIApp:
    async def with_raw_path(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        await app(scope, receive, send)

    return with_raw_path


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return error_response(405, "UnsupportedOperationException", "this path has no such method")
    return error_response(error.status_code, "NotFoundException", "there is no such path")


async def _unexpected(request: Request, error: Exception) -> Response:
    return response_of(error)
