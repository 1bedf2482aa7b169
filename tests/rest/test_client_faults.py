"""An exception of a library for the input of a client is 400, not 500.

PyIceberg raised `StopIteration` for the creation of a table without a schema, pyarrow its own error for a fixed length
of zero, and PyJWT `OverflowError` for a token that expires in 10^400 seconds. Each was a 500 with a traceback in the
log.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, with_tables
from trinitylake.rest.errors import RestError, client_faults

SCHEMA = {"action": "add-schema", "schema": COLUMNS, "last-column-id": 1}
CREATIONS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "an id": [{"action": "assign-uuid", "uuid": str(uuid.UUID(int=5))}],
    "properties": [{"action": "set-properties", "updates": {"a": "b"}}],
    "a schema": [SCHEMA],
    "a schema that is the current one": [SCHEMA, {"action": "set-current-schema", "schema-id": -1}],
    "a current schema that is not there": [{"action": "set-current-schema", "schema-id": 3}],
    "a branch of nothing": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5}],
}


@pytest.mark.parametrize("what", CREATIONS)
def test_creation_that_lacks_something_is_refused(lake: tl.Lakehouse, http_client: Client, what: str) -> None:
    with_tables(lake, "shop.orders")
    change = {"requirements": [{"type": "assert-create"}], "updates": CREATIONS[what]}
    answer = http_client("POST", "/v1/namespaces/shop/tables/new", change)
    assert answer.code in (400, 409), answer
    assert re.search(
        "has no schema|has no partition spec|unknown snapshot|does not exist", answer.body["error"]["message"]
    ), answer
    several = {"table-changes": [{"identifier": {"namespace": ["shop"], "name": "new"}, **change}]}
    assert http_client("POST", "/v1/transactions/commit", several).code in (400, 409)
    assert not lake.exists("shop.new")


TYPES: dict[str, Any] = {
    "fixed of no length": {"type": "list", "element-id": 3, "element": "fixed[0]", "element-required": False},
    "decimal of too many digits": "decimal(99, 2)",
    "decimal with more places than digits": "decimal(2, 5)",
    "no type": None,
    "a number": 5,
    "a list of nothing": {"type": "list"},
    "an unheard-of type": "geometry9(x",
}


@pytest.mark.parametrize("what", TYPES)
def test_type_that_nobody_can_have_is_refused(lake: tl.Lakehouse, http_client: Client, what: str) -> None:
    with_tables(lake, "shop.orders")
    field = {"id": 1, "name": "d", "required": False, "type": TYPES[what]}
    body = {"name": "new", "schema": {"type": "struct", "schema-id": 0, "fields": [field]}}
    for staged in (False, True):
        answer = http_client("POST", "/v1/namespaces/shop/tables", {**body, "stage-create": staged})
        assert (answer.code, answer.error) == (400, "BadRequestException"), answer


@pytest.mark.parametrize("kind", [StopIteration, KeyError, OverflowError, IndexError, AssertionError, RuntimeError])
def test_error_of_any_library_is_a_bad_request(kind: type[Exception]) -> None:
    with pytest.raises(RestError) as caught, client_faults("the body"):
        raise kind("x")
    assert caught.value.code == 400
    with pytest.raises(RestError, match="the body is invalid: a field is missing"), client_faults("the body"):
        raise kind()


@pytest.mark.parametrize("kind", [tl.StorageError, tl.CommitConflict, OSError, MemoryError])
def test_error_that_is_not_the_client_s_fault_stays(kind: type[Exception]) -> None:
    with pytest.raises(kind), client_faults("the body"):
        raise kind("x")
