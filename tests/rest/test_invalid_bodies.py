"""The response to an invalid body is 400, with a message that names the field and the rule in words of JSON and
Iceberg.

Errors that libraries raised for a body were 500, such as `StopIteration` of PyIceberg for a table without a schema. The
number 1e999 in a report made the list of reports invalid JSON. Messages had the texts of Python: "maximum recursion
depth exceeded while calling a Python object", "Can't instantiate abstract class BooleanExpression", "'NoneType' object
has no attribute 'items'", or no reason at all.
"""

from __future__ import annotations

import copy
import json
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, VIEW_VERSION, with_tables
from trinitylake.rest.errors import RestError, client_faults
from trinitylake.rest.http.routes import CATALOG, OTHERS, PAGE, without_prefix

DEEP = os.environ.get("TRINITYLAKE_DEEP")
TABLE = "/v1/namespaces/shop/tables/orders"
VIEW = "/v1/namespaces/shop/views/v"
NAME = {"namespace": ["shop"], "name": "orders"}
SPEC_FIELD = {"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}
SPEC = {"spec-id": 1, "fields": [SPEC_FIELD]}
ORDER_FIELD = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
ORDER = {"order-id": 1, "fields": [ORDER_FIELD]}
STATISTICS = {
    "snapshot-id": 1,
    "statistics-path": "x",
    "file-size-in-bytes": 1,
    "file-footer-size-in-bytes": 1,
    "blob-metadata": [],
}
SNAPSHOT = {
    "snapshot-id": 77,
    "sequence-number": 9,
    "timestamp-ms": 1,
    "manifest-list": "x",
    "summary": {"operation": "append"},
}
EQUALS = {"type": "eq", "term": "id", "value": 1}
FILTERS: list[Any] = [
    {"type": "and", "left": EQUALS, "right": {"type": "in", "term": "id", "values": [1]}},
    {"type": "not", "child": {"type": "is-null", "term": "id"}},
    {"type": "eq", "left": {"type": "reference", "name": "id"}, "right": {"type": "literal", "value": 1}},
]
UPDATES: list[dict[str, Any]] = [
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "add-schema", "schema": COLUMNS, "last-column-id": 1},
    {"action": "set-current-schema", "schema-id": 0},
    {"action": "add-spec", "spec": SPEC},
    {"action": "add-sort-order", "sort-order": ORDER},
    {"action": "add-snapshot", "snapshot": SNAPSHOT},
    {"action": "set-snapshot-ref", "ref-name": "b", "type": "branch", "snapshot-id": 77},
    {"action": "remove-snapshots", "snapshot-ids": [5]},
    {"action": "set-statistics", "snapshot-id": 1, "statistics": STATISTICS},
    {"action": "assign-uuid", "uuid": "5df8cc25-67fd-4b9f-89b6-7b6d1e2d24c8"},
]
ODD_UPDATES: list[dict[str, Any]] = [
    {},
    {"action": "x"},
    {"action": "add-schema", "schema": {"type": "struct", "fields": [{**COLUMNS["fields"][0], "type": "x"}]}},
    {"action": "add-spec", "spec": {"spec-id": 1, "fields": [{**SPEC_FIELD, "transform": "bucket[0]"}]}},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "set-default-spec", "spec-id": 9},
    {"action": "set-default-sort-order", "sort-order-id": 9},
    *({"action": "upgrade-format-version", "format-version": version} for version in (1, 9)),
    {"action": "assign-uuid", "uuid": "x"},
    {"action": "remove-schemas", "schema-ids": [0]},
    {"action": "remove-partition-specs", "spec-ids": [0]},
    {"action": "set-statistics", "snapshot-id": 1, "statistics": {**STATISTICS, "statistics-path": "/etc/passwd"}},
    {"action": "set-current-view-version", "view-version-id": -1},
]
REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4},
    {"type": "assert-current-schema-id", "current-schema-id": 5},
]
#: Valid bodies by path, for all routes that may have a body.
BODIES: dict[str, list[Any]] = {
    f"{TABLE}/unregister": [],
    "/ingest/shop/orders": [],
    "/trinitylake/v1/page/latest/totals": [{"tables": [["shop", "orders"]]}],
    f"{TABLE}/sign": [],
    "/trinitylake/v1/transactions/i/commit": [],
    "/trinitylake/v1/transactions/i/rollback": [],
    "/trinitylake/v1/page/maintenance": [],
    "/v1/namespaces/shop/register-view": [{"name": "new", "metadata-location": "x"}],
    "/v1/views/rename": [{"source": {**NAME, "name": "v"}, "destination": {**NAME, "name": "w"}}],
    TABLE: [{"requirements": REQUIREMENTS, "updates": [update]} for update in UPDATES],
    "/v1/namespaces/shop/tables": [
        {"name": "new", "schema": COLUMNS, "partition-spec": SPEC, "write-order": ORDER, "stage-create": True}
    ],
    "/v1/namespaces/shop/register": [{"name": "new", "metadata-location": "x", "overwrite": True}],
    "/v1/tables/rename": [{"source": NAME, "destination": NAME}],
    "/v1/transactions/commit": [{"table-changes": [{"identifier": NAME, "requirements": [], "updates": UPDATES[:1]}]}],
    "/v1/namespaces": [{"namespace": ["new"], "properties": {"a": "b"}}],
    "/v1/namespaces/shop/properties": [{"removals": ["a"], "updates": {"b": "c"}}],
    "/v1/namespaces/shop/views": [
        {"name": "new", "schema": COLUMNS, "view-version": VIEW_VERSION, "properties": {"a": "b"}}
    ],
    VIEW: [
        {
            "requirements": [{"type": "assert-view-uuid", "uuid": "5df8cc25-67fd-4b9f-89b6-7b6d1e2d24c8"}],
            "updates": [{"action": "add-view-version", "view-version": VIEW_VERSION}],
        }
    ],
    f"{TABLE}/plan": [{"select": ["id"], "filter": filter, "case-sensitive": True} for filter in FILTERS],
    f"{TABLE}/tasks": [{"plan-task": "x"}],
    f"{TABLE}/metrics": [{"report-type": "scan-report"}],
    "/trinitylake/v1/transactions": [{"id": "", "isolation": "serializable", "properties": {"a": "b"}}],
    "/trinitylake/v1/page/latest/sql": [{"query": "SELECT 1"}],
}
#: Bodies of valid JSON that no route accepts, or only some routes.
ODD: list[Any] = [
    *({"updates": [update]} for update in ODD_UPDATES),
    *({"name": name, "schema": COLUMNS} for name in ("", ".", "..", "a\0b", "x" * 9999)),
    {"name": "q", "schema": {**COLUMNS, "fields": [*COLUMNS["fields"], *COLUMNS["fields"]]}},
    {"name": "q", "schema": COLUMNS, "partition-spec": {"spec-id": 0, "fields": [{**SPEC_FIELD, "source-id": 77}]}},
    {"name": "q", "schema": COLUMNS, "write-order": {"order-id": 1, "fields": [{**ORDER_FIELD, "source-id": 77}]}},
    *({"name": "q", "schema": COLUMNS, "properties": {"format-version": text}} for text in ("99", "x", "")),
    {"name": "w", "schema": COLUMNS, "view-version": {**VIEW_VERSION, "default-namespace": ["a.b", ""]}},
    {"requirements": [{"type": "x"}], "updates": []},
    {"requirements": [{"type": "assert-create"}], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]},
    {"namespace": ["a"] * 5000},
    {"metadata-location": "x", "name": "r"},
    {"id": "bad id!"},
]
WRONG: list[Any] = [None, -1, "bad", [], {"a": 1}]
NOT_JSON = [
    b"",
    b"nul",
    b'{"a" 1}',
    b'{"a": NaN}',
    b'{"a": 1e999}',
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b"\xff",
    b'{"a": 1, "a": 1}',
    *(b'{"a": "%s"}' % half for half in (b"\\ud800", b"\\uDFFF", b"a\\udc00\\ud800")),
    *(b'{"a": %s}' % number for number in (b"-1e999", b"Infinity", b"-Infinity", b"9223372036854775808", b"9" * 5000)),
    *('{"namespace": ["a"]}'.encode(encoding) for encoding in ("utf-16", "utf-32", "utf-16-le", "utf-8-sig")),
]
#: Words of Python and of Python libraries, which must not be in a message.
PYTHON = re.compile(
    r"object has no|None|True|False|recursion|codec|abstract|positional|argument|iterable|subscriptable|hashable|"
    r"instance|dictionary|\bdict\b|tuple|Input should|Value error|__|[a-z]Error\b|Exception\b|<class|\(\)|pydantic"
)


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield (*path, key)
            yield from paths(value, (*path, key))


