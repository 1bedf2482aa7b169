"""The ASGI application: reads a request, calls its handler on a thread, and sends the response.

Paths are matched as they were sent, with their escapes, so that a name with `/` in it stays one segment. Handlers are
plain functions that block; they run on threads of which there are at most `MAX_THREADS` (`turns.py`).

What each request passes on its way is as little as can be, since a server answers thousands a second: no framework's
middleware, no block where nothing is to be given back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

from anyio.to_thread import run_sync
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Router as StarletteRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.rest.bounded_files import ManifestsAtWork
from trinitylake.rest.errors import RestError, cut_off, response_of
from trinitylake.rest.files.delegation import Delegation
from trinitylake.rest.http.assets import asset_responders
from trinitylake.rest.http.observation import REQUEST_ID, ROUTE, Observer
from trinitylake.rest.http.protocol import IS_WHOLE, SENDS_NO_MORE
from trinitylake.rest.http.router import Router
from trinitylake.rest.http.routes import CATALOG, SIGN, Endpoint, all_endpoints
from trinitylake.rest.http.threads import Threads
from trinitylake.rest.http.turns import MAX_THREADS, Turns
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.outbound import Outbound
from trinitylake.rest.request.body import HEAVY_VALUES, SMALL_SIZE_BYTES, BodiesAtWork, HeavyBodies, check_values
from trinitylake.rest.request.call import Call, Service
from trinitylake.rest.request.idempotency import HEADER as IDEMPOTENCY_KEY
from trinitylake.rest.request.idempotency import answered_once
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.guard import PRINCIPAL, Bearers, Guard
from trinitylake.rest.security.principals import Principal
from trinitylake.rest.security.told import told_to
from trinitylake.rest.state.meters import Meters, Outcome
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

_NO_QUERY = QueryParams()
_FAILURES: dict[int, Outcome] = {409: "conflict", 500: "failed"}


class App:
    """An ASGI application that serves a lakehouse.

    Args:
        lake: what is served.
        bearers: who knows the tokens that open it; none open it to programs on this machine.
        options: limits and choices.

    Raises `InvalidArgument` for options that cannot work with this lakehouse.

    Attributes:
        service: what requests share.
        router: which endpoint answers what, behind the guard.
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
        self._ready: tuple[float, bool] = (0.0, False)
        self._asking: asyncio.Task[int] | None = None
        self._is_ending = False
        self._bodies = BodiesAtWork()
        self._heavy = HeavyBodies()
        self._turns = Turns()
        self._threads = Threads(MAX_THREADS)
        self.router = Router(all_endpoints(options.has_page))
        self._life = StarletteRouter(lifespan=self._lifespan)
        probes = {"/healthz": self._healthy, "/readyz": self._is_ready}
        assets = asset_responders() if options.has_page else {}
        self._guarded = Observer(Guard(self._routed, bearers, probes | assets), self.service.meters)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._life(scope, receive, send)
            return
        scope["path"] = scope["raw_path"].decode("latin-1")
        response = await self._response(scope, receive)
        await response(scope, receive, send)

    async def _response(self, scope: Scope, receive: Receive) -> Response:
        endpoint, principal, headers, has_begun = None, scope[PRINCIPAL], Headers(scope=scope), False
        try:
            endpoint, names = self.router.find(scope["method"], scope["path"])
            scope[ROUTE] = endpoint.path
            query = scope["query_string"]
            async with AsyncExitStack() as room:
                call = Call(
                    service=self.service,
                    method=endpoint.method,
                    route=scope["path"],
                    writes=endpoint.writes,
                    raw_names=names,
                    query=QueryParams(query) if query else _NO_QUERY,
                    headers=headers,
                    body=await self._body(scope, headers, receive, room) if endpoint.method == "POST" else b"",
                    principal=principal,
                    request_id=scope[REQUEST_ID],
                )
                if endpoint.ends_with_client:
                    call.is_wanted = await room.enter_async_context(_watched(Request(scope, receive)))
                async with self._turns.taken(principal.name):
                    has_begun = True
                    # Not abandoned when the client goes away: a commit that has begun is finished.
                    return await self._threads.run(self._answer, endpoint, call)
        except ClientDisconnect:
            return Response(status_code=400)
        except asyncio.CancelledError:  # the server ends, and has no more time
            may_have_changed = endpoint is not None and endpoint.changes and has_begun
            return cut_off(may_have_changed, IDEMPOTENCY_KEY in headers)
        except Exception as error:
            return response_of(error, told_to(principal))

    def _answer(self, endpoint: Endpoint, call: Call) -> Response:
        """The answer to a request."""
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
            if call.commit.version is not None and call.commit.is_own:
                self.service.latest_commits.append(call.commit.version)
            outcome: Outcome = "committed" if call.commit.version is not None else "staged"
        else:
            outcome = _FAILURES.get(code, "refused")
        self.service.meters.count_commit(outcome)
        names = [call.name_for_log(parameter) for parameter in call.raw_names if parameter != "prefix"]
        audit(
            call.principal.name,
            f"{endpoint.method} {endpoint.path}",
            [*names, *call.commit.names],
            code,
            call.commit.version,
            call.commit.transaction_id,
            call.request_id,
        )

    async def _body(self, scope: Scope, headers: Headers, receive: Receive, room: AsyncExitStack) -> bytes:
        """The body; room for it is taken as long as the request is at work."""
        principal: Principal = scope[PRINCIPAL]
        limit = self.service.options.max_body_size_bytes
        length = headers.get("content-length", "")
        size_bytes = int(length[:19]) if length.isascii() and length.isdigit() else limit
        if size_bytes > limit:
            raise _too_large(limit)
        is_small = size_bytes <= SMALL_SIZE_BYTES
        if not is_small and ("content-length" in headers or "transfer-encoding" in headers):
            await room.enter_async_context(self._bodies.taken(principal.name, size_bytes))
        try:
            if IS_WHOLE in scope:  # as mostly, and a timer for each request costs more than all else here
                body = await _read(receive, limit)
            else:
                async with asyncio.timeout(self.service.options.body_timeout_seconds):
                    body = await _read(receive, limit)
        except TimeoutError as error:
            raise RestError(408, "RequestTimeoutException", "the body did not come in time") from error
        n_values = check_values(body)
        if n_values >= HEAVY_VALUES:
            await room.enter_async_context(self._heavy.taken(principal.name, n_values))
        return body

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
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
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
            self._threads.end()

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
        while SENDS_NO_MORE not in request.scope and not await request.is_disconnected():
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


async def _read(receive: Receive, limit: int) -> bytes:
    """The body. Raises `RestError` 413 for one that is longer, `ClientDisconnect` if the client goes away."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        if len(body) + len(part) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body + part) if body else part
        body += part


def _too_large(limit: int) -> RestError:
    return RestError(413, "RequestTooLargeException", f"a body has at most {limit} bytes")
