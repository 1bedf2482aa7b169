"""Changes in `transactions/commit` that consist only of requirements."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from waiting import in_threads

ROUNDS = 30


def change(name: str, requirements: list[dict[str, Any]], updates: list[dict[str, Any]]) -> dict[str, Any]:
    return {"identifier": {"namespace": ["a"], "name": name}, "requirements": requirements, "updates": updates}


def unchanged(name: str) -> dict[str, Any]:
    """The requirement that a table keeps its schema."""
    return change(name, [{"type": "assert-current-schema-id", "current-schema-id": 0}], [])


def widened(name: str) -> dict[str, Any]:
    """Another schema."""
    fields = [{"id": 1, "name": "id", "required": False, "type": "long"}]
    fields += [{"id": 2, "name": "more", "required": False, "type": "long"}]
    schema = {"type": "struct", "schema-id": 1, "fields": fields}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    return change(name, [{"type": "assert-current-schema-id", "current-schema-id": 0}], updates)


def widths(lake: tl.Lakehouse, *names: str) -> list[int]:
    return [len(lake.table(f"a.{name}").schema.columns) for name in names]


@pytest.fixture
def pairs(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(ROUNDS):
            for side in ("left", "right"):
                txn.create_table(f"a.{side}_{number}", {"id": "bigint"})
    return lake


def test_of_two_commits_that_exclude_each_other_never_both_succeed(pairs: tl.Lakehouse, http_client: Client) -> None:
    """Each of two concurrent commits changes one table and requires that the other table does not change. At most one
    of them succeeds."""
    for number in range(ROUNDS):
        names = f"left_{number}", f"right_{number}"
        codes: list[int] = []
        together = threading.Barrier(2)

        def commit(required: str, changed: str) -> None:
            body = {"table-changes": [unchanged(required), widened(changed)]}
            together.wait()  # noqa: B023
            codes.append(http_client("POST", "/v1/latest/transactions/commit", body).code)  # noqa: B023

        in_threads(lambda pair: commit(*pair), (names, names[::-1]))
        assert sorted(codes) == [204, 409]
        assert sorted(widths(pairs, *names)) == [1, 2]


def test_inside_open_transactions_the_later_commit_is_refused(pairs: tl.Lakehouse, http_client: Client) -> None:
    ids = []
    for required, changed in (("left_0", "right_0"), ("right_0", "left_0")):
        began = http_client("POST", "/trinitylake/v1/transactions", {})
        body = {"table-changes": [unchanged(required), widened(changed)]}
        assert http_client("POST", f"/v1/{began.body['prefix']}/transactions/commit", body).code == 204
        ids.append(began.body["id"])
    assert http_client("POST", f"/trinitylake/v1/transactions/{ids[0]}/commit").code == 200
    answer = http_client("POST", f"/trinitylake/v1/transactions/{ids[1]}/commit")
    assert answer.code == 409
    assert "assert-current-schema-id" in answer.body["error"]["message"]
    assert widths(pairs, "left_0", "right_0") == [1, 2]


def test_a_table_that_must_not_exist_is_a_requirement_too(pairs: tl.Lakehouse, http_client: Client) -> None:
    absent = change("new", [{"type": "assert-create"}], [])
    body = {"table-changes": [absent, widened("left_0")]}
    assert http_client("POST", "/v1/latest/transactions/commit", body).code == 204
    pairs.create_table("a.new", {"id": "bigint"})
    body = {"table-changes": [absent, widened("right_0")]}
    assert http_client("POST", "/v1/latest/transactions/commit", body).code == 409
    assert widths(pairs, "left_0", "right_0") == [2, 1]
