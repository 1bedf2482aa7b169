"""A change of nothing but properties that steer nothing is staged by the core, and what comes of it is what the long
way makes of it.

Metadata and definition are their bytes before with other properties. Two thirds of what a commit over HTTP took were
spent on finding that there is nothing more to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table.update import SetPropertiesUpdate

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake import _core
from trinitylake.base.properties import OWN_PROPERTY_PREFIX
from trinitylake.iceberg_storage import table_properties
from trinitylake.iceberg_storage.kept_snapshots import SNAPSHOTS_KEPT
from trinitylake.rest.http.company import Company
from trinitylake.rest.resources import tables
from trinitylake.rest.resources.table_changes import TableChange, inert_change
from trinitylake.tables.staged_tables import StagedTables
from trinitylake.tables.table_turns import turns

SHORT, LONG = "shop.one", "shop.two"
LOGGED = "write.metadata.previous-versions-max"
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
            patch.setattr(tables, "inert_change", lambda *body: None)
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


def test_what_changes_nothing_is_told_as_the_long_way_tells_it(http_client: Client, lake: tl.Lakehouse) -> None:
    """The log said that properties had changed, since the core did not look whether they had."""
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    summaries = []
    for _ in range(2):
        assert http_client("POST", path_of(SHORT), body).code == 200
        summaries += [one.summary for one in lake.log(limit=1)[0].transactions]
    assert summaries == [f"properties {SHORT}", f"alter table {SHORT}"]


@pytest.mark.parametrize("name", ["shop.never", "shop.view"])
def test_what_is_no_table_is_told_by_the_long_way(http_client: Client, name: str) -> None:
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(name), body).code == 404


@pytest.mark.parametrize(
    ("updates", "found"),
    [
        ([], []),
        ([{"action": "set-properties", "updates": {"note": "1"}}], [{"note": "1"}]),
        ([{"action": "remove-properties", "removals": ["note"]}], [["note"]]),
        ([{"action": "set-properties", "updates": {"note": "1", "write.data.path": "file:///x"}}], None),
        ([{"action": "set-properties", "updates": {"write.metadata.compression-codec": "gzip"}}], None),
        ([{"action": "set-properties", "updates": {"history.expire.max-ref-age-ms": "1"}}], None),
        ([{"action": "set-properties", "updates": {"gc.enabled": "true"}}], None),
        ([{"action": "set-properties", "updates": {"format-version": "3"}}], None),
        ([{"action": "set-properties", "updates": {"encryption.key-id": "1"}}], None),
        ([{"action": "set-properties", "updates": {"my-impl": "Class"}}], None),
        ([{"action": "remove-properties", "removals": ["trinitylake.own"]}], None),
        ([{"action": "set-current-schema", "schema-id": 0}], None),
    ],
)
def test_a_change_is_for_the_core_if_all_of_its_properties_are_inert(updates: list[Any], found: Any) -> None:
    def inert(*requirements: dict[str, Any], **more: Any) -> Any:
        body = {"updates": updates, "requirements": requirements, **more}
        return inert_change(json.dumps(body).encode(), ("shop", "one"))

    uuid = {"type": "assert-table-uuid", "uuid": "00000000-0000-4000-8000-000000000000"}
    assert inert() == (None if found is None else (found, None))
    assert inert(uuid) == (None if found is None else (found, uuid["uuid"]))
    assert inert(identifier={"namespace": ["shop"], "name": "one"}) == inert()
    assert inert(identifier={"namespace": ["shop"], "name": "two"}) is None
    assert inert({"type": "assert-create"}) is None
    assert inert(uuid, uuid) is None
    assert inert(more="x") is None


@settings(max_examples=300, deadline=None)
@given(
    parts=st.fixed_dictionaries(
        {},
        optional={
            "identifier": st.sampled_from(
                [None, {}, {"namespace": ["shop"], "name": "one"}, {"namespace": "x", "name": 1}, [["shop"], "one"]]
            ),
            "requirements": st.lists(
                st.sampled_from(
                    [
                        {"type": "assert-table-uuid", "uuid": "00000000-0000-4000-8000-000000000000"},
                        {"type": "assert-table-uuid", "uuid": "{00000000-0000-4000-8000-00000000000F}"},
                        {"type": "assert-table-uuid"},
                        {"type": "assert-create"},
                        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
                        ["assert-table-uuid", "00000000-0000-4000-8000-000000000000"],
                    ]
                ),
                max_size=2,
            ),
            "updates": st.lists(
                st.one_of(
                    st.fixed_dictionaries(
                        {"action": st.just("set-properties")},
                        optional={"updates": st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers())},
                    ),
                    st.fixed_dictionaries(
                        {"action": st.just("remove-properties")},
                        optional={"removals": st.lists(st.text(max_size=3) | st.none(), max_size=3)},
                    ),
                    st.sampled_from(
                        [
                            {"action": "set-current-schema", "schema-id": 0},
                            {"action": "?"},
                            {},
                            ["set-properties", {"note": "1"}, None],
                        ]
                    ),
                ),
                max_size=3,
            ),
            "more": st.just(1),
        },
    )
)
def test_a_body_that_is_plain_means_the_same_the_long_way(parts: dict[str, Any]) -> None:
    """Two readers of one body: what the short one takes, the other one takes too, for the same."""
    plain = _core.plain_change(json.dumps(parts).encode())
    if plain is not None:
        identifier, required_id, changes = plain
        whole = TableChange.model_validate(parts)
        assert (None if whole.identifier is None else whole.identifier.identifier()) == identifier
        assert [str(one.uuid) for one in whole.requirements] == ([] if required_id is None else [required_id])  # type: ignore[union-attr]
        asked = [one.updates if isinstance(one, SetPropertiesUpdate) else one.removals for one in whole.updates]  # type: ignore[union-attr]
        assert asked == changes


def test_who_loses_a_race_goes_the_long_way(http_client: Client, lake: tl.Lakehouse) -> None:
    """The core redoes nothing, so what has lost is begun again, once more, by what does."""
    table = lake.table(SHORT)
    staged = StagedTables.change_in_core

    def overtaken(tables: StagedTables, *arguments: Any) -> Any:
        changed = staged(tables, *arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StagedTables, "change_in_core", None)
            table.set_properties({"other": "faster"})
        return changed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StagedTables, "change_in_core", overtaken)
        body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
        assert http_client("POST", path_of(SHORT), body).code == 200
    properties = lake.table(SHORT).properties
    assert (properties["note"], properties["other"]) == ("1", "faster")
    metadata = lake.table(SHORT).iceberg.metadata
    known = {lake.table(SHORT).metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    folder = Path(metadata.location.removeprefix("file://")) / "metadata"
    assert {f"file://{path}" for path in folder.glob("*.metadata.json")} == known, "nothing is left of what lost"


def test_metadata_of_a_commit_that_fails_is_removed(
    http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> set[Path]:
        return set(Path(lake.uri.removeprefix("file://")).rglob("*.metadata.json"))

    before = files()
    commit = Company._commit

    def fails(company: Company, committing: Sequence[Any]) -> None:
        commit(company, [])
        company._n_committing += len(committing)
        company._finish([(request, tl.StorageError("full")) for request, _ in committing])

    monkeypatch.setattr(Company, "_commit", fails)
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code >= 500
    assert files() == before


def test_tables_that_are_steered_by_their_properties_go_the_long_way(http_client: Client, lake: tl.Lakehouse) -> None:
    body: dict[str, Any] = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    lake.table(SHORT).set_properties({"write.metadata.compression-codec": "gzip"})
    assert http_client("POST", path_of(SHORT), body).code == 200
    assert lake.table(SHORT).metadata_location.endswith(".gz.metadata.json")
    lake.table(SHORT).set_properties({"write.metadata.compression-codec": "none", LOGGED: "2"})
    for number in range(4):
        body["updates"][0]["updates"]["note"] = str(number)
        assert http_client("POST", path_of(SHORT), body).code == 200
    assert len(http_client.table(path_of(SHORT))["metadata-log"]) == 2


def test_the_log_of_a_table_that_says_nothing_of_it_is_as_long_as_ever(http_client: Client, lake: tl.Lakehouse) -> None:
    body: dict[str, Any] = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    for number in range(SNAPSHOTS_KEPT + 3):
        body["updates"][0]["updates"]["note"] = str(number)
        assert http_client("POST", path_of(SHORT), body).code == 200
        lake.table(LONG).set_properties({"note": str(number)})
    logs = [http_client.table(path_of(table))["metadata-log"] for table in (SHORT, LONG)]
    assert [len(log) for log in logs] == [SNAPSHOTS_KEPT] * 2


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(properties=st.dictionaries(st.text(max_size=8), st.text(max_size=8), min_size=1, max_size=5))
def test_whatever_names_and_values_a_client_chooses_it_finds_again(
    http_client: Client, lake: tl.Lakehouse, properties: dict[str, str]
) -> None:
    body = {"updates": [{"action": "set-properties", "updates": properties}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code == 200
    assert properties.items() <= lake.table(SHORT).properties.items()
    assert properties.items() <= http_client.table(path_of(SHORT))["properties"].items()


def test_what_the_core_changes_has_its_turn_until_it_is_committed(
    http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who commits to a table of this machine waits for those before; the core's changes would overtake all of them."""
    table_id, free, commit = lake.table(SHORT).id, [], Company._commit

    def noted(company: Company, committing: Any) -> None:
        with turns.taken([table_id], waits=False) as is_free:
            free.append(is_free)
        commit(company, committing)

    monkeypatch.setattr(Company, "_commit", noted)
    body = {"updates": [{"action": "set-properties", "updates": {"note": "1"}}], "requirements": []}
    assert http_client("POST", path_of(SHORT), body).code == 200
    assert free == [False]
    with turns.taken([table_id], waits=False) as is_free:
        assert is_free