def mutants(body: Any) -> Iterator[Any]:
    """Copies of the body, in each of which one value is removed or replaced by a value of another type. Deep runs have
    all copies, others a third of them."""
    yield from WRONG
    for index, path in enumerate(paths(body)):
        for number in range(0 if DEEP else index % 3, len(WRONG) + 1, 1 if DEEP else 3):
            mutant = copy.deepcopy(body)
            parent = mutant
            for key in path[:-1]:
                parent = parent[key]
            if number < len(WRONG):
                parent[path[-1]] = WRONG[number]
            else:
                del parent[path[-1]]
            yield mutant


def test_bodies_of_every_route_are_tested() -> None:
    names = {"{namespace}": "shop", "{table}": "orders", "{view}": "v", "{id}": "i", "{prefix}": "latest"}
    for endpoint in (*map(without_prefix, CATALOG), *OTHERS, *PAGE):
        path = endpoint.path
        for name, value in names.items():
            path = path.replace(name, value)
        assert endpoint.method != "POST" or path in BODIES, path


@pytest.mark.parametrize("path", BODIES)
def test_no_message_about_a_body_contains_words_of_python(http_client: Client, lake: tl.Lakehouse, path: str) -> None:
    with_tables(lake, "shop.orders").create_view("shop.v", "SELECT 1")
    bodies = [*NOT_JSON, *ODD, *(mutant for body in BODIES[path] for mutant in mutants(body))]
    n_refused = 0
    for body in bodies:
        answer = http_client("POST", path, body)
        assert answer.code < 500, (body, answer)
        assert answer.code >= 400 or body not in NOT_JSON or not BODIES[path], body
        if answer.code >= 400:
            n_refused += 1
            message = answer.body["error"]["message"]
            assert re.search(r"[^: ]$", message), body
            assert not PYTHON.search(message), (body, message)
    assert n_refused > len(NOT_JSON) or not BODIES[path]
    if "rename" not in path:
        assert lake.table("shop.orders").schema.columns[0].name == "id"
        assert lake.view("shop.v").sql == "SELECT 1"


