"""Jobs for the page: the first rows of a query or a table, and the difference between two versions."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.definitions.iceberg_types import sql_text
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.table_file_io import TableFileIO
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.workers.worker import Job
from trinitylake.tables.change_feed.feed import CHANGE_TYPE, ChangeFeed
from trinitylake.tables.change_feed.table_versions import TableName, net_step_of_table, state_of
from trinitylake.tables.display_values import float_text, json_text, moment_texts, python_values
from trinitylake.tables.first_rows import MAX_COLUMNS as MAX_COLUMNS_OF_TABLE
from trinitylake.tables.first_rows import FirstRows, first_rows
from trinitylake.tables.frozen_table import table_of_state
from trinitylake.tables.queries.prepared import PreparedQuery, QueryLimits, QueryOptions

#: The values of a row as text; None for NULL.
Row: TypeAlias = list[str | None]

MAX_ROWS, MAX_COLUMNS = 1000, 200
#: Maximum number of characters of one value, and of all values of a result.
MAX_VALUE_LENGTH, MAX_TEXTS_LENGTH = 1000, 2_000_000

#: Time limit for counting changed rows.
COUNT_SECONDS = 4.0

#: The lakehouse that this process opened last, and the arguments of its storage.
_opened: tuple[object, _core.Lakehouse] | None = None


@dataclass(frozen=True)
class PageJob(Job):
    """A job on one version of the lakehouse. Its result is a JSON document.

    Attributes:
        storage: of the lakehouse, with its secrets, because the worker reads with the server's credentials.
        version: number of the version.
    """

    kind: ClassVar[str] = "page"

    storage: StorageForTasks
    version: int

    def run(self, report: Callable[[str], None]) -> dict[str, Any]:
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
        """The first rows. Raises `InvalidArgument` for a query with too many columns, and as `PreparedQuery`."""
        view = LakehouseVersion(self.storage.storage, lakehouse.version(self.version))
        prepared = PreparedQuery(self.sql, view, QueryOptions(limits=QueryLimits(self.memory_size_bytes)))
        if prepared.explain:  # a plan names files of the server
            raise InvalidArgument("EXPLAIN is not supported on this page: use lake.sql or `trinitylake sql`")
        if len(prepared.columns) > MAX_COLUMNS:
            raise InvalidArgument(
                f"a query has at most {MAX_COLUMNS} columns here, and this one has {len(prepared.columns)}"
            )
        return _document_of(_first_rows(prepared), [type for _, type in prepared.columns])


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
        fields = table.schema().fields[: found.rows.num_columns]
        document = _document_of(found, [sql_text(field.field_type) for field in fields])
        for column, profile in zip(document["columns"], found.profiles, strict=False):
            bounds = [None, None] if profile.bounds is None else texts_of(pa.chunked_array([profile.bounds]))
            column |= {"nulls": profile.nulls, "min": bounds[0], "max": bounds[1]}
        return document


@dataclass(frozen=True)
class RowChangesJob(PageJob):
    """The first rows of a table that differ between an earlier version and this one, and the number of all of them.

    Attributes:
        name, limit, folder: as for `TableRowsJob`.
        since: number of the earlier version.
    """

    name: tuple[str, str]
    limit: int
    folder: str | None
    since: int

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, Any]:
        """The document of `TableRowsJob` with the changed rows, their signs ("+", "-", "~") and old values (`before`).

        `counts` has the number of rows of each sign. It covers only a part of the rows if `is-counted` is false.
        `former-name` is the name of the table in the earlier version, null if the table did not exist.
        """
        storage, until = self.storage.storage, lakehouse.version(self.version)
        state = state_of(until, TableName(*self.name))
        assert state is not None
        schema = table_of_state(storage, state).schema()
        all_names = [field.name for field in schema.fields]
        names = all_names[:MAX_COLUMNS_OF_TABLE]
        open_table, subject = partial(table_of_state, storage), lambda: f"table {'.'.join(self.name)}"
        feed = ChangeFeed(storage, open_table, schema, names, "trinitylake", self.since, subject, self.folder)
        [step] = net_step_of_table(lakehouse, state.definition.id, state.key, lakehouse.version(self.since), until)
        counts, parts, n_rows, deadline = Counter[str](), [], 0, time.monotonic() + COUNT_SECONDS
        is_counted = True
        for batch in feed.reader([step]):
            counts.update(batch[CHANGE_TYPE].to_pylist())
            if n_rows <= 2 * self.limit:  # an updated row has two changes
                parts.append(batch.slice(0, 2 * self.limit + 1 - n_rows))
                n_rows += len(parts[-1])
            if time.monotonic() > deadline:
                is_counted = False
                break
        rows = pa.Table.from_batches(parts, feed.schema)
        types = [sql_text(field.field_type) for field in schema.fields[: len(names)]]
        document = _document_of(FirstRows(rows.select(names), all_names[len(names) :]), types)
        lines = list(_signed(rows[CHANGE_TYPE].to_pylist(), document["rows"]))[: self.limit]
        return document | {
            "rows": [row for _, row, _ in lines],
            "signs": [sign for sign, _, _ in lines],
            "before": [before for _, _, before in lines],
            "counts": {"+": counts["insert"], "-": counts["delete"], "~": counts["update_postimage"]},
            "is-counted": is_counted,
            "former-name": None if step.before is None else list(step.before.key),
        }


def _signed(changes: Sequence[str], rows: Sequence[Row]) -> Iterator[tuple[str, Row, Row | None]]:
    """Sign, new values and old values of each changed row. `rows` may be shorter than `changes`."""
    before: Row = []
    for change, row in zip(changes, rows, strict=False):
        if change == "update_preimage":
            before = row
        elif change == "update_postimage":
            yield "~", row, before
        else:
            yield "+" if change == "insert" else "-", row, None


@dataclass(frozen=True)
class DifferenceJob(PageJob):
    """Objects that differ between an earlier version and this one.

    Attributes:
        before: number of the earlier version.
        start, limit: position and number of the objects in the result, in key order.
        by_transaction: name the transaction of each change. The earlier version must be the previous one.
    """

    before: int
    start: int
    limit: int
    by_transaction: bool = False

    def document(self, lakehouse: _core.Lakehouse) -> dict[str, Any]:
        """`rows`: the selected objects; `n-rows`: number of objects in the whole difference."""
        before, after = lakehouse.version(self.before), lakehouse.version(self.version)
        rows = after.changes(before) if self.by_transaction else before.diff(after)
        return {"rows": rows.slice(min(self.start, len(rows)), self.limit).to_pylist(), "n-rows": len(rows)}


def _first_rows(prepared: PreparedQuery) -> FirstRows:
    with prepared.running(exports="text") as running:
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


def _document_of(found: FirstRows, types: Sequence[str]) -> dict[str, Any]:
    """Rows as JSON, each value as text. Rows beyond `MAX_TEXTS_LENGTH` characters are left out."""
    room = MAX_TEXTS_LENGTH
    columns = [texts_of(column) for column in found.rows.columns]
    lines: list[list[str | None]] = []
    problem = found.problem
    for line in zip(*columns, strict=True):
        room -= sum(len(value or "") + 1 for value in line)
        if room < 0:
            problem = "the rows are longer than a page can show"
            break
        lines.append(list(line))
    return {
        "columns": [{"name": name, "type": type} for name, type in zip(found.rows.column_names, types, strict=True)],
        "rows": lines,
        "omitted-columns": found.omitted_columns,
        "problem": problem,
    }


def texts_of(column: pa.ChunkedArray) -> list[str | None]:
    """The values of a column as text. A value longer than `MAX_VALUE_LENGTH` is cut and ends in `…`."""
    type = column.type
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        texts = pc.utf8_slice_codeunits(column, 0, MAX_VALUE_LENGTH + 1).to_pylist()
    elif pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_fixed_size_binary(type):
        column = column.cast(pa.large_binary())
        texts = [None if one is None else one[: MAX_VALUE_LENGTH // 2 + 1].hex() for one in column.to_pylist()]
    elif pa.types.is_nested(type):
        texts = [json_text(one) for one in python_values(column)]
    elif pa.types.is_floating(type):
        texts = [None if one is None else float_text(one) for one in column.to_pylist()]
    elif pa.types.is_timestamp(type) or pa.types.is_date32(type):
        texts = moment_texts(column).to_pylist()
    else:
        texts = pc.replace_substring_regex(column.cast(pa.string()), r"(:\d\d)\.0+$", r"\1").to_pylist()
    return [one if one is None or len(one) <= MAX_VALUE_LENGTH else f"{one[:MAX_VALUE_LENGTH]}…" for one in texts]
