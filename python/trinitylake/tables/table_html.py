"""HTML representations of tables and scans in notebooks. At most a table's metadata file is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinitylake.base.markup import element, framed, pairs, table
from trinitylake.iceberg_storage.delete_files import live_rows_of_summary

if TYPE_CHECKING:
    from pyiceberg.table import DataScan
    from pyiceberg.table import Table as IcebergTable

    from trinitylake.definitions import Schema

#: A wider table is cut.
COLUMNS_MAX_COUNT = 100


def table_html(name: str, type: str, schema: Schema | None, iceberg: IcebergTable | None) -> str:
    """HTML of a table: columns, and for a managed one partitions, size and newest snapshot."""
    facts: list[tuple[object, object]] = [("type", type)]
    if iceberg is not None:
        facts += _facts(iceberg)
    parts = [element("div", f"table {name}", class_="title"), pairs(facts)]
    if schema is not None:
        keys = set(schema.primary_key)
        rows = [
            (column.name, column.type, "" if column.nullable else "required", "key" if column.name in keys else "")
            for column in schema.columns[:COLUMNS_MAX_COUNT]
        ]
        rest = len(schema.columns) - len(rows)
        caption = "columns" if rest <= 0 else f"columns (the first {len(rows)} of {len(schema.columns)})"
        parts.append(table(("column", "type", "required", "primary key"), rows, caption=caption))
    return framed(*parts)


def scan_html(scan: DataScan, subject: str) -> str:
    """HTML of a scan: its table, columns and filter, without rows."""
    from pyiceberg.expressions import AlwaysTrue

    fields = scan.projection().fields
    rows = [(field.name, field.field_type) for field in fields[:COLUMNS_MAX_COUNT]]
    facts = [
        ("rows where", scan.row_filter) if scan.row_filter != AlwaysTrue() else ("rows", "all"),
        ("at most", "all" if scan.limit is None else f"{scan.limit:,} rows"),
        ("snapshot", "the current one" if scan.snapshot_id is None else scan.snapshot_id),
    ]
    title = element("div", f"scan of {subject}", class_="title")
    return framed(title, pairs(facts), table(("column", "type"), rows, caption=f"{len(fields)} columns"))


def _facts(iceberg: IcebergTable) -> list[tuple[object, object]]:
    schema = iceberg.schema()
    partitions = [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in iceberg.spec().fields]
    facts: list[tuple[object, object]] = [
        ("partitioned by", ", ".join(partitions) or "nothing"),
        ("format version", iceberg.metadata.format_version),
    ]
    snapshot = iceberg.current_snapshot()
    if snapshot is None:
        return [*facts, ("rows", 0)]
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    if (rows := live_rows_of_summary(summary)) is not None:
        facts.append(("rows", f"{rows:,}"))
    for said, key in (("data files", "total-data-files"), ("bytes", "total-files-size")):
        if (value := summary.get(key, "")).isdecimal():
            facts.append((said, f"{int(value):,}"))
    return facts