MESSAGES: list[tuple[str, Any, str]] = [
    (TABLE, {"updates": [{"action": "set-properties", "updates": None}]}, "updates.0.updates must not be null"),
    (TABLE, {"updates": [{"action": "x"}]}, "updates.0 has an unknown 'action'"),
    (TABLE, {"updates": [{**UPDATES[7], "type": "x"}]}, "type must be 'tag' or 'branch'"),
    ("/v1/namespaces", {"namespace": 1}, "namespace must be a list"),
    ("/v1/namespaces", b'{"namespace": ["a"], "namespace": ["b"]}', "an object has the key 'namespace' twice"),
    ("/v1/namespaces", b"[" * 20_000, "it has too many levels"),
    (f"{TABLE}/plan", {"filter": {}}, "filter is invalid: a predicate must be true, false or an object"),
    (f"{TABLE}/plan", {"filter": {"type": "in", "term": "id", "values": 1}}, "the values of 'in' must be a list"),
]


def test_a_message_names_the_field_and_the_rule(http_client: Client, lake: tl.Lakehouse) -> None:
    with_tables(lake, "shop.orders")
    for path, body, message in MESSAGES:
        answer = http_client("POST", path, body)
        assert (answer.code, message in answer.body["error"]["message"]) == (400, True), (message, answer)


def test_numbers_of_json_are_kept(http_client: Client, lake: tl.Lakehouse) -> None:
    with_tables(lake, "shop.orders")
    numbers = [0, -(2**63), 2**63 - 1, 1.5, -1e300]
    for number in numbers:
        assert http_client("POST", f"{TABLE}/metrics", {"report-type": "x", "v": number}).code == 204
    reports = http_client("GET", "/trinitylake/v1/metrics").body["reports"]
    assert [kept["report"]["v"] for kept in reports] == numbers


