"""Updates of each kind take linear time, or bounded time at the maximal number of updates.

Sort orders and versions of views took quadratic time, and other kinds had never been measured. Some kinds are quadratic
in PyIceberg; there the limit on the number of updates bounds the time of a commit.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate

import trinitylake as tl
from rest.shop import COLUMNS, with_tables
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.rest.handlers.body_parts import MAX_UPDATES

UPDATES = TypeAdapter(list[TableUpdate])
#: Maximum number of Python lines that one commit may run: about a second.
MOST_LINES = 8_000_000
FIRST_ID = 10_000


def lines(work: Callable[[], object]) -> int:
    """The number of Python lines that `work` runs in any module."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def snapshots(count: int) -> list[dict[str, Any]]:
    return [
        {
            "action": "add-snapshot",
            "snapshot": {
                "snapshot-id": FIRST_ID + number,
                "sequence-number": 50 + number,
                "timestamp-ms": 9999999999999 + number,
                "manifest-list": f"file:///x/{number}.avro",
                "summary": {"operation": "append"},
                "schema-id": 0,
            },
        }
        for number in range(count)
    ]


def each(count: int, action: str, made: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"action": action, **made(number)} for number in range(count)]


def schema(number: int) -> dict[str, Any]:
    fields = [{"id": 1, "name": f"c{number}", "type": "long", "required": False}]
    return {"schema": {**COLUMNS, "schema-id": number + 1, "fields": fields}}


def spec(number: int) -> dict[str, Any]:
    field = {"source-id": 1, "field-id": 1000 + number, "name": f"b{number}", "transform": f"bucket[{number + 2}]"}
    return {"spec": {"spec-id": number + 1, "fields": [field]}}


def order(number: int) -> dict[str, Any]:
    field = {"direction": "asc", "null-order": "nulls-first", "source-id": 1, "transform": f"bucket[{number + 2}]"}
    return {"sort-order": {"order-id": number + 1, "fields": [field]}}


def file_of(number: int) -> dict[str, Any]:
    return {"snapshot-id": FIRST_ID + number, "statistics-path": f"file:///x/{number}.stats", "file-size-in-bytes": 1}


def statistics(count: int) -> list[dict[str, Any]]:
    more = {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    return [*snapshots(count), *each(count, "set-statistics", lambda number: {"statistics": file_of(number) | more})]


def of_partitions(count: int) -> list[dict[str, Any]]:
    made = each(count, "set-partition-statistics", lambda number: {"partition-statistics": file_of(number)})
    return [*snapshots(count), *made]


def snapshot_id(number: int) -> dict[str, Any]:
    return {"snapshot-id": FIRST_ID + number}


def refs(count: int) -> list[dict[str, Any]]:
    def made(number: int) -> dict[str, Any]:
        return {"ref-name": f"b{number}", "type": "branch", "snapshot-id": FIRST_ID}

    return [*snapshots(1), *each(count, "set-snapshot-ref", made)]


def property_of(number: int) -> dict[str, Any]:
    return {"updates": {f"p{number}": "x"}}


Make = Callable[[int], list[dict[str, Any]]]
ONCE = each(1, "add-schema", schema), each(1, "add-spec", spec), each(1, "add-sort-order", order)

#: Updates whose time is proportional to their number.
LINEAR: dict[str, Make] = {
    "add-schema": lambda count: each(count, "add-schema", schema),
    "set-current-schema": lambda count: [
        *ONCE[0],
        *each(count, "set-current-schema", lambda number: {"schema-id": number % 2}),
    ],
    "set-default-spec": lambda count: [
        *ONCE[1],
        *each(count, "set-default-spec", lambda number: {"spec-id": number % 2}),
    ],
    "set-default-sort-order": lambda count: [
        *ONCE[2],
        *each(count, "set-default-sort-order", lambda number: {"sort-order-id": number % 2}),
    ],
    "set-properties": lambda count: each(count, "set-properties", property_of),
    "remove-properties": lambda count: [
        *each(count, "set-properties", property_of),
        *each(count, "remove-properties", lambda number: {"removals": [f"p{number}"]}),
    ],
    "add-snapshot": snapshots,
}

#: Updates that search all objects of their kind or remove one of them. The limit on the number of updates bounds their
#: time.
BOUNDED: dict[str, Make] = {
    "remove-schemas": lambda count: [
        *each(count, "add-schema", schema),
        *each(count, "remove-schemas", lambda number: {"schema-ids": [number + 1]}),
    ],
    "add-spec": lambda count: each(count, "add-spec", spec),
    "remove-partition-specs": lambda count: [
        *each(count, "add-spec", spec),
        *each(count, "remove-partition-specs", lambda number: {"spec-ids": [number + 1]}),
    ],
    "add-sort-order": lambda count: each(count, "add-sort-order", order),
    "set-snapshot-ref": refs,
    "remove-snapshot-ref": lambda count: [
        *refs(count),
        *each(count, "remove-snapshot-ref", lambda number: {"ref-name": f"b{number}"}),
    ],
    "remove-snapshots": lambda count: [
        *snapshots(count),
        *each(count, "remove-snapshots", lambda number: {"snapshot-ids": [FIRST_ID + number]}),
    ],
    "set-statistics": statistics,
    "remove-statistics": lambda count: [*statistics(count), *each(count, "remove-statistics", snapshot_id)],
    "set-partition-statistics": of_partitions,
    "remove-partition-statistics": lambda count: [
        *of_partitions(count),
        *each(count, "remove-partition-statistics", snapshot_id),
    ],
}

#: Updates that a commit contains once, or that change nothing when repeated.
ONCE_ONLY = {"assign-uuid", "upgrade-format-version", "set-location"}


def actions() -> set[str]:
    """The kinds of updates that PyIceberg knows."""
    kinds = typing.get_args(typing.get_args(TableUpdate)[0])
    return {kind.model_fields["action"].default for kind in kinds}


def test_each_kind_of_update_is_measured() -> None:
    assert actions() == {*LINEAR, *BOUNDED, *ONCE_ONLY}


@pytest.fixture
def metadata(lake: tl.Lakehouse) -> TableMetadata:
    return with_tables(lake, "shop.orders").table("shop.orders").iceberg.metadata


@pytest.mark.parametrize("kind", LINEAR)
def test_updates_of_a_table_take_linear_time(metadata: TableMetadata, kind: str) -> None:
    def work(count: int) -> int:
        updates = UPDATES.validate_python(LINEAR[kind](count))
        return lines(lambda: apply_updates(metadata, updates))

    assert work(200) < 2.5 * work(100)


@pytest.mark.parametrize("kind", BOUNDED)
def test_the_maximum_of_updates_takes_bounded_time(metadata: TableMetadata, kind: str) -> None:
    """Quadratic work is bounded by the limit on updates, and does not grow faster."""
    if kind == "remove-partition-specs":  # refused for a table with a snapshot
        empty = {"snapshots": [], "refs": {}, "snapshot_log": [], "current_snapshot_id": None}
        metadata = metadata.model_copy(update=empty)

    def work(count: int) -> int:
        updates = UPDATES.validate_python(BOUNDED[kind](count))
        return lines(lambda: apply_updates(metadata, updates))

    some, twice = work(100), work(200)
    assert twice < 4 * some
    assert twice * (MAX_UPDATES / 200) ** 2 < MOST_LINES
