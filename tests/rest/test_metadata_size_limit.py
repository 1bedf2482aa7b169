"""The metadata of an object has a limit over all requests together.

Fourteen commits of 14 MiB of properties made metadata of 196 MiB, and each load and commit of the table took a gigabyte
of memory. Views grew by versions, namespaces by properties, and registered metadata was decompressed without a limit.
"""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Answer, Client
from rest.shop import ROWS
from trinitylake.rest import metadata_limits
from trinitylake.rest.handlers import body_parts

LIMIT = 200_000


@pytest.fixture
def client(http_client: Client, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(body_parts, "MAX_OBJECT_SIZE_BYTES", LIMIT)
    lake.create_namespace("grown")
    lake.create_table("grown.t", ROWS)
    lake.create_view("grown.v", "SELECT 1 AS id", schema=ROWS.schema, dialect="spark")
    return http_client


def table(client: Client, number: int) -> Answer:
    update = {"action": "set-properties", "updates": {f"p{number}": "x" * 30_000}}
    return client("POST", "/v1/namespaces/grown/tables/t", {"requirements": [], "updates": [update]})


def several(client: Client, number: int) -> Answer:
    update = {"action": "set-properties", "updates": {f"p{number}": "x" * 30_000}}
    change = {"identifier": {"namespace": ["grown"], "name": "t"}, "requirements": [], "updates": [update]}
    return client("POST", "/v1/transactions/commit", {"table-changes": [change]})


def view(client: Client, number: int) -> Answer:
    update = {"action": "set-properties", "updates": {f"p{number}": "x" * 30_000}}
    return client("POST", "/v1/namespaces/grown/views/v", {"requirements": [], "updates": [update]})


def namespace(client: Client, number: int) -> Answer:
    return client("POST", "/v1/namespaces/grown/properties", {"updates": {f"p{number}": "x" * 30_000}, "removals": []})


@pytest.mark.parametrize("send", [table, several, view, namespace])
def test_metadata_above_the_limit_can_only_shrink(client: Client, send: Any, lake: tl.Lakehouse) -> None:
    codes = [send(client, number).code for number in range(10)]
    assert codes[:4] in ([200] * 4, [204] * 4)
    assert codes[-1] == 413
    answer = send(client, 11)
    assert answer.error == "RequestTooLargeException"
    assert "remove snapshots, schemas or properties first" in answer.body["error"]["message"]
    removed = [f"p{number}" for number in range(4)]
    if send is namespace:
        body: Any = {"updates": {}, "removals": removed}
        assert client("POST", "/v1/namespaces/grown/properties", body).code == 200
    else:
        body = {"requirements": [], "updates": [{"action": "remove-properties", "removals": removed}]}
        kind = "views/v" if send is view else "tables/t"
        assert client("POST", f"/v1/namespaces/grown/{kind}", body).code == 200
    assert send(client, 12).code in (200, 204)


@pytest.mark.parametrize("kind", ["register", "register-view"])
def test_compressed_metadata_above_the_limit_is_not_registered(
    client: Client, kind: str, lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    io = lake.table("grown.t").iceberg.io
    read: list[int] = []
    path = "grown/b/metadata/00000-11111111-1111-1111-1111-111111111111.gz.metadata.json"
    io.put(path, gzip.compress(b" " * (100 << 20)), overwrite=False)
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or b"")
    body = {"name": "bomb", "metadata-location": io.uri_of(path)}
    answer = client("POST", f"/v1/namespaces/grown/{kind}", body)
    assert answer.code in (400, 413)
    assert re.search("is not a readable metadata file|without the server", str(answer.body))
    assert read == []
    assert metadata_limits.MAX_METADATA_SIZE_BYTES < 100 << 20
