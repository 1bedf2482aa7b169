"""Endpoints of transactions: the specification's commit to several tables, and open transactions, an extension.

`/trinitylake/v1/transactions` begins, lists, describes, commits and rolls back. Statements in an open transaction use
the ordinary endpoints with the prefix of its warehouse `@txn/<id>`. `transactions/ownership.py` decides about access.
"""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.iceberg.bound_catalog import names_checked
from trinitylake.iceberg_storage.errors import pyiceberg_errors
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.lakehouse.transactions import SavedTransaction
from trinitylake.rest.catalog.warehouses import transaction_prefix
from trinitylake.rest.errors import bad_request, too_large
from trinitylake.rest.handlers.table_changes import TableChange, stage
from trinitylake.rest.request.call import REQUEST_ID_PREFIX, RESERVED_PROPERTY_PREFIX, Call, json_response, no_content
from trinitylake.rest.security.authorization import forbidden
from trinitylake.rest.transactions.ownership import Ownership

#: Maximum size of a request that begins a transaction.
MAX_BEGIN_SIZE_BYTES = 64 << 10


class CommitTransaction(BaseModel):
    """Body of `commit_tables`."""

    table_changes: list[TableChange] = Field(alias="table-changes")


class Begin(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    isolation: str | None = None
    message: str = ""
    author: str = ""
    properties: dict[str, str] = Field(default_factory=dict)
    restart: bool = False
    """Discard a transaction with this id that was not committed, and begin again."""
    shared_with: list[str] = Field(alias="shared-with", default_factory=list)
    """Principals that may use the transaction, but not commit it or roll it back."""


def changed_tables(call: Call) -> list[tuple[str, ...]]:
    """The full names of the tables that a commit over several tables changes."""
    return [change.full_name for change in call.parsed(CommitTransaction).table_changes]


def commit_tables(call: Call) -> Response:
    """Commit to several tables in one version of the lakehouse."""
    body = call.parsed(CommitTransaction)
    with call.catalog() as catalog, pyiceberg_errors(missing=NoSuchTableError), names_checked(NoSuchTableError):
        gate = call.locations(catalog)
        changes = [change.model_copy(update={"updates": gate.kept(change.updates)}) for change in body.table_changes]
        catalog.write(lambda transaction: stage(transaction, changes, gate, call.incoming_files, len(call.body)))
    return no_content()


def begin(call: Call) -> Response:
    return json_response(_described(begin_transaction(call, call.parsed(Begin))), 201)


def begin_transaction(call: Call, body: Begin) -> Transaction:
    """Begin a transaction of the principal.

    Raises `RestError` 403 for a principal that is not a writer of any object, 413 for a request above 64 KiB, and 400
    for an id in a reserved form: that of requests with an `Idempotency-Key`, or of ids that the library chooses.
    """
    if not call.principal.may_write_somewhere():
        raise forbidden(f"{call.principal.name} is not a writer of any object")
    if len(call.body) > MAX_BEGIN_SIZE_BYTES:
        message = f"a request that begins a transaction has at most {MAX_BEGIN_SIZE_BYTES} bytes"
        raise too_large(message)
    if body.id is not None and body.id.startswith(REQUEST_ID_PREFIX):
        raise bad_request(
            f"ids that start with {REQUEST_ID_PREFIX!r} are reserved for requests with an Idempotency-Key"
        )
    if body.id is not None and _is_of_the_library(body.id):
        raise bad_request(f"{body.id!r} has the form of ids that the library chooses: send it without hyphens")
    if reserved := [name for name in body.properties if name.startswith(RESERVED_PROPERTY_PREFIX)]:
        raise bad_request(
            f"properties that start with {RESERVED_PROPERTY_PREFIX!r} are reserved for the server: {reserved}"
        )
    transaction = call.service.transactions.begin(
        owner=call.principal.name,
        isolation=body.isolation,
        message=body.message,
        author=body.author or call.principal.name,
        id=body.id,
        properties={**body.properties, **call.commit.properties},
        shared_with=body.shared_with,
        restart=body.restart,
    )
    call.commit.transaction_id = transaction.id
    return transaction


def _is_of_the_library(id: str) -> bool:
    """Whether an id is a UUID of version 4, as the library chooses."""
    try:
        return str(uuid.UUID(id)) == id and uuid.UUID(id).version == 4
    except ValueError:
        return False


def list_all(call: Call) -> Response:
    """List the open transactions of this server and the saved ones that the principal may use."""
    return json_response(
        {
            "open": [_described(one) for one in call.service.transactions.list(call.principal)],
            "saved": [
                {"id": one.id, "warehouse": f"@txn/{one.id}", "base-version": one.base_version} for one in saved(call)
            ],
        }
    )


def visible_ids(call: Call) -> list[str]:
    """The ids of the transactions of `list_all`."""
    here = [one.id for one in call.service.transactions.list(call.principal)]
    return sorted([*here, *(one.id for one in saved(call))])


def load(call: Call) -> Response:
    """Describe an open transaction."""
    return json_response(described_of(call, call.name("id")))


def described_of(call: Call, id: str) -> dict[str, Any]:
    """Description of an open transaction. Raises as `OpenTransactions.borrowed`."""
    with call.service.transactions.borrowed(id, call.principal) as transaction:
        return _described(transaction)


def commit(call: Call) -> Response:
    """Commit, and return the version. For a committed transaction, return the same version again."""
    id = call.name("id")
    return json_response({"id": id, "version": commit_transaction(call, id)})


def commit_transaction(call: Call, id: str) -> int:
    """Commit, and return the version. Raises as `OpenTransactions.commit`."""
    call.commit.transaction_id = id
    call.commit.version = call.service.transactions.commit(id, call.principal)
    return call.commit.version


def rollback(call: Call) -> Response:
    rollback_transaction(call, call.name("id"))
    return no_content()


def rollback_transaction(call: Call, id: str) -> None:
    """Roll back. Raises as `OpenTransactions.rollback`."""
    call.commit.transaction_id = id
    call.service.transactions.rollback(id, call.principal)


def saved(call: Call) -> list[SavedTransaction]:
    """The saved transactions that the principal may use, without those that are open in this server."""
    known = {one.id for one in call.service.transactions.list(call.principal)}
    return [
        one
        for one in call.service.lake.transactions.list()
        if one.id not in known and Ownership.of(one.properties).may_work(call.principal)
    ]


def _described(transaction: Transaction) -> dict[str, Any]:
    return {
        "id": transaction.id,
        "isolation": transaction.isolation,
        "base-version": transaction.base_version,
        "warehouse": f"@txn/{transaction.id}",
        "prefix": transaction_prefix(transaction.id),
    }
