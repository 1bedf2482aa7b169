"""The ASGI application: reads a request, calls its handler on a thread, and sends the response.

Paths are matched as they were sent, with their escapes, so that a name with `/` in it stays one segment. Handlers are
plain functions that block; they run on threads of which there are at most `MAX_THREADS` (`turns.py`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.rest.bounded_files import ManifestsAtWork
from trinitylake.rest.errors import RestError, cut_off, error_response, response_of
from trinitylake.rest.files.delegation import Delegation
from trinitylake.rest.http.assets import asset_responders
from trinitylake.rest.http.observation import REQUEST_ID, ROUTE, Observer
from trinitylake.rest.http.routes import CATALOG, OTHERS, PAGE, SIGN, Endpoint, without_prefix
from trinitylake.rest.http.turns import MAX_THREADS, Turns
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.outbound import Outbound
from trinitylake.rest.request.body import BodiesAtWork, HeavyBodies, check_values
from trinitylake.rest.request.call import Call, Service
from trinitylake.rest.request.idempotency import HEADER as IDEMPOTENCY_KEY
from trinitylake.rest.request.idempotency import answered_once
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.guard import PRINCIPAL, Bearers, Guard
from trinitylake.rest.security.principals import STRANGER
from trinitylake.rest.security.told import told_to
from trinitylake.rest.state.meters import Meters
from trinitylake.rest.state.metrics_reports import MetricsReports
from trinitylake.rest.state.oldest_kept import OldestKept
from trinitylake.rest.state.open_transactions import OpenTransactions
from trinitylake.rest.state.planned_scans import PlannedScans
from trinitylake.rest.state.query_processes import QueryProcesses
from trinitylake.rest.state.reading_processes import ReadingProcesses
from trinitylake.rest.state.scheduled_upkeep import ScheduledUpkeep
from trinitylake.rest.state.table_responses import TableResponses
from trinitylake.rest.state.upkeep_estimates import UpkeepEstimates
from trinitylake.rest.state.work_room import WorkRoom

#: How long an answer of `/readyz` holds, so that nobody can make the server read the storage at will.
_READY_SECONDS = 1.0
#: How long the storage may take to be ready.
_STORAGE_SECONDS = 10.0
#: How often it is looked whether a client has gone away.
_WATCH_SECONDS = 0.25
#: How often transactions that nobody uses are looked for, at the least.
_HAND_OVER_SECONDS = 30.0


class App:
    """An ASGI application that serves a lakehouse.

    Args:
        lake: what is served.
        bearers: who knows the tokens that open it; none open it to programs on this machine.
        options: limits and choices.

    Raises `InvalidArgument` for options that cannot work with this lakehouse.

    Attributes:
        service: what requests share.
        router: the routes behind the guard.
    """

    def __init__(self, lake: Lakehouse, bearers: tuple[Bearers, ...], options: ServerOptions) -> None:
        io = LakehouseFileIO(lake.storage)
        outbound = Outbound()
        delegation = None if options.s3_access is None else Delegation(io, options.s3_access, outbound)
        signs = delegation is not None and delegation.signs
        self.service = Service(
            lake=lake,
            transactions=OpenTransactions(lake, options),
            table_responses=TableResponses(options.table_cache_size_bytes),
            metrics=MetricsReports(),
            endpoints=[(one.method, one.path, one.writes) for one in CATALOG if signs or one is not SIGN],
            options=options,
            meters=Meters(),
            io=io,
            delegation=delegation,
            outbound=outbound,
            plans=PlannedScans(),
            oldest_kept=OldestKept(lake),
            estimates=UpkeepEstimates(lake),
            queries=QueryProcesses(),
            readers=ReadingProcesses(),
            room=WorkRoom(),
            manifests=ManifestsAtWork(),
            shows_rows=_shows_rows(options, bool(bearers)),
        )
        self._upkeep = ScheduledUpkeep(lake, options.upkeep_seconds, self.service.meters)
        self._limiter: anyio.CapacityLimiter | None = None
        self._ready: tuple[float, bool] = (0.0, False)
        self._asking: asyncio.Task[int] | None = None
        self._is_ending = False
        self._bodies = BodiesAtWork()
        self._heavy = HeavyBodies()
        self._turns = Turns()
        self.router = Starlette(
            routes=[
                Route(one.path, self._endpoint(one), methods=[one.method])
                for one in (*CATALOG, *OTHERS, *map(without_prefix, CATALOG), *(PAGE if options.has_page else ()))
            ],
            exception_handlers={HTTPException: _no_such_route, Exception: _unexpected},
            lifespan=self._lifespan,
        )
        self.router.router.redirect_slashes = False
        probes = {"/healthz": self._healthy, "/readyz": self._is_ready}
        assets = asset_responders() if options.has_page else {}
        self._guarded = Observer(Guard(_on_raw_path(self.router), bearers, probes | assets), self.service.meters)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    def _endpoint(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            request.scope[ROUTE] = endpoint.path
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(MAX_THREADS)
            has_begun = False
            try:
                async with AsyncExitStack() as room:
                    call = Call(
                        service=self.service,
                        method=endpoint.method,
                        route=request.scope["path"],
                        writes=endpoint.writes,
                        raw_names=dict(request.path_params),
                        query=request.query_params,
                        headers=request.headers,
                        body=await self._body(request, room) if endpoint.method == "POST" else b"",
                        principal=request.scope[PRINCIPAL],
                        request_id=request.scope[REQUEST_ID],
                    )
                    if endpoint.ends_with_client:
                        call.is_wanted = await room.enter_async_context(_watched(request))
                    await room.enter_async_context(self._turns.taken(call.principal.name))
                    has_begun = True
                    # Not abandoned when the client goes away: a commit that has begun is finished.
                    return await run_sync(self._answer, endpoint, call, limiter=self._limiter)
            except ClientDisconnect:
                return Response(status_code=400)
            except asyncio.CancelledError:  # the server ends, and has no more time
                return cut_off(endpoint.changes and has_begun, IDEMPOTENCY_KEY in request.headers)
            except Exception as error:
                return response_of(error, told_to(request.scope[PRINCIPAL]))

        return answer

    def _answer(self, endpoint: Endpoint, call: Call) -> Response:
        try:
            call.authorize(endpoint.role)
            if endpoint.replay is None:
                response = endpoint.handler(call)
            else:
                response = answered_once(call, endpoint.handler, endpoint.replay)
        except Exception as error:
            response = response_of(error, told_to(call.principal, self._exists))
        if endpoint.changes:
            self._audit(endpoint, call, response.status_code)
        return response

    def _exists(self, kind: Literal["table", "view"], namespace: str, name: str) -> bool:
        return self.service.lake.core.latest().exists(kind, namespace, name)

    def _audit(self, endpoint: Endpoint, call: Call, code: int) -> None:
        if code < 300:
            if call.commit.version is not None and "prefix" in call.raw_names:
                self.service.latest_commits.append(call.commit.version)
            outcome = "committed" if call.commit.version is not None else "staged"
        else:
            outcome = {409: "conflict", 500: "failed"}.get(code, "refused")
        self.service.meters.commits.labels(outcome).inc()
        names = [call.name(parameter) for parameter in call.raw_names if parameter != "prefix"]
        audit(
            call.principal.name,
            f"{endpoint.method} {endpoint.path}",
            [*names, *call.commit.names],
            code,
            call.commit.version,
            call.commit.transaction_id,
            call.request_id,
        )

    async def _body(self, request: Request, room: AsyncExitStack) -> bytes:
        """The body; room for it is taken as long as the request is at work."""
        limit = self.service.options.max_body_size_bytes
        length = request.headers.get("content-length", "")
        size_bytes = int(length[:19]) if length.isascii() and length.isdigit() else limit
        if size_bytes > limit:
            raise _too_large(limit)
        if "content-length" in request.headers or "transfer-encoding" in request.headers:
            await room.enter_async_context(self._bodies.taken(request.scope[PRINCIPAL].name, size_bytes))
        body = bytearray()
        try:
            async with asyncio.timeout(self.service.options.body_timeout_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        raise _too_large(limit)
        except TimeoutError as error:
            raise RestError(408, "RequestTimeoutException", "the body did not come in time") from error
        await room.enter_async_context(self._heavy.taken(request.scope[PRINCIPAL].name, check_values(body)))
        return bytes(body)

    async def _healthy(self) -> ASGIApp:
        return Response("ok\n", media_type="text/plain")

    async def _is_ready(self) -> ASGIApp:
        if self._is_ending:
            return Response("ending\n", 503, media_type="text/plain")
        asked, ready = self._ready
        if time.monotonic() - asked > _READY_SECONDS:
            try:
                async with asyncio.timeout(_STORAGE_SECONDS):
                    await asyncio.shield(self._asked_storage())
                ready = True
            except (TrinityLakeError, TimeoutError):
                ready = False
            self._ready = time.monotonic(), ready
        return Response("ready\n" if ready else "the storage fails\n", 200 if ready else 503, media_type="text/plain")

    def _asked_storage(self) -> asyncio.Task[int]:
        """The latest version, asked for once at a time, however long the storage takes."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(run_sync(lambda: self.service.lake.version))
        return self._asking

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        handing_over = asyncio.create_task(self._hand_over_idle())
        self._upkeep.begin()
        try:
            yield
        finally:
            self._is_ending = True
            handing_over.cancel()
            await run_sync(self.service.queries.close)
            await run_sync(self.service.readers.close)
            await run_sync(self.service.transactions.close)
            await run_sync(self._upkeep.end)

    async def _hand_over_idle(self) -> None:
        """From time to time, as long as the server runs."""
        while True:
            await asyncio.sleep(min(self.service.options.transaction_idle_seconds / 4, _HAND_OVER_SECONDS))
            await run_sync(self.service.transactions.hand_over_idle)
            await run_sync(self.service.readers.end_idle)


@asynccontextmanager
async def _watched(request: Request) -> AsyncIterator[Callable[[], bool]]:
    """Tells whether the client is still there. The body must have been read."""
    is_gone = threading.Event()

    async def watch() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(_WATCH_SECONDS)
        is_gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield lambda: not is_gone.is_set()
    finally:
        watching.cancel()


def _shows_rows(options: ServerOptions, asks_for_tokens: bool) -> bool:
    if options.page_shows_rows is not None:
        return options.page_shows_rows
    return not asks_for_tokens or options.s3_access is not None


def _on_raw_path(app: ASGIApp) -> ASGIApp:
    async def with_raw_path(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
        await app(scope, receive, send)

    return with_raw_path


def _too_large(limit: int) -> RestError:
    return RestError(413, "RequestTooLargeException", f"a body has at most {limit} bytes")


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return error_response(405, "UnsupportedOperationException", "this path has no such method")
    return error_response(error.status_code, "NotFoundException", "there is no such path")


async def _unexpected(request: Request, error: Exception) -> Response:
    return response_of(error, told_to(request.scope.get(PRINCIPAL, STRANGER)))
