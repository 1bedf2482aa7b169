"""A server over a copy of a lakehouse reads, and refuses writes with 403.

A copy that was not relocated refuses every root. The server answered commits with 500, which engines treat as an
unknown outcome: they searched for the commit again and again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import trinitylake as tl
from rest.client import Client, running
from rest.shop import with_tables
from trinitylake import errors
from trinitylake.errors import StorageError, TrinityLakeError
from trinitylake.rest.errors import response_of

TABLE = "/v1/namespaces/shop/tables/orders"


def test_a_copy_is_read_and_refuses_what_would_change_it(tmp_path: Path) -> None:
    with_tables(tl.create(str(tmp_path / "there"), durability="none"), "shop.orders")
    shutil.copytree(tmp_path / "there", tmp_path / "copy")
    copy = tl.open(str(tmp_path / "copy"), durability="none")
    change = {"updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    with running(copy) as server:
        client = Client(server)
        assert client("GET", TABLE).code == 200
        for path, body in [
            (TABLE, change),
            ("/v1/namespaces", {"namespace": ["more"]}),
            (
                "/v1/transactions/commit",
                {"table-changes": [{**change, "identifier": {"namespace": ["shop"], "name": "orders"}}]},
            ),
        ]:
            answer = client("POST", path, body)
            assert (answer.code, answer.body["error"]["type"]) == (403, "ForbiddenException"), path
            assert "relocate" in answer.body["error"]["message"]
        assert client("DELETE", TABLE).code == 403
        copy.maintenance.relocate()
        assert client("POST", TABLE, change).code == 200


def test_each_kind_of_error_has_its_own_response() -> None:
    """Every error class has a status, also each new one. With the default of 500 the outcome of a commit would be
    unknown."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TrinityLakeError)]
    for kind in set(kinds) - {TrinityLakeError, StorageError}:
        error = kind.__new__(kind)
        Exception.__init__(error, "what happened")
        answer = response_of(error, str)
        assert b"InternalServerError" not in bytes(answer.body), kind
