"""Summary of the changes of one managed table in a transaction, for the log of the lakehouse.

It is computed from the metadata before and after the transaction. So an append of PyIceberg, a commit of Spark over
REST and a statement of this library have the same summary, also in a transaction that was saved and resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import snapshot_ids
from trinitylake.iceberg_storage.snapshot_counts import count_in

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead


class ChangeSummary(NamedTuple):
    """One change: `verb +added -removed ~changed rows TABLE tail`, in ASCII, which the core requires."""

    verb: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    tail: str = ""


#: Statements that the log shows instead of Iceberg's operation.
_SHOWN_STATEMENTS = {"delete", "merge", "update", "upsert"}
_NO_STATEMENTS: Mapping[int, RowsRead] = {}
#: Summary properties that writers set without a user's request.
_SET_BY_WRITERS = frozenset({"schema.name-mapping.default"})


def summarize_changes(
    base: TableMetadata,
    metadata: TableMetadata,
    statements: Mapping[int, RowsRead] = _NO_STATEMENTS,
    *,
    is_new: bool = False,
) -> list[ChangeSummary]:
    """The changes from `base` to `metadata`, changes of rows first.

    Args:
        base: the metadata before the transaction; for a new table the metadata of its creation.
        statements: the known statements, by the ids of their snapshots. A statement copies unchanged rows into new
            files, and Iceberg counts these rows as removed and added. So the summary has the counts of the statement,
            or else the difference of removed and added rows. For snapshots of other writers it has Iceberg's counts.
        is_new: whether the table is new. Then `base` may have the snapshots of its first rows.
    """
    summaries: list[ChangeSummary] = []
    if is_new or base.snapshots is not metadata.snapshots or base.current_snapshot_id != metadata.current_snapshot_id:
        summaries = _of_snapshots(set() if is_new else snapshot_ids(base), base, metadata, statements)
    before, after = base.schema(), metadata.schema()
    if before is not after and before.fields != after.fields:
        summaries.append(ChangeSummary("schema", tail=_of_schema(before, after)))
    if base.default_spec_id != metadata.default_spec_id:
        summaries.append(ChangeSummary("partitioning"))
    if base.default_sort_order_id != metadata.default_sort_order_id:
        summaries.append(ChangeSummary("sort order"))
    set_by_writers = _SET_BY_WRITERS if summaries else frozenset()
    if _without(base.properties, set_by_writers) != _without(metadata.properties, set_by_writers):
        summaries.append(ChangeSummary("properties"))
    if base.format_version != metadata.format_version:
        summaries.append(ChangeSummary("format version", tail=str(metadata.format_version)))
    if not summaries and base.refs != metadata.refs:
        summaries.append(ChangeSummary("references"))
    return summaries


def _without(properties: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def _of_snapshots(
    known: Set[int], base: TableMetadata, metadata: TableMetadata, statements: Mapping[int, RowsRead]
) -> list[ChangeSummary]:
    new = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in known]
    summaries: list[ChangeSummary] = []
    counted = [(_counts(snapshot.summary), statements.get(snapshot.snapshot_id)) for snapshot in new]
    written = [(counts, statement) for counts, statement in counted if counts["operation"] != "replace"]
    if written:
        rows = [_rows(counts, statement) for counts, statement in written]
        verbs = {_verb(counts, statement) for counts, statement in written}
        verb = verbs.pop() if len(verbs) == 1 else "overwrite"
        added, removed, changed = (sum(counts) for counts in zip(*rows, strict=True))
        summaries.append(ChangeSummary(verb, added, removed, changed))
    if rewritten := [counts for counts, _ in counted if counts["operation"] == "replace"]:
        before = sum(_number(counts, "deleted-data-files") for counts in rewritten)
        after = sum(_number(counts, "added-data-files") for counts in rewritten)
        summaries.append(ChangeSummary("compact", tail=f"{before:,} to {after:,} files"))
    if expired := len(known - snapshot_ids(metadata)):
        summaries.append(ChangeSummary("expire snapshots", tail=f"{expired:,}"))
    if not new and base.current_snapshot_id != metadata.current_snapshot_id:
        summaries.append(ChangeSummary("set current snapshot"))
    return summaries


def _verb(counts: Mapping[str, str], statement: RowsRead | None) -> str:
    if statement is not None and statement.statement in _SHOWN_STATEMENTS:
        return statement.statement
    return counts["operation"]


def _rows(counts: Mapping[str, str], statement: RowsRead | None) -> tuple[int, int, int]:
    if statement is not None and statement.counts is not None:
        return statement.counts.inserted, statement.counts.deleted, statement.counts.updated
    added, removed = _number(counts, "added-records"), _removed(counts)
    kept = 0 if statement is None else min(added, removed)
    return added - kept, removed - kept, 0


def _counts(summary: object) -> Mapping[str, str]:
    """The fields of a snapshot's summary, with its operation. Writers may omit it, or write an unknown operation."""
    operation = getattr(getattr(summary, "operation", None), "value", "")
    properties: Mapping[str, str] = getattr(summary, "additional_properties", {})
    return {**properties, "operation": operation if operation.isascii() and operation.isalpha() else "overwrite"}


def _removed(counts: Mapping[str, str]) -> int:
    # `deleted-records` includes rows that delete files had deleted before, so these are subtracted.
    deletes = _number(counts, "added-position-deletes") - _number(counts, "removed-position-deletes")
    return max(0, _number(counts, "deleted-records") + deletes)


def _number(counts: Mapping[str, str], name: str) -> int:
    return count_in(counts, name) or 0


def _of_schema(before: Schema, after: Schema) -> str:
    old = {field.field_id: field for field in before.fields}
    new = {field.field_id: field for field in after.fields}
    shared = old.keys() & new.keys()
    counts = {
        "+": len(new.keys() - old.keys()),
        "-": len(old.keys() - new.keys()),
        "~": sum(old[id] != new[id] for id in shared),
    }
    parts = [f"{sign}{count:,}" for sign, count in counts.items() if count]
    total = sum(counts.values())
    return f"{' '.join(parts)} column{'' if total == 1 else 's'}" if parts else "order of columns"
