"""What Iceberg's clients write to tables, as statements of a lakehouse transaction.

Each function takes part in a transaction that somebody else commits: the catalog does so after every call, or leaves it
to its user; a server does as its client asked. All look before they write and raise PyIceberg's errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.update import (
    AssertCreate,
    AssignUUIDUpdate,
    SetLocationUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)

from trinitylake import _core
from trinitylake.definitions import METADATA_LOCATION, TableDef, new_id, new_table_def, serialize
from trinitylake.errors import InvalidArgument, InvalidLocation, TrinityLakeError
from trinitylake.iceberg.catalog.identifiers import object_tuple
from trinitylake.iceberg.catalog.namespaces import materialize_namespace
from trinitylake.iceberg.catalog.table_handle import CatalogTable
from trinitylake.iceberg.external import load_external
from trinitylake.iceberg.io import LakehouseFileIO
from trinitylake.iceberg.metadata import indexed, read_metadata
from trinitylake.iceberg.rules import check_properties
from trinitylake.iceberg.staging import StagedTable
from trinitylake.table_description import describe

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder

    from trinitylake.transaction import Transaction


def new_metadata(
    io: LakehouseFileIO,
    namespace: str,
    name: str,
    schema: Schema,
    location: str | None,
    partition_spec: PartitionSpec,
    sort_order: SortOrder,
    properties: Mapping[str, str],
) -> TableMetadata:
    """The metadata of a new table, with fresh field ids; nothing is written.

    `location` is a folder below the root, by default one that the lakehouse chooses (format §9).

    Raises:
        InvalidLocation: for a location, or a property with one, that a managed table cannot have.
        InvalidArgument: for a property that names code, or a format version that cannot be written.
        ValidationError: of pydantic, for a property without a value.
    """
    id = new_id()
    metadata = new_table_metadata(
        schema=schema,
        partition_spec=partition_spec,
        sort_order=sort_order,
        location=managed_location(io, location) if location else default_location(io, namespace, name, id),
        properties=dict(properties),
        table_uuid=UUID(id),
    )
    _check_new(metadata, io)
    return metadata


def create_table(transaction: Transaction, namespace: str, name: str, metadata: TableMetadata) -> StagedTable:
    """Create a managed table from its first metadata.

    Raises `NoSuchNamespaceError` and `TableAlreadyExistsError`.
    """
    materialize_namespace(transaction, namespace)
    require_free(transaction, namespace, name)
    io = LakehouseFileIO(transaction._lakehouse.storage)
    staged = StagedTable(object_tuple(namespace, name), indexed(metadata), None, io)
    transaction._tables.add(namespace, name, staged, new_table_def(str(metadata.table_uuid)))
    return staged


def commit_table(
    transaction: Transaction,
    namespace: str,
    name: str,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    base: Table | None = None,
) -> StagedTable:
    """Commit to a managed table, or create one from updates if `assert-create` is among the requirements.

    Requirements hold for what the transaction sees. `base` is the table as the writer saw it, if that is known: an
    append is then redone where the branch has moved since.

    Raises:
        NoSuchTableError: if it does not exist and is not to be created.
        CommitFailedException: if a requirement does not hold, or the updates do not fit what `base` has become.
        ValidationException: if new rows may lack a column that has become required.
        ValueError: if the updates make no sense.
        InvalidLocation, InvalidArgument: for an update that breaks a rule of managed tables, or an external table.
    """
    definition = transaction._open_core().read("table", namespace, name)
    is_creation = any(isinstance(requirement, AssertCreate) for requirement in requirements)
    if definition is None and not is_creation:
        raise no_such_table(namespace, name)
    if definition is None:
        for requirement in requirements:
            requirement.validate(None)
        io = LakehouseFileIO(transaction._lakehouse.storage)
        return create_table(transaction, namespace, name, _metadata_from(io, namespace, name, updates))
    if is_creation:
        raise CommitFailedException(f"Table already exists: {namespace}.{name}")
    table = transaction._tables.open(namespace, name, definition)
    if table.type != "managed":
        raise InvalidArgument(
            f"table {table.name} is {table.type}: write where it lives, {table.iceberg.metadata_location}"
        )
    table._iceberg()
    staged = table.staged
    assert staged is not None
    if base is None or base.metadata is staged.metadata:
        staged.commit(requirements, updates)
        return staged
    try:
        staged.commit_from(
            base.metadata, requirements, updates, base.added_files if isinstance(base, CatalogTable) else None
        )
    except TrinityLakeError:
        raise
    except (ValueError, KeyError) as error:  # PyIceberg's words for updates that no longer fit
        raise CommitFailedException(f"table {table.name} was changed, and the updates do not fit: {error}") from error
    return staged


def register_table(
    transaction: Transaction,
    namespace: str,
    name: str,
    metadata_location: str,
    overwrite: bool = False,
    file_io_properties: Mapping[str, str] | None = None,
) -> None:
    """Add a table whose metadata file exists: below the root it becomes managed, elsewhere external and read-only.

    Raises `NoSuchNamespaceError`; `TableAlreadyExistsError` unless `overwrite`; `InvalidLocation` for a table whose
    metadata lies in the lakehouse and whose data does not; `CorruptFile` and `FileNotFoundError` for a bad file.
    """
    core = transaction._open_core()
    materialize_namespace(transaction, namespace)
    if overwrite and core.exists("table", namespace, name):
        transaction.drop_table((namespace, name))
    require_free(transaction, namespace, name)
    io = LakehouseFileIO(transaction._lakehouse.storage)
    definition = registered_definition(io, metadata_location, file_io_properties)
    core.create("table", namespace, name, serialize(definition))


def registered_definition(
    io: LakehouseFileIO, metadata_location: str, file_io_properties: Mapping[str, str] | None = None
) -> TableDef:
    """The definition of a table whose metadata file exists: managed below the root of `io`, else external.

    Raises as `register_table` does for the file, and `InvalidLocation` if an external one is not there.
    """
    try:
        path = io.path_of(metadata_location)
    except InvalidLocation:
        metadata = load_external(metadata_location, file_io_properties).metadata
        definition = new_table_def(table_type="external", format_properties={METADATA_LOCATION: metadata_location})
    else:
        metadata = read_metadata(io, io.uri_of(path), path)
        managed_location(io, metadata.location)
        check_properties(metadata.properties, metadata.location, io)
        for snapshot in metadata.snapshots:
            io.path_of(snapshot.manifest_list)
        definition = new_table_def(str(metadata.table_uuid), format_properties={METADATA_LOCATION: path})
    describe(definition, metadata)
    return definition


def rename_table(transaction: Transaction, namespace: str, name: str, new_namespace: str, new_name: str) -> None:
    """Rename a table. Raises `NoSuchTableError`, `NoSuchNamespaceError` and `TableAlreadyExistsError`."""
    if not transaction._open_core().exists("table", namespace, name):
        raise no_such_table(namespace, name)
    materialize_namespace(transaction, new_namespace)
    require_free(transaction, new_namespace, new_name)
    transaction.rename_table((namespace, name), (new_namespace, new_name))


def drop_table(transaction: Transaction, namespace: str, name: str) -> None:
    """Drop a table. Raises `NoSuchTableError`."""
    if not transaction._open_core().exists("table", namespace, name):
        raise no_such_table(namespace, name)
    transaction.drop_table((namespace, name))


def require_free(transaction: Transaction, namespace: str, name: str) -> None:
    """Raises `TableAlreadyExistsError` if a table or view has that name."""
    core = transaction._open_core()
    if core.exists("table", namespace, name):
        raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists")
    if core.exists("view", namespace, name):
        raise TableAlreadyExistsError(f"View {namespace}.{name} has that name already")


def no_such_table(namespace: str, name: str) -> NoSuchTableError:
    """The error for a table that is not there, in the words that PyIceberg's behaviour tests look for."""
    return NoSuchTableError(f"Table does not exist: {namespace}.{name}")


