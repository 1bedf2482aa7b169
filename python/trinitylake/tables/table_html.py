"""HTML representations of tables, scans and Iceberg snapshots in notebooks.

A table shows its first rows if they are small. A scan shows only metadata.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import DataScan
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from trinitylake.base.markup import Markup, ShownList, element, framed, pairs, table, utc_text
from trinitylake.base.timestamps import time_of
from trinitylake.definitions import Schema
from trinitylake.definitions.iceberg_types import sql_text
from trinitylake.definitions.schema import COLUMNS_SHOWN, columns_table
from trinitylake.iceberg_storage.snapshot_counts import count_in, live_rows, summary_of
from trinitylake.tables.partitioning_and_sorting import partition_expressions

#: Limits of the first rows: their number, their columns, and their uncompressed size.
ROWS_SHOWN, ROWS_COLUMNS_MAX_COUNT, ROWS_MAX_SIZE_BYTES = 5, 20, 4 << 20


def table_html(name: str, type: str, schema: Schema | None, iceberg: IcebergTable | None) -> str:
    """HTML of a table: its columns; of a managed table (`iceberg`) also partitions, counts and the first rows."""
    facts: list[tuple[object, object]] = [("type", type)]
    if iceberg is not None:
        facts += _facts(iceberg)
    parts = [element("div", f"table {name}", class_="title"), pairs(facts)]
    if schema is not None:
        parts.append(columns_table(schema))
    if iceberg is not None:
        parts += _first_rows(iceberg)
    return framed(*parts)


def _first_rows(iceberg: IcebergTable) -> list[Markup]:
    """The first rows as an HTML table; nothing if the table has no rows, or if they are large."""
    from trinitylake.tables.display_values import python_values, shown_text
    from trinitylake.tables.first_rows import first_rows

    found = first_rows(iceberg, ROWS_SHOWN, ROWS_MAX_SIZE_BYTES).rows
    if not len(found):
        return []
    names = found.column_names[:ROWS_COLUMNS_MAX_COUNT]
    is_number = [
        pa.types.is_integer(one) or pa.types.is_floating(one) or pa.types.is_decimal(one) for one in found.schema.types
    ]
    columns = [map(shown_text, python_values(found[name])) for name in names]
    numbers = [place for place in range(len(names)) if is_number[place]]
    caption = (
        "first rows" if len(names) == found.num_columns else f"first rows, {len(names)} of {found.num_columns} columns"
    )
    return [table(names, zip(*columns, strict=True), caption=caption, numbers=numbers)]


def snapshot_list(snapshots: Iterable[Snapshot], name: str) -> ShownList[Snapshot]:
    """Iceberg snapshots, which notebooks show as a table."""
    headers = ("snapshot", "when", "operation", "rows added", "rows deleted", "rows")
    return ShownList(snapshots, f"snapshots of {name}", headers, _snapshot_cells, (3, 4, 5))


def _snapshot_cells(one: Snapshot) -> tuple[object, ...]:
    summary = summary_of(one)
    counts = (count_in(summary, "added-records"), count_in(summary, "deleted-records"), live_rows(summary))
    operation = "" if one.summary is None else one.summary.operation.value
    shown = ("" if count is None else f"{count:,}" for count in counts)
    return one.snapshot_id, utc_text(time_of(one.timestamp_ms)), operation, *shown


def scan_html(scan: DataScan, subject: str) -> str:
    """HTML of a scan: its table, columns and filter, without rows."""
    from trinitylake.iceberg_storage.filter_text import filter_text

    fields = scan.projection().fields
    rows = [(field.name, sql_text(field.field_type)) for field in fields[:COLUMNS_SHOWN]]
    facts = [
        ("rows where", filter_text(scan.row_filter)) if scan.row_filter != AlwaysTrue() else ("rows", "all"),
        ("at most", "all" if scan.limit is None else f"{scan.limit:,} rows"),
        ("snapshot", "the current one" if scan.snapshot_id is None else scan.snapshot_id),
    ]
    title = element("div", f"scan of {subject}", class_="title")
    caption = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
    return framed(title, pairs(facts), table(("column", "type"), rows, caption=caption))


def _facts(iceberg: IcebergTable) -> list[tuple[object, object]]:
    partitions = partition_expressions(iceberg.spec(), iceberg.schema())
    facts: list[tuple[object, object]] = [
        ("partitioned by", ", ".join(partitions) or "nothing"),
        ("format version", iceberg.metadata.format_version),
    ]
    snapshot = iceberg.current_snapshot()
    if snapshot is None:
        return [*facts, ("rows", 0)]
    summary = summary_of(snapshot)
    files, size_bytes = count_in(summary, "total-data-files"), count_in(summary, "total-files-size")
    counts = {"rows": live_rows(summary), "data files": files, "bytes": size_bytes}
    return [*facts, *((name, f"{count:,}") for name, count in counts.items() if count is not None)]
