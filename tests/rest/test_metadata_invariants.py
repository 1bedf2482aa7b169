"""Every accepted commit leaves metadata that all readers of Iceberg can load.

PyIceberg applies updates almost without checks. The server accepted a snapshot an hour older than the last one,
sequence number 2^63 - 1, snapshot id -1, a second schema with a used id, and a partition field of a missing column.
Java and Rust could not load the table any more.
"""

from __future__ import annotations

import json
import os
import random
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter, ValidationError
from pyiceberg.exceptions import ValidationError as IcebergValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate

import trinitylake as tl
from manifests_by_hand import list_for
from rest.client import Answer, Client
from rest.shop import COLUMNS, with_tables
from trinitylake.iceberg_storage.extended_pyiceberg import metadata_updates
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates

ORDERS = "/v1/namespaces/shop/tables/orders"
HOUR_MILLIS = 3_600_000
MAX_LONG = 2**63 - 1


def snapshot_like(metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The update that adds a snapshot with the files of the last one. `changes` replaces fields; None removes a
    field."""
    last = metadata["snapshots"][-1]
    snapshot = {
        **last,
        "snapshot-id": last["snapshot-id"] // 2 + 1,
        "parent-snapshot-id": last["snapshot-id"],
        "sequence-number": metadata["last-sequence-number"] + 1,
        "timestamp-ms": int(time.time() * 1000),
        "summary": {"operation": "append"},
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    if Path(last["manifest-list"].removeprefix("file://")).exists():
        snapshot["manifest-list"] = list_for(last["manifest-list"], snapshot["snapshot-id"])
    return {"action": "add-snapshot", "snapshot": {name: one for name, one in snapshot.items() if one is not None}}


def main_at(id: int) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}


def add_schema(*columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"action": "add-schema", "schema": {"type": "struct", "fields": list(columns), **more}}


def column(id: int, name: str, type: Any = "long") -> dict[str, Any]:
    return {"id": id, "name": name, "type": type, "required": False}


def add_spec(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"action": "add-spec", "spec": {"fields": list(fields), **more}}


def part(name: str = "p", transform: str = "bucket[4]", source: int = 1, id: int | None = 1000) -> dict[str, Any]:
    field = {"name": name, "transform": transform, "source-id": source}
    return field if id is None else {**field, "field-id": id}


CURRENT = {"action": "set-current-schema", "schema-id": -1}
NO_MAIN = {"action": "remove-snapshot-ref", "ref-name": "main"}


def commit(http_client: Client, *updates: dict[str, Any]) -> Answer:
    return http_client("POST", ORDERS, {"requirements": [], "updates": list(updates)})


SNAPSHOTS: dict[str, tuple[dict[str, Any], str]] = {
    "its own parent": ({"snapshot_id": 777, "parent_snapshot_id": 777}, "its own parent"),
    "the id of no snapshot": ({"snapshot_id": -1}, "the id of a snapshot"),
    "a sequence number far ahead": ({"sequence_number": MAX_LONG}, "the next one of the table is 2"),
    "an unknown schema": ({"schema_id": 9}, "which the table does not have"),
    "no summary": ({"summary": None}, "has no summary"),
    "a total that is no number": ({"summary": {"operation": "append", "total-records": "x"}}, "not a count"),
    "a number that is not text": ({"summary": {"operation": "append", "added-records": 5}}, "is not text"),
    "a total below nothing": ({"summary": {"operation": "append", "total-data-files": "-1"}}, "not a count"),
}


@pytest.mark.usefixtures("shop")
def test_snapshot_that_others_cannot_load_is_refused(http_client: Client) -> None:
    before = http_client.table(ORDERS)
    for what, (changes, message) in SNAPSHOTS.items():
        update = snapshot_like(before, **changes)
        assert message in commit(http_client, update, main_at(update["snapshot"]["snapshot-id"])).bad_request, what
        assert http_client.table(ORDERS) == before, what


@pytest.mark.usefixtures("shop")
def test_sequence_number_that_goes_back_is_a_conflict(http_client: Client) -> None:
    before = http_client.table(ORDERS)
    answer = commit(
        http_client, snapshot_like(before, sequence_number=1, parent_snapshot_id=before["current-snapshot-id"])
    )
    assert (answer.code, answer.error) == (409, "CommitFailedException")


SCHEMAS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "another type": ([column(1, "id", "string")], "cannot have the type string"),
    "a narrower type": ([column(1, "id", "int")], "cannot have the type int"),
    "a structure": ([column(1, "id", {"type": "struct", "fields": [column(9, "x")]})], "cannot have the type struct"),
    "a structure without fields, as after the last one was dropped": (
        [column(1, "id"), column(9, "s", {"type": "struct", "fields": []})],
        "is a struct without fields",
    ),
    "a new required column": (
        [column(1, "id"), {**column(9, "new"), "required": True}],
        "is required and has no default value",
    ),
    "a required column that was optional": ([{**column(1, "id"), "required": True}], "cannot become required"),
}


@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_types_of_clients_have_as_many_levels_as_others(http_client: Client, shop: tl.Lakehouse, kind: str) -> None:
    """Types in requests of clients have at most 30 levels, like all other types. Clients could stage tables and add
    schemas with deeper types, which the commit then refused."""

    def nested(levels: int) -> Any:
        type: Any = "long"
        for id in range(100, 100 + levels):
            type = {
                "struct": {"type": "struct", "fields": [column(id, "a", type)]},
                "list": {"type": "list", "element-id": id, "element": type, "element-required": False},
                "map": {
                    "type": "map",
                    "key-id": 500 + id,
                    "key": "string",
                    "value-id": id,
                    "value": type,
                    "value-required": False,
                },
            }[kind]
        return type

    def created(levels: int, is_staged: bool) -> Answer:
        schema = {"type": "struct", "fields": [column(1, "v", nested(levels))]}
        body = {"name": f"deep{levels}", "schema": schema, "stage-create": is_staged}
        return http_client("POST", "/v1/namespaces/shop/tables", body)

    assert created(30, True).code == 200
    assert created(30, False).code == 200
    assert len(shop.table("shop.deep30").schema.columns) == 1
    columns = [*http_client.table(ORDERS)["schemas"][0]["fields"], column(2000, "v", nested(31))]
    for answer in (created(31, True), created(31, False), commit(http_client, add_schema(*columns))):
        assert "more than 30 levels" in answer.bad_request


@pytest.mark.usefixtures("shop")
def test_schema_that_cannot_read_the_files_of_the_table_is_refused(http_client: Client) -> None:
    """A schema that does not fit the files of the table is refused. Otherwise no reader could read a column whose type
    changed, and deletes would fail in files with NULL in a column that became required."""
    before = http_client.table(ORDERS)
    for what, (columns, message) in SCHEMAS.items():
        assert message in commit(http_client, add_schema(*columns), CURRENT).bad_request, what
        assert http_client.table(ORDERS) == before, what


@pytest.mark.parametrize("type", ["timestamp", "timestamptz", "timestamp_ns"])
def test_date_does_not_become_a_timestamp(http_client: Client, lake: tl.Lakehouse, type: str) -> None:
    """A column cannot change from date to timestamp. Iceberg's version 3 permits this, but neither PyIceberg nor
    TrinityLake could read the files."""
    lake.create_namespace("shop")
    rows = pa.table({"d": pa.array([0], pa.date32())})
    lake.create_table("shop.orders", rows, properties={"format-version": "3"}).append(rows)
    answer = commit(http_client, add_schema(column(1, "d", type)), CURRENT)
    assert (answer.code, answer.error) == (400, "BadRequestException"), answer
    assert lake.table("shop.orders").scan().to_arrow() == rows


@pytest.mark.usefixtures("shop")
def test_replaced_table_may_change_types(http_client: Client) -> None:
    """CREATE OR REPLACE TABLE may change the type of a column, whose id it keeps if the name is the same."""
    changes = [add_schema(column(1, "id", "string"), {**column(9, "new"), "required": True}), CURRENT, NO_MAIN]
    assert commit(http_client, *changes).code == 200


@pytest.mark.usefixtures("shop")
def test_type_of_a_column_with_files_never_changes(http_client: Client, shop: tl.Lakehouse) -> None:
    """The type of a column that any snapshot's files have cannot change: also if a snapshot names no schema or has a
    wrong summary, the table is empty, or it has no main branch. Otherwise main could later point to rows that no reader
    can read."""
    change = [add_schema(column(1, "id", "string")), CURRENT]
    full = http_client.table(ORDERS)
    wrong = snapshot_like(
        full, schema_id=None, summary={"operation": "append", "total-records": "0", "total-data-files": "0"}
    )
    assert commit(http_client, wrong, main_at(wrong["snapshot"]["snapshot-id"])).code == 200
    assert commit(http_client, *change).code == 400
    shop.table("shop.orders").delete("id > 0")
    assert commit(http_client, *change).code == 400
    assert commit(http_client, NO_MAIN, *change).code == 200
    main = main_at(full["current-snapshot-id"])
    refused = commit(http_client, main)
    assert "cannot have the type string: the files of the table have long" in refused.body["error"]["message"]
    assert commit(http_client, main, {**CURRENT, "schema-id": full["current-schema-id"]}).code == 200
    assert shop.table("shop.orders").count() == 3


@pytest.mark.usefixtures("shop")
def test_id_of_a_dropped_column_keeps_its_type(http_client: Client) -> None:
    """The id of a dropped column cannot get another type, even if the snapshots with the column have expired, because
    live files can still have the column."""
    text = add_schema(column(1, "id"), column(2, "note", "string"))
    assert commit(http_client, text, CURRENT).code == 200
    assert commit(http_client, {**CURRENT, "schema-id": 0}).code == 200
    refused = commit(http_client, add_schema(column(1, "id"), column(2, "note")), CURRENT)
    assert "the files of the table have string under its id 2" in refused.body["error"]["message"]
    assert commit(http_client, text, CURRENT).code == 200


def columns_of(parts: dict[int, str], columns: dict[int, str], element: int = 6) -> list[dict[str, Any]]:
    """Columns of a schema: column 1 is a struct with these fields, column 2 is a list, and others follow."""
    long_list = {"type": "list", "element-id": element, "element": "long", "element-required": False}
    structure = {"type": "struct", "fields": [column(id, name) for id, name in parts.items()]}
    others = [column(id, name) for id, name in columns.items()]
    return [column(1, "s", structure), column(2, "l", long_list), *others]


PLACES = {
    "moved out of a structure": columns_of({4: "p"}, {3: "c", 5: "q"}),
    "moved into a structure": columns_of({4: "p", 5: "q", 3: "c"}, {}),
    "elements with another id": columns_of({4: "p", 5: "q"}, {3: "c"}, element=9),
}


@pytest.mark.parametrize("what", PLACES)
def test_column_keeps_its_place(http_client: Client, lake: tl.Lakehouse, what: str) -> None:
    """A column cannot be moved into or out of a struct. Its values would become NULL."""
    row = {"s": {"p": 1, "q": 2}, "l": [3], "c": 4}
    with_tables(lake, "shop.orders", rows=pa.Table.from_pylist([row]))
    former = columns_of({4: "p", 5: "q"}, {3: "c"})
    assert http_client.table(ORDERS)["schemas"][0]["fields"] == former
    assert commit(http_client, add_schema(*PLACES[what]), CURRENT).code == 400
    assert commit(http_client, add_schema(*former, column(7, "new")), CURRENT).code == 200
    assert lake.table("shop.orders").scan().to_arrow().to_pylist() == [{**row, "new": None}]


def test_replaced_table_of_version_1_loses_a_partition_column(http_client: Client, lake: tl.Lakehouse) -> None:
    """Spark's CREATE OR REPLACE TABLE may drop a partition column of a table of format version 1, whose partition field
    it keeps as `void`."""
    lake.create_namespace("shop")
    rows, version_1 = {"id": [1], "s": ["a"]}, {"format-version": "1"}
    table = lake.create_table("shop.orders", {"id": "bigint", "s": "text"}, partition_spec="s", properties=version_1)
    table.append(rows)
    void = [
        NO_MAIN,
        add_schema(column(1, "id")),
        CURRENT,
        add_spec(part("s", "void", source=2)),
        {"action": "set-default-spec", "spec-id": -1},
    ]
    assert commit(http_client, *void).code == 200
    lake.table("shop.orders").append({"id": [2]})
    assert lake.table("shop.orders").scan().to_arrow().to_pylist() == [{"id": 2}]


@pytest.mark.usefixtures("shop")
def test_partition_specs_and_schemas_in_use_are_not_removed(http_client: Client) -> None:
    """A partition spec or schema of live files cannot be removed. Otherwise deletes would fail, and readers in Java
    would find no spec."""
    by_bucket = [add_spec(part()), {"action": "set-default-spec", "spec-id": -1}]
    assert commit(http_client, *by_bucket).code == 200
    assert commit(http_client, add_schema(column(1, "id"), column(9, "x")), CURRENT).code == 200
    for removal in (
        {"action": "remove-partition-specs", "spec-ids": [0]},
        {"action": "remove-schemas", "schema-ids": [0]},
    ):
        assert "cannot be removed" in commit(http_client, removal).bad_request


@pytest.mark.parametrize("action", ["set-statistics", "set-partition-statistics"])
def test_missing_statistics_are_refused(http_client: Client, shop: tl.Lakehouse, tmp_path: Path, action: str) -> None:
    """Statistics whose file does not exist are refused. Otherwise every later export of the lakehouse would fail."""
    before = http_client.table(ORDERS)
    path = f"{before['location']}/metadata/statistics.puffin"

    def statistics(**changes: Any) -> dict[str, Any]:
        file = {
            "snapshot-id": before["current-snapshot-id"],
            "statistics-path": path,
            "file-size-in-bytes": 3,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
        return {"action": action, action.removeprefix("set-"): {**file, **changes}}

    def refusal(update: dict[str, Any]) -> str:
        answer = commit(http_client, update)
        assert (answer.code, answer.error) == (400, "BadRequestException"), answer
        return str(answer.body["error"]["message"])

    assert "is missing" in refusal(statistics())
    Path(urllib.parse.urlsplit(path).path).write_bytes(b"abc")
    assert "has 3 bytes, not -1" in refusal(statistics(**{"file-size-in-bytes": -1}))
    assert "statistics of snapshot 4" in refusal(statistics(**{"snapshot-id": 4}))
    assert commit(http_client, statistics()).code == 200
    shop.export(str(tmp_path / "export"), mode="minimal")


@pytest.mark.usefixtures("shop")
def test_replaced_table_keeps_its_last_sequence_number(http_client: Client, shop: tl.Lakehouse) -> None:
    """A replaced table keeps its last sequence number, also if another client appended since the replacing client
    loaded it. Otherwise Iceberg for Java, whose retry sends the same snapshot, would fail with 409 for ever, and
    PyIceberg would take a number below those of older snapshots."""
    stale = http_client.table(ORDERS)
    shop.table("shop.orders").append({"id": [4]})
    shop.table("shop.orders").append({"id": [5]})
    update = snapshot_like(stale, parent_snapshot_id=None)
    assert commit(http_client, update, main_at(update["snapshot"]["snapshot-id"])).code == 200
    after = http_client.table(ORDERS)
    assert after["current-snapshot-id"] == update["snapshot"]["snapshot-id"]
    assert after["last-sequence-number"] == max(one["sequence-number"] for one in after["snapshots"])
    shop.table("shop.orders").append({"id": [6]})


@pytest.mark.usefixtures("shop")
def test_partition_by_day_and_by_hour_of_one_column_is_accepted(http_client: Client) -> None:
    """PyIceberg's own suite adds both fields through its reference server."""
    assert commit(http_client, add_schema(column(1, "id"), column(9, "at", "timestamp"))).code == 200
    by_both = add_spec(part("d", "day", source=9), part("h", "hour", source=9, id=1001))
    assert commit(http_client, by_both).code == 200


@pytest.mark.usefixtures("shop")
def test_parent_that_comes_later_makes_no_circle(http_client: Client) -> None:
    """A snapshot may have a parent that was removed. A later snapshot with the id of this parent must not make a
    cycle."""
    before = http_client.table(ORDERS)
    assert commit(http_client, snapshot_like(before, snapshot_id=5, parent_snapshot_id=6)).code == 200
    assert (
        "its own ancestor"
        in commit(
            http_client, snapshot_like(before, snapshot_id=6, parent_snapshot_id=5, sequence_number=3)
        ).bad_request
    )


@pytest.mark.parametrize("skew_millis", [-HOUR_MILLIS, 2 * 60_000, HOUR_MILLIS])
def test_time_of_snapshots_does_not_go_back_whatever_the_clocks(
    http_client: Client, shop: tl.Lakehouse, skew_millis: int
) -> None:
    """Snapshots are ordered in time, even if the clocks of their writers differ. Otherwise Java, Go and Rust would
    refuse the table."""
    before = http_client.table(ORDERS)
    update = snapshot_like(before, timestamp_ms=int(time.time() * 1000) + skew_millis)
    assert commit(http_client, update, main_at(update["snapshot"]["snapshot-id"])).code == 200
    shop.table("shop.orders").append({"id": [4]})
    after = http_client.table(ORDERS)
    times = [entry["timestamp-ms"] for entry in after["snapshot-log"]]
    assert len(times) == 3
    assert times == sorted(times)
    assert after["last-updated-ms"] >= times[-1]
    assert times[-1] <= time.time() * 1000


def test_writer_with_a_slow_clock_does_not_turn_time_back(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times of snapshots also ascend if a process that opens the lakehouse directly has a slow clock."""
    table = shop.table("shop.orders")
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - HOUR_MILLIS * 1_000_000)
    table.append({"id": [4]})
    table.iceberg.manage_snapshots().rollback_to_snapshot(table.iceberg.metadata.snapshots[0].snapshot_id).commit()
    metadata = shop.table("shop.orders").iceberg.metadata
    times = [*(entry.timestamp_ms for entry in metadata.snapshot_log), metadata.last_updated_ms]
    assert len(times) == 4
    assert times == sorted(times)


SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown column": (add_spec(part(source=9)), "which the table does not have"),
    "an unknown column that nothing is made of": (add_spec(part(source=9, transform="void")), "does not have"),
    "two fields of one name": (add_spec(part(), part(transform="bucket[5]", id=1001)), "two partition fields"),
    "two fields of one id": (add_spec(part(), part("q", "bucket[5]")), "two partition fields"),
    "a field twice": (add_spec(part(), part("q", id=1001)), "repeats another partition field"),
    "a field with a name that ends DuckDB": (add_spec(part(name="a\0b")), "the character U+0000"),
    "a field without a name": (add_spec(part(name="")), "has no name"),
    "the name of a column": (add_spec(part(name="id")), "has the name of a column"),
}


@pytest.mark.usefixtures("shop")
def test_partition_spec_that_others_cannot_load_is_refused(http_client: Client) -> None:
    before = http_client.table(ORDERS)
    for what, (update, message) in SPECS.items():
        assert message in commit(http_client, update, {"action": "set-default-spec", "spec-id": -1}).bad_request, what
        assert http_client.table(ORDERS) == before, what


@pytest.mark.usefixtures("shop")
def test_partition_spec_that_java_cannot_bind_is_refused(http_client: Client) -> None:
    """Every partition spec must fit the current schema, not only the default spec. Otherwise Iceberg's Java, which
    binds all specs, could not load the table."""
    assert commit(http_client, add_schema(column(1, "id"), column(2, "c", "double")), CURRENT).code == 200
    for field, message in (
        (part(transform="hour"), "type long"),
        (part(transform="truncate[3]", source=2), "type double"),
        (part(name="c"), "has the name of a column"),
    ):
        for default in ([], [{"action": "set-default-spec", "spec-id": -1}]):
            assert message in commit(http_client, add_spec(field), *default).bad_request


@pytest.mark.usefixtures("shop")
def test_schema_under_which_java_cannot_bind_a_former_spec_is_refused(http_client: Client) -> None:
    assert commit(http_client, add_spec(part())).code == 200
    assert (
        "has the name of a column"
        in commit(http_client, add_schema(column(1, "id"), column(2, "p")), CURRENT).bad_request
    )


DEFAULTS = {
    "decimal(9, 2)": (["1", 1, "x", "12345678.00", "NaN"], "1.50"),
    "boolean": ([1, "true"], True),
    "int": ([1.5, True, 2**31, "1"], 7),
    "long": ([2**63], 2**62),
    "double": (["1", True, 1], 1.0),
    "float": ([1e300], 0.5),
    "string": ([1.5, {}], "x"),
    "date": (["x", 1e300], "2020-02-29"),
    "fixed[2]": (["00", True], "0001"),
    "uuid": (["x", 5], "00000000-0000-0000-0000-000000000001"),
    "unknown": ([1], None),
    "variant": (["x"], None),
}


@pytest.mark.parametrize("name", ["initial-default", "write-default"])
@pytest.mark.usefixtures("shop")
def test_default_value_of_another_type_is_refused(http_client: Client, name: str) -> None:
    """A default value must have the type of its column. Otherwise Iceberg's Java could not load the table."""
    assert commit(http_client, {"action": "upgrade-format-version", "format-version": 3}).code == 200
    for id, (type, (wrong, right)) in enumerate(DEFAULTS.items(), start=2):
        before = http_client.table(ORDERS)
        for value in wrong:
            answer = commit(http_client, add_schema(column(1, "id"), column(id, "c", type) | {name: value}), CURRENT)
            assert (answer.code, answer.error) == (400, "BadRequestException"), (type, value, answer)
            assert http_client.table(ORDERS) == before
        answer = commit(http_client, add_schema(column(1, "id"), column(id, "c", type) | {name: right}), CURRENT)
        assert answer.code == 200, (type, answer)


@pytest.mark.usefixtures("shop")
def test_unknown_that_is_required_is_refused(http_client: Client) -> None:
    assert commit(http_client, {"action": "upgrade-format-version", "format-version": 3}).code == 200
    kind = {"type": "list", "element-id": 3, "element": "unknown", "element-required": True}
    answer = commit(http_client, add_schema(column(1, "id"), column(2, "c", kind)), CURRENT)
    assert (answer.code, answer.error) == (400, "BadRequestException"), answer


@pytest.mark.usefixtures("shop")
def test_partition_field_id_means_the_same_in_all_specs(http_client: Client) -> None:
    assert commit(http_client, add_spec(part())).code == 200
    assert "of partition field 'p'" in commit(http_client, add_spec(part("q", "bucket[5]"))).bad_request


@pytest.mark.parametrize("id", [None, 0, -1, 1, 7])
@pytest.mark.usefixtures("shop")
def test_server_assigns_ids_of_schemas_specs_and_orders(http_client: Client, id: int | None) -> None:
    """The server assigns ids of schemas, specs and orders, which are read-only in the specification. The change of a
    client that leaves the id out must not be lost."""
    of = (lambda name: {}) if id is None else (lambda name: {name: id})
    field = {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}
    answer = commit(
        http_client,
        add_schema(*COLUMNS["fields"], column(2, "c", "string"), **of("schema-id")),
        {"action": "set-current-schema", "schema-id": -1},
        add_spec(part(id=None), **of("spec-id")),
        {"action": "set-default-spec", "spec-id": -1 if id is None else id},
        {"action": "add-sort-order", "sort-order": {"fields": [field], **of("order-id")}},
        {"action": "set-default-sort-order", "sort-order-id": -1 if id is None else id},
    )
    assert answer.code == 200, answer
    metadata = answer.body["metadata"]
    assert [(one["schema-id"], len(one["fields"])) for one in metadata["schemas"]] == [(0, 1), (1, 2)]
    assert [one["spec-id"] for one in metadata["partition-specs"]] == [0, 1]
    assert metadata["partition-specs"][1]["fields"][0]["field-id"] == 1000
    assert [one["order-id"] for one in metadata["sort-orders"]] == [0, 1]
    found = [metadata[f"{name}-id"] for name in ("current-schema", "default-spec", "default-sort-order")]
    assert found == [1, 1, 1]


@pytest.mark.usefixtures("shop")
def test_equal_schema_spec_and_order_are_used_again(http_client: Client) -> None:
    updates = [add_schema(*COLUMNS["fields"]), add_spec(), {"action": "set-default-spec", "spec-id": -1}]
    metadata = commit(http_client, *updates, {"action": "set-properties", "updates": {"a": "b"}}).body["metadata"]
    assert [one["schema-id"] for one in metadata["schemas"]] == [0]
    assert [one["spec-id"] for one in metadata["partition-specs"]] == [0]
    assert metadata["default-spec-id"] == 0


@pytest.mark.usefixtures("shop")
def test_snapshot_of_a_spec_that_gets_another_id_is_a_conflict(http_client: Client) -> None:
    """A snapshot is a conflict if its partition spec gets another id. Its manifests have the id that the client chose,
    which belongs to another spec."""
    before = http_client.table(ORDERS)
    answer = commit(http_client, add_spec(part(), **{"spec-id": 0}), snapshot_like(before))
    assert (answer.code, answer.error) == (409, "CommitFailedException")


BAD_PROPERTIES = {
    "write.format.default": "bogus",
    "write.delete.format.default": "csv",
    "write.parquet.compression-codec": "rar",
    "write.target-file-size-bytes": "large",
    "commit.retry.num-retries": "-1",
    "write.delete.mode": "merge",
    "write.distribution-mode": "x",
    "write.delete.isolation-level": "none",
    "write.metadata.delete-after-commit.enabled": "maybe",
    "write.metadata.metrics.default": "some",
    "write.metadata.metrics.column.id": "truncate(0)",
    "history.expire.max-snapshot-age-ms": "x",
    "schema.name-mapping.default": "{",
}


def test_property_with_a_value_that_engines_cannot_read_is_refused(http_client: Client, shop: tl.Lakehouse) -> None:
    for name, value in BAD_PROPERTIES.items():
        assert name in commit(http_client, {"action": "set-properties", "updates": {name: value}}).bad_request
        with pytest.raises(tl.InvalidArgument, match=name), shop.transaction() as transaction:
            transaction.create_table("shop.new", {"id": "bigint"}, properties={name: value})


@pytest.mark.parametrize(
    "mapping", ['[{"field-id": 1}]', '[{"field-id": 1, "names": ["id"], "fields": [{"field-id": 2}]}]']
)
def test_a_name_mapping_without_names_is_refused(http_client: Client, shop: tl.Lakehouse, mapping: str) -> None:
    """It was accepted, and then neither DuckDB nor this package could read the table."""
    properties = {"schema.name-mapping.default": mapping}
    assert "name mapping" in commit(http_client, {"action": "set-properties", "updates": properties}).bad_request
    with pytest.raises(tl.InvalidArgument, match="name mapping"):
        shop.create_table("shop.new", {"id": "bigint"}, properties=properties)


# Differential test: iceberg-rust can load all accepted metadata.


def loaded_by_rust(metadata: TableMetadata, folder: Path) -> str | None:
    """The error of iceberg-rust for metadata; None if it can load the metadata."""
    from pyiceberg_core.datafusion import IcebergDataFusionTable

    file = folder / f"{uuid.uuid4()}.metadata.json"
    file.write_text(metadata.model_dump_json())
    try:
        IcebergDataFusionTable(identifier=["shop", "orders"], metadata_location=file.as_uri(), file_io_properties={})
    except Exception as error:
        return str(error)
    return None


def has_void_of_dropped_column(metadata: TableMetadata) -> bool:
    """Whether iceberg-rust cannot load the metadata although the specification allows it. In format version 1 the
    partition field of a dropped column stays as `void`."""
    voids = [field.source_id for field in metadata.spec().fields if str(field.transform) == "void"]
    return any(metadata.schema().find_column_name(id) is None for id in voids)


def random_update(chosen: random.Random, metadata: dict[str, Any]) -> dict[str, Any]:
    """A random update, which may be valid or break any rule."""
    small = lambda: chosen.choice([-2, -1, 0, 0, 1, 1, 1, 2, 3, 7])  # noqa: E731
    ids = [one["snapshot-id"] for one in metadata["snapshots"]]
    columns = [field["id"] for schema in metadata["schemas"] for field in schema["fields"]]

    def optional(name: str) -> dict[str, Any]:
        return {name: small()} if chosen.random() < 0.7 else {}

    def schema() -> dict[str, Any]:
        kept = [one for one in metadata["schemas"][-1]["fields"] if chosen.random() < 0.9]
        # Without the types that iceberg-rust lacks.
        types = ["long", "string", "fixed[0]", "decimal(50, 2)", "timestamptz", "double"]
        added = [column(chosen.randint(1, 9), chosen.choice("abpqr"), chosen.choice(types))]
        return add_schema(*kept, *added[: chosen.randint(0, 1)], **optional("schema-id"))

    def spec() -> dict[str, Any]:
        transforms = ["identity", "bucket[4]", "bucket[0]", "truncate[3]", "void", "day", "hour", "x[1]"]
        fields = []
        for _ in range(chosen.choice([0, 1, 1, 2, 3])):
            source = chosen.choice([*columns, 99])
            fields.append(part(chosen.choice("abpq"), chosen.choice(transforms), source, chosen.randint(999, 1003)))
        return add_spec(*fields, **optional("spec-id"))

    def order() -> dict[str, Any]:
        direction = {"direction": "desc", "null-order": "nulls-last"}
        fields = [
            {"source-id": chosen.choice([*columns, 99]), "transform": "identity", **direction}
            for _ in range(chosen.randint(0, 2))
        ]
        return {"action": "add-sort-order", "sort-order": {"fields": fields, **optional("order-id")}}

    def snapshot() -> dict[str, Any]:
        changes: dict[str, Any] = {"snapshot_id": chosen.choice([*ids, -1, 0, *range(100, 120)])}
        if chosen.random() < 0.3:
            changes["sequence_number"] = chosen.choice([-1, 0, 1, metadata["last-sequence-number"] + 2, MAX_LONG])
        if chosen.random() < 0.3:
            changes["parent_snapshot_id"] = chosen.choice([None, *ids, *range(100, 120)])
        if chosen.random() < 0.5:
            changes["timestamp_ms"] = int(time.time() * 1000) + chosen.choice([-1, 1]) * chosen.randint(0, HOUR_MILLIS)
        if chosen.random() < 0.2:
            changes["summary"] = chosen.choice([None, {"operation": "append", "total-records": "1.5"}])
        if chosen.random() < 0.3:
            changes["schema_id"] = small()
        if metadata["format-version"] == 3:
            changes |= {"first_row_id": metadata["next-row-id"], "added_rows": chosen.randint(-1, 3)}
        return snapshot_like(metadata, **changes)

    def ref() -> dict[str, Any]:
        type = chosen.choice(["branch", "branch", "tag"])
        return {**main_at(chosen.choice([*ids, 105])), "type": type, "ref-name": chosen.choice(["main", "main", "b"])}

    return chosen.choice(
        [
            schema,
            spec,
            order,
            *([snapshot, snapshot] if ids else []),
            ref,
            lambda: {"action": "set-current-schema", "schema-id": small()},
            lambda: {"action": "set-default-spec", "spec-id": small()},
            lambda: {"action": "set-default-sort-order", "sort-order-id": small()},
            lambda: {"action": "remove-snapshot-ref", "ref-name": chosen.choice(["main", "b"])},
            lambda: {"action": "remove-snapshots", "snapshot-ids": [chosen.choice(ids)] if ids else []},
            lambda: {"action": "remove-schemas", "schema-ids": [small()]},
            lambda: {"action": "remove-partition-specs", "spec-ids": [small()]},
            lambda: {"action": "upgrade-format-version", "format-version": chosen.choice([1, 2, 3])},
        ]
    )()


#: Errors that PyIceberg and our builder raise for an update that breaks a rule.
REFUSALS = (ValueError, KeyError, TypeError, ArithmeticError, ValidationError, IcebergValidationError)


def accepted_metadata(
    metadata: TableMetadata, seed: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TableMetadata, list[dict[str, Any]]]]:
    """Apply random updates. Yields the metadata after each accepted commit, and the updates of this commit."""
    chosen = random.Random(seed)
    offset = 0
    real = time.time_ns
    monkeypatch.setattr(metadata_updates.time, "time_ns", lambda: real() + offset)
    parse: Callable[[Any], TableUpdate] = TypeAdapter(TableUpdate).validate_python
    for _ in range(60):
        offset = chosen.randint(-HOUR_MILLIS, HOUR_MILLIS) * 1_000_000  # commits come from hosts with different clocks
        sent = []
        try:
            for _ in range(chosen.randint(1, 4)):
                known = apply_updates(metadata, [parse(one) for one in sent])
                sent.append(random_update(chosen, json.loads(known.model_dump_json())))
            result = apply_updates(metadata, [parse(one) for one in sent])
        except REFUSALS:
            continue
        yield result, sent
        metadata = result


@pytest.mark.parametrize("seed", range(20 if os.environ.get("TRINITYLAKE_DEEP") else 8))
def test_iceberg_rust_loads_all_accepted_metadata(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    accepted = 0
    for metadata, sent in accepted_metadata(shop.table("shop.orders").iceberg.metadata, seed, monkeypatch):
        refused = loaded_by_rust(metadata, tmp_path)
        assert refused is None or has_void_of_dropped_column(metadata), (refused, sent)
        accepted += 1
    assert accepted > 2
