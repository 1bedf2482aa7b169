"""Predicates of statements, which decide whether another commit changes their result.

A snapshot contains the files that a statement removed and added, but not the filter of the statement. So a staged table
records the filter until the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.table import upsert_util
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

#: More keys than this are recorded as a range.
MAX_KEYS = 200


class RowCounts(NamedTuple):
    """How many rows a statement updated, deleted and inserted. A snapshot has only the row counts of added and removed
    files.
    """

    updated: int
    deleted: int
    inserted: int


@dataclass(frozen=True)
class RowsRead:
    """Rows that the result of a statement depends on.

    Attributes:
        statement: "delete", "overwrite", "dynamic_partition_overwrite", "upsert", "merge", "update", `SCAN` or
            `WHOLE`.
        filter: matches at least all of these rows.
        case_sensitive: whether the filter names columns case-sensitively.
        branch: the branch that the statement read; None for a snapshot without a branch.
        operation: `DELETE` or `OVERWRITE`, which selects the isolation level of the table.
        snapshot_ids: the snapshots of the statement.
        counts: how many rows were changed, if the statement counted them.
    """

    statement: str
    filter: BooleanExpression
    case_sensitive: bool = True
    branch: str | None = MAIN_BRANCH
    operation: Operation = Operation.DELETE
    snapshot_ids: tuple[int, ...] = ()
    counts: RowCounts | None = None

    def to_json(self, schema: Schema) -> dict[str, Any]:
        """JSON for a saved transaction. A filter that JSON cannot express becomes a filter that matches every row."""
        kept = self.filter
        text = kept.model_dump(mode="json")
        try:
            same = bind(schema, BooleanExpression.model_validate(text), self.case_sensitive) == bind(
                schema, kept, self.case_sensitive
            )
        except (ValueError, TypeError):
            same = False
        return {
            "statement": self.statement,
            "filter": text if same else True,
            "case-sensitive": self.case_sensitive,
            "branch": self.branch,
            "operation": self.operation.value,
            "snapshot-ids": list(self.snapshot_ids),
            "counts": None if self.counts is None else list(self.counts),
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> RowsRead:
        """The inverse of `to_json`. Raises `ValueError`, `KeyError`, pydantic's `ValidationError`."""
        return cls(
            saved["statement"],
            BooleanExpression.model_validate(saved["filter"]),
            saved["case-sensitive"],
            saved["branch"],
            Operation(saved["operation"]),
            tuple(saved["snapshot-ids"]),
            RowCounts(*counts) if (counts := saved.get("counts")) is not None else None,
        )


#: Statement that read the table with its snapshots and branches, so that every change conflicts with it.
WHOLE = "whole table"
#: Statement that read rows; recorded under SERIALIZABLE only.
SCAN = "scan"
WHOLE_TABLE = RowsRead(WHOLE, AlwaysTrue())

#: The predicates of the current commit. `commit_table` reads them; PyIceberg's commit has no argument for them.
rows_read: ContextVar[tuple[RowsRead, ...]] = ContextVar("trinitylake_rows_read", default=())


def key_filter(rows: pa.Table, columns: Sequence[str], max_keys: int = MAX_KEYS) -> BooleanExpression:
    """A filter that matches at least all rows with a key of `rows`. More than `max_keys` keys become a range."""
    try:
        keys = rows.select(columns)
        if not columns or any(keys.column(name).null_count for name in columns):
            return AlwaysTrue()
        if not all(_is_finite(keys.column(name)) for name in columns):
            return AlwaysTrue()
        if keys.num_rows <= max_keys:
            return match_filter(rows, list(columns))
        return And(*(part for name in columns for part in _range(name, _literals(keys.column(name)))))
    except (KeyError, TypeError, ValueError, OverflowError, NotImplementedError):
        # The type of the keys has no order, or a key has no literal, for example a date before the year 1.
        return AlwaysTrue()


def match_filter(rows: pa.Table, columns: list[str]) -> BooleanExpression:
    """A filter that matches all rows whose values in `columns` equal those of a row in `rows`. These values must not be
    NULL.
    """
    keys = pa.table([_literals(rows.column(name)) for name in columns], names=columns)
    return upsert_util.create_match_filter(keys, columns)


def _literals(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values for PyIceberg's literals. Nanoseconds become strings: PyIceberg's timestamp literals have microseconds."""
    is_nano = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return column.cast(pa.string()) if is_nano else column


def _is_finite(column: pa.ChunkedArray) -> bool:
    """Whether all values are finite. NaN is outside of every range, and PyIceberg's filters do not match infinities."""
    return not pa.types.is_floating(column.type) or bool(pc.all(pc.is_finite(column), min_count=0).as_py())


def _range(name: str, keys: pa.ChunkedArray) -> tuple[BooleanExpression, BooleanExpression]:
    bounds = pc.min_max(keys).as_py()
    term = Reference(name)
    return GreaterThanOrEqual(term=term, value=bounds["min"]), LessThanOrEqual(term=term, value=bounds["max"])
