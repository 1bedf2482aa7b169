"""What an operator sees: a line in the log for each request, counters for Prometheus, the audit of what was changed.

No header, no body and no query is ever logged. What goes into a message from elsewhere passes
`redaction.py`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trinitylake.rest.access import PRINCIPAL
from trinitylake.rest.redaction import Redaction, without_secrets

try:
    from opentelemetry import propagate, trace
except ModuleNotFoundError:  # it is optional
    _has_traces = False
else:
    _has_traces = True

access_log = logging.getLogger("trinitylake.rest.access")
audit_log = logging.getLogger("trinitylake.rest.audit")

#: Where the application leaves the route that was taken, without names, and the observer the id of the request.
ROUTE, REQUEST_ID = "trinitylake.route", "trinitylake.request_id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Meters:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        names = ["method", "route", "code"]
        self._requests = Counter("trinitylake_requests", "Requests", names, registry=self._registry)
        self._seconds = Histogram(
            "trinitylake_request_seconds", "Duration", ["method", "route"], buckets=_SECONDS, registry=self._registry
        )
        self._by_labels: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.running = 0
        running = Gauge("trinitylake_requests_running", "Requests that are answered", registry=self._registry)
        running.set_function(lambda: self.running)
        self.commits = Counter("trinitylake_commits", "Commits by outcome", ["outcome"], registry=self._registry)
        self.open_transactions = Gauge(
            "trinitylake_open_transactions", "Transactions that are open here", registry=self._registry
        )

    def count(self, method: str, route: str, code: int, seconds: float) -> None:
        """Count a request."""
        labels = (method, route, code)
        found = self._by_labels.get(labels)
        if found is None:
            found = self._requests.labels(method, route, str(code)), self._seconds.labels(method, route)
            self._by_labels[labels] = found
        found[0].inc()
        found[1].observe(seconds)

    def text(self) -> bytes:
        """All of them, in the format that Prometheus reads."""
        return generate_latest(self._registry)


class Observer:
    """ASGI middleware that counts, logs and traces every request, refused ones too.

    A span belongs to the trace of the client, if it sends one, and is exported as the process has set it up.
    """

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self._app = app
        self._meters = meters
        self._tracer = trace.get_tracer("trinitylake.rest") if _has_traces else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"x-request-id"]
        known = len(given) == 1 and _REQUEST_ID.fullmatch(given[0])
        request_id = given[0].decode() if known else os.urandom(16).hex()
        scope[REQUEST_ID] = request_id
        began = time.perf_counter()
        code = 500

        async def observed(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        self._meters.running += 1
        try:
            if self._tracer is None:
                await self._app(scope, receive, observed)
            else:
                carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
                kind, parent = trace.SpanKind.SERVER, propagate.extract(carrier)
                with self._tracer.start_as_current_span(scope["method"], parent, kind) as span:
                    await self._app(scope, receive, observed)
                    span.update_name(f"{scope['method']} {scope.get(ROUTE, '')}".rstrip())
                    span.set_attribute("http.request.method", scope["method"])
                    span.set_attribute("http.route", scope.get(ROUTE, ""))
                    span.set_attribute("http.response.status_code", code)
                    span.set_attribute("trinitylake.request_id", request_id)
        finally:
            seconds = time.perf_counter() - began
            self._meters.running -= 1
            # Without a route the path is whatever somebody typed, which would make labels without end.
            route = scope.get(ROUTE, "none")
            method = scope["method"] if route != "none" else "none"
            self._meters.count(method, route, code, seconds)
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


def audit(
    who: str, what: str, names: Iterable[str], code: int, version: int | None, transaction: str | None, request_id: str
) -> None:
    """Log a request that changes something, done or not. The commit itself keeps `who` and `request_id`, too."""
    fields = {
        "who": who,
        "names": list(names),
        "code": code,
        "version": version,
        "transaction": transaction,
        "request_id": request_id,
    }
    audit_log.info(what, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """One JSON document a line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment, "level": record.levelname.lower(), "log": record.name, "message": record.getMessage()}
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(line)


def log_to_standard_error() -> None:
    """Send the logs of the server to standard error, as JSON lines without secrets. For a process of its own."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(Redaction())
    for name in ("trinitylake", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
