"""Commits to tables, as engines send them: requirements and updates, for one table or for several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate

from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg.catalog import table_writing
from trinitylake.iceberg.catalog.identifiers import object_name
from trinitylake.iceberg.catalog.namespaces import require_namespace
from trinitylake.iceberg.io import LakehouseFileIO
from trinitylake.iceberg.metadata import apply_updates
from trinitylake.iceberg.rules import check_update
from trinitylake.rest.errors import bad_request
from trinitylake.rest.names import Name

if TYPE_CHECKING:
    from trinitylake.iceberg.staging import StagedTable
    from trinitylake.transaction import Transaction


class TableChange(BaseModel):
    """A commit to one table. The identifier may be left out where the path tells it."""

    identifier: Name | None = None
    requirements: list[TableRequirement] = Field(default_factory=list)
    updates: list[TableUpdate] = Field(default_factory=list)

    @property
    def table(self) -> tuple[str, str]:
        """Namespace and name. Raises `RestError` 400 without an identifier."""
        if self.identifier is None:
            raise bad_request("a change needs the identifier of its table")
        return object_name(self.identifier.identifier())


def stage(transaction: Transaction, changes: Sequence[TableChange]) -> list[StagedTable]:
    """Stage all changes in a transaction, or none.

    Raises:
        NoSuchTableError: for a table that is not there and is not to be created.
        CommitFailedException: if a requirement does not hold.
        RestError: 400 for updates that make no sense.
        InvalidLocation, InvalidArgument: for an update that breaks a rule of managed tables.
    """
    if len({change.table for change in changes}) < len(changes):
        raise bad_request("a table may be changed only once in one commit: put all its updates together")
    if len(changes) > 1:  # one by itself is staged whole or not at all
        for change in changes:
            _rehearse(transaction, change)
    return [_stage_one(transaction, change) for change in changes]


def _stage_one(transaction: Transaction, change: TableChange) -> StagedTable:
    try:
        return table_writing.commit_table(transaction, *change.table, change.requirements, change.updates)
    except TrinityLakeError:
        raise
    except (ValueError, KeyError) as error:
        raise bad_request(f"the updates of {'.'.join(change.table)} make no sense: {error}") from error


def _rehearse(transaction: Transaction, change: TableChange) -> None:
    """Find out whether a change can be staged, without staging it."""
    namespace, name = change.table
    if any(isinstance(requirement, AssertCreate) for requirement in change.requirements):
        table_writing.require_free(transaction, namespace, name)
        require_namespace(transaction._open_core(), namespace)
        io = LakehouseFileIO(transaction._lakehouse.storage)
        table_writing._metadata_from(io, namespace, name, change.updates)
        return
    # Without changes this opens the table, and raises if it is not there or cannot be written.
    staged = table_writing.commit_table(transaction, namespace, name, change.requirements, ())
    try:
        for update in change.updates:
            check_update(update, staged.metadata, staged.io)
        apply_updates(staged.metadata, change.updates)
    except TrinityLakeError:
        raise
    except (ValueError, KeyError) as error:
        raise bad_request(f"the updates of {namespace}.{name} make no sense: {error}") from error
