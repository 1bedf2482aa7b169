"""Tables of numbers by id, and their content after a merge."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import trinitylake as tl


def numbers(ids: list[int | None], values: list[Any] | None = None) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(values or ids, pa.int64())})


def files(table: tl.Table) -> dict[str, int]:
    """The number of rows of each data file of a table, by path."""
    return {task.file.file_path: task.file.record_count for task in table.iceberg.scan().plan_files()}


def content(table: tl.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: tuple((value is not None, str(value)) for value in row.values()))


def pairs(table: tl.Table) -> dict[Any, Any]:
    rows = table.scan().to_arrow()
    found = dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows, "no key twice"
    return found