def test_both_halves_of_a_surrogate_pair_are_a_character(http_client: Client, lake: tl.Lakehouse) -> None:
    with_tables(lake, "shop.orders")
    change = {"updates": [{"action": "set-properties", "updates": {"q": "\U0001f600", "p": "é"}}]}
    assert "\\ud83d\\ude00" in json.dumps(change)
    for body in (change, json.dumps(change, ensure_ascii=False).encode()):
        assert (
            http_client("POST", TABLE, body).body["metadata"]["properties"].items()
            >= {"q": "\U0001f600", "p": "é"}.items()
        )


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


def test_an_incomplete_creation_is_refused(lake: tl.Lakehouse, http_client: Client) -> None:
    with_tables(lake, "shop.orders")
    reasons = "has no schema|has no partition spec|unknown snapshot|does not exist"
    for what, updates in CREATIONS.items():
        change = {"requirements": [{"type": "assert-create"}], "updates": updates}
        answer = http_client("POST", "/v1/namespaces/shop/tables/new", change)
        assert answer.code in (400, 409), (what, answer)
        assert re.search(reasons, answer.body["error"]["message"]), (what, answer)
        several = {"table-changes": [{"identifier": {"namespace": ["shop"], "name": "new"}, **change}]}
        assert http_client("POST", "/v1/transactions/commit", several).code in (400, 409), what
        assert not lake.exists("shop.new"), what


TYPES: dict[str, Any] = {
    "fixed of no length": {"type": "list", "element-id": 3, "element": "fixed[0]", "element-required": False},
    "decimal of too many digits": "decimal(99, 2)",
    "decimal with more places than digits": "decimal(2, 5)",
    "no type": None,
    "a number": 5,
    "a list of nothing": {"type": "list"},
    "an unheard-of type": "geometry9(x",
}


def test_an_invalid_type_is_refused(lake: tl.Lakehouse, http_client: Client) -> None:
    with_tables(lake, "shop.orders")
    for what, type in TYPES.items():
        field = {"id": 1, "name": "d", "required": False, "type": type}
        body = {"name": "new", "schema": {"type": "struct", "schema-id": 0, "fields": [field]}}
        for staged in (False, True):
            answer = http_client("POST", "/v1/namespaces/shop/tables", {**body, "stage-create": staged})
            assert (answer.code, answer.error) == (400, "BadRequestException"), (what, answer)


@pytest.mark.parametrize("kind", [StopIteration, KeyError, OverflowError, IndexError, AssertionError, RuntimeError])
def test_an_error_of_any_library_is_a_bad_request(kind: type[Exception]) -> None:
    with pytest.raises(RestError) as caught, client_faults("the body"):
        raise kind("x")
    assert caught.value.code == 400
    with pytest.raises(RestError, match="the body is invalid: a field is missing"), client_faults("the body"):
        raise kind()


@pytest.mark.parametrize("kind", [tl.StorageError, tl.CommitConflict, OSError, MemoryError])
def test_an_error_that_is_not_the_fault_of_the_client_is_not_changed(kind: type[Exception]) -> None:
    with pytest.raises(kind), client_faults("the body"):
        raise kind("x")


def test_clients_cannot_set_the_librarys_own_properties(http_client: Client, lake: tl.Lakehouse) -> None:
    """A client cannot set properties that are reserved for the library, such as the last batch of a stream's sink. It
    may send a present value again, as clients do that replace a table."""
    lake.create_namespace("shop")
    lake.create_table("shop.orders", {"id": "bigint"})
    own = "trinitylake.spark.last-batch.q"

    def commit(*updates: dict[str, Any]) -> int:
        return http_client("POST", TABLE, {"requirements": [], "updates": list(updates)}).code

    def set_to(value: str) -> dict[str, Any]:
        return {"action": "set-properties", "updates": {own: value, "color": value}}

    assert commit(set_to("99")) == 400
    assert commit({"action": "set-properties", "updates": {"color": "red"}}) == 200
    assert commit({"action": "remove-properties", "removals": [own]}) == 400
    change = {"identifier": {"namespace": ["shop"], "name": "orders"}, "requirements": [], "updates": [set_to("1")]}
    assert http_client("POST", "/v1/transactions/commit", {"table-changes": [change]}).code == 400
    body = {"name": "new", "schema": COLUMNS, "properties": {own: "1"}}
    assert http_client("POST", "/v1/namespaces/shop/tables", body).code == 400
    assert http_client("POST", "/v1/namespaces/shop/tables", {**body, "stage-create": True}).code == 400
    assert lake.table("shop.orders").properties.get("color") == "red"
