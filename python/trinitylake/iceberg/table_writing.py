"""Writes of Iceberg's clients to tables, as statements of a lakehouse transaction.

Each function is part of a transaction that its caller commits. All functions check names before they write, and raise
PyIceberg's errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.update import AssertCreate, AssignUUIDUpdate, SetLocationUpdate, TableRequirement, TableUpdate

from trinitylake.definitions import new_id, new_table_def, serialize
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg.namespaces import materialize_namespace, object_tuple
from trinitylake.iceberg_storage.extended_pyiceberg.metadata_updates import apply_updates
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import empty_table_metadata, indexed
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.incoming_files import snapshots_of, statistics_of
from trinitylake.iceberg_storage.locations import default_location, managed_location, qualified_path
from trinitylake.iceberg_storage.metadata_invariants import check_metadata
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from trinitylake.iceberg_storage.table_properties import check_properties
from trinitylake.iceberg_storage.update_checks import collected_by_lakehouse
from trinitylake.tables.registered_table import registered_table

if TYPE_CHECKING:
    from trinitylake.lakehouse.transaction import Transaction


def create_table(
    transaction: Transaction, namespace: str, name: str, metadata: TableMetadata, incoming: Sequence[str] | None = None
) -> StagedTable:
    """Create a managed table from its first metadata; `incoming` as for `commit_table`.

    Raises `NoSuchNamespaceError` and `TableAlreadyExistsError`, and `InvalidLocation` if a snapshot names a file that
    is outside of the lakehouse or otherwise not allowed.
    """
    materialize_namespace(transaction, namespace)
    require_free(transaction, namespace, name)
    io = LakehouseFileIO(transaction._storage)
    staged = StagedTable(object_tuple(namespace, name), indexed(metadata), None, io)
    staged.adopt(metadata.snapshots, None, incoming, statistics_of(io, metadata))
    transaction._staged_tables.add(namespace, name, staged, new_table_def(str(metadata.table_uuid)))
    return staged


def commit_table(
    transaction: Transaction,
    namespace: str,
    name: str,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    base: Table | None = None,
    incoming: Sequence[str] | None = None,
) -> StagedTable:
    """Commit to a managed table, or create a table from updates if `assert-create` is among the requirements.

    Requirements are checked against the state of the transaction. Without updates they are checked again at the commit,
    at every isolation level. `base` is the table that the writer saw, if known: if the branch has changed since then,
    an append is applied again. `incoming` are the paths of all files in new snapshots, if they were already checked.

    Raises as `TrinityLakeCatalog.commit_table` does, and `ValueError` if an update refers to something that the table
    does not have.
    """
    definition = transaction._state().open_table(namespace, name)
    is_creation = any(isinstance(requirement, AssertCreate) for requirement in requirements)
    if definition is None and not is_creation:
        raise no_such_table(namespace, name)
    if definition is None:
        for requirement in requirements:
            requirement.validate(None)
        io = LakehouseFileIO(transaction._storage)
        metadata = metadata_from_updates(io, namespace, name, updates)
        return create_table(transaction, namespace, name, metadata, incoming)
    staged = managed_table(transaction, namespace, name, [one for one in requirements if isinstance(one, AssertCreate)])
    if incoming is not None:
        staged.adopt(snapshots_of(updates), staged.metadata, incoming)
    staged.commit_from(staged.metadata if base is None else base.metadata, requirements, updates)
    return staged


def managed_table(
    transaction: Transaction, namespace: str, name: str, requirements: Sequence[TableRequirement] = ()
) -> StagedTable:
    """The managed table in the state that the transaction sees. Nothing is staged.

    Raises:
        NoSuchTableError: the table does not exist.
        CommitFailedException: a requirement does not hold.
        InvalidArgument: the table is external or federated.
    """
    definition = transaction._state().open_table(namespace, name)
    if definition is None:
        raise no_such_table(namespace, name)
    table = transaction._staged_tables.open(namespace, name, definition)
    if any(isinstance(requirement, AssertCreate) for requirement in requirements):
        raise CommitFailedException(f"Table already exists: {table.name}")
    if table.type != "managed":
        raise InvalidArgument(
            f"table {table.name} is {table.type} and read-only: write at its origin, {table.iceberg.metadata_location}"
        )
    staged = table._open_staged()
    for requirement in requirements:
        requirement.validate(staged.metadata)
    return staged


def require_absent(
    transaction: Transaction, namespace: str, name: str, requirements: Sequence[TableRequirement]
) -> None:
    """Require that the table does not exist at the commit: for `assert-create` without updates.

    Raises `CommitFailedException` if it exists now.
    """
    if transaction._state().exists("table", namespace, name):
        raise CommitFailedException(f"Table already exists: {namespace}.{name}")
    for requirement in requirements:
        requirement.validate(None)
    transaction._staged_tables.require_absent(namespace, name)


def register_table(
    transaction: Transaction,
    namespace: str,
    name: str,
    metadata_location: str,
    overwrite: bool = False,
    file_io_properties: Mapping[str, str] | None = None,
    io: LakehouseFileIO | None = None,
) -> None:
    """Add a table whose metadata file exists.

    A table whose metadata file is below the root becomes managed; any other becomes external, which is read-only. The
    file access `io`, by default a new one, reads the metadata.

    Raises as `TrinityLakeCatalog.register_table` does, and `TransactionExpired` if a file of the table does not exist,
    or a garbage collection may delete it now.
    """
    core = transaction._state()
    materialize_namespace(transaction, namespace)
    if overwrite and core.exists("table", namespace, name):
        transaction.drop_table((namespace, name))
    require_free(transaction, namespace, name)
    reading = LakehouseFileIO(transaction._storage) if io is None else io
    table = registered_table(reading, metadata_location, file_io_properties)
    core.adopt(table.incoming)
    core.create("table", namespace, name, serialize(table.definition))


def rename_table(transaction: Transaction, namespace: str, name: str, new_namespace: str, new_name: str) -> None:
    """Rename a table. Raises `NoSuchTableError`, `NoSuchNamespaceError` and `TableAlreadyExistsError`."""
    if not transaction._state().exists("table", namespace, name):
        raise no_such_table(namespace, name)
    materialize_namespace(transaction, new_namespace)
    require_free(transaction, new_namespace, new_name)
    transaction.rename_table((namespace, name), (new_namespace, new_name))


def drop_table(transaction: Transaction, namespace: str, name: str) -> None:
    """Drop a table. Raises `NoSuchTableError`."""
    if not transaction._state().exists("table", namespace, name):
        raise no_such_table(namespace, name)
    transaction.drop_table((namespace, name))


def require_free(transaction: Transaction, namespace: str, name: str) -> None:
    """Raise `TableAlreadyExistsError` if a table or view has that name."""
    core = transaction._state()
    if core.exists("table", namespace, name):
        raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists")
    if core.exists("view", namespace, name):
        raise TableAlreadyExistsError(f"View with same name already exists: {namespace}.{name}")


def no_such_table(namespace: str, name: str) -> NoSuchTableError:
    """The error for a missing table; PyIceberg's behaviour tests expect this message."""
    return NoSuchTableError(f"Table does not exist: {namespace}.{name}")


