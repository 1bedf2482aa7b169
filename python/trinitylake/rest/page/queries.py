"""Queries in SQL, for readers of everything, within limits, and as long as somebody waits for them.

A query names whatever it likes, and so do the views in it. So it is for those to whom nothing is closed, where the
server shows them rows. It runs in another process (`query_program.py`), whose memory and time the system limits.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from importlib.util import find_spec

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from trinitylake.reopening import StorageForTasks
from trinitylake.rest.page import sight
from trinitylake.rest.page.answers import answer_of_bytes, version_of
from trinitylake.rest.page.query_program import QueryRequest
from trinitylake.rest.request.call import Call
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.principals import forbidden

logger = logging.getLogger("trinitylake.rest")

MEMORY_SIZE_BYTES = 512 << 20
SECONDS = 12.0


class SqlQuery(BaseModel):
    """The body of `run`."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=100_000)


def can_run(call: Call) -> bool:
    """Whether the server runs queries at all: it shows rows, has DuckDB, and other processes reach the lakehouse."""
    reaches = os.name == "posix" and not call.service.lake.uri.startswith("memory:")
    return call.service.shows_rows and reaches and find_spec("duckdb") is not None


def run(call: Call) -> Response:
    """The first rows of a query over one version, a text for each value."""
    sight.require_everything(call, "a query")
    if not can_run(call):
        raise forbidden(
            "this server runs no queries: it shows no rows (--page-rows), has no DuckDB, or its lakehouse is in memory"
        )
    service, view = call.service, version_of(call)
    query = call.parsed(SqlQuery).query
    request = QueryRequest(StorageForTasks(service.lake.storage), view.version, query, MEMORY_SIZE_BYTES, SECONDS)
    with service.room.taken(call.principal.name):
        answered = service.queries.run(pickle.dumps(request), call.principal.name, SECONDS, call.is_wanted)
    head, _, body = answered.partition(b"\n")
    told = json.loads(head)
    if "problem" in told:
        logger.error("a query failed: %s", told["problem"])
    audit(call.principal.name, "run SQL", [], told["code"], None, None, call.request_id)
    return answer_of_bytes(body, told["code"])
