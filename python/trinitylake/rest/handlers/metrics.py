"""Metrics reports of engines, sent after a scan or a commit, and the server's own Prometheus metrics."""

from __future__ import annotations

from prometheus_client import generate_latest
from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.rest.errors import too_large
from trinitylake.rest.request.call import Call, no_content
from trinitylake.rest.security.authorization import Role

#: Maximum size of one report.
MAX_REPORT_SIZE_BYTES = 64 << 10


class Report(BaseModel):
    """Body of a report. Other fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    report_type: str = Field(alias="report-type")


def report(call: Call) -> Response:
    """Store a report about a table."""
    if len(call.body) > MAX_REPORT_SIZE_BYTES:
        raise too_large(f"a report has at most {MAX_REPORT_SIZE_BYTES} bytes")
    body = call.parsed(Report)
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        if not catalog.table_exists(identifier):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")
    call.service.reports.add(identifier, body.model_dump(by_alias=True))
    return no_content()


def list_all(call: Call) -> Response:
    """List the stored reports about tables that the principal can read."""
    reports = call.service.reports.list()
    readable = [data for table, data in reports if call.principal.may(Role.READER, table)]
    return Response(b'{"reports": [' + b",".join(readable) + b"]}", media_type="application/json")


def prometheus(call: Call) -> Response:
    """The server's metrics in Prometheus' text format."""
    service = call.service
    service.metrics.open_transactions.set(service.transactions.memory.count)
    service.metrics.open_transactions_size.set(service.transactions.memory.size_bytes)
    return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4; charset=utf-8")
