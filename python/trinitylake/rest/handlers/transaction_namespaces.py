"""Transactions for clients that have nothing but SQL: the namespace `sys.transactions`, which only the server has.

| statement                                              | does      |
|--------------------------------------------------------|-----------|
| `CREATE NAMESPACE sys.transactions.nightly`            | begins    |
| `ALTER NAMESPACE … SET PROPERTIES ('commit' = 'true')` | commits   |
| `DROP NAMESPACE …`                                     | rolls back |
| `SHOW NAMESPACES IN sys.transactions`                  | lists     |
| `DESCRIBE NAMESPACE …`                                 | tells what it is |

To work in it, attach the catalog once more with the warehouse `@txn/nightly`. It is there for clients of the latest
version. It is listed only by those who ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import Response

from trinitylake.errors import ObjectNotFound, TransactionClosed
from trinitylake.rest.catalog.addresses import LATEST
from trinitylake.rest.errors import bad_request
from trinitylake.rest.handlers import transactions
from trinitylake.rest.request.call import RESERVED_NAMESPACE, Call, json_response, no_content

PARENT = RESERVED_NAMESPACE
_BEGIN = ("isolation", "message", "author")
#: Who else may work in it: their names, with commas between.
_SHARED = "shared-with"


def is_reserved(call: Call, namespace: tuple[str, ...]) -> bool:
    """Whether a namespace is one of these, for this client."""
    return call.is_reserved(namespace)


def children(call: Call, parent: tuple[str, ...]) -> list[tuple[str, ...]] | None:
    """Those below a namespace; None if that is none of these."""
    if call.prefix != LATEST or parent[: len(PARENT)] != PARENT:
        return None
    return [(*PARENT, id) for id in transactions.visible_ids(call)] if parent == PARENT else []


def create(call: Call, namespace: tuple[str, ...], properties: dict[str, str]) -> Response:
    """Begin. The properties are `isolation`, `message`, `author` and `shared-with`; others are kept in the commit."""
    options = {name: properties[name] for name in _BEGIN if name in properties}
    # What SQL engines add of themselves to every namespace is not for the log.
    left_out = (*_BEGIN, _SHARED, "owner", "location", "comment")
    kept = {name: value for name, value in properties.items() if name not in left_out}
    shared = [name.strip() for name in properties.get(_SHARED, "").split(",") if name.strip()]
    body = transactions.Begin.model_validate({"id": _id(namespace), "properties": kept, _SHARED: shared, **options})
    transactions.begin_transaction(call, body)
    return json_response({"namespace": namespace, "properties": properties})


def load(call: Call, namespace: tuple[str, ...]) -> Response:
    """What the transaction is, as properties."""
    if namespace == PARENT:
        return json_response({"namespace": namespace, "properties": {}})
    with _ended_is_absent():
        described = transactions.described_of(call, _id(namespace))
    return json_response({"namespace": namespace, "properties": {key: str(value) for key, value in described.items()}})


def update(call: Call, namespace: tuple[str, ...], updates: dict[str, str], removals: list[str]) -> Response:
    """Commit, if `commit` is set to true; nothing else can be changed."""
    if removals or {name: value.lower() for name, value in updates.items()} != {"commit": "true"}:
        raise bad_request("of a transaction only the property commit can be set, and only to true")
    transactions.commit_transaction(call, _id(namespace))
    return json_response({"updated": ["commit"], "removed": [], "missing": []})


def drop(call: Call, namespace: tuple[str, ...]) -> Response:
    """Roll back; one that was committed is gone already."""
    with _ended_is_absent():
        transactions.rollback_transaction(call, _id(namespace))
    return no_content()


@contextmanager
def _ended_is_absent() -> Iterator[None]:
    """As a namespace a transaction that has ended is not there (404); as a catalog it is gone (410), and says how."""
    try:
        yield
    except TransactionClosed as error:
        raise ObjectNotFound(str(error)) from error


def _id(namespace: tuple[str, ...]) -> str:
    if len(namespace) != len(PARENT) + 1:
        raise bad_request(f"a transaction is {'.'.join(PARENT)}.<id>, not {'.'.join(namespace)}")
    return namespace[-1]
