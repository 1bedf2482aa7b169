"""External and federated tables: reading, refused writes, and no stored secrets or code."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType
from pyiceberg.utils.config import Config

from trinitylake.definitions import new_table_def
from trinitylake.errors import CorruptFile, InvalidArgument, InvalidLocation, ObjectNotFound
from trinitylake.iceberg_storage.external_tables import load_external
from trinitylake.iceberg_storage.federated_tables import (
    CATALOG_PROPERTY,
    TABLE_PROPERTY,
    federated_properties,
    open_federated,
)

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    """Properties of another catalog with the table `sales.orders`, which has three rows."""
    (tmp_path / "warehouse").mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = SqlCatalog("other", **properties)
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", ROWS.schema).append(ROWS)
    catalog.close()
    return properties


def location_of(properties: dict[str, str]) -> str:
    return SqlCatalog("other", **properties).load_table("sales.orders").metadata_location


def test_every_write_to_an_external_table_is_refused(properties: dict[str, str]) -> None:
    table = load_external(location_of(properties))
    assert table.scan().to_arrow().num_rows == 3
    assert table.refresh() is table
    for write in (
        lambda: table.append(ROWS),
        lambda: table.overwrite(ROWS),
        lambda: table.delete("id = 1"),
        lambda: table.upsert(ROWS, join_cols=["id"]),
        lambda: table.add_files(["file:///x.parquet"]),
        lambda: table.transaction(),
        lambda: table.update_schema().add_column("x", StringType()).commit(),
        lambda: table.update_spec().add_identity("id").commit(),
        lambda: table.update_sort_order().asc("id", IdentityTransform()).commit(),
        lambda: table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "t").commit(),
        lambda: table.catalog.commit_table(table, (), ()),
    ):
        with pytest.raises(InvalidArgument, match="external and read-only"):
            write()


def test_external_metadata_is_found_through_a_definition(properties: dict[str, str]) -> None:
    location = location_of(properties)
    definition = new_table_def(table_type="external", format_properties={"metadata_location": location})
    assert load_external(definition).metadata_location == location


def test_external_metadata_cannot_name_code_to_load(properties: dict[str, str], tmp_path: Path) -> None:
    text = json.loads(Path(location_of(properties).removeprefix("file://")).read_text())
    text["properties"]["py-io-impl"] = "trinitylake.no_such_module.Evil"
    planted = tmp_path / "00009-planted.metadata.json"
    planted.write_text(json.dumps(text))
    assert load_external(planted.as_uri()).scan().to_arrow().num_rows == 3


def test_file_that_is_no_table_metadata_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.metadata.json").write_text("{}")
    with pytest.raises(CorruptFile):
        load_external(f"file://{tmp_path}/x.metadata.json")
    for uri in (
        f"file://{tmp_path}/none.metadata.json",
        f"file://{tmp_path}",
        "file:///etc/passwd",
        "http://169.254.169.254/x.metadata.json",
        "x.metadata.json",
        "",
    ):
        with pytest.raises(InvalidLocation):
            load_external(uri)


def test_federated_table_is_opened_from_its_definition(properties: dict[str, str]) -> None:
    assert federated_properties(properties, "sales.orders")[CATALOG_PROPERTY] == "federated"
    stored = federated_properties({"name": "other", **properties}, "sales.orders")
    assert stored == {**properties, CATALOG_PROPERTY: "other", TABLE_PROPERTY: "sales.orders"}
    definition = new_table_def(table_type="federated", format_properties=stored)
    open_federated(definition).append(ROWS)
    assert open_federated(stored).scan().to_arrow().num_rows == 6
    with pytest.raises(ObjectNotFound, match=r"sales\.none"):
        open_federated({**stored, TABLE_PROPERTY: "sales.none"})


@pytest.mark.parametrize(
    "key",
    [
        "s3.secret-access-key",
        "s3.access-key-id",
        "s3.session-token",
        "client.secret-access-key",
        "credential",
        "token",
        "oauth.token",
        "password",
        "adls.account-key",
        "adls.client-secret",
        "gcs.oauth2.token",
        "header.Authorization",
        "API_KEY",
    ],
)
def test_a_secret_is_never_stored(key: str) -> None:
    with pytest.raises(InvalidArgument, match="run time") as caught:
        federated_properties({"type": "rest", key: "hunter2"}, "a.b")
    assert "hunter2" not in str(caught.value)
    assert key in str(caught.value)
    with pytest.raises(InvalidArgument):
        open_federated({"type": "rest", key: "hunter2", TABLE_PROPERTY: "a.b"})


def test_a_password_within_a_uri_is_a_secret_too() -> None:
    with pytest.raises(InvalidArgument, match="'uri'") as caught:
        federated_properties({"type": "sql", "uri": "postgresql+psycopg2://me:hunter2@host/db"}, "a.b")
    assert "hunter2" not in str(caught.value)
    assert federated_properties({"type": "sql", "uri": "postgresql://host:5432/db@x"}, "a.b")


def test_properties_that_load_code_or_are_reserved_are_refused() -> None:
    for key in ("py-catalog-impl", "py-io-impl", "auth.type", "trinitylake.table"):
        with pytest.raises(InvalidArgument):
            federated_properties({key: "x"}, "a.b")
    for table in ("", ".", "a..b"):
        with pytest.raises(InvalidArgument):
            federated_properties({"type": "rest"}, table)


class Peer(ThreadingHTTPServer):
    """A server outside of the lakehouse, which records the headers of requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.seen: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Peer)
        self.server.seen.append(dict(self.headers.items()))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("key", ["uri", "oauth2-server-uri", "header.X-Forward", "rest.signing-name", "s3.endpoint"])
def test_configured_token_is_sent_to_the_configured_address_only(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """A definition that names the catalog with another address would get the token."""
    good, evil = Peer(), Peer()
    monkeypatch.setenv("PYICEBERG_CATALOG__PARTNER__URI", good.url)
    monkeypatch.setenv("PYICEBERG_CATALOG__PARTNER__TOKEN", "the-canary-token")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    stored = federated_properties({"name": "partner", "type": "rest", key: evil.url}, "a.b")
    with pytest.raises(Exception, match=r"404|no table|config|NOT_FOUND|Expecting|RESTError"):
        open_federated(stored)
    assert evil.seen == []
    assert any("the-canary-token" in str(headers) for headers in good.seen)
    assert not any("X-Forward" in headers for headers in good.seen)


def test_configured_token_without_an_address_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = Peer()
    monkeypatch.setenv("PYICEBERG_CATALOG__PARTNER__TOKEN", "the-canary-token")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    stored = federated_properties({"name": "partner", "type": "rest", "uri": evil.url}, "a.b")
    with pytest.raises(InvalidArgument, match="PYICEBERG_CATALOG__PARTNER__URI"):
        open_federated(stored)
    assert evil.seen == []


def test_properties_given_at_run_time_are_not_stored(properties: dict[str, str]) -> None:
    stored = federated_properties({"name": "other"}, "sales.orders")
    assert stored == {CATALOG_PROPERTY: "other", TABLE_PROPERTY: "sales.orders"}
    assert open_federated(stored, properties).scan().to_arrow().num_rows == 3
