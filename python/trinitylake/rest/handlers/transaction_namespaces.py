"""Open transactions as namespaces in `sys.transactions`, for clients that only have SQL.

| statement                                              | effect    |
|--------------------------------------------------------|-----------|
| `CREATE NAMESPACE sys.transactions.nightly`            | begins    |
| `ALTER NAMESPACE … SET PROPERTIES ('commit' = 'true')` | commits   |
| `DROP NAMESPACE …`                                     | rolls back |
| `SHOW NAMESPACES IN sys.transactions`                  | lists     |
| `DESCRIBE NAMESPACE …`                                 | describes |

To use a transaction, attach the catalog again with the warehouse `@txn/nightly`. `sys.transactions` exists only for
clients of the latest version, and lists of its parent `sys` do not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.responses import Response

from trinitylake.errors import ObjectNotFound, TransactionClosed
from trinitylake.rest.errors import bad_request
from trinitylake.rest.handlers import transactions
from trinitylake.rest.request.call import RESERVED_NAMESPACE, Call, json_response, no_content

PARENT = RESERVED_NAMESPACE
_BEGIN = ("isolation", "message", "author")
#: Property with the names of principals that may use the transaction, separated by commas.
_SHARED = "shared-with"


def children(call: Call, parent: tuple[str, ...]) -> list[tuple[str, ...]] | None:
    """The transactions below a namespace; None for a namespace of the lakehouse."""
    if not call.is_reserved(parent):
        return None
    return [(*PARENT, id) for id in transactions.visible_ids(call)] if parent == PARENT else []


def create(call: Call, namespace: tuple[str, ...], properties: dict[str, str]) -> Response:
    """Begin a transaction. Properties other than options (`_BEGIN`, `_SHARED`) become commit info."""
    options = {name: properties[name] for name in _BEGIN if name in properties}
    # SQL engines add some properties to every namespace.
    left_out = (*_BEGIN, _SHARED, "owner", "location", "comment")
    kept = {name: value for name, value in properties.items() if name not in left_out}
    shared = [name.strip() for name in properties.get(_SHARED, "").split(",") if name.strip()]
    body = transactions.Begin.model_validate({"id": _id(namespace), "properties": kept, _SHARED: shared, **options})
    transactions.begin_transaction(call, body)
    return json_response({"namespace": namespace, "properties": properties})


def load(call: Call, namespace: tuple[str, ...]) -> Response:
    """Describe a transaction in properties."""
    if namespace == PARENT:
        return json_response({"namespace": namespace, "properties": {}})
    with _ended_is_absent():
        described = transactions.described_of(call, _id(namespace))
    return json_response({"namespace": namespace, "properties": {key: str(value) for key, value in described.items()}})


def update(call: Call, namespace: tuple[str, ...], updates: dict[str, str], removals: list[str]) -> Response:
    """Commit, if the property `commit` is set to true."""
    if removals or {name: value.lower() for name, value in updates.items()} != {"commit": "true"}:
        raise bad_request("of a transaction only the property commit can be set, to true, which commits it")
    transactions.commit_transaction(call, _id(namespace))
    return json_response({"updated": ["commit"], "removed": [], "missing": []})


def drop(call: Call, namespace: tuple[str, ...]) -> Response:
    with _ended_is_absent():
        transactions.rollback_transaction(call, _id(namespace))
    return no_content()


@contextmanager
def _ended_is_absent() -> Iterator[None]:
    """Raise `ObjectNotFound` for an ended transaction: as a namespace it does not exist."""
    try:
        yield
    except TransactionClosed as error:
        raise ObjectNotFound(str(error)) from error


def _id(namespace: tuple[str, ...]) -> str:
    if len(namespace) != len(PARENT) + 1:
        raise bad_request(f"{'.'.join(namespace)} names no transaction: the name must be {'.'.join(PARENT)}.<id>")
    return namespace[-1]
