"""The rows of a small append, which a group of appends writes together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa
from pyiceberg.schema import Schema

from trinitylake import _core
from trinitylake.iceberg_storage.data_files.written_values import filled
from trinitylake.tables.declared_limits import Limits
from trinitylake.tables.input_rows import conform

if TYPE_CHECKING:
    from trinitylake.base.commit_info import CommitInfo


class Batch(NamedTuple):
    """The rows of one append.

    Attributes:
        rows: the rows, with all columns of the table (`of_rows`).
        schema: the Iceberg schema of the table for which the rows were prepared.
        declared: the schema in the table's definition at that time, with declared limits.
        info: message and author of the append.
        entry: the transaction of the append, if a user began it and it has done nothing else; None otherwise.
    """

    rows: pa.Table
    schema: Schema
    declared: object
    info: CommitInfo
    entry: _core.Transaction | None = None

    @staticmethod
    def of_rows(given: pa.Table, schema: Schema, limits: Limits) -> pa.Table:
        """Rows of a batch: all columns of the table in its order, so that batches for one schema can be concatenated.

        Raises `InvalidArgument` as `conform` does.
        """
        names = [field.name for field in schema.fields]
        rows = filled(conform(given, schema, limits=limits, needed=names), schema)
        return cast("pa.Table", rows).select(names)

    @property
    def may_wait_in_queue(self) -> bool:
        """Whether another process may commit these rows. It may not if the user chose the transaction id."""
        return self.entry is None or not self.entry.has_chosen_id

    def is_like(self, other: Batch) -> bool:
        """Whether both batches were prepared for the same columns."""
        return self.schema == other.schema and self.declared == other.declared

    def size(self) -> tuple[int, int, int]:
        """Number of rows, of bytes, and of characters of message and author."""
        return self.rows.num_rows, self.rows.nbytes, len(self.info.message) + len(self.info.author)


class OtherColumns(Exception):
    """The rows were prepared for a table with other columns."""


#: Metadata of an Arrow stream: the Iceberg schema for which the rows were prepared.
_COLUMNS = b"trinitylake.columns"


def to_ipc(rows: pa.Table, columns: Schema | None = None) -> bytes:
    """Encode rows as an Arrow IPC stream. It includes `columns`, the schema for which the rows were prepared."""
    if columns is not None:
        rows = rows.replace_schema_metadata({_COLUMNS: columns_text(columns)})
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as stream:
        stream.write_table(rows)
    return cast("bytes", buffer.getvalue().to_pybytes())


def of_ipc(data: bytes, columns: bytes | None = None) -> pa.Table:
    """The inverse of `to_ipc`. Raises `OtherColumns` if the rows were prepared for other `columns` (`columns_text`)."""
    with pa.ipc.open_stream(data) as stream:
        rows = stream.read_all()
    if columns is not None and (rows.schema.metadata or {}).get(_COLUMNS) != columns:
        raise OtherColumns
    return rows


def columns_text(schema: Schema) -> bytes:
    """The schema as JSON, for comparisons."""
    return schema.model_dump_json().encode()
