"""The first rows of a table, as text.

They are read by the server, with its own credentials. So whoever sees them must be a reader of the files of the table
(`security/locations.py`), and the server must be one that gives data to its clients (`ServerOptions.page_shows_rows`).
A worker process reads them (`workers/`), since a small file may decode to more than the memory of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.iceberg.identifiers import object_name
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.reopening import StorageForTasks
from trinitylake.rest.page.answers import answer, has_workers, version_of, whole_number, work
from trinitylake.rest.request.call import Call
from trinitylake.rest.resources.elsewhere import reached
from trinitylake.rest.security.locations import has_role_on_files, is_own, path_of_object
from trinitylake.rest.security.principals import Role, forbidden
from trinitylake.rest.workers.page_jobs import TableRowsJob

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAX_ROWS = 200


def can_show(call: Call) -> bool:
    """Whether the server shows rows at all: it was told to, and other processes reach the lakehouse."""
    return call.service.shows_rows and has_workers(call)


def rows(call: Call) -> Response:
    """Some rows of a table, a text for each value and null for none.

    Raises `RestError` 403 where the server does not show rows, or not to this principal.
    """
    if not can_show(call):
        raise forbidden("this server shows no rows: it was not told to (--page-rows), or its lakehouse is in memory")
    view = version_of(call)
    limit = whole_number(call, "limit", 50, MAX_ROWS)
    identifier = call.identifier("table")
    name = object_name(identifier, NoSuchTableError)
    with call.service.long_requests.taken(call.principal.name), call.catalog() as catalog:

        def shown() -> Response:
            folder = _folder(call, catalog.load_table(identifier))
            storage = StorageForTasks(call.service.lake.storage)
            return answer(work(call, TableRowsJob(storage, view.version, name, limit, folder)))

        return reached(call, catalog, identifier, shown)


def _folder(call: Call, table: Table) -> str | None:
    """The folder in which all files must lie, if they must. Raises `RestError` 403 for who may not read the files."""
    if not isinstance(table.io, LakehouseFileIO):
        if not call.principal.has_everywhere(Role.READER):
            raise forbidden("rows of a table that lies elsewhere are for readers of everything")
        return None
    path = path_of_object(table.io, table.location())
    identifier = call.identifier("table")
    own = path is not None and is_own(path, identifier, str(table.metadata.table_uuid))
    if path is None or not has_role_on_files(call.principal, Role.READER, identifier, own):
        raise forbidden("rows of a table at a location of its own choice are for readers of everything")
    return None if call.principal.has_everywhere(Role.READER) else path
