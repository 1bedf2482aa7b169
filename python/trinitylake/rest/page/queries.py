"""Queries in SQL, for readers of everything, within limits, and as long as somebody waits for them.

A query names whatever it likes, and so do the views in it. So it is for those to whom nothing is closed, where the
server shows them rows. It runs in a worker process (`workers/`), whose memory and time are limited.
"""

from __future__ import annotations

from importlib.util import find_spec

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from trinitylake.reopening import StorageForTasks
from trinitylake.rest.page import visibility
from trinitylake.rest.page.answers import answer, version_of, work
from trinitylake.rest.page.rows import can_show
from trinitylake.rest.request.call import Call
from trinitylake.rest.security.principals import forbidden
from trinitylake.rest.workers.page_jobs import QueryJob

MEMORY_SIZE_BYTES = 512 << 20


class SqlQuery(BaseModel):
    """The body of `run`."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=100_000)


def can_run(call: Call) -> bool:
    """Whether the server runs queries at all: it shows rows, and has DuckDB."""
    return can_show(call) and find_spec("duckdb") is not None


def run(call: Call) -> Response:
    """The first rows of a query over one version, a text for each value."""
    visibility.require_everything(call, "a query")
    if not can_run(call):
        raise forbidden(
            "this server runs no queries: it shows no rows (--page-rows), has no DuckDB, or its lakehouse is in memory"
        )
    view, query = version_of(call), call.parsed(SqlQuery).query
    storage = StorageForTasks(call.service.lake.storage)
    with call.service.long_requests.taken(call.principal.name):
        return answer(work(call, QueryJob(storage, view.version, query, MEMORY_SIZE_BYTES)))
