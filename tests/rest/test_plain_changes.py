"""A change of nothing but properties is staged in short, and what comes of it is what the long way makes of it.

The long way looks at what a change names: locations, snapshots, the library's own properties. A fifth of what a commit
over HTTP took was spent there on changes that name none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from trinitylake.rest.resources import table_changes
from trinitylake.rest.resources.table_changes import TableChange

SHORT, LONG = "shop.one", "shop.two"
NAMES = [
    "note",
    "owner",
    "format-version",
    "gc.enabled",
    "encryption.key-id",
    "history.expire.max-snapshot-age-ms",
    "trinitylake.own",
    "write.data.path",
    "write.delete.path",
    "write.format.default",
    "write.metadata.compression-codec",
    "write.metadata.path",
    "write.metadata.previous-versions-max",
    "write.metadata.metrics.column.a.path",
    "io-impl",
]
VALUES = ["", "1", "2", "5", "x", "false", "true", "gzip", "zstd", "parquet", "s3://elsewhere/data", "{location}/data"]
UPDATES = st.one_of(
    st.builds(
        lambda updates: {"action": "set-properties", "updates": updates},
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES), max_size=3),
    ),
    st.builds(
        lambda names: {"action": "remove-properties", "removals": names},
        st.lists(st.sampled_from(NAMES), max_size=3),
    ),
)
REQUIREMENTS = st.sampled_from(
    [
        {"type": "assert-table-uuid", "uuid": "{uuid}"},
        {"type": "assert-table-uuid", "uuid": "00000000-0000-4000-8000-000000000000"},
        {"type": "assert-current-schema-id", "current-schema-id": 0},
        {"type": "assert-current-schema-id", "current-schema-id": 7},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
        {"type": "assert-create"},
    ]
)


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """With two tables of the same rows, and a view."""
    made = with_tables(tl.create(str(tmp_path / "lake"), durability="none"), SHORT, LONG)
    made.create_view("shop.view", {"spark": "SELECT 1"})
    return made


@pytest.fixture
def http_client(lake: tl.Lakehouse) -> Iterator[Client]:
    with running(lake) as server:
        yield Client(server)


def path_of(table: str) -> str:
    return "/v1/namespaces/{}/tables/{}".format(*table.split("."))


def told(lake: tl.Lakehouse, table: str, code: int, body: Any, version: int) -> Any:
    """All that a client and the log learn, but for what tells one table and one moment from others."""
    definition = lake.table(table)
    text = json.dumps(body)
    for own in (definition.iceberg.metadata.location, definition.id, table, f"'{table.split('.')[1]}'"):
        text = text.replace(own, "OWN")
    answer = json.loads(re.sub(r"\d{15,}", "0", text))  # ids of snapshots
    metadata = answer.get("metadata", {})
    log = lake.at(version=lake.version).entry.transactions if lake.version > version else []
    return (
        code,
        answer.get("error"),
        {**metadata, "last-updated-ms": 0, "metadata-log": len(metadata.get("metadata-log", ())), "snapshots": 0}
        | {"snapshot-log": 0, "refs": 0, "current-snapshot-id": 0},
        [one.summary.replace(table, "OWN") for one in log],
        json.loads(json.dumps(dict(definition.properties)).replace(definition.iceberg.metadata.location, "OWN")),
        len(definition.iceberg.metadata.metadata_log),
    )


def send(client: Client, lake: tl.Lakehouse, table: str, body: dict[str, Any]) -> Any:
    metadata = lake.table(table).iceberg.metadata
    text = json.dumps(body).replace("{uuid}", str(metadata.table_uuid)).replace("{location}", metadata.location)
    before = lake.version
    answer = client("POST", path_of(table), json.loads(text))
    return told(lake, table, answer.code, answer.body, before)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.lists(UPDATES, max_size=3), st.lists(REQUIREMENTS, max_size=1)), min_size=1, max_size=4
    )
)
def test_what_comes_of_a_plain_change_is_what_the_long_way_makes_of_it(
    http_client: Client, lake: tl.Lakehouse, changes: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]
) -> None:
    for updates, requirements in changes:
        body = {"requirements": requirements, "updates": updates}
        in_short = send(http_client, lake, SHORT, body)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableChange, "is_plain", property(lambda change: False))
            assert in_short == send(http_client, lake, LONG, body)


def test_a_plain_change_is_staged_in_short(http_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was asked what kind a table is, a text was compared with a number: all went the long way, and no test
    failed."""

    def never(*arguments: object) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr("trinitylake.rest.resources.tables.stage", never)
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code == 200
    body["updates"] = [{"action": "remove-properties", "removals": ["note", "never was"]}]
    assert http_client("POST", path_of(SHORT), body).code == 200


@pytest.mark.parametrize("name", ["shop.never", "shop.view"])
def test_what_is_no_table_is_told_by_the_long_way(http_client: Client, name: str) -> None:
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(name), body).code == 404


def test_a_table_that_would_become_too_large_is_refused_and_may_become_smaller(
    http_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinitylake.rest.resources.updates.MAX_OBJECT_SIZE_BYTES", 10_000)
    large = {"action": "set-properties", "updates": {"note": "x" * 6000}}
    assert http_client("POST", path_of(SHORT), {"updates": [large], "requirements": []}).code == 200
    assert http_client("POST", path_of(SHORT), {"updates": [large], "requirements": []}).code == 413
    smaller = {"action": "remove-properties", "removals": ["note"]}
    assert http_client("POST", path_of(SHORT), {"updates": [smaller], "requirements": []}).code == 200


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("no")])
def test_updates_that_make_no_sense_are_the_clients_fault(
    http_client: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(StagedTable, "commit", fails)
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code == 400


@pytest.mark.parametrize(
    ("updates", "is_plain"),
    [
        ([], False),
        ([{"action": "set-properties", "updates": {"note": "1"}}], True),
        ([{"action": "set-properties", "updates": {"write.data.path": "file:///x"}}], False),
        ([{"action": "remove-properties", "removals": ["trinitylake.own"]}], False),
        ([{"action": "set-current-schema", "schema-id": 0}], False),
    ],
)
def test_a_plain_change_names_no_file_and_nothing_of_the_librarys_own(updates: list[Any], is_plain: bool) -> None:
    change = table_changes.TableChange.model_validate({"updates": updates, "requirements": []})
    assert change.is_plain == is_plain
    creation = {"updates": updates, "requirements": [{"type": "assert-create"}]}
    assert not table_changes.TableChange.model_validate(creation).is_plain
