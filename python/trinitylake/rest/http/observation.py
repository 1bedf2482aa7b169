"""Logs, metrics and traces of requests: an access log, Prometheus and OpenTelemetry.

Headers, bodies and queries are never logged. Text from other sources passes through `secret_redaction.py`.

Spans are created directly, without OpenTelemetry's ASGI instrumentation. It would export the path and query of each
request, which contain names of tables and page tokens, and it names spans by paths instead of routes.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trinitylake.rest.secret_redaction import Redaction, without_secrets
from trinitylake.rest.security.guard import PRINCIPAL
from trinitylake.rest.server_metrics import ServerMetrics

try:
    from opentelemetry import propagate, trace
    from opentelemetry.semconv.attributes import http_attributes
except ModuleNotFoundError:  # it is optional
    _has_traces = False
else:
    _has_traces = True

access_log = logging.getLogger("trinitylake.rest.access")

#: Keys of the ASGI scope: the route without names, which the application sets, and the id of the request.
ROUTE, REQUEST_ID = "trinitylake.route", "trinitylake.request_id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Observer:
    """ASGI middleware that counts, logs and traces every request, also refused ones.

    A span continues the trace of the client, if any. The process that runs the server configures the export of spans.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._tracer = trace.get_tracer("trinitylake.rest") if _has_traces else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        known = len(given) == 1 and _REQUEST_ID.fullmatch(given[0])
        request_id = given[0].decode() if known else uuid.uuid4().hex
        scope[REQUEST_ID] = request_id
        began = time.perf_counter()
        code = 500

        async def observed(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        self._metrics.requests_running.inc()
        try:
            if self._tracer is None:
                await self._app(scope, receive, observed)
            else:
                carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
                kind, parent = trace.SpanKind.SERVER, propagate.extract(carrier)
                with self._tracer.start_as_current_span(scope["method"], parent, kind) as span:
                    await self._app(scope, receive, observed)
                    span.update_name(f"{scope['method']} {scope.get(ROUTE, '')}".rstrip())
                    span.set_attribute(http_attributes.HTTP_REQUEST_METHOD, scope["method"])
                    span.set_attribute(http_attributes.HTTP_ROUTE, scope.get(ROUTE, ""))
                    span.set_attribute(http_attributes.HTTP_RESPONSE_STATUS_CODE, code)
                    span.set_attribute("trinitylake.request_id", request_id)
        finally:
            seconds = time.perf_counter() - began
            self._metrics.requests_running.dec()
            # A path without a route is arbitrary text, which would create labels without limit.
            route = scope.get(ROUTE, "none")
            method = scope["method"] if route != "none" else "none"
            self._metrics.requests.labels(method, route, code).inc()
            self._metrics.request_seconds.labels(method, route).observe(seconds)
            if access_log.isEnabledFor(logging.INFO):
                principal = scope.get(PRINCIPAL)
                access_log.info(
                    "%s %s %d",
                    scope["method"],
                    route,
                    code,
                    extra={
                        "fields": {
                            "who": principal.name if principal is not None else None,
                            "path": scope["path"][:500],
                            "millis": round(seconds * 1000, 2),
                            "request_id": request_id,
                        }
                    },
                )


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, "level": record.levelname.lower(), "log": record.name, "message": record.getMessage()}
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


def log_to_standard_error() -> None:
    """Log to standard error, as JSON lines without secrets. For a process that only runs a server."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(Redaction())
    for name in ("trinitylake", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
