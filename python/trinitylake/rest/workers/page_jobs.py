"""Jobs for the page: the first rows of a query or a table, and the difference between two versions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from trinitylake import _core
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.own_files import TableFileIO
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.reopening import StorageForTasks
from trinitylake.rest.workers.row_texts import document_of
from trinitylake.rest.workers.worker import Job
from trinitylake.tables.first_rows import FirstRows, first_rows
from trinitylake.tables.queries.limits import QueryLimits
from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions

MAX_ROWS, MAX_COLUMNS = 1000, 200

#: The lakehouse that this process opened last, and the arguments of its storage.
_opened: tuple[object, _core.Lakehouse] | None = None


@dataclass(frozen=True)
class PageJob(Job):
    """A job on one version of the lakehouse. Its result is a document that JSON can hold.

    Attributes:
        storage: of the lakehouse, with its secrets: the worker reads as the server does.
        version: number of the version.
    """

    kind: ClassVar[str] = "page"

    storage: StorageForTasks
    version: int

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
        """The document."""
        global _opened
        settings = self.storage.storage.__getnewargs__()
        if _opened is None or _opened[0] != settings:
            _opened = settings, _core.Lakehouse.open(self.storage.storage)
        return self.document(_opened[1])

    @abstractmethod
    def document(self, lakehouse: _core.Lakehouse) -> dict[str, Any]:
        """The document, read from an open lakehouse."""


@dataclass(frozen=True)
class QueryJob(PageJob):
    """The first rows of a query.

    Attributes:
        sql: the query.
        memory_size_bytes: memory limit of DuckDB, and the limit of its temporary files.
    """

    sql: str
    memory_size_bytes: int

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, Any]:
        """Raises `InvalidArgument` for a query with too many columns, and as `PreparedQuery`."""
        view = LakehouseVersion(self.storage.storage, lakehouse.version(self.version))
        prepared = PreparedQuery(self.sql, view, QueryOptions(limits=QueryLimits(self.memory_size_bytes)))
        if len(prepared.columns) > MAX_COLUMNS:
            raise InvalidArgument(
                f"a query has at most {MAX_COLUMNS} columns here, and this one has {len(prepared.columns)}"
            )
        return document_of(_first_rows(prepared), [type for _, type in prepared.columns])


@dataclass(frozen=True)
class TableRowsJob(PageJob):
    """The first rows of a table.

    Attributes:
        name: namespace and name of the table.
        limit: number of rows.
        folder: path of the folder outside of which no file is read; None for no such limit.
    """

    name: tuple[str, str]
    limit: int
    folder: str | None

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, Any]:
        """Raises as `first_rows`."""
        table = LakehouseVersion(self.storage.storage, lakehouse.version(self.version)).table(self.name).iceberg
        if self.folder is not None:
            assert isinstance(table.io, LakehouseFileIO)
            table.io = TableFileIO(table.io, self.folder)
        with translated(lambda: f"table {'.'.join(self.name)}"):
            found = first_rows(table, self.limit)
        types = {field.name: str(field.field_type) for field in table.schema().fields}
        return document_of(found, [types[name] for name in found.rows.column_names])


@dataclass(frozen=True)
class DifferenceJob(PageJob):
    """Objects that differ between an earlier version and this one.

    Attributes:
        before: number of the earlier version.
        start, limit: position and number of the objects in the result, in key order.
        by_transaction: compare with the version just before, and name the transaction of each change.
    """

    before: int
    start: int
    limit: int
    by_transaction: bool = False

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, Any]:
        """`rows`, and `n-rows` of the whole difference."""
        before, after = lakehouse.version(self.before), lakehouse.version(self.version)
        rows = after.changes(before) if self.by_transaction else before.diff(after)
        return {"rows": rows.slice(min(self.start, len(rows)), self.limit).to_pylist(), "n-rows": len(rows)}


def _first_rows(prepared: PreparedQuery) -> FirstRows:
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
