"""Access to data files that the server delegates is limited to one principal, one table and one form of access."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import trinitylake as tl
from rest.client import Client, running
from rest.conftest import RITA, ROOT, WALT
from rest.shop import COLUMNS, ROWS
from s3_server import S3Server
from trinitylake.rest import S3Access, ServerOptions
from trinitylake.rest.files.s3_store import Scope
from trinitylake.rest.files.vending import policy

TABLES = "/v1/latest/namespaces/shop/tables"
SHOP, PAYROLL = f"{TABLES}/orders", "/v1/latest/namespaces/payroll/tables/orders"
VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}
SIGNED = {"X-Iceberg-Access-Delegation": "remote-signing"}
#: Names with characters that are patterns or variables in IAM policies.
PATTERNS = ("ord*", "order?", "${aws:username}")


@pytest.fixture
def ask(lake_on_s3: tl.Lakehouse, s3: S3Server, tokens: Path) -> Iterator[Client]:
    """A client of a server that vends credentials and signs requests."""
    role = "arn:aws:iam::123456789012:role/lake"
    access = S3Access(role_arn=role, signs_requests=True, storage_options=s3.storage_options)
    with running(lake_on_s3, token_file=tokens, options=ServerOptions(s3_access=access)) as server:
        yield Client(server)


def sign(ask: Client, table: str, uri: str, method: str = "GET", **more: Any) -> int:
    body = {"method": method, "region": "us-east-1", "uri": uri, "headers": {}, **more}
    return ask("POST", f"{TABLES}/{quote(table, safe='')}/sign", body, token=WALT).code


def url(s3: S3Server, location: str) -> str:
    """The URL of a data file of a table in the store."""
    return f"{s3.endpoint}/{quote(location.removeprefix('s3://'), safe='/')}/data/1.parquet"


def test_an_entity_tag_of_another_principal_is_no_access(ask: Client) -> None:
    tag = ask("GET", PAYROLL, token=ROOT).headers["etag"]
    for given in (tag, f"W/{tag}", "*"):
        assert ask("GET", PAYROLL, headers={"If-None-Match": given}, token=ROOT).code == 304
        for token in (WALT, RITA):
            assert ask("GET", PAYROLL, headers={"If-None-Match": given}, token=token).code == 403


def test_a_response_with_access_is_never_answered_by_304(ask: Client) -> None:
    """A response with access is never replaced by 304, because it depends on the principal, the delegation mode and the
    expiry of credentials."""
    tags = {mode: ask("GET", f"{SHOP}?snapshots={mode}", token=WALT).headers["etag"] for mode in ("all", "refs")}
    assert tags["all"] != tags["refs"]
    for mode, other in (("all", "refs"), ("refs", "all")):
        path, header = f"{SHOP}?snapshots={mode}", {"If-None-Match": tags[mode]}
        assert ask("GET", path, headers=header, token=WALT).code == 304
        assert ask("GET", path, headers={"If-None-Match": tags[other]}, token=WALT).code == 200
        for delegation in (VENDED, SIGNED):
            answer = ask("GET", path, headers={**header, **delegation}, token=WALT)
            assert answer.code == 200
            assert "etag" not in answer.headers
            assert answer.body["config"]


def test_access_to_a_table_excludes_tables_whose_names_start_like_its_own(
    ask: Client, lake_on_s3: tl.Lakehouse, s3: S3Server
) -> None:
    lake_on_s3.create_table("shop.orders2", ROWS)
    mine, other = (lake_on_s3.table(f"shop.{name}").location.rstrip("/") for name in ("orders", "orders2"))
    assert sign(ask, "orders", url(s3, mine)) == 200
    assert sign(ask, "orders", url(s3, other)) == sign(ask, "orders", url(s3, mine + "x")) == 403
    [objects, listing] = policy(Scope("bucket", "lake/orders-1", True))["Statement"]
    [prefix] = listing["Condition"]["StringLike"]["s3:prefix"]
    for pattern in (objects["Resource"][0].removeprefix("arn:aws:s3:::bucket/"), prefix):
        assert fnmatchcase("lake/orders-1/data/1.parquet", pattern)
        assert not fnmatchcase("lake/orders-12/data/1.parquet", pattern)
        assert not fnmatchcase("lake/orders-1", pattern)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_name_that_looks_like_a_pattern_opens_its_own_table_only(
    ask: Client, lake_on_s3: tl.Lakehouse, s3: S3Server, name: str
) -> None:
    lake_on_s3.create_table(("shop", name), ROWS)
    own = lake_on_s3.table(("shop", name)).location.rstrip("/")
    path = f"{TABLES}/{quote(name, safe='')}"
    for given in ask("GET", f"{path}/credentials", token=WALT).body["storage-credentials"]:
        assert not set("*?$") & set(given["prefix"])
    assert sign(ask, name, url(s3, own)) == 200
    assert sign(ask, name, url(s3, lake_on_s3.table("shop.orders").location.rstrip("/"))) == 403


def test_referenced_by_gives_no_access(ask: Client) -> None:
    """The parameter `referenced-by` gives no access: a view does not pass on the rights of its owner."""
    for path in (PAYROLL, f"{PAYROLL}/credentials"):
        assert ask("GET", f"{path}?referenced-by=shop%1Fopen,shop%1Fother", token=WALT).code == 403
    plain, through = ask("GET", SHOP, token=WALT), ask("GET", f"{SHOP}?referenced-by=shop%1Fopen", token=WALT)
    assert (through.code, through.body) == (200, plain.body)


def test_a_client_chooses_who_plans_its_scans(ask: Client) -> None:
    """The server offers scan planning, and does not prescribe whether the client or the server plans a scan."""
    for headers in ({}, VENDED, SIGNED):
        assert "scan-planning-mode" not in ask("GET", SHOP, headers=headers, token=WALT).body["config"]
    endpoints = ask("GET", "/v1/config", token=WALT).body["endpoints"]
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan" in endpoints


def test_remote_signing_uses_the_names_of_the_specification(
    ask: Client, lake_on_s3: tl.Lakehouse, s3: S3Server
) -> None:
    loaded = ask("GET", SHOP, headers=SIGNED, token=WALT).body
    assert loaded["remote-signing-config"] == {}
    assert loaded["config"]["signer.endpoint"] == f"{SHOP[1:]}/sign"
    uri = url(s3, lake_on_s3.table("shop.orders").location.rstrip("/"))
    assert sign(ask, "orders", uri, properties={"k": "v"}, body="", provider="s3") == 200
    bucket = uri.split("/the/")[0]
    assert sign(ask, "orders", f"{bucket}?delete", "POST", body="<Delete></Delete>", provider="s3") == 403


@pytest.mark.parametrize("is_dropped", [False, True], ids=["renamed", "dropped"])
def test_access_follows_the_name_of_the_table_in_the_latest_version(
    ask: Client, lake_on_s3: tl.Lakehouse, s3: S3Server, is_dropped: bool
) -> None:
    """A role on the former name of a table gives no access to the table's files, which include files that were written
    after the rename."""
    version, own = lake_on_s3.version, lake_on_s3.table("shop.orders").location.rstrip("/")
    id = ask("POST", "/trinitylake/v1/transactions", {}, token=WALT).body["id"]
    prefixes = (f"version~{version}", f"txn~{id}")

    def given(prefix: str, token: str) -> tuple[int, int]:
        """The number of credentials, and the status of a request for a signature."""
        path = SHOP.replace("latest", prefix)
        credentials = ask("GET", f"{path}/credentials", token=token)
        body = {"method": "GET", "region": "us-east-1", "uri": url(s3, own), "headers": {}}
        return len(credentials.body["storage-credentials"]), ask("POST", f"{path}/sign", body, token=token).code

    assert [given(prefix, WALT) for prefix in prefixes] == [(1, 200), (1, 200)]
    if is_dropped:
        lake_on_s3.drop_table("shop.orders")
    else:
        lake_on_s3.rename_table("shop.orders", "payroll.moved")
    assert [given(prefix, WALT) for prefix in prefixes] == [(0, 403), (0, 403)]
    assert given(prefixes[0], ROOT) == (1, 200)
    lake_on_s3.create_table("shop.orders", ROWS)
    assert [given(prefix, WALT) for prefix in prefixes] == [(0, 403), (0, 403)], "the name belongs to another table now"


def test_a_table_that_is_new_in_a_transaction_is_accessible_in_it(ask: Client) -> None:
    id = ask("POST", "/trinitylake/v1/transactions", {}, token=WALT).body["id"]
    tables = TABLES.replace("latest", f"txn~{id}")
    assert ask("POST", tables, {"name": "new", "schema": COLUMNS}, token=WALT).code == 200
    assert len(ask("GET", f"{tables}/new/credentials", token=WALT).body["storage-credentials"]) == 1
