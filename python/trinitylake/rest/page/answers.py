"""Parts that the endpoints of the page share: their version, jobs in workers, headers of responses, visibility.

Visibility is for objects that the path of a request does not name: in the log, in differences, in searches. The rules
are those of the lists of the catalog: a table or view is visible to its readers, a namespace to readers of it or of
something below it. Information about the whole lakehouse, such as its tree and sizes, is for readers of `*`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from starlette.responses import Response

from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.catalog.warehouses import is_transaction
from trinitylake.rest.errors import bad_request
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.authorization import Name, Principal, Role, forbidden
from trinitylake.rest.workers.page_jobs import PageJob
from trinitylake.rest.workers.pool import JobAbandoned, WorkerDied

#: Time limit of a job in a worker process: less than the limit of an outbound call (`outbound.py`) that runs the job.
WORK_SECONDS = 12.0


def answer(document: Any) -> Response:
    """A JSON response that browsers do not cache."""
    response = json_response(document)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def has_workers(call: Call) -> bool:
    """Whether worker processes can open the lakehouse."""
    return os.name == "posix" and not call.service.lake.uri.startswith("memory:")


def work(call: Call, job: PageJob) -> dict[str, Any]:
    """The result of a job in a worker process. The job is killed when the client disconnects.

    Raises `RestError` 400 for a job that exceeds its limits, 429 if too many are in progress, and the job's errors.
    """
    run = call.service.workers.run
    try:
        document: dict[str, Any] = run(job, call.principal.name, seconds=WORK_SECONDS, is_wanted=call.is_wanted)
    except TimeoutError as error:
        raise bad_request("the query was stopped: it exceeds the time limit") from error
    except JobAbandoned as error:
        raise bad_request("the query was stopped: its client has disconnected") from error
    except WorkerDied as error:
        raise bad_request("the query was stopped: it exceeds the memory limit, or DuckDB crashed") from error
    except MemoryError as error:
        raise bad_request("the rows exceed the memory limit") from error
    return document


def version_of(call: Call) -> LakehouseVersion:
    """The version that the prefix selects.

    Raises `RestError` 400 for an open transaction, because what it reads can cause conflicts, and the page must cause
    none.
    """
    if is_transaction(call.prefix):
        raise bad_request("the page shows versions only: reads in an open transaction would be part of its footprint")
    with call.catalog() as catalog:
        source = catalog.source
        assert not hasattr(source, "commit")
        return source if isinstance(source, LakehouseVersion) else source.at()


def require_something(call: Call) -> None:
    """Raise `RestError` 403 for a principal without any role."""
    if not call.principal.may_read_something():
        raise forbidden(f"{call.principal.name} has no role")


def whole_number(call: Call, parameter: str, default: int, maximum: int) -> int:
    """A non-negative number in the query. Raises `RestError` 400."""
    text = call.query.get(parameter)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= maximum):
        raise bad_request(f"{parameter} must be a whole number of at most {maximum}, not {text[:40]!r}")
    return int(text)


def parts_of(kind: str, namespace: str, name: str) -> Name:
    """The full name of an object in the form of grants."""
    above = tuple(namespace.split("."))
    return above if kind == "namespace" else (*above, name)


def sees(principal: Principal, kind: str, name: Name) -> bool:
    """Whether an object is visible."""
    return principal.sees(name) if kind == "namespace" else principal.may(Role.READER, name)


def reads_everything(principal: Principal) -> bool:
    """Whether everything is visible."""
    return principal.has_everywhere(Role.READER)


def require_everything(call: Call, what: str) -> None:
    """Raise `RestError` 403 unless the principal is a reader of `*`."""
    if not reads_everything(call.principal):
        raise forbidden(f"{what} needs the role reader on *, which {call.principal.name} does not have")


def visible_changes(principal: Principal, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The visible rows of a difference, in the form of the response."""
    found = []
    for row in rows:
        name = parts_of(row["kind"], row["namespace"], row["name"])
        if sees(principal, row["kind"], name):
            sign = "+" if row["before"] is None else "-" if row["after"] is None else "~"
            found.append({"sign": sign, "kind": row["kind"], "name": list(name)})
    return found
