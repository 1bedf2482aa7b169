"""Transactions over HTTP: the commit over several tables of the specification, and this project's open transactions.

The extension lives below `/trinitylake/v1/transactions`: begin, list, look at, commit, roll back. What happens in an
open transaction goes through the ordinary routes, with the prefix that its warehouse `@txn/<id>` leads to. Whose it is,
and who may work in it, is decided in one place for all routes (`state/ownership.py`).
"""

from __future__ import annotations

import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.iceberg.bound_catalog import names_checked
from trinitylake.iceberg_storage.catalog_errors import translated
from trinitylake.lakehouse.history import SavedTransaction
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.catalog.addresses import transaction_prefix
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.handlers.table_changes import TableChange, stage
from trinitylake.rest.request.call import (
    REQUEST_ID_PREFIX,
    RESERVED_PROPERTY_PREFIX,
    Call,
    json_response,
    no_content,
)
from trinitylake.rest.security.principals import forbidden
from trinitylake.rest.transactions.ownership import Ownership

#: What a transaction begins with, its properties above all.
MAX_BEGIN_SIZE_BYTES = 64 << 10


class CommitTransaction(BaseModel):
    """The body of `commit_tables`."""

    table_changes: list[TableChange] = Field(alias="table-changes")


class Begin(BaseModel):
    """The body of `begin`."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    isolation: str | None = None
    message: str = ""
    author: str = ""
    properties: dict[str, str] = Field(default_factory=dict)
    shared_with: list[str] = Field(alias="shared-with", default_factory=list)
    """Principals who may work in it, too, and not end it."""


def changed_tables(call: Call) -> list[tuple[str, ...]]:
    """The full names of the tables that a commit over several tables changes."""
    return [change.full_name for change in call.parsed(CommitTransaction).table_changes]


def commit_tables(call: Call) -> Response:
    """Commit to several tables: all of it in one version of the lakehouse, or nothing."""
    body = call.parsed(CommitTransaction)
    with call.catalog() as catalog, translated(missing=NoSuchTableError), names_checked(NoSuchTableError):
        gate = call.locations(catalog)
        changes = [change.model_copy(update={"updates": gate.kept(change.updates)}) for change in body.table_changes]
        catalog.write(lambda transaction: stage(transaction, changes, gate, call.incoming, len(call.body)))
    return no_content()


def begin(call: Call) -> Response:
    """Begin a transaction."""
    return json_response(_described(begin_transaction(call, call.parsed(Begin))), 201)


def begin_transaction(call: Call, body: Begin) -> Transaction:
    """Begin a transaction of the principal.

    Raises `RestError` 403 for one who could write nothing, 413 for more than 64 KiB, which would stay in memory, and
    400 for an id that would be that of a request with an `Idempotency-Key`, or one that the library chose, perhaps for
    somebody else: of those nothing but the log knows whether they are used.
    """
    if not call.principal.may_write_somewhere():
        raise forbidden(f"{call.principal.name} is a writer of nothing")
    if len(call.body) > MAX_BEGIN_SIZE_BYTES:
        message = f"a transaction begins with at most {MAX_BEGIN_SIZE_BYTES} bytes"
        raise RestError(413, "RequestTooLargeException", message)
    if body.id is not None and body.id.startswith(REQUEST_ID_PREFIX):
        raise bad_request(f"ids that start with {REQUEST_ID_PREFIX!r} are the server's, for requests that have a key")
    if body.id is not None and _is_of_the_library(body.id):
        raise bad_request(f"{body.id!r} has the form of the ids that the library chooses: send it without its hyphens")
    if reserved := [name for name in body.properties if name.startswith(RESERVED_PROPERTY_PREFIX)]:
        raise bad_request(f"properties that start with {RESERVED_PROPERTY_PREFIX!r} are the server's: {reserved}")
    transaction = call.service.transactions.begin(
        owner=call.principal.name,
        isolation=body.isolation,
        message=body.message,
        author=body.author or call.principal.name,
        id=body.id,
        properties={**body.properties, **call.commit.properties},
        shared_with=body.shared_with,
    )
    call.commit.transaction_id = transaction.id
    return transaction


def _is_of_the_library(id: str) -> bool:
    """Whether transactions that nobody chose an id for have such ids."""
    try:
        return str(uuid.UUID(id)) == id and uuid.UUID(id).version == 4
    except ValueError:
        return False


def list_all(call: Call) -> Response:
    """Those that are open in this server, and those that are saved and would be picked up: in which one may work."""
    return json_response(
        {
            "open": [_described(one) for one in call.service.transactions.list(call.principal)],
            "saved": [
                {"id": one.id, "warehouse": f"@txn/{one.id}", "base-version": one.base_version} for one in saved(call)
            ],
        }
    )


def visible_ids(call: Call) -> list[str]:
    """The ids of what `list_all` lists."""
    here = [one.id for one in call.service.transactions.list(call.principal)]
    return sorted([*here, *(one.id for one in saved(call))])


def load(call: Call) -> Response:
    """An open transaction."""
    return json_response(described_of(call, call.name("id")))


def described_of(call: Call, id: str) -> dict[str, Any]:
    """What an open transaction is. Raises `RestError` 403 for somebody else's."""
    with call.service.transactions.borrowed(id, call.principal) as transaction:
        return _described(transaction)


def commit(call: Call) -> Response:
    """Commit; a transaction that was committed before answers with its version again."""
    id = call.name("id")
    return json_response({"id": id, "version": commit_transaction(call, id)})


def commit_transaction(call: Call, id: str) -> int:
    """Commit; returns the version. Raises `RestError` 403 for somebody else's."""
    call.commit.transaction_id = id
    call.commit.version = call.service.transactions.commit(id, call.principal)
    return call.commit.version


def rollback(call: Call) -> Response:
    """Roll back."""
    rollback_transaction(call, call.name("id"))
    return no_content()


def rollback_transaction(call: Call, id: str) -> None:
    """Roll back. Raises `RestError` 403 for somebody else's."""
    call.commit.transaction_id = id
    call.service.transactions.rollback(id, call.principal)


def saved(call: Call) -> list[SavedTransaction]:
    """The saved transactions in which the principal may work, without those that are open in this server."""
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
