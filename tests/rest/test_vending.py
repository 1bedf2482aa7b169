"""Temporary credentials for data files: optional, for one table, limited by role and time."""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import boto3
import pyarrow as pa
import pytest
from moto.sts.models import STSBackend
from pyiceberg.catalog.rest import RestCatalog

import trinitylake as tl
from rest.client import Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import COLUMNS, ROWS, new_table
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, S3Server
from trinitylake.errors import InvalidArgument
from trinitylake.rest import RestServer, S3Access, ServerOptions, serve
from trinitylake.rest.files import vending as vending_module
from trinitylake.rest.files.s3_store import Scope
from trinitylake.rest.files.vending import policy

ROLE = "arn:aws:iam::123456789012:role/lake"
SHOP, PAYROLL = (f"/v1/latest/namespaces/{name}/tables/orders" for name in ("shop", "payroll"))
WISH = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@pytest.fixture
def assumed() -> Iterator[mock.Mock]:
    """The store's token service, which records its requests."""
    with mock.patch.object(STSBackend, "assume_role", autospec=True, side_effect=STSBackend.assume_role) as calls:
        yield calls


@pytest.fixture
def vending(lake_on_s3: tl.Lakehouse, s3: S3Server, tokens: Path, assumed: mock.Mock) -> Iterator[RestServer]:
    """A server that gives temporary credentials."""
    access = S3Access(role_arn=ROLE, storage_options=s3.storage_options)
    with running(lake_on_s3, token_file=tokens, options=ServerOptions(s3_access=access)) as server:
        yield server


@pytest.fixture
def ask(vending: RestServer) -> Client:
    return Client(vending)


def location(lake: tl.Lakehouse, name: str = "shop.orders") -> str:
    """The location of a table, with a slash at the end."""
    return f"{lake.table(name).location.rstrip('/')}/"


def policies(assumed: mock.Mock) -> list[dict[str, Any]]:
    """The session policies in the requests to the token service."""
    return [json.loads(call.kwargs["policy"]) for call in assumed.call_args_list]


def test_vending_is_off_by_default(lake_on_s3: tl.Lakehouse, tokens: Path) -> None:
    with running(lake_on_s3, token_file=tokens) as server:
        client = Client(server)
        assert client("GET", f"{SHOP}/credentials", token=ROOT).body == {"storage-credentials": []}
        loaded = client("GET", SHOP, headers=WISH, token=ROOT).body
        assert (loaded["config"], loaded.get("storage-credentials")) == ({}, None)


def test_a_lakehouse_on_disk_vends_no_credentials(server: RestServer, http_client: Client, lake: tl.Lakehouse) -> None:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", ROWS)
    assert http_client("GET", f"{SHOP}/credentials").body == {"storage-credentials": []}
    with pytest.raises(InvalidArgument, match="S3 only"):
        serve(lake, options=ServerOptions(s3_access=S3Access(role_arn=ROLE)))