def test_in_an_open_transaction_changes_go_the_long_way(http_client: Client, lake: tl.Lakehouse) -> None:
    """The core's metadata is there with the commit only, so a second change would not find that of the first."""
    assert http_client("POST", "/trinitylake/v1/transactions", {"id": "open"}).code == 201
    path = path_of(SHORT).replace("/v1/", "/v1/txn~open/")
    for number in range(3):
        body = {"updates": [{"action": "set-properties", "updates": {f"note{number}": "1"}}], "requirements": []}
        assert http_client("POST", path, body).code == 200
        assert f"note{number}" in http_client.table(path)["properties"]
        assert f"note{number}" not in lake.table(SHORT).properties
    assert http_client("POST", "/trinitylake/v1/transactions/open/commit", {}).code in (200, 204)
    assert {"note0", "note1", "note2"} <= lake.table(SHORT).properties.keys()


@pytest.mark.parametrize("prefix", sorted({*table_properties._STEERING} - {OWN_PROPERTY_PREFIX}))
def test_what_steers_a_commit_is_the_same_for_the_core(lake: tl.Lakehouse, prefix: str) -> None:
    """The prefixes stand in Python, for what is to be set, and in Rust, for what a table has already."""
    changes: list[Any] = [{"note": "1"}]
    with lake.begin() as transaction:
        assert transaction.staged_tables.change_in_core("shop", "one", changes) is not None
    lake.table(SHORT).set_properties({f"{prefix}steers": "1"})
    with lake.begin() as transaction:
        assert transaction.staged_tables.change_in_core("shop", "one", changes) is None
