"""Reports that engines send after a scan or a commit: the newest are kept, in memory."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.rest.call import Call, json_response, no_content
from trinitylake.rest.errors import RestError
from trinitylake.rest.principals import Role

MAX_REPORTS = 1000
#: Of one report. The whole store stays below `MAX_REPORTS` times that.
MAX_REPORT_SIZE_BYTES = 64 << 10


class Report(BaseModel):
    """The body of a report; what else it holds depends on its type."""

    model_config = ConfigDict(extra="allow")

    report_type: str = Field(alias="report-type")


class MetricsReports:
    """The newest reports. Safe to share between threads."""

    def __init__(self) -> None:
        self._reports: deque[dict[str, Any]] = deque(maxlen=MAX_REPORTS)
        self._lock = threading.Lock()

    def add(self, report: dict[str, Any]) -> None:
        """Keep a report, and forget the oldest if there are too many."""
        with self._lock:
            self._reports.append(report)

    def list(self) -> list[dict[str, Any]]:
        """The reports, oldest first."""
        with self._lock:
            return list(self._reports)


def report(call: Call) -> Response:
    """Keep a report about a table."""
    if len(call.body) > MAX_REPORT_SIZE_BYTES:
        raise RestError(413, "RequestTooLargeException", f"a report has at most {MAX_REPORT_SIZE_BYTES} bytes")
    body = call.parsed(Report)
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        if not catalog.table_exists(identifier):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")
    call.service.metrics.add({"table": identifier, "report": body.model_dump(by_alias=True)})
    return no_content()


def list_all(call: Call) -> Response:
    """The reports that are kept, of the tables that the principal may read."""
    reports = call.service.metrics.list()
    mine = [one for one in reports if call.principal.may(Role.READER, ".".join(one["table"]))]
    return json_response({"reports": mine})


def prometheus(call: Call) -> Response:
    """The counters of the server."""
    service = call.service
    service.meters.open_transactions.set(len(service.transactions.list()))
    return Response(service.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
