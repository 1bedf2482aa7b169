"""The program of a process that reads for a server: rows of queries and of tables, and differences of versions
(`state/query_processes.py`).

DuckDB looks whether a query should end, and counts what it takes, in most places and not in all: it computes constants
while it plans, some functions run for minutes without looking up, others make texts that it does not count. A Parquet
file of 30 kB may hold a gigabyte, and a difference all that a lakehouse holds. So limits are kept by the system, for a
process of its own: memory by a limit of the process, time by an alarm that ends it.
"""

from __future__ import annotations

import json
import pickle
import signal
import traceback
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pyarrow as pa

from trinitylake import _core
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.own_files import TableFileIO
from trinitylake.lakehouse.view_at import ViewAt
from trinitylake.reopening import StorageForTasks
from trinitylake.rest.errors import bad_request, response_of
from trinitylake.rest.page.texts import document_of
from trinitylake.rest.security.principals import STRANGER
from trinitylake.rest.security.told import told_to
from trinitylake.rest.state.limited_memory import limit_memory
from trinitylake.tables.first_rows import FirstRows, first_rows
from trinitylake.tables.queries.limits import QueryLimits
from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions

MAX_ROWS = 1000
MAX_COLUMNS = 200
READY = b"ready"


@dataclass(frozen=True)
class Request(ABC):
    """What such a process is sent.

    Attributes:
        storage: of the lakehouse, with its secrets: the process reads as the server does.
        version: of the lakehouse.
        seconds: after which the process ends.
    """

    storage: StorageForTasks
    version: int
    seconds: float

    @abstractmethod
    def document(self, lakehouse: _core.Lakehouse) -> dict[str, object]:
        """The answer."""

    def view(self, lakehouse: _core.Lakehouse) -> ViewAt:
        """The version."""
        return ViewAt(self.storage.storage, lakehouse.version(self.version))


@dataclass(frozen=True)
class QueryRequest(Request):
    """The first rows of a query.

    Attributes:
        memory_size_bytes: that DuckDB may take, and as much again on disk.
    """

    sql: str
    memory_size_bytes: int

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, object]:
        prepared = PreparedQuery(
            self.sql, self.view(lakehouse), QueryOptions(limits=QueryLimits(self.memory_size_bytes))
        )
        if len(prepared.columns) > MAX_COLUMNS:
            raise bad_request(
                f"a query has at most {MAX_COLUMNS} columns here, and this one has {len(prepared.columns)}"
            )
        return document_of(_first(prepared), [type for _, type in prepared.columns])


@dataclass(frozen=True)
class RowsRequest(Request):
    """The first rows of a table.

    Attributes:
        name: namespace and name of the table.
        folder: the path of the table, if no file outside of it is read.
    """

    name: tuple[str, str]
    limit: int
    folder: str | None

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, object]:
        table = self.view(lakehouse).table(self.name).iceberg
        if self.folder is not None:
            assert isinstance(table.io, LakehouseFileIO)
            table.io = TableFileIO(table.io, self.folder)
        with translated(lambda: f"table {'.'.join(self.name)}"):
            found = first_rows(table, self.limit)
        types = {field.name: str(field.field_type) for field in table.schema().fields}
        return document_of(found, [types[name] for name in found.rows.column_names])


@dataclass(frozen=True)
class DifferenceRequest(Request):
    """What differs between an earlier version and this one.

    Attributes:
        start, limit: which of the objects are told, in the order of their keys.
        by_transaction: the version before, and of which transaction each change is.
    """

    before: int
    start: int
    limit: int
    by_transaction: bool = False

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, object]:
        before, after = lakehouse.version(self.before), lakehouse.version(self.version)
        rows = after.changes(before) if self.by_transaction else before.diff(after)
        page = rows.slice(min(self.start, len(rows)), self.limit)
        return {"rows": page.to_pylist(), "n-rows": len(rows)}


class Runner:
    """Answers requests, and keeps the lakehouse open between them."""

    def __init__(self) -> None:
        self._opened: tuple[object, _core.Lakehouse] | None = None

    def answered(self, request: Request) -> bytes:
        """A line of JSON with the status and, for an error that nobody foresaw, how it came about; then the body."""
        head: dict[str, object] = {"code": 200}
        try:
            document = request.document(self._lakehouse(request.storage.storage))
            body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        except Exception as caught:
            too_much = bad_request("the rows take more memory than a page may")
            response = response_of(too_much if isinstance(caught, MemoryError) else caught, told_to(STRANGER))
            head, body = {"code": response.status_code}, bytes(response.body)
            if response.status_code >= 500:
                head["problem"] = "".join(traceback.format_exception(caught))
        return json.dumps(head).encode() + b"\n" + body

    def _lakehouse(self, storage: _core.Storage) -> _core.Lakehouse:
        settings = storage.__getnewargs__()
        if self._opened is None or self._opened[0] != settings:
            self._opened = settings, _core.Lakehouse.open(storage)
        return self._opened[1]


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


def main(descriptor: int, memory_size_bytes: int) -> None:
    """Answer requests until the other end is closed."""
    with suppress(ImportError):  # so that no query waits for it
        import duckdb  # noqa: F401
    connection = Connection(descriptor)
    limit_memory(memory_size_bytes)
    runner = Runner()
    connection.send_bytes(READY)
    while True:
        try:
            request: Request = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, request.seconds)  # whose signal ends the process, whatever it does
        answer = runner.answered(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(answer)
