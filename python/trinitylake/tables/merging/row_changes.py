"""Changes of rows that are identified by file and position, for statements in SQL.

DuckDB finds the rows and computes their new values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files import row_lineage
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.position_deletes import is_merge_on_read
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowCounts, key_filter
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch, read_data_ahead
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from trinitylake.iceberg_storage.pyiceberg_patches import without_variants
from trinitylake.tables.declared_limits import Limits
from trinitylake.tables.input_rows import conform
from trinitylake.tables.merging.clauses import Clause, Clauses
from trinitylake.tables.merging.engine import commit_files
from trinitylake.tables.merging.file_rewrite import FileRewrite, Rewritten
from trinitylake.tables.merging.matching import Hits, candidate_files
from trinitylake.tables.sql_sandbox import quoted

#: Function from the columns of the table to key values of some of these columns, or to None for no keys.
FoundKeys: TypeAlias = "Callable[[pa.Schema], pa.Table | None]"
#: The columns with the file and the position of a row.
FILE, POSITION = "trinitylake:file", row_lineage.POSITION.name


@dataclass
class FoundRows:
    """Rows of a table that change in one way.

    Attributes:
        rows: the columns `FILE` and `POSITION`, and columns with new values.
        values: for each changed column of the table, the column of `rows` with its new values; None to delete the rows.
    """

    rows: pa.Table
    values: dict[str, str] | None


@dataclass
class RowChanges:
    """Row changes of a statement: changed and added rows."""

    found: list[FoundRows] = field(default_factory=list)
    inserted: list[pa.Table] = field(default_factory=list)


class PlacedRows:
    """The rows of a table in some of its files, with their positions."""

    def __init__(self, metadata: TableMetadata, io: FileIO, tasks: Sequence[FileScanTask]) -> None:
        self.metadata = metadata
        self.io = io
        self.tasks = tasks
        self.live = LiveRows(metadata, io, tasks)
        self.columns = arrow_schema(without_variants(metadata.schema()))
        self.schema = pa.schema([*self.columns, pa.field(FILE, pa.int32()), pa.field(POSITION, pa.int64())])

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        own = [*(name for name in columns if name not in (FILE, POSITION)), POSITION]
        target = pa.schema([self.schema.field(name) for name in columns])
        read_data_ahead(self.io, self.tasks)
        for number, task in enumerate(self.tasks):
            for batch in self.live.batches(task, own):
                arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                arrays[FILE] = pa.array(np.full(batch.num_rows, number, dtype=np.int32))
                table = pa.table([arrays[name] for name in columns], names=list(columns))
                yield from table.cast(target).to_batches()


def change_rows(
    iceberg: IcebergTable,
    filter: BooleanExpression,
    find: Callable[[PlacedRows], RowChanges],
    statement: str,
    limits: Limits,
    keys: FoundKeys | None = None,
) -> RowCounts:
    """Change the rows that `find` finds, in one snapshot.

    Args:
        iceberg: the table. The statement is rebased after a lost race if the table is staged.
        filter: matches all rows that the statement may change.
        find: finds the changes in the rows of the files that may hold matching rows.
        statement: name of the statement in conflicts.
        keys: returns keys of the changed rows: every changed row has one of them. None if no keys are known.

    Raises `InvalidArgument` if a row would be changed more than once, and for values that do not fit.
    """
    with iceberg.transaction() as change:
        metadata = change.table_metadata
        io = change.io if isinstance(change, StagedTransaction) else iceberg.io
        known = None if keys is None else keys(arrow_schema(without_variants(metadata.schema())))
        if known is not None:
            known = known.drop_null()  # a null equals nothing
            filter = And(filter, key_filter(known, known.column_names) if known.num_rows else AlwaysFalse())
        looking = change.looking_for(statement, filter) if isinstance(change, StagedTransaction) else nullcontext()
        with looking:
            if known is None:
                tasks = _tasks(metadata, io, filter)
            else:
                tasks = candidate_files(metadata, io, filter, known, known.column_names)
            placed = PlacedRows(metadata, io, tasks)
            changes = find(placed)
            rows = [conform(part, metadata.schema(), limits=limits) for part in changes.inserted if part.num_rows]
            in_place = isinstance(change, StagedTransaction) and is_merge_on_read(metadata, statement)
            done = rewrite(placed, changes.found, limits, rows, in_place)
            return commit_files(change, done, sum(part.num_rows for part in rows))


def rewrite(
    placed: PlacedRows, found: Sequence[FoundRows], limits: Limits, inserted: Sequence[pa.Table], in_place: bool
) -> Rewritten:
    """Update or delete the rows `found` in the data files of `placed`, and write `inserted` to new files.

    With `in_place`, delete files are written instead of rewriting data files (merge-on-read).
    Raises `InvalidArgument` if a row would be changed more than once, or if a value does not fit its column.
    """
    source, clauses, hits = _hits(found)
    applied = Clauses(clauses, source.schema, placed.columns, limits)
    changing = FileRewrite(placed.metadata, placed.io, placed.live, source, applied, in_place)
    return changing.run(placed.tasks, hits, inserted)


def _tasks(metadata: TableMetadata, io: FileIO, filter: BooleanExpression) -> list[FileScanTask]:
    return sorted(files_of_branch(metadata, io, filter), key=lambda task: task.file.file_path)


def _hits(found: Sequence[FoundRows]) -> tuple[pa.Table, list[Clause], dict[int, Hits]]:
    """The new values of all rows, a clause for each kind of change, and the changed rows by the number of the file."""
    columns: dict[str, list[pa.ChunkedArray]] = {}
    clauses = []
    files, positions, of_clause = [], [], []
    for number, one in enumerate(found):
        names = {} if one.values is None else {name: f"{number}.{column}" for name, column in one.values.items()}
        for name, column in (one.values or {}).items():
            columns[names[name]] = [one.rows.column(column)]
        clauses.append(
            Clause("delete")
            if one.values is None
            else Clause("update", None, {name: f"source.{quoted(column)}" for name, column in names.items()})
        )
        files.append(one.rows.column(FILE).to_numpy())
        positions.append(one.rows.column(POSITION).to_numpy())
        of_clause.append(np.full(one.rows.num_rows, number, dtype=np.int32))
    if not found:
        return pa.table({}), [], {}
    counts = [one.rows.num_rows for one in found]
    source = _one_below_the_other(columns, counts)
    file, position, clause = np.concatenate(files), np.concatenate(positions), np.concatenate(of_clause)
    row = np.arange(len(file))
    order = np.lexsort((position, file))
    file, position, clause, row = file[order], position[order], clause[order], row[order]
    if ((file[1:] == file[:-1]) & (position[1:] == position[:-1])).any():
        raise InvalidArgument(
            "a row of the table would be changed more than once: make the statement match each row at most once"
        )
    hits = {}
    ends = np.r_[True, file[1:] != file[:-1], True]
    bounds = [int(place) for place in np.flatnonzero(ends)] if len(file) else []
    for start, end in pairwise(bounds):
        part = slice(start, end)
        hits[int(file[start])] = Hits(position[part], row[part], clause[part], [])
    return source, clauses, hits


def _one_below_the_other(columns: dict[str, list[pa.ChunkedArray]], counts: Sequence[int]) -> pa.Table:
    """The rows of all kinds of changes in one table. The columns of one kind are null in rows of other kinds."""
    filled = {}
    for name, (values,) in columns.items():
        number = int(name.partition(".")[0])
        before, after = sum(counts[:number]), sum(counts[number + 1 :])
        parts = [pa.nulls(before, values.type), *values.chunks, pa.nulls(after, values.type)]
        filled[name] = pa.chunked_array(parts, type=values.type)
    return pa.table(filled) if filled else pa.table({"": pa.nulls(sum(counts))})