def metadata_from_updates(
    io: LakehouseFileIO, namespace: str, name: str, updates: Sequence[TableUpdate]
) -> TableMetadata:
    """The first metadata of a table that updates create; an id or location that they lack is chosen here.

    Raises `CommitFailedException` if the updates do not define a valid table, and the errors of `new_metadata`.
    """
    updates = [
        SetLocationUpdate(location=managed_location(io, update.location))
        if isinstance(update, SetLocationUpdate)
        else update
        for update in updates
    ]
    ids = [str(update.uuid) for update in updates if isinstance(update, AssignUUIDUpdate)]
    if not ids:
        ids = [new_id()]
        updates.insert(0, AssignUUIDUpdate(uuid=UUID(ids[0])))
    if not any(isinstance(update, SetLocationUpdate) for update in updates):
        updates.append(SetLocationUpdate(location=default_location(io, namespace, name, ids[-1])))
    try:
        made = apply_updates(empty_table_metadata(), updates)
        check_metadata(made)
        metadata = indexed(TableMetadataUtil.parse_obj(made.model_dump()))
    except (ValueError, KeyError) as error:
        raise CommitFailedException(f"the updates do not define a valid table {namespace}.{name}: {error}") from error
    check_properties(metadata.properties, metadata.location, io)
    statistics_of(io, metadata)
    for snapshot in metadata.snapshots:
        qualified_path(io, snapshot.manifest_list)
    return collected_by_lakehouse(metadata)
