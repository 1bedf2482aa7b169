"""The first rows of a table, as text.

They are read by the server, with its own credentials. So whoever sees them must be a reader of the files of the table
(`security/locations.py`), and the server must be one that gives data to its clients (`ServerOptions.page_shows_rows`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from starlette.responses import Response

from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.rest.page.answers import answer, version_of, whole_number
from trinitylake.rest.request.call import Call
from trinitylake.rest.resources.elsewhere import reached
from trinitylake.rest.resources.scan_planning import TableFileIO
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.locations import has_role_on_files, is_own, path_of_object
from trinitylake.rest.security.principals import Role, forbidden
from trinitylake.tables.first_rows import FirstRows, first_rows

MAX_ROWS = 200
#: Characters of a value that are sent, and of all values.
MAX_VALUE, MAX_VALUES = 1000, 2_000_000


def rows(call: Call) -> Response:
    """Some rows of a table, a text for each value and null for none.

    Raises `RestError` 403 where the server does not show rows, or not to this principal.
    """
    if not call.service.shows_rows:
        raise forbidden("this server shows no rows: it was not told to (--page-rows)")
    version_of(call)
    limit = whole_number(call, "limit", 50, MAX_ROWS)
    identifier = call.identifier("table")
    with call.service.room.taken(call.principal.name), call.catalog() as catalog:
        document = reached(call, catalog, identifier, lambda: _first(call, catalog.load_table(identifier), limit))
    audit(call.principal.name, "show rows", [".".join(identifier)], 200, None, None, call.request_id)
    return answer(document)


def _first(call: Call, table: Table, limit: int) -> dict[str, Any]:
    types = {field.name: str(field.field_type) for field in table.schema().fields}
    found = first_rows(_readable(call, table), limit)
    return document_of(found, [types[name] for name in found.rows.column_names])


def _readable(call: Call, table: Table) -> Table:
    """The table, which reads no file of another one. Raises `RestError` 403 for somebody who may not read its files."""
    if not isinstance(table.io, LakehouseFileIO):
        if not call.principal.has_everywhere(Role.READER):
            raise forbidden("rows of a table that lies elsewhere are for readers of everything")
        return table
    path = path_of_object(table.io, table.location())
    identifier = call.identifier("table")
    own = path is not None and is_own(path, identifier, str(table.metadata.table_uuid))
    if path is None or not has_role_on_files(call.principal, Role.READER, identifier, own):
        raise forbidden("rows of a table at a location of its own choice are for readers of everything")
    if not call.principal.has_everywhere(Role.READER):
        table.io = TableFileIO(table.io, path)
    return table


def document_of(found: FirstRows, types: Sequence[str]) -> dict[str, Any]:
    """Rows as they are sent: text, each value up to a length, and no more than a page can show."""
    room = MAX_VALUES
    columns = [texts_of(column) for column in found.rows.columns]
    lines: list[list[str | None]] = []
    problem = found.problem
    for line in zip(*columns, strict=True):
        room -= sum(len(value or "") + 1 for value in line)
        if room < 0:
            problem = "the rows are longer than what a page shows"
            break
        lines.append(list(line))
    return {
        "columns": [{"name": name, "type": type} for name, type in zip(found.rows.column_names, types, strict=True)],
        "rows": lines,
        "omitted-columns": found.omitted_columns,
        "problem": problem,
    }


def texts_of(column: pa.ChunkedArray) -> list[str | None]:
    """The values of a column as text, each cut at `MAX_VALUE` characters, with a mark where it was."""
    type = column.type
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        texts = pc.utf8_slice_codeunits(column, 0, MAX_VALUE + 1).to_pylist()
    elif pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        column = column.cast(pa.large_binary())
        texts = [None if one is None else one[: MAX_VALUE // 2 + 1].hex() for one in column.to_pylist()]
    elif pa.types.is_nested(type):
        texts = [None if one is None else json.dumps(_plain(one), ensure_ascii=False) for one in column.to_pylist()]
    elif pa.types.is_floating(type):
        texts = [None if one is None else _float_text(one) for one in column.to_pylist()]
    else:  # Arrow's own words: Python has no dates beyond the year 9999 and no nanoseconds
        texts = column.cast(pa.string()).to_pylist()
    return [one if one is None or len(one) <= MAX_VALUE else f"{one[:MAX_VALUE]}…" for one in texts]


def _float_text(number: float) -> str:
    if math.isfinite(number) and number == int(number) and abs(number) < 1e15:
        return f"{number:.1f}"
    return repr(number)


def _plain(value: Any) -> Any:
    """A nested value of what JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
