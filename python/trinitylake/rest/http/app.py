"""The ASGI application: authenticates a request, calls its handler on a thread, and sends the response.

Paths are matched before percent-decoding, so that a name that contains `/` stays one segment. Handlers block.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Literal, cast

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.page import HEADERS, NOT_BUILT, Asset, assets, index_of_server, is_built
from trinitylake.rest import limits
from trinitylake.rest.catalog.oldest_version import OldestVersion
from trinitylake.rest.catalog.plan_cache import PlanCache
from trinitylake.rest.errors import RestError, cut_off, error_response, response_of, too_large, unavailable
from trinitylake.rest.files.delegation import S3Delegation
from trinitylake.rest.handlers.ingestion import ARROW_TYPE, content_type
from trinitylake.rest.http.observation import REQUEST_ID, ROUTE, Observer
from trinitylake.rest.http.routes import CATALOG, SIGN, Endpoint, all_endpoints, by_path
from trinitylake.rest.maintenance.estimates import MaintenanceEstimates
from trinitylake.rest.maintenance.schedule import MaintenanceSchedule
from trinitylake.rest.metadata_limits import ManifestLimit
from trinitylake.rest.options import ServerOptions
from trinitylake.rest.outbound import Outbound
from trinitylake.rest.request.body import BodyLimits, check_values
from trinitylake.rest.request.call import Call, LaterResponse, Service
from trinitylake.rest.request.idempotency import HEADER as IDEMPOTENCY_KEY
from trinitylake.rest.request.idempotency import answered_once
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.authorization import Principal
from trinitylake.rest.security.guard import PRINCIPAL, Bearers, Guard
from trinitylake.rest.security.name_redaction import message_for
from trinitylake.rest.server_metrics import MetricsReports, Outcome, ServerMetrics
from trinitylake.rest.transactions.open_transactions import OpenTransactions
from trinitylake.rest.transactions.table_writers import TableWriters
from trinitylake.rest.workers.pool import WorkerPool

#: How long a response of `/readyz` is cached, so that clients without a token cannot make the server read storage.
_READY_SECONDS = 1.0
#: How long the storage may take to respond.
_STORAGE_SECONDS = 10.0
#: How often the server checks whether a client has disconnected.
_WATCH_SECONDS = 0.25
#: Maximum time between two checks for idle transactions, which are saved, and idle workers, which are ended.
_IDLE_CHECK_SECONDS = 30.0

_NO_THREAD = "the server has no thread for this request: try again"
_FAILURES: dict[int, Outcome] = {409: "conflict", 500: "failed"}


class App:
    """An ASGI application that serves a lakehouse.

    Args:
        lake: the lakehouse.
        bearers: sources of the principals of tokens; empty for a server that is open to programs on this machine.
        options: limits and choices.

    Raises `InvalidArgument` for options that cannot work with this lakehouse.

    Attributes:
        service: state that requests share.
        endpoints: all endpoints.
    """

    def __init__(self, lake: Lakehouse, bearers: tuple[Bearers, ...], options: ServerOptions) -> None:
        io = LakehouseFileIO(lake._storage)
        outbound = Outbound()
        delegation = None if options.s3_access is None else S3Delegation(io, options.s3_access, outbound)
        signs = delegation is not None and delegation.signs
        metrics, workers = ServerMetrics(), WorkerPool()
        self.service = Service(
            lake=lake,
            transactions=OpenTransactions(lake, options),
            writers=TableWriters(lake, workers),
            reports=MetricsReports(),
            endpoints=[(one.method, one.path, one.writes) for one in CATALOG if signs or one is not SIGN],
            options=options,
            metrics=metrics,
            io=io,
            delegation=delegation,
            outbound=outbound,
            plans=PlanCache(),
            oldest_version=OldestVersion(lake),
            estimates=MaintenanceEstimates(lake),
            schedule=MaintenanceSchedule(lake, options.maintenance_seconds, metrics, workers),
            workers=workers,
            long_requests=limits.SharedLimit(limits.MAX_LONG_REQUESTS, limits.MAX_LONG_REQUESTS_OF_ONE),
            manifests=ManifestLimit(),
            shows_rows=_shows_rows(options, bool(bearers)),
        )
        self._ready: tuple[float, bool] = (0.0, False)
        self._asking: asyncio.Task[int] | None = None
        self._is_ending = False
        self._bodies = BodyLimits()
        self._limiter = CapacityLimiter(limits.MAX_THREADS)
        self._threads = limits.SharedLimit(limits.MAX_THREADS, limits.MAX_THREADS_OF_ONE, _NO_THREAD)
        self.endpoints = all_endpoints(options.has_page)
        self._router = Router(
            [
                Route(path, partial(self._respond, of_path), methods=list(of_path))
                for path, of_path in by_path(self.endpoints).items()
            ],
            redirect_slashes=False,
            default=_no_such_path,
            lifespan=self._lifespan,
        )
        probes: dict[str, ASGIApp] = {"/healthz": Response("ok\n", media_type="text/plain"), "/readyz": self._is_ready}
        responders = _asset_responders() if options.has_page else {}
        self._guarded = Observer(
            Guard(self._routed, bearers, probes | responders, options.is_read_only), self.service.metrics
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := _head_refusal(scope)) is not None:
            await refusal(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
            scope["app"] = self  # makes the router raise `HTTPException` for an unsupported method of a path
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            message = "this path does not support the method"
            response = error_response(error.status_code, "UnsupportedOperationException", message, error.headers)
            await response(scope, receive, send)

    async def _respond(self, of_path: Mapping[str, Endpoint], request: Request) -> Response:
        endpoint = of_path.get(request.method) or of_path["GET"]  # the handler of GET handles HEAD
        scope, principal, has_begun = request.scope, request.scope[PRINCIPAL], False
        scope[ROUTE] = endpoint.path
        try:
            async with AsyncExitStack() as stack:
                call = Call(
                    service=self.service,
                    method=endpoint.method,
                    route=scope["path"],
                    writes=endpoint.writes,
                    raw_names=request.path_params,
                    query=request.query_params,
                    headers=request.headers,
                    body=await self._body(request, stack) if endpoint.method == "POST" else b"",
                    principal=principal,
                    request_id=scope[REQUEST_ID],
                )
                if endpoint.ends_with_client:
                    call.is_wanted = await stack.enter_async_context(_watched(request))
                async with self._threads.lease_async(principal.name, wait_seconds=limits.THREAD_WAIT_SECONDS):
                    has_begun = True
                    try:
                        # The thread continues if this task is cancelled: a commit that has begun is finished.
                        answer = await run_sync(
                            self._answer, endpoint, call, abandon_on_cancel=True, limiter=self._limiter
                        )
                    except RuntimeError as error:  # only from the start of a thread, because `_answer` raises nothing
                        raise unavailable(_NO_THREAD) from error
                if isinstance(answer, Response):
                    return answer
                with suppress(Exception):
                    await asyncio.wrap_future(answer.future)
                try:
                    response = await run_sync(answer.answer)
                except Exception as error:
                    response = response_of(error, message_for(principal, self._exists))
                self._audit(endpoint, call, response.status_code)
                return response
        except ClientDisconnect:
            return Response(status_code=400)
        except asyncio.CancelledError:  # the time for a shutdown is over
            return cut_off(endpoint.changes and has_begun, IDEMPOTENCY_KEY in request.headers)
        except Exception as error:
            return response_of(error, message_for(principal))

    def _answer(self, endpoint: Endpoint, call: Call) -> Response | LaterResponse:
        """Authorize a request, call its handler, and return the response."""
        try:
            call.authorize(endpoint.role)
            for name in endpoint.named(call):
                call.require(endpoint.role, name)
            if endpoint.replay is None:
                if isinstance(response := endpoint.handler(call), LaterResponse):
                    return response
            else:
                response = answered_once(call, cast(Callable[[Call], Response], endpoint.handler), endpoint.replay)
        except Exception as error:
            response = response_of(error, message_for(call.principal, self._exists))
        if endpoint.changes or endpoint.shows_rows:
            self._audit(endpoint, call, response.status_code)
        return response

    def _exists(self, kind: Literal["table", "view"], namespace: str, name: str) -> bool:
        return self.service.lake._core.latest().exists(kind, namespace, name)

    def _audit(self, endpoint: Endpoint, call: Call, code: int) -> None:
        if code < 300:
            if call.commit.version is not None and call.commit.is_own:
                self.service.latest_commits.append(call.commit.version)
            outcome: Outcome = "committed" if call.commit.version is not None else "staged"
        else:
            outcome = _FAILURES.get(code, "refused")
        if endpoint.changes:
            self.service.metrics.commits.labels(outcome).inc()
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

    async def _body(self, request: Request, stack: AsyncExitStack) -> bytes:
        """Read the body. It counts towards the limits on bodies until `stack` is closed."""
        principal: Principal = request.scope[PRINCIPAL]
        limit = self.service.options.max_body_size_bytes
        refusal = too_large(f"a body has at most {limit} bytes")
        length = request.headers.get("content-length", "")
        size_bytes = int(length[:19]) if length.isascii() and length.isdigit() else limit
        if size_bytes > limit:
            raise refusal
        if "content-length" in request.headers or "transfer-encoding" in request.headers:
            await stack.enter_async_context(self._bodies.large(principal.name, size_bytes))
        body = bytearray()
        try:
            async with asyncio.timeout(self.service.options.body_timeout_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise refusal
        except TimeoutError as error:
            raise RestError(408, "RequestTimeoutException", "the body did not arrive in time") from error
        if content_type(request.headers) != ARROW_TYPE:  # Arrow values do not become Python objects
            await stack.enter_async_context(self._bodies.heavy(principal.name, check_values(body)))
        return bytes(body)

    async def _is_ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._readiness())(scope, receive, send)

    async def _readiness(self) -> Response:
        if self._is_ending:
            return Response("shutting down\n", 503, media_type="text/plain")
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
        """Read the latest version. Only one read is in progress at a time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(run_sync(lambda: self.service.lake.version))
        return self._asking

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        checking = asyncio.create_task(self._end_idle())
        self.service.schedule.begin()
        try:
            yield
        finally:
            self._is_ending = True
            checking.cancel()
            await run_sync(self.service.writers.close_idle, 0.0)
            await run_sync(self.service.transactions.memory.hand_over_all)
            await run_sync(self.service.schedule.end)
            await run_sync(self.service.workers.close)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self.service.options.transaction_idle_seconds / 4, _IDLE_CHECK_SECONDS))
            await run_sync(self.service.transactions.memory.hand_over_idle)
            await run_sync(self.service.workers.end_idle)
            await run_sync(self.service.writers.close_idle)


