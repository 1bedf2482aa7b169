"""The tables of most lakehouses in the tests of the server, and requests about them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import trinitylake as tl

#: Three rows of one column.
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
#: Their schema in JSON.
COLUMNS = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
VIEW_VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1,
    "summary": {},
    "representations": [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark"}],
    "default-namespace": ["shop"],
}


def with_tables(lake: tl.Lakehouse, *tables: str, rows: pa.Table = ROWS) -> tl.Lakehouse:
    """The lakehouse, with these tables and their namespaces added in one version; each table has the rows."""
    with lake.transaction() as txn:
        for namespace in dict.fromkeys(table.rpartition(".")[0] for table in tables):
            txn.create_namespace(namespace)
        for table in tables:
            txn.create_table(table, rows).append(rows)
    return lake


def new_table(uuid: str) -> list[dict[str, Any]]:
    """The updates with which a client creates a table with `COLUMNS`, without its location."""
    return [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": COLUMNS, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]
