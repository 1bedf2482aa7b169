"""Reports that engines send after a scan or a commit: the newest are kept, in memory."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.rest.errors import RestError
from trinitylake.rest.request.call import Call, no_content
from trinitylake.rest.security.principals import Role

#: Of one report.
MAX_REPORT_SIZE_BYTES = 64 << 10


class Report(BaseModel):
    """The body of a report; what else it holds depends on its type."""

    model_config = ConfigDict(extra="allow")

    report_type: str = Field(alias="report-type")


def report(call: Call) -> Response:
    """Keep a report about a table."""
    if len(call.body) > MAX_REPORT_SIZE_BYTES:
        raise RestError(413, "RequestTooLargeException", f"a report has at most {MAX_REPORT_SIZE_BYTES} bytes")
    body = call.parsed(Report)
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        if not catalog.table_exists(identifier):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")
    call.service.metrics.add(identifier, body.model_dump(by_alias=True))
    return no_content()


def list_all(call: Call) -> Response:
    """The reports that are kept, of the tables that the principal may read."""
    reports = call.service.metrics.list()
    mine = [data for table, data in reports if call.principal.may(Role.READER, table)]
    return Response(b'{"reports": [' + b",".join(mine) + b"]}", media_type="application/json")


def prometheus(call: Call) -> Response:
    """The counters of the server."""
    service = call.service
    service.meters.open_transactions.set(service.transactions.count)
    service.meters.open_transactions_size.set(service.transactions.size_bytes)
    return Response(service.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
