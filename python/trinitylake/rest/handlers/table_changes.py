"""Commits of engines to one or several tables: requirements and updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, field_validator
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import update as iceberg

from trinitylake.base.arguments import user_names
from trinitylake.base.properties import OWN_PROPERTY_PREFIX
from trinitylake.iceberg import table_writing
from trinitylake.iceberg.namespaces import object_name, require_namespace
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import NO_FIELD_ID, StaleSnapshot, apply_updates
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import json_size_bytes
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.update_checks import check_update
from trinitylake.rest.errors import bad_request, client_faults
from trinitylake.rest.handlers.body_parts import MAX_UPDATES, Name, Updates, check_growth
from trinitylake.rest.security.locations import REMOVING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from trinitylake.iceberg_storage.manifests.avro_file import SizeBudget
    from trinitylake.iceberg_storage.staging.staged_table import StagedTable
    from trinitylake.lakehouse.transaction import Transaction
    from trinitylake.rest.security.locations import LocationGate


class TableChange(BaseModel):
    """A commit to one table. The identifier is optional if the path contains it."""

    identifier: Name | None = None
    requirements: list[iceberg.TableRequirement] = Field(default_factory=list)
    updates: Updates[iceberg.TableUpdate] = Field(default_factory=list)

    @field_validator("updates", mode="before")
    @classmethod
    def _may_lack_ids(cls, updates: Any) -> Any:
        """The server assigns missing ids of partition fields; PyIceberg's models need one."""
        for update in updates if isinstance(updates, list) else ():
            if isinstance(update, dict) and update.get("action") == "add-spec":
                with_field_ids(update.get("spec"))
        return updates

    @property
    def table(self) -> tuple[str, str]:
        """Namespace and name. Raises `RestError` 400 without an identifier."""
        return object_name(self.full_name)

    @property
    def full_name(self) -> tuple[str, ...]:
        """The parts of the namespace, and the name. Raises `RestError` 400 without an identifier."""
        if self.identifier is None:
            raise bad_request("a change needs the identifier of its table")
        return self.identifier.identifier()

    @property
    def is_creation(self) -> bool:
        """Whether the commit creates the table."""
        return any(isinstance(requirement, iceberg.AssertCreate) for requirement in self.requirements)


def with_field_ids(spec: Any) -> Any:
    """A partition spec in JSON, with `NO_FIELD_ID` for missing field ids."""
    fields = spec.get("fields") if isinstance(spec, dict) else None
    for field in fields if isinstance(fields, list) else ():
        if isinstance(field, dict) and field.get("field-id") is None:
            field["field-id"] = NO_FIELD_ID
    return spec


def stage(
    transaction: Transaction,
    changes: Sequence[TableChange],
    gate: LocationGate,
    incoming_files: Callable[[], AbstractContextManager[SizeBudget]],
    sent_size_bytes: int,
) -> list[StagedTable]:
    """Stage all changes in a transaction, or none. Returns the changed tables.

    Args:
        transaction: the transaction.
        changes: at most one per table.
        gate: checks the locations for the principal.
        incoming_files: the budget for reading incoming manifests.
        sent_size_bytes: size of the request.

    Raises:
        NoSuchTableError: for a table that does not exist and is not to be created.
        CommitFailedException: if a requirement does not hold.
        RestError: 400 for invalid updates, 403 for files outside of the table, 413 for too many manifests or too large
            metadata.
        InvalidLocation, InvalidArgument: for an update that breaks a rule of managed tables.
    """
    names = [change.table for change in changes]
    if len(set(names)) < len(changes):
        raise bad_request("a table may be changed only once in one commit: put all its updates together")
    if sum(len(change.updates) for change in changes) > MAX_UPDATES:
        raise bad_request(f"a commit has at most {MAX_UPDATES} updates, of all its tables")
    named = []
    with incoming_files() as allowance:
        for change, name in zip(changes, names, strict=True):
            present = None if change.is_creation else _present(transaction, *name)
            gate.table_change(change, None if present is None else present.location)
            if present is not None and not all(isinstance(update, REMOVING) for update in change.updates):
                check_growth(f"table {'.'.join(name)}", json_size_bytes(present), sent_size_bytes)
            for requirement in () if present is None else change.requirements:
                requirement.validate(present)  # before reading files, which an erasure may have deleted
            named.append(gate.incoming_files(change, present, allowance))
            _check_own_properties(transaction, change)
    if len(changes) > 1:  # a single change is staged completely or not at all
        for change in changes:
            _rehearse(transaction, change)
    staged = []
    for change, name, paths in zip(changes, names, named, strict=True):
        if change.is_creation and not change.updates and len(changes) > 1:
            table_writing.require_absent(transaction, *name, change.requirements)
        else:
            with client_faults(f"the change of {'.'.join(name)}"):
                staged.append(
                    table_writing.commit_table(transaction, *name, change.requirements, change.updates, incoming=paths)
                )
    return staged


def _present(transaction: Transaction, namespace: str, name: str) -> TableMetadata | None:
    """Metadata of a managed table as the transaction sees it; None if it does not exist."""
    table = transaction._find_table(namespace, name)
    return table._open_staged().metadata if table is not None and table.type == "managed" else None


def _check_own_properties(transaction: Transaction, change: TableChange) -> None:
    """Raise `InvalidArgument` for a change of the library's own properties.

    Clients that replace a table send all of its properties again, so equal values are not a change. Removing a missing
    property is a change, because the property may exist when the change is rebased.
    """
    asked: dict[str, str | None] = {}
    for update in change.updates:
        if isinstance(update, iceberg.SetPropertiesUpdate):
            asked |= update.updates
        elif isinstance(update, iceberg.RemovePropertiesUpdate):
            asked |= dict.fromkeys(update.removals)
    own = {name: value for name, value in asked.items() if name.startswith(OWN_PROPERTY_PREFIX)}
    if own:
        exists = not change.is_creation and transaction._find_table(*change.table) is not None
        present = transaction.table(change.table).properties if exists else {}
        changed = [name for name, value in own.items() if value is None or present.get(name) != value]
        user_names(changed, "properties")


def _rehearse(transaction: Transaction, change: TableChange) -> None:
    """Check that a change can be staged. Stages nothing. Raises as `stage` does."""
    namespace, name = change.table
    if change.is_creation and not change.updates:
        return
    if change.is_creation:
        table_writing.require_free(transaction, namespace, name)
        require_namespace(transaction._state(), namespace)
        io = LakehouseFileIO(transaction._storage)
        table_writing.metadata_from_updates(io, namespace, name, change.updates)
        return
    staged = table_writing.managed_table(transaction, namespace, name, change.requirements)
    with client_faults(f"the change of {namespace}.{name}"):
        for update in change.updates:
            check_update(update, staged.metadata, staged.io)
        try:
            apply_updates(staged.metadata, change.updates)
        except StaleSnapshot as error:
            raise CommitFailedException(str(error)) from error
