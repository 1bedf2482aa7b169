"""What all answers for the page have in common: the version that they are about, and how they are sent."""

from __future__ import annotations

import os
from typing import Any

from starlette.responses import Response

from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.catalog.addresses import is_transaction
from trinitylake.rest.errors import bad_request
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.principals import forbidden
from trinitylake.rest.workers.page_jobs import PageJob
from trinitylake.rest.workers.pool import JobAbandoned, WorkerDied

#: Time limit of a job in a worker process: less than that of a call to a peer (`outbound.py`), which it may be part of.
WORK_SECONDS = 12.0


def answer(document: Any) -> Response:
    """A document that no browser keeps, and that none takes for anything but JSON."""
    response = json_response(document)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def has_workers(call: Call) -> bool:
    """Whether worker processes can open the lakehouse."""
    return os.name == "posix" and not call.service.lake.uri.startswith("memory:")


def work(call: Call, job: PageJob) -> dict[str, Any]:
    """The document that a job makes in a worker process. The job ends when the client is gone.

    Raises `RestError` 400 for a job that exceeds its limits, 429 if others are at work, and what the job raises.
    """
    run = call.service.workers.run
    try:
        document: dict[str, Any] = run(job, call.principal.name, seconds=WORK_SECONDS, is_wanted=call.is_wanted)
    except TimeoutError as error:
        raise bad_request("the query broke off: it took longer than a query may") from error
    except JobAbandoned as error:
        raise bad_request("the query broke off: its client is gone") from error
    except WorkerDied as error:
        raise bad_request("the query broke off: it took more memory than a query may, or made DuckDB fail") from error
    except MemoryError as error:
        raise bad_request("the rows take more memory than a page may") from error
    return document


def version_of(call: Call) -> LakehouseVersion:
    """The version that the prefix leads to.

    Raises `RestError` 400 for an open transaction: what is read in one counts for its conflicts, and somebody who only
    looks must not make it fail.
    """
    if is_transaction(call.prefix):
        raise bad_request("the page shows versions: what is read in an open transaction would count as read by it")
    with call.catalog() as catalog:
        source = catalog.source
        assert not hasattr(source, "commit")
        return source if isinstance(source, LakehouseVersion) else source.at()


def require_something(call: Call) -> None:
    """Raises `RestError` 403 for somebody without any role."""
    if not call.principal.may_read_something():
        raise forbidden(f"{call.principal.name} is a reader of nothing")


def whole_number(call: Call, parameter: str, default: int, maximum: int) -> int:
    """A number of the query, from 0 on. Raises `RestError` 400."""
    text = call.query.get(parameter)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= maximum):
        raise bad_request(f"{parameter} is a whole number of at most {maximum}, not {text[:40]!r}")
    return int(text)
