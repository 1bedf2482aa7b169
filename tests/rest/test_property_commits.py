"""Commits over REST that set and remove properties of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake.iceberg_storage.snapshot_retention import SNAPSHOTS_KEPT
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.tables.staged_tables import StagedTables

SHORT, LONG = "shop.one", "shop.two"
#: Property names without a rule about their value.
NAMES = st.text(max_size=8).filter(lambda name: not name.endswith("impl"))
LOGGED = "write.metadata.previous-versions-max"


@pytest.fixture
def lake(tmp_path: Path) -> tl.Lakehouse:
    """A lakehouse with two tables of equal rows, and a view."""
    made = with_tables(tl.create(str(tmp_path / "lake"), durability="none"), SHORT, LONG)
    made.create_view("shop.view", {"spark": "SELECT 1"})
    return made


@pytest.fixture
def http_client(lake: tl.Lakehouse) -> Iterator[Client]:
    with running(lake) as server:
        yield Client(server)


def path_of(table: str) -> str:
    return "/v1/namespaces/{}/tables/{}".format(*table.split("."))


def test_setting_a_property_to_its_value_is_logged_as_alter_only(http_client: Client, lake: tl.Lakehouse) -> None:
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    summaries = []
    for _ in range(2):
        assert http_client("POST", path_of(SHORT), body).code == 200
        summaries += [one.summary for one in lake.log(limit=1)[0].transactions]
    assert summaries == [f"properties {SHORT}", f"alter table {SHORT}"]


@pytest.mark.parametrize("name", ["shop.never", "shop.view"])
def test_commit_to_a_missing_table_is_404(http_client: Client, name: str) -> None:
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(name), body).code == 404


def test_metadata_follows_compression_and_log_length_of_the_table(http_client: Client, lake: tl.Lakehouse) -> None:
    body: dict[str, Any] = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    lake.alter_table(SHORT, {"write.metadata.compression-codec": "gzip"})
    assert http_client("POST", path_of(SHORT), body).code == 200
    assert lake.table(SHORT).iceberg.metadata_location.endswith(".gz.metadata.json")
    lake.alter_table(SHORT, {"write.metadata.compression-codec": "none", LOGGED: "2"})
    for number in range(4):
        body["updates"][0]["updates"]["note"] = str(number)
        assert http_client("POST", path_of(SHORT), body).code == 200
    assert len(http_client.table(path_of(SHORT))["metadata-log"]) == 2


def test_metadata_log_has_the_same_length_over_rest_and_in_python(http_client: Client, lake: tl.Lakehouse) -> None:
    body: dict[str, Any] = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    for number in range(SNAPSHOTS_KEPT + 3):
        body["updates"][0]["updates"]["note"] = str(number)
        assert http_client("POST", path_of(SHORT), body).code == 200
        lake.alter_table(LONG, {"note": str(number)})
    logs = [http_client.table(path_of(table))["metadata-log"] for table in (SHORT, LONG)]
    assert [len(log) for log in logs] == [SNAPSHOTS_KEPT] * 2


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(properties=st.dictionaries(NAMES, st.text(max_size=8), min_size=1, max_size=5))
def test_any_property_name_and_value_is_read_back(
    http_client: Client, lake: tl.Lakehouse, properties: dict[str, str]
) -> None:
    body = {"updates": [{"action": "set-properties", "updates": properties}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code == 200
    assert properties.items() <= lake.table(SHORT).properties.items()
    assert properties.items() <= http_client.table(path_of(SHORT))["properties"].items()


def test_open_transaction_sees_each_of_its_property_changes(http_client: Client, lake: tl.Lakehouse) -> None:
    assert http_client("POST", "/trinitylake/v1/transactions", {"id": "open"}).code == 201
    path = path_of(SHORT).replace("/v1/", "/v1/txn~open/")
    for number in range(3):
        body = {"updates": [{"action": "set-properties", "updates": {f"note{number}": "1"}}], "requirements": []}
        assert http_client("POST", path, body).code == 200
        assert f"note{number}" in http_client.table(path)["properties"]
        assert f"note{number}" not in lake.table(SHORT).properties
    assert http_client("POST", "/trinitylake/v1/transactions/open/commit", {}).code in (200, 204)
    assert {"note0", "note1", "note2"} <= lake.table(SHORT).properties.keys()


def test_lost_race_is_rebased_and_leaves_no_files(
    http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, commit, raced = lake.table(SHORT), Transaction.commit, []

    def overtaken(transaction: Transaction, **limits: Any) -> int:
        if not raced:
            raced.append(transaction)
            lake.alter_table(table.name, {"other": "faster"})
        return commit(transaction, **limits)

    monkeypatch.setattr(Transaction, "commit", overtaken)
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code == 200
    assert raced
    properties = lake.table(SHORT).properties
    assert (properties["note"], properties["other"]) == ("1", "faster")
    metadata = lake.table(SHORT).iceberg.metadata
    known = {lake.table(SHORT).iceberg.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    folder = Path(metadata.location.removeprefix("file://")) / "metadata"
    assert {f"file://{path}" for path in folder.glob("*.metadata.json")} == known


def test_failed_commit_leaves_no_metadata_file(
    http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> set[Path]:
        return set(Path(lake.uri.removeprefix("file://")).rglob("*.metadata.json"))

    before, write = files(), StagedTables.write

    def fails(tables: StagedTables) -> None:
        write(tables)
        tables._storage.put_many(tables.take_metadata())
        raise tl.StorageError("full")

    monkeypatch.setattr(StagedTables, "write", fails)
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code >= 500
    assert files() == before
