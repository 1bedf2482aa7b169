"""The first rows of a table or of a SQL query, as text.

The server reads them with its own credentials. So the principal must be a reader of the table's files
(`security/locations.py`), and the option `ServerOptions.page_shows_rows` must be set. A query can read any object, also
through views, so only readers of `*` may run queries. A worker process (`workers/`) reads the rows within limits of
memory and time, because a small file may decode to more than the memory of the server.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.base.pickling import StorageForTasks
from trinitylake.iceberg.namespaces import object_name
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.rest.errors import bad_request
from trinitylake.rest.handlers.external_tables import with_deadline
from trinitylake.rest.page.answers import (
    answer,
    has_workers,
    parts_of,
    require_everything,
    version_of,
    whole_number,
    work,
)
from trinitylake.rest.request.call import Call
from trinitylake.rest.security.authorization import Role, forbidden
from trinitylake.rest.security.locations import has_role_on_files, is_own, path_of_object
from trinitylake.rest.workers.page_jobs import QueryJob, RowChangesJob, TableRowsJob

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_ROWS = 200
#: Memory limit of DuckDB for a query.
MEMORY_SIZE_BYTES = 512 << 20


def can_show(call: Call) -> bool:
    """Whether the server shows rows: its options permit it, and worker processes can open the lakehouse."""
    return call.service.shows_rows and has_workers(call)


def rows(call: Call) -> Response:
    """The first rows of a table, or with `since` the rows that changed after that version. Values are strings or null.

    Raises `RestError` 403 if the server does not show rows, or not to this principal.
    """
    if not can_show(call):
        raise forbidden("this server shows no rows: --page-rows is off, or its lakehouse is in memory")
    view = version_of(call)
    limit = whole_number(call, "limit", 50, MAX_ROWS)
    since = whole_number(call, "since", view.version, view.version) if "since" in call.query else None
    identifier = call.identifier("table")
    name = object_name(identifier, NoSuchTableError)
    with call.service.long_requests.lease(call.principal.name), call.catalog() as catalog:

        def shown() -> Response:
            folder = _folder(call, catalog.load_table(identifier))
            storage = StorageForTasks(call.service.lake._storage)
            if since is None:
                return answer(work(call, TableRowsJob(storage, view.version, name, limit, folder)))
            if catalog.source.table(identifier).type != "managed":
                raise bad_request(
                    "changed rows are available for managed tables only: other catalogs own the versions of this table"
                )
            changes = work(call, RowChangesJob(storage, view.version, name, limit, folder, since))
            former = changes.pop("former-name")
            if former is not None and not call.principal.may(Role.READER, parts_of("table", *former)):
                raise forbidden("the table had another name in the earlier version, whose rows you may not read")
            return answer(changes)

        return with_deadline(call, catalog, identifier, shown)


class SqlQuery(BaseModel):
    """Body of `query_rows`."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=100_000)


def can_query(call: Call) -> bool:
    """Whether the server runs queries: it shows rows, and DuckDB is installed."""
    return can_show(call) and find_spec("duckdb") is not None


def query_rows(call: Call) -> Response:
    """The first rows of a query over one version. Values are strings or null."""
    require_everything(call, "a query")
    if not can_query(call):
        raise forbidden(
            "this server runs no queries: --page-rows is off, DuckDB is not installed, or its lakehouse is in memory"
        )
    view, query = version_of(call), call.parsed(SqlQuery).query
    storage = StorageForTasks(call.service.lake._storage)
    with call.service.long_requests.lease(call.principal.name):
        return answer(work(call, QueryJob(storage, view.version, query, MEMORY_SIZE_BYTES)))


def _folder(call: Call, table: Table) -> str | None:
    """The folder that must contain all files of the table; None for no such limit.

    Raises `RestError` 403 if the principal may not read the files.
    """
    if not isinstance(table.io, LakehouseFileIO):
        if not call.principal.has_everywhere(Role.READER):
            raise forbidden("rows of a table outside of the lakehouse are for readers of *")
        return None
    path = path_of_object(table.io, table.location())
    identifier = call.identifier("table")
    own = path is not None and is_own(path, identifier, str(table.metadata.table_uuid))
    if path is None or not has_role_on_files(call.principal, Role.READER, identifier, own):
        raise forbidden("rows of a table at a location that a client chose are for readers of *")
    return None if call.principal.has_everywhere(Role.READER) else path