@asynccontextmanager
async def _watched(request: Request) -> AsyncIterator[Callable[[], bool]]:
    """A function that returns whether the client is still connected. The body must have been read."""
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


def _asset_responders() -> dict[str, ASGIApp]:
    """ASGI applications by path: `/` for the page, `/ui/…` for its parts. In a build without the page, `/` is a 404."""
    if not is_built():
        return {"/": Response(f"{NOT_BUILT}\n", 404, HEADERS, "text/plain")}
    index = index_of_server()
    paths = {"/": index, "/ui/": index, **{f"/{one.path}": one for one in assets()}}
    return {path: _asset_responder(asset) for path, asset in paths.items()}


def _asset_responder(asset: Asset) -> ASGIApp:
    tag = f'"{hashlib.sha256(asset.content).hexdigest()[:32]}"'
    # Browsers revalidate each file, so that all files are of the same build.
    headers = {**HEADERS, "ETag": tag, "Cache-Control": "no-cache"}

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == b"if-none-match" and value.decode("latin-1") == tag for name, value in scope["headers"]):
            response = Response(status_code=304, headers=headers)
        else:
            response = Response(asset.content, headers=headers, media_type=asset.media_type)
        await response(scope, receive, send)

    return respond


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(404, "NotFoundException", "this path does not exist")(scope, receive, send)


