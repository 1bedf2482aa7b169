"""What a transaction did to one managed table, for the log: told by the metadata before and after, whoever changed it.

So an append of PyIceberg, a commit of Spark through REST and a statement of this library are told alike, and a
transaction that was saved and resumed tells all that it did.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, NamedTuple

from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import snapshot_ids

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

    from trinitylake.iceberg_storage.extended_pyiceberg.rows_read import RowsRead


class Told(NamedTuple):
    """One change: `verb +added -removed ~changed rows TABLE tail`. All of it is plain ASCII, or the core refuses it."""

    verb: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    tail: str = ""


#: Statements that are told by their own names, whatever Iceberg calls what they did.
_NAMED_STATEMENTS = {"delete", "merge", "update", "upsert"}
_NO_STATEMENTS: Mapping[int, RowsRead] = {}
#: Properties that writers set by themselves beside what they were asked for.
_KEPT_BY_WRITERS = frozenset({"schema.name-mapping.default"})


def changes_told(
    base: TableMetadata,
    metadata: TableMetadata,
    statements: Mapping[int, RowsRead] = _NO_STATEMENTS,
    *,
    is_new: bool = False,
) -> list[Told]:
    """What turned `base` into `metadata`; for a new table `base` is the empty one. Rows come first.

    `statements` are those that are known to have run, by the ids of their snapshots. They write rows that they keep
    into new files, which Iceberg counts as removed and added: of those that did not count only the difference is told.
    What others did is told as Iceberg counts it. A client may bring a new table (`is_new`) with its first rows: `base`
    then has their snapshots already.
    """
    told: list[Told] = []
    if is_new or base.snapshots is not metadata.snapshots or base.current_snapshot_id != metadata.current_snapshot_id:
        told = _of_snapshots(set() if is_new else snapshot_ids(base), base, metadata, statements)
    before, after = base.schema(), metadata.schema()
    if before is not after and before.fields != after.fields:
        told.append(Told("schema", tail=_of_schema(before, after)))
    if base.default_spec_id != metadata.default_spec_id:
        told.append(Told("partitioning"))
    if base.default_sort_order_id != metadata.default_sort_order_id:
        told.append(Told("sort order"))
    kept_by_writers = _KEPT_BY_WRITERS if told else frozenset()
    if _without(base.properties, kept_by_writers) != _without(metadata.properties, kept_by_writers):
        told.append(Told("properties"))
    if base.format_version != metadata.format_version:
        told.append(Told("format version", tail=str(metadata.format_version)))
    if not told and base.refs != metadata.refs:
        told.append(Told("references"))
    return told


def _without(properties: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def _of_snapshots(
    known: Set[int], base: TableMetadata, metadata: TableMetadata, statements: Mapping[int, RowsRead]
) -> list[Told]:
    new = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in known]
    told: list[Told] = []
    summaries = [(_counts(snapshot.summary), statements.get(snapshot.snapshot_id)) for snapshot in new]
    written = [(counts, statement) for counts, statement in summaries if counts["operation"] != "replace"]
    if written:
        rows = [_rows(counts, statement) for counts, statement in written]
        verbs = {_verb(counts, statement) for counts, statement in written}
        verb = verbs.pop() if len(verbs) == 1 else "overwrite"
        added, removed, changed = (sum(counts) for counts in zip(*rows, strict=True))
        told.append(Told(verb, added, removed, changed))
    if rewritten := [counts for counts, _ in summaries if counts["operation"] == "replace"]:
        before = sum(_number(counts, "deleted-data-files") for counts in rewritten)
        after = sum(_number(counts, "added-data-files") for counts in rewritten)
        told.append(Told("compact", tail=f"{before:,} to {after:,} files"))
    if expired := len(known - snapshot_ids(metadata)):
        told.append(Told("expire snapshots", tail=f"{expired:,}"))
    if not new and base.current_snapshot_id != metadata.current_snapshot_id:
        told.append(Told("set current snapshot"))
    return told


def _verb(counts: Mapping[str, str], statement: RowsRead | None) -> str:
    if statement is not None and statement.statement in _NAMED_STATEMENTS:
        return statement.statement
    return counts["operation"]


def _rows(counts: Mapping[str, str], statement: RowsRead | None) -> tuple[int, int, int]:
    """How many came, went, and became others."""
    if statement is not None and statement.counts is not None:
        return statement.counts.inserted, statement.counts.deleted, statement.counts.updated
    added, removed = _number(counts, "added-records"), _removed(counts)
    kept = 0 if statement is None else min(added, removed)
    return added - kept, removed - kept, 0


def _counts(summary: object) -> Mapping[str, str]:
    """The summary of a snapshot as text; a writer may leave it out, or write an operation that nobody knows."""
    operation = getattr(getattr(summary, "operation", None), "value", "")
    properties: Mapping[str, str] = getattr(summary, "additional_properties", {})
    return {**properties, "operation": operation if operation.isascii() and operation.isalpha() else "overwrite"}


def _removed(counts: Mapping[str, str]) -> int:
    """Rows that went with their files, and those that a delete file takes out."""
    deletes = _number(counts, "added-position-deletes") - _number(counts, "removed-position-deletes")
    return _number(counts, "deleted-records") + max(0, deletes)


def _number(counts: Mapping[str, str], name: str) -> int:
    """A count that an engine wrote, 0 if it is none."""
    text = str(counts.get(name, "0"))
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


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
