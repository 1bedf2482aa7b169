"""Transactions over HTTP: the commit over several tables of the specification, and this project's open transactions.

The extension lives below `/trinitylake/v1/transactions`: begin, list, look at, commit, roll back. What happens in an
open transaction goes through the ordinary routes, with the prefix that its warehouse `@txn/<id>` leads to.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from starlette.responses import Response

from trinitylake.iceberg.catalog.bound_catalog import names_checked
from trinitylake.iceberg.catalog.errors import translated
from trinitylake.rest.addresses import transaction_prefix
from trinitylake.rest.call import Call, json_response, no_content
from trinitylake.rest.table_changes import TableChange, stage
from trinitylake.rest.tables import with_chosen_location
from trinitylake.transaction import Transaction


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


def commit_tables(call: Call) -> Response:
    """Commit to several tables: all of it in one version of the lakehouse, or nothing."""
    body = call.parsed(CommitTransaction)
    with call.catalog() as catalog, translated(missing=NoSuchTableError), names_checked(NoSuchTableError):
        changes = [with_chosen_location(call, catalog, change) for change in body.table_changes]
        catalog._write(lambda transaction: stage(transaction, changes))
    return no_content()


def begin(call: Call) -> Response:
    """Begin a transaction."""
    body = call.parsed(Begin)
    transaction = call.service.transactions.begin(
        isolation=body.isolation, message=body.message, author=body.author, id=body.id, properties=body.properties
    )
    return json_response(_described(transaction), 201)


def list_all(call: Call) -> Response:
    """Those that are open in this server, and those that are saved and would be picked up."""
    here = call.service.transactions.list()
    known = {transaction.id for transaction in here}
    saved = [one for one in call.service.lake.transactions() if one.id not in known]
    return json_response(
        {
            "open": [_described(transaction) for transaction in here],
            "saved": [{"id": one.id, "warehouse": f"@txn/{one.id}", "base-version": one.base_version} for one in saved],
        }
    )


def load(call: Call) -> Response:
    """An open transaction."""
    with call.service.transactions.borrowed(call.name("id")) as transaction:
        return json_response(_described(transaction))


def commit(call: Call) -> Response:
    """Commit; a transaction that was committed before answers with its version again."""
    id = call.name("id")
    return json_response({"id": id, "version": call.service.transactions.commit(id)})


def rollback(call: Call) -> Response:
    """Roll back."""
    call.service.transactions.rollback(call.name("id"))
    return no_content()


def _described(transaction: Transaction) -> dict[str, Any]:
    return {
        "id": transaction.id,
        "isolation": transaction.isolation,
        "base-version": transaction.base_version,
        "warehouse": f"@txn/{transaction.id}",
        "prefix": transaction_prefix(transaction.id),
    }