def _shows_rows(options: ServerOptions, asks_for_tokens: bool) -> bool:
    if options.page_shows_rows is not None:
        return options.page_shows_rows
    return not asks_for_tokens or options.s3_access is not None


def _head_refusal(scope: Scope) -> Response | None:
    """The response to a request that is refused by its head; None for an acceptable one.

    The response closes the connection, because the body is not read.
    """
    names = {name for name, _ in scope["headers"]}
    size_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
    # The parser limits only heads that arrive in several parts.
    if size_bytes + len(scope["raw_path"]) + len(scope["query_string"]) > limits.MAX_HEADERS_SIZE_BYTES:
        code, message = 431, f"the path and the headers of a request have at most {limits.MAX_HEADERS_SIZE_BYTES} bytes"
    # A proxy and the server could disagree about the end of such a request.
    elif b"content-length" in names and b"transfer-encoding" in names:
        code, message = 400, "a request has either a Content-Length or a Transfer-Encoding"
    else:
        return None
    return error_response(code, "BadRequestException", message, {"Connection": "close"})


def not_http() -> Response:
    """The response to a request that cannot be parsed."""
    rule = f"its path and headers have at most {limits.MAX_HEADERS_SIZE_BYTES} bytes"
    return error_response(400, "BadRequestException", f"the request is not valid HTTP/1.1, or too large: {rule}")
