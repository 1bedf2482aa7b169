"""MERGE on one table: reads the files that may hold a key, and rewrites the files with rows that change.

The result is one snapshot. It depends on the rows that have one of the keys. After a lost race it is rebased if the
other commits changed no such rows (`iceberg_storage/staging/row_conflicts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.position_deletes import is_merge_on_read
from trinitylake.iceberg_storage.data_files.written_values import defaulted
from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowCounts, key_filter
from trinitylake.iceberg_storage.extended_pyiceberg.transaction import StagedTransaction
from trinitylake.tables.declared_limits import Limits
from trinitylake.tables.merging.clauses import Clause, Clauses
from trinitylake.tables.merging.file_rewrite import FileRewrite, Rewritten, completed
from trinitylake.tables.merging.matching import candidate_files, find_matches

#: Maximum number of rows that are inserted at once.
_INSERTED_ROWS = 500_000


def merge(
    iceberg: IcebergTable,
    source: pa.Table,
    keys: Sequence[str],
    matched: Sequence[Clause],
    not_matched: Sequence[Clause],
    *,
    limits: Limits,
    statement: str = "merge",
    only_changes: bool = False,
) -> RowCounts:
    """Match `source` with a table by `keys`, and apply the clauses, in one snapshot.

    Args:
        iceberg: the table. The statement is rebased after a lost race if the table is staged.
        source: the rows. Their key columns have the types of the table.
        keys: columns that both have.
        matched, not_matched: clauses, in the order in which their conditions are evaluated.
        statement: name of the statement in conflicts.
        only_changes: whether updates that do not change a row are ignored.

    Raises `InvalidArgument` for invalid keys and clauses, and values that do not fit.
    """
    with iceberg.transaction() as change:
        metadata = change.table_metadata
        target = arrow_schema(metadata.schema())
        when_matched = Clauses(matched, source.schema, target, limits)
        when_not_matched = Clauses(not_matched, source.schema, target, limits)
        known = source.select(list(keys)).drop_null()  # a null equals nothing
        filter: BooleanExpression = key_filter(known, list(keys)) if known.num_rows else AlwaysFalse()
        io = change.io if isinstance(change, StagedTransaction) else iceberg.io
        looking = change.looking_for(statement, filter) if isinstance(change, StagedTransaction) else nullcontext()
        with looking:
            tasks = candidate_files(metadata, io, filter, known, keys)
            live = LiveRows(metadata, io, tasks)
            matches = find_matches(live, tasks, source, keys, when_matched)
            added = _Added(source, ~matches.met, when_not_matched, metadata)
            in_place = isinstance(change, StagedTransaction) and is_merge_on_read(metadata, statement)
            rewrite = FileRewrite(metadata, io, live, source, when_matched, in_place, only_changes)
            done = rewrite.run(tasks, matches.hits, added if not_matched else [])
            return commit_files(change, done, added.count)


@dataclass
class _Added:
    """The rows that the clauses insert for source rows without a match, in batches. Can be read once.

    Attributes:
        count: number of rows that were read so far.
    """

    source: pa.Table
    is_new: np.ndarray
    clauses: Clauses
    metadata: TableMetadata
    count: int = 0

    def __iter__(self) -> Iterator[pa.Table]:
        target = self.clauses.target
        required = {field.name for field in target if not field.nullable} - defaulted(self.metadata.schema())
        for start in range(0, self.source.num_rows, _INSERTED_ROWS):
            rows = self.source.slice(start, _INSERTED_ROWS)
            rows = rows.filter(pa.array(self.is_new[start : start + _INSERTED_ROWS]))
            if not rows.num_rows:
                continue
            outcome = self.clauses.outcome(rows, None)
            which = outcome.clause.to_numpy()
            for number in range(len(self.clauses.clauses)):
                chosen = np.flatnonzero(which == number)
                if not len(chosen):
                    continue
                values = self.clauses.values(number, rows, chosen, outcome.computed, chosen)
                if missing := sorted(required - values.keys()):
                    raise InvalidArgument(f"required columns are missing from the data: {', '.join(missing)}")
                part = completed(self.clauses, values, None)
                self.count += part.num_rows
                yield part


def commit_files(change: Transaction, done: Rewritten, inserted: int) -> RowCounts:
    """Commit one snapshot that removes and adds files. Makes no snapshot if nothing changed."""
    counts = RowCounts(done.updated, done.deleted, inserted)
    if isinstance(change, StagedTransaction):
        change.count_rows(counts)
    if not done.removed and not done.added:
        return counts
    if isinstance(change, StagedTransaction):
        change.replace_files(done.removed, done.added)
    else:
        _commit_elsewhere(change, done.removed, done.added)
    return counts


def _commit_elsewhere(change: Transaction, removed: list[DataFile], added: list[DataFile]) -> None:
    """Commit to a table of another catalog, with PyIceberg's own snapshots."""
    update = change.update_snapshot()
    if not removed:
        with update.fast_append() as append:
            for file in added:
                append.append_data_file(file)
        return
    with update.overwrite() as overwrite:
        for file in removed:
            overwrite.delete_data_file(file)
        for file in added:
            overwrite.append_data_file(file)
