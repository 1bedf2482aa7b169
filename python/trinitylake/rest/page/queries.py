"""Queries in SQL, for readers of everything, within limits, and as long as somebody waits for them.

A query names whatever it likes, and so do the views in it. So it is for those to whom nothing is closed, where the
server shows them rows.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from trinitylake.rest.errors import bad_request
from trinitylake.rest.page import sight
from trinitylake.rest.page.answers import answer, version_of
from trinitylake.rest.page.rows import document_of
from trinitylake.rest.request.call import Call
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.principals import forbidden
from trinitylake.tables.first_rows import FirstRows
from trinitylake.tables.queries.limits import QueryLimits
from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions

MAX_ROWS = 1000
MAX_COLUMNS = 200
MEMORY_SIZE_BYTES = 512 << 20
#: Less than a call to others may take (`outbound.py`), which such a query may be.
SECONDS = 12.0


class SqlQuery(BaseModel):
    """The body of `run`."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=100_000)


def can_run(call: Call) -> bool:
    """Whether the server runs queries at all: it shows rows, and has DuckDB."""
    return call.service.shows_rows and find_spec("duckdb") is not None


def run(call: Call) -> Response:
    """The first rows of a query over one version, a text for each value."""
    sight.require_everything(call, "a query")
    if not can_run(call):
        raise forbidden("this server runs no queries: it shows no rows (--page-rows), or has no DuckDB")
    view = version_of(call)
    query = call.parsed(SqlQuery).query
    limits = QueryLimits(MEMORY_SIZE_BYTES, SECONDS, call.is_wanted)

    def found() -> dict[str, Any]:
        prepared = PreparedQuery(query, view, QueryOptions(limits=limits))
        if len(prepared.columns) > MAX_COLUMNS:
            raise bad_request(
                f"a query has at most {MAX_COLUMNS} columns here, and this one has {len(prepared.columns)}"
            )
        rows = _first(prepared)
        return document_of(rows, [type for _, type in prepared.columns])

    with call.service.room.taken(call.principal.name):
        document = call.service.outbound.run("a query", found)
    audit(call.principal.name, "run SQL", [], 200, None, None, call.request_id)
    return answer(document)


def _first(prepared: PreparedQuery) -> FirstRows:
    with prepared.running() as running:
        reader = running.to_arrow_reader(MAX_ROWS + 1)
        schema = reader.schema
        parts, n_rows = [], 0
        for batch in reader:
            parts.append(batch.slice(0, MAX_ROWS + 1 - n_rows))
            n_rows += len(parts[-1])
            if n_rows > MAX_ROWS:
                break
    rows = pa.Table.from_batches(parts, schema)
    problem = f"only the first {MAX_ROWS} are shown" if n_rows > MAX_ROWS else ""
    return FirstRows(rows.slice(0, MAX_ROWS), [], problem)