def test_credentials_are_for_the_table_alone_and_for_a_time(
    ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock, s3: S3Server
) -> None:
    answer = ask("GET", f"{SHOP}/credentials", token=WALT)
    [given] = answer.body["storage-credentials"]
    assert answer.headers["cache-control"] == "no-store"
    assert given["prefix"] == location(lake_on_s3)
    config = given["config"]
    assert config["s3.endpoint"] == s3.endpoint
    assert int(config["s3.session-token-expires-at-ms"]) > 0
    assert config["s3.access-key-id"] != ACCESS_KEY
    assert SECRET_KEY not in json.dumps(given)
    assert SESSION_TOKEN not in json.dumps(given)
    [asked] = assumed.call_args_list
    assert (asked.kwargs["role_arn"], asked.kwargs["role_session_name"]) == (ROLE, "trinitylake-walt")
    assert asked.kwargs["duration"] == 3600
    bucket, _, key = location(lake_on_s3).removeprefix("s3://").partition("/")
    [objects, listing] = policies(assumed)[0]["Statement"]
    assert objects["Resource"] == [f"arn:aws:s3:::{bucket}/{key}*"]
    assert set(objects["Action"]) >= {"s3:GetObject", "s3:PutObject"}
    assert "s3:DeleteObject" not in objects["Action"]
    assert listing["Resource"] == [f"arn:aws:s3:::{bucket}"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": [f"{key}*"]}}


@pytest.mark.parametrize("token", [RITA, WALT, ROOT])
def test_no_policy_permits_deletion(ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock, token: str) -> None:
    """An engine's housekeeping deletes files that older versions of the lakehouse need.

    A policy lists the allowed actions, so neither a pattern nor `NotAction` can permit deletion.
    """
    ask("GET", f"{SHOP}/credentials", token=token)
    ask("GET", SHOP, headers=WISH, token=token)
    ask("GET", f"{SHOP.replace('latest', f'version~{lake_on_s3.version}')}/credentials", token=token)
    body = {"name": "new", "schema": COLUMNS, "stage-create": True}
    ask("POST", "/v1/latest/namespaces/shop/tables", body, headers=WISH, token=token)
    id = ask("POST", "/trinitylake/v1/transactions", {}, token=token).body.get("id")
    ask("GET", f"{SHOP.replace('latest', f'txn~{id}')}/credentials", token=token)
    made = policies(assumed)
    assert made
    allowed = {
        "s3:GetObject",
        "s3:PutObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
        "s3:ListBucket",
    }
    for statement in [statement for one in made for statement in one["Statement"]]:
        assert statement.keys() <= {"Effect", "Action", "Resource", "Condition"}
        assert statement["Effect"] == "Allow"
        assert set(statement["Action"]) <= allowed


def test_a_reader_gets_read_access(ask: Client, assumed: mock.Mock) -> None:
    assert len(ask("GET", f"{SHOP}/credentials", token=RITA).body["storage-credentials"]) == 1
    assert policies(assumed)[0]["Statement"][0]["Action"] == ["s3:GetObject"]


def test_a_writer_only_reads_the_past(ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock) -> None:
    path = SHOP.replace("latest", f"version~{lake_on_s3.version}")
    assert len(ask("GET", f"{path}/credentials", token=WALT).body["storage-credentials"]) == 1
    assert policies(assumed)[0]["Statement"][0]["Action"] == ["s3:GetObject"]


@pytest.mark.parametrize("token", [RITA, WALT])
def test_credentials_need_a_role_on_the_table(ask: Client, assumed: mock.Mock, token: str) -> None:
    assert ask("GET", f"{PAYROLL}/credentials", token=token).code == 403
    assert ask("GET", PAYROLL, headers=WISH, token=token).code == 403
    assert ask("GET", SHOP.replace("orders", "none") + "/credentials", token=token).code == 404
    assert not assumed.called


def test_a_load_returns_credentials_if_the_client_asks(
    ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock
) -> None:
    assert "storage-credentials" not in ask("GET", SHOP, token=WALT).body
    assert not assumed.called
    loaded = ask("GET", SHOP, headers={"X-Iceberg-Access-Delegation": "remote-signing, vended-credentials"}, token=WALT)
    [given] = loaded.body["storage-credentials"]
    assert loaded.body["metadata-location"].startswith(given["prefix"])
    assert loaded.body["metadata"]["location"] + "/" == given["prefix"]
    refresh = loaded.body["config"]["client.refresh-credentials-endpoint"]
    assert ask("GET", f"/{refresh}", token=WALT).body == {"storage-credentials": [given]}
    assert assumed.call_count == 1  # the credentials are still valid


def test_credentials_are_renewed_after_half_of_their_life_and_belong_to_one_principal(
    ask: Client, assumed: mock.Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = ask("GET", f"{SHOP}/credentials", token=WALT).body["storage-credentials"]
    [rita] = ask("GET", f"{SHOP}/credentials", token=RITA).body["storage-credentials"]
    assert rita["config"]["s3.access-key-id"] != first["config"]["s3.access-key-id"]
    later = time.time() + 1900
    monkeypatch.setattr(vending_module, "time", SimpleNamespace(time=lambda: later))
    [second] = ask("GET", f"{SHOP}/credentials", token=WALT).body["storage-credentials"]
    assert second["config"]["s3.access-key-id"] != first["config"]["s3.access-key-id"]
    assert assumed.call_count == 3


def test_a_conditional_load_returns_fresh_credentials(ask: Client) -> None:
    tag = ask("GET", SHOP, token=WALT).headers["etag"]
    assert ask("GET", SHOP, headers={"If-None-Match": tag}, token=WALT).code == 304
    loaded = ask("GET", SHOP, headers={"If-None-Match": tag, **WISH}, token=WALT)
    assert (loaded.code, len(loaded.body["storage-credentials"])) == (200, 1)
    assert "etag" not in loaded.headers
    assert loaded.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("staged", [True, False])
def test_a_creation_returns_credentials(ask: Client, assumed: mock.Mock, staged: bool) -> None:
    body = {"name": "new", "schema": COLUMNS, "stage-create": staged}
    made = ask("POST", "/v1/latest/namespaces/shop/tables", body, headers=WISH, token=WALT).body
    [given] = made["storage-credentials"]
    assert given["prefix"] == made["metadata"]["location"] + "/"
    assert "s3:PutObject" in policies(assumed)[0]["Statement"][0]["Action"]


def test_a_repeated_creation_returns_credentials(ask: Client, lake_on_s3: tl.Lakehouse) -> None:
    """The answer to a repeated creation with an idempotency key contains credentials. Iceberg's clients send a key if
    the server supports keys, and could otherwise not write to the new table."""
    body, headers = {"name": "new", "schema": COLUMNS}, {**WISH, "Idempotency-Key": str(uuid.uuid4())}

    def given() -> Any:
        answer = ask("POST", "/v1/namespaces/shop/tables", body, headers=headers, token=WALT)
        assert answer.code == 200
        return answer.body.get("storage-credentials")

    [first], [again] = given(), given()
    assert first["prefix"] == again["prefix"] == location(lake_on_s3, "shop.new")
    lake_on_s3.rename_table("shop.new", "payroll.new")
    assert given() is None, "the renamed table is not in the shop any more"
    lake_on_s3.create_table("shop.new", ROWS)
    assert given() is None, "the new table is not the created one"


@pytest.mark.parametrize("folder", ["payroll", "payroll/orders", "shop", "elsewhere"])
def test_a_chosen_location_gives_no_access(
    ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock, folder: str
) -> None:
    """A client that chooses the location of a table gets no credentials for it. Otherwise it could choose a location
    around another table."""
    body = {"name": "trap", "schema": COLUMNS, "location": f"{lake_on_s3.uri}{folder}"}
    assert ask("POST", "/v1/latest/namespaces/shop/tables", body, headers=WISH, token=WALT).code == 403
    assert ask("POST", "/v1/latest/namespaces/shop/tables", body, token=ROOT).code == 200
    path = SHOP.replace("orders", "trap")
    assert ask("GET", f"{path}/credentials", token=WALT).body == {"storage-credentials": []}
    assert not assumed.called
    assert len(ask("GET", f"{path}/credentials", token=ROOT).body["storage-credentials"]) == 1


def test_the_id_of_another_table_gives_no_access(ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock) -> None:
    victim = lake_on_s3.table("payroll.orders")
    updates = [
        *new_table(str(victim.iceberg.metadata.table_uuid)),
        {"action": "set-location", "location": victim.location},
    ]
    change = {"requirements": [{"type": "assert-create"}], "updates": updates}
    path = SHOP.replace("orders", "twin")
    assert ask("POST", path, change, token=WALT).code == 403
    assert ask("POST", path, change, token=ROOT).code == 200
    assert ask("GET", f"{path}/credentials", token=WALT).body == {"storage-credentials": []}
    assert not assumed.called


def test_a_pattern_in_a_location_does_not_become_one_in_a_policy(
    ask: Client, lake_on_s3: tl.Lakehouse, assumed: mock.Mock
) -> None:
    body = {"name": "star", "schema": COLUMNS, "location": f"{lake_on_s3.uri}sh*p/t?"}
    assert ask("POST", "/v1/latest/namespaces/shop/tables", body, token=ROOT).code == 200
    assert ask("GET", SHOP.replace("orders", "star") + "/credentials", token=ROOT).body["storage-credentials"] == []
    assert not assumed.called


def test_a_policy_names_the_partition_of_the_cloud() -> None:
    document = policy(Scope("b", "k", False), "aws-cn")
    assert [one["Resource"] for one in document["Statement"]] == [["arn:aws-cn:s3:::b/k/*"], ["arn:aws-cn:s3:::b"]]


def test_a_failing_token_service_does_not_fail_a_load(ask: Client, caplog: pytest.LogCaptureFixture) -> None:
    with mock.patch.object(STSBackend, "assume_role", side_effect=RuntimeError):
        answer = ask("GET", f"{SHOP}/credentials", token=WALT)
        assert (answer.code, answer.error) == (503, "ServiceUnavailableException")
        loaded = ask("GET", SHOP, headers=WISH, token=WALT)
        assert (loaded.code, loaded.body["config"]) == (200, {})
    assert "no temporary credentials" in caplog.text


def test_vending_is_audited_and_logs_contain_no_secret(ask: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        config = ask("GET", f"{SHOP}/credentials", token=WALT).body["storage-credentials"][0]["config"]
        ask("GET", f"{SHOP}/credentials", token=RITA)
    lines = [(one.message, one.__dict__["fields"]) for one in caplog.records if one.name == "trinitylake.rest.audit"]
    logged = [(message, fields["who"], fields["names"]) for message, fields in lines]
    assert ("vend read and write", "walt", ["shop.orders"]) in logged
    assert ("vend read", "rita", ["shop.orders"]) in logged
    text = "\n".join(f"{one.getMessage()} {one.__dict__}" for one in caplog.records)
    for secret in (SECRET_KEY, SESSION_TOKEN, config["s3.secret-access-key"], config["s3.session-token"], WALT, RITA):
        assert secret not in text
    assert SECRET_KEY not in repr(S3Access(storage_options={"secret_access_key": SECRET_KEY}))


def test_pyiceberg_works_with_vended_credentials(vending: RestServer, lake_on_s3: tl.Lakehouse) -> None:
    with mock.patch.dict("os.environ", {"AWS_EC2_METADATA_DISABLED": "true"}):
        catalog = RestCatalog("test", uri=vending.url, token=WALT)
        table = catalog.load_table("shop.orders")
        assert table.io.properties["s3.access-key-id"] != ACCESS_KEY
        table.append(pa.table({"id": pa.array([4], pa.int64())}))
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
        found = catalog.load_credentials("shop.orders", table.metadata_location)
    assert found["s3.session-token"] == table.io.properties["s3.session-token"]
    assert lake_on_s3.table("shop.orders").scan().to_arrow().num_rows == 4


@pytest.mark.parametrize("access", [{"role_arn": "lake"}, {"role_arn": ROLE, "seconds": 60}])
def test_invalid_settings_are_refused(lake_on_s3: tl.Lakehouse, s3: S3Server, access: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        serve(lake_on_s3, options=ServerOptions(s3_access=S3Access(storage_options=s3.storage_options, **access)))


def test_credentials_are_those_of_the_token_service(ask: Client, s3: S3Server) -> None:
    config = ask("GET", f"{SHOP}/credentials", token=WALT).body["storage-credentials"][0]["config"]
    identity = boto3.client(
        "sts",
        endpoint_url=s3.endpoint,
        region_name=config["s3.region"],
        aws_access_key_id=config["s3.access-key-id"],
        aws_secret_access_key=config["s3.secret-access-key"],
        aws_session_token=config["s3.session-token"],
    ).get_caller_identity()
    assert identity["Arn"] == "arn:aws:sts::123456789012:assumed-role/lake/trinitylake-walt"


def test_without_the_extra_or_credentials_it_does_not_start(
    lake_on_s3: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    options = ServerOptions(s3_access=S3Access(signs_requests=True))
    with pytest.raises(InvalidArgument, match="needs credentials"):
        serve(lake_on_s3, options=options)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(InvalidArgument, match=r"trinitylake\[s3\]"):
        serve(lake_on_s3, options=options)
