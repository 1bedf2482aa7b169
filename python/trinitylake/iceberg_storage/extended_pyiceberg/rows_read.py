"""The predicates that a statement selected rows by, on which its result depends.

Iceberg keeps the files that a statement removed and added, and not the filter that it chose them by. Whether the
statement would have done the same after somebody else's commit is decided by the filter, so a staged table remembers
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.table import upsert_util
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

if TYPE_CHECKING:
    import pyarrow as pa

#: More keys than this are described by the range they lie in. PyIceberg compares no more with the bounds of a file.
MAX_KEYS = 200


class RowCounts(NamedTuple):
    """What a statement did to rows. Iceberg tells only how many lie in the files that came and went."""

    updated: int
    deleted: int
    inserted: int


@dataclass(frozen=True)
class RowsRead:
    """Rows that a statement looked for; if none of them came or went since, it would do the same again.

    Attributes:
        statement: "delete", "overwrite", "dynamic_partition_overwrite", "upsert", "merge" or "update".
        filter: all rows that it looked for match it, and perhaps others.
        case_sensitive: how the filter names columns.
        branch: where it looked; None for a snapshot that no branch has.
        operation: whose isolation level of the table applies, `DELETE` or `OVERWRITE`.
        snapshot_ids: the snapshots that the statement made.
        counts: what they did to rows, if the statement counted.
    """

    statement: str
    filter: BooleanExpression
    case_sensitive: bool = True
    branch: str | None = MAIN_BRANCH
    operation: Operation = Operation.DELETE
    snapshot_ids: tuple[int, ...] = ()
    counts: RowCounts | None = None

    def to_json(self, schema: Schema) -> dict[str, Any]:
        """For a saved transaction. A filter that JSON does not keep becomes one that matches every row."""
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


#: What the commit under way rests on. Read by `commit_table` in the same call stack; PyIceberg's commit has no
#: argument that could carry it.
rows_read: ContextVar[tuple[RowsRead, ...]] = ContextVar("trinitylake_rows_read", default=())


def key_filter(rows: pa.Table, columns: Sequence[str]) -> BooleanExpression:
    """A filter that matches all rows that have a key in common with `rows`."""
    try:
        keys = rows.select(columns)
        if not columns or any(keys.column(name).null_count for name in columns):
            return AlwaysTrue()
        if not all(_is_finite(keys.column(name)) for name in columns):
            return AlwaysTrue()
        if keys.num_rows <= MAX_KEYS:
            return upsert_util.create_match_filter(rows, list(columns))
        return And(*(part for name in columns for part in _range(name, keys.column(name))))
    except (KeyError, TypeError, ValueError, OverflowError, NotImplementedError):
        # A type of keys that has no order, or a key that is no literal, such as a date before the year 1.
        return AlwaysTrue()


def _is_finite(column: pa.ChunkedArray) -> bool:
    """Whether a filter can tell where the values are: NaN lies outside of bounds, and PyIceberg finds no infinity."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return not pa.types.is_floating(column.type) or bool(pc.all(pc.is_finite(column), min_count=0).as_py())


def _range(name: str, keys: pa.ChunkedArray) -> tuple[BooleanExpression, BooleanExpression]:
    import pyarrow.compute as pc

    bounds = pc.min_max(keys).as_py()
    term = Reference(name)
    return GreaterThanOrEqual(term=term, value=bounds["min"]), LessThanOrEqual(term=term, value=bounds["max"])
