"""The estimated memory of parsed metadata is an upper limit.

It was estimated as eighteen times the length of the JSON. Columns with short names take twenty-seven times as much when
a column is looked up by id, and maps nearly forty times. So a transaction that had looked at wide tables took twice the
memory that the server counted.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
import uuid
from typing import Any

import pytest

from trinitylake.base.json_memory_size import count_values
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed, parsed_size_bytes, sized
from trinitylake.iceberg_storage.metadata import parsed

N = 2000


def columns(type: Any, n: int = N, **more: Any) -> list[dict[str, Any]]:
    return [{"id": id, "name": f"{id:x}", "type": type(id), **more} for id in range(1, n + 1)]


def metadata(fields: list[dict[str, Any]], **more: Any) -> bytes:
    document = {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": "file:///x",
        "last-sequence-number": 1,
        "last-updated-ms": 1,
        "last-column-id": 100 * N,
        "current-schema-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 10 * N,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        **more,
    }
    return json.dumps(document, separators=(",", ":")).encode()


ONE = columns(lambda _: "int", 1, required=True)
SNAPSHOT = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": "s", "schema-id": 0}
FILE = {"snapshot-id": 1, "statistics-path": "s", "file-size-in-bytes": 1}
SHAPES = {
    "columns": metadata(columns(lambda _: "int", required=True)),
    "columns that say little": metadata(columns(lambda _: "int")),
    "decimals": metadata(columns(lambda _: "decimal(9,2)", required=True)),
    "lists": metadata(
        columns(lambda id: {"type": "list", "element-id": N + id, "element": "int", "element-required": True})
    ),
    "maps": metadata(
        columns(lambda id: {"type": "map", "key-id": N + id, "key": "int", "value-id": 2 * N + id, "value": "int"})
    ),
    "maps that say all": metadata(
        columns(
            lambda id: {
                "type": "map",
                "key-id": N + id,
                "key": "int",
                "value-id": 2 * N + id,
                "value": "int",
                "value-required": True,
            },
            required=True,
        )
    ),
    "structs": metadata(
        columns(lambda id: {"type": "struct", "fields": [{"id": N + id, "name": "a", "type": "int", "required": True}]})
    ),
    "empty structs": metadata(columns(lambda _: {"type": "struct", "fields": []})),
    "partitions": metadata(
        columns(lambda _: "int", required=True),
        **{
            "partition-specs": [
                {
                    "spec-id": 0,
                    "fields": [
                        {"source-id": id, "field-id": 999 + id, "name": f"p{id}", "transform": "identity"}
                        for id in range(1, N + 1)
                    ],
                }
            ]
        },
    ),
    "orders": metadata(
        columns(lambda _: "int", required=True),
        **{
            "default-sort-order-id": 1,
            "sort-orders": [
                {
                    "order-id": 1,
                    "fields": [
                        {"source-id": id, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
                        for id in range(1, N + 1)
                    ],
                }
            ],
        },
    ),
    "schemas": metadata(
        ONE, schemas=[{"type": "struct", "schema-id": id, "fields": ONE} for id in range(N)], **{"last-column-id": 1}
    ),
    "properties": metadata(ONE, properties={f"{id:x}": "" for id in range(5 * N)}),
    "snapshots": metadata(
        ONE, snapshots=[{**SNAPSHOT, "snapshot-id": id, "summary": {"operation": "append"}} for id in range(1, N)]
    ),
    "log": metadata(ONE, **{"metadata-log": [{"metadata-file": "a", "timestamp-ms": 1} for _ in range(N)]}),
    "branches": metadata(
        ONE,
        snapshots=[{**SNAPSHOT, "summary": {"operation": "append"}}],
        **{"current-snapshot-id": 1, "refs": {f"{id:x}": {"snapshot-id": 1, "type": "branch"} for id in range(N)}},
    ),
    "statistics": metadata(
        ONE, statistics=[{**FILE, "file-footer-size-in-bytes": 1, "blob-metadata": []} for _ in range(N)]
    ),
    "statistics of partitions": metadata(ONE, **{"partition-statistics": [FILE for _ in range(N)]}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_counted_size_of_metadata_is_at_least_its_memory(shape: str) -> None:
    text = SHAPES[shape]
    indexed(parsed(text))  # fills caches
    gc.collect()
    tracemalloc.start()
    try:
        found = sized(indexed(parsed(text)), text)
        schema = found.schema()
        schema.find_field(1)  # each of these calls builds an index
        schema.find_column_name(1)
        schema.find_field(schema.fields[0].name.upper(), case_sensitive=False)
        schema.accessor_for_field(1)
        found.snapshot_by_id(1)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken > 3 * len(text), "it was parsed"
    assert taken <= parsed_size_bytes(found), (taken, parsed_size_bytes(found))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_values_of_a_long_text_are_counted(kind: type[bytes | bytearray]) -> None:
    text = kind(b'{"a":[1,2]},' * 200_000)
    assert count_values(text) == 5 * 200_000
    assert count_values(kind()) == 0
