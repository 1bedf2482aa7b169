"""Errors about a body name the field and the rule, in words of JSON and Iceberg.

Clients got the texts of Python: "maximum recursion depth exceeded while calling a Python object", "Can't instantiate
abstract class BooleanExpression", "'NoneType' object has no attribute 'items'", or no reason at all.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

import trinitylake as tl
from rest.client import Client
from rest.shop import COLUMNS, VIEW_VERSION, with_tables

TABLE = "/v1/namespaces/shop/tables/orders"
VIEW = "/v1/namespaces/shop/views/v"
NAME = {"namespace": ["shop"], "name": "orders"}
SPEC = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]}
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
REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 4},
    {"type": "assert-current-schema-id", "current-schema-id": 5},
]
#: Bodies in the right form by path.
BODIES: dict[str, list[Any]] = {
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
    b'"\\ud800"',
    b"9" * 5000,
]
#: Words of Python and of its libraries.
PYTHON = re.compile(
    r"object has no|None|True|False|recursion|codec|abstract|positional|argument|iterable|subscriptable|hashable|"
    r"instance|dictionary|\bdict\b|tuple|Input should|Value error|__|[a-z]Error\b|Exception\b|<class|\(\)|pydantic"
)


def paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values in a document are."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield (*path, key)
            yield from paths(value, (*path, key))


def mutants(body: Any) -> Iterator[Any]:
    """The body, with each value removed or replaced by one of another type."""
    yield from WRONG
    for path in paths(body):
        for number in range(len(WRONG) + 1):
            mutant = copy.deepcopy(body)
            parent = mutant
            for key in path[:-1]:
                parent = parent[key]
            if number < len(WRONG):
                parent[path[-1]] = WRONG[number]
            else:
                del parent[path[-1]]
            yield mutant


@pytest.mark.parametrize("path", BODIES)
def test_no_message_about_a_body_contains_words_of_python(http_client: Client, lake: tl.Lakehouse, path: str) -> None:
    with_tables(lake, "shop.orders").create_view("shop.v", "SELECT 1")
    bodies = [*NOT_JSON, *(mutant for body in BODIES[path] for mutant in mutants(body))]
    n_refused = 0
    for body in bodies:
        answer = http_client("POST", path, body)
        assert answer.code < 500, (body, answer)
        if answer.code >= 400:
            n_refused += 1
            message = answer.body["error"]["message"]
            assert re.search(r"[^: ]$", message), body
            assert not PYTHON.search(message), (body, message)
    assert n_refused > len(NOT_JSON)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (TABLE, {"updates": [{"action": "set-properties", "updates": None}]}, "updates.0.updates must not be null"),
        (TABLE, {"updates": [{"action": "x"}]}, "updates.0 has an unknown 'action'"),
        (TABLE, {"updates": [{**UPDATES[7], "type": "x"}]}, "type must be 'tag' or 'branch'"),
        ("/v1/namespaces", {"namespace": 1}, "namespace must be a list"),
        ("/v1/namespaces", b'{"namespace": ["a"], "namespace": ["b"]}', "an object has the key 'namespace' twice"),
        ("/v1/namespaces", b"[" * 20_000, "it has too many levels"),
        (f"{TABLE}/plan", {"filter": {}}, "filter is invalid: a predicate must be true, false or an object"),
        (f"{TABLE}/plan", {"filter": {"type": "in", "term": "id", "values": 1}}, "the values of 'in' must be a list"),
    ],
)
def test_a_message_names_the_field_and_the_rule(
    http_client: Client, lake: tl.Lakehouse, path: str, body: Any, message: str
) -> None:
    with_tables(lake, "shop.orders")
    answer = http_client("POST", path, body)
    assert answer.code == 400
    assert message in answer.body["error"]["message"]