def default_location(io: LakehouseFileIO, namespace: str, name: str, id: str) -> str:
    """Where the lakehouse puts a table of that id (format §9)."""
    return io.uri_of(_core.table_location(namespace, name, id).rstrip("/"))


def managed_location(io: LakehouseFileIO, location: str) -> str:
    """A chosen location of a managed table, in the spelling of the root.

    Raises `InvalidLocation` for one outside of the lakehouse, and for the lakehouse's own folders.
    """
    path = io.path_of(location.rstrip("/"))
    if path.startswith("_"):
        raise InvalidLocation(f"{location!r} cannot be the location of a table: names with '_' are the lakehouse's own")
    return io.uri_of(path)


def _metadata_from(io: LakehouseFileIO, namespace: str, name: str, updates: Sequence[TableUpdate]) -> TableMetadata:
    """What the updates of a creation make of nothing. An id and a location that they leave out are chosen here."""
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
        metadata = update_table_metadata(
            MetastoreCatalog._empty_table_metadata(), tuple(updates), enforce_validation=True
        )
    except (ValueError, KeyError) as error:
        raise CommitFailedException(f"the updates do not make a table {namespace}.{name}: {error}") from error
    _check_new(metadata, io)
    return metadata


def _check_new(metadata: TableMetadata, io: LakehouseFileIO) -> None:
    if metadata.format_version > 2:
        raise InvalidArgument(f"Iceberg format version {metadata.format_version} cannot be written yet: use 2")
    check_properties(metadata.properties, metadata.location, io)
    for snapshot in metadata.snapshots:
        io.path_of(snapshot.manifest_list)
