"""`TrinityLakeCatalog`: a lakehouse as PyIceberg's catalog.

The catalog reads one state: the latest version, a fixed version, or an open transaction (`bound_catalog.py`). It writes
with statements of a transaction (`table_writing.py`, `namespaces.py`), which the REST server uses as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import PropertiesUpdateSummary
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str

from trinitylake.definitions import EXTERNAL, MANAGED, TableDef, parse_table_def
from trinitylake.errors import NamespaceNotEmpty
from trinitylake.iceberg import table_writing
from trinitylake.iceberg.bound_catalog import names_checked
from trinitylake.iceberg.namespaces import (
    child_namespaces,
    materialize_namespace,
    namespace_exists,
    namespace_name,
    namespace_properties,
    object_name,
    object_tuple,
    require_namespace,
)
from trinitylake.iceberg.view_catalog import ViewCatalog
from trinitylake.iceberg_storage.errors import pyiceberg_errors
from trinitylake.iceberg_storage.extended_pyiceberg.catalog import CatalogTable
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadOnlyTable
from trinitylake.iceberg_storage.external_tables import load_external
from trinitylake.iceberg_storage.federated_tables import open_federated
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.initial_metadata import new_metadata
from trinitylake.iceberg_storage.metadata import metadata_folder
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.tables.frozen_table import metadata_of


class TrinityLakeCatalog(ViewCatalog):
    """A lakehouse as a PyIceberg catalog, from `trinitylake.iceberg.load`; arguments as for `BoundCatalog`.

    If the catalog is bound to a lakehouse, each writing method is one commit. Safe to share between threads unless it
    is bound to a transaction. Errors are PyIceberg's where PyIceberg has a class for them.
    """

    # Tables

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a managed table.

        Args:
            identifier: namespace and name; the namespace must exist.
            schema: the columns; new field ids are assigned, as in every catalog of PyIceberg.
            location: a folder below the root of the lakehouse; by default the lakehouse chooses it.
            partition_spec: a partition spec with the field ids of `schema`.
            sort_order: a sort order with the field ids of `schema`.
            properties: Iceberg table properties.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            TableAlreadyExistsError: a table or view with this name exists.
            InvalidLocation: the location is outside of the lakehouse, or a write path is outside of the table.
            InvalidArgument: a property names code to load.
        """
        self._writable()
        namespace, name = object_name(identifier)
        metadata = self.new_metadata(namespace, name, schema, location, partition_spec, sort_order, properties)
        with pyiceberg_errors():
            self.write(lambda transaction: table_writing.create_table(transaction, namespace, name, metadata))
        return self.load_table(identifier)

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Add a table whose metadata file exists.

        A table whose metadata file is below the root becomes managed; any other becomes external, which is read-only.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            TableAlreadyExistsError: a table with this name exists, and `overwrite` is False; or a view with this name
                exists.
            InvalidLocation: the metadata is in the lakehouse and the data is not, or the URI cannot be read.
            CorruptFile: the file is not table metadata.
            FileNotFoundError: the file does not exist.
        """
        namespace, name = object_name(identifier)
        with pyiceberg_errors():
            self.write(
                lambda transaction: table_writing.register_table(
                    transaction, namespace, name, metadata_location, overwrite, self._file_io_properties()
                )
            )
        return self.load_table(identifier)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table in its present state; a federated table is the table object of the other catalog.

        Raises:
            NoSuchTableError: the table does not exist.
            CorruptFile: the definition or metadata is damaged or missing.
        """
        namespace, name = object_name(identifier, NoSuchTableError)
        with names_checked(NoSuchTableError), self._source._located("table", namespace, name):
            definition = self.definition(namespace, name)
            if definition is None:
                raise table_writing.no_such_table(namespace, name)
            return self._opened(namespace, name, definition)

    def _opened(self, namespace: str, name: str, data: bytes) -> Table:
        definition, identifier, source = parse_table_def(data), object_tuple(namespace, name), self._source
        if definition.table_type == EXTERNAL:
            return load_external(definition, self._file_io_properties(), identifier, self._guarded)
        table: Table
        if definition.table_type != MANAGED:
            table = self._federated(definition)
        elif isinstance(source, Transaction):
            staged = source._staged_tables.open(namespace, name, data)._open_staged()
            table = CatalogTable(identifier, staged.metadata, staged.table.metadata_location, staged.io, self)
        else:
            io = self.file_io()
            uri, metadata = metadata_of(io, definition, f"{namespace}.{name}")
            table = CatalogTable(identifier, metadata, uri, io, self)
        if isinstance(source, LakehouseVersion):
            return ReadOnlyTable(identifier, table.metadata, table.metadata_location, table.io, self)
        return table

    def definition(self, namespace: str, name: str) -> bytes | None:
        """The serialized definition of a table; None if the table does not exist."""
        return self.state().read("table", namespace, name)

    def _guarded(self, io: FileIO) -> FileIO:
        """The file access to external tables, which the server overrides to restrict the access."""
        return io

    def _federated(self, definition: TableDef) -> Table:
        return open_federated(definition)

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Whether the table exists. Reads only the tree, not the definition or metadata."""
        return self._exists("table", identifier)

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """The tables directly in a namespace, sorted. Raises `NoSuchNamespaceError`."""
        return self._list("table", namespace)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Rename a table, also into another namespace. Its files are not moved.

        Raises `NoSuchTableError`, `NoSuchNamespaceError` and `TableAlreadyExistsError`.
        """
        old, new = object_name(from_identifier, NoSuchTableError), object_name(to_identifier)
        with pyiceberg_errors():
            self.write(lambda transaction: table_writing.rename_table(transaction, *old, *new))
        return self.load_table(to_identifier)

    def drop_table(self, identifier: str | Identifier) -> None:
        """Drop a table. Its data stays readable through older versions until they expire. Raises `NoSuchTableError`."""
        namespace, name = object_name(identifier, NoSuchTableError)
        with pyiceberg_errors(missing=NoSuchTableError), names_checked(NoSuchTableError):
            self.write(lambda transaction: table_writing.drop_table(transaction, namespace, name))

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop a table. Its files are deleted after the last version that references them has expired.

        Raises `NoSuchTableError`.
        """
        self.drop_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit updates to a table, or create the table if the requirements contain `assert-create`.

        Requirements are validated against the latest version, or against the state that the transaction sees. If a
        branch has changed since `table` was loaded, an append to the branch is applied again, with the same data files.

        Raises:
            NoSuchTableError: the table does not exist.
            CommitFailedException: a requirement does not hold. Nothing was committed.
            ValidationException: new rows may lack a column that another commit made required. Nothing was committed.
            CommitStateUnknownException: the outcome of the commit is unknown.
            InvalidLocation, InvalidArgument: managed tables do not allow an update, or the table is external.
        """
        namespace, name = object_name(table.name(), NoSuchTableError)
        with pyiceberg_errors(missing=NoSuchTableError), names_checked(NoSuchTableError):
            staged = self.write(
                lambda transaction: table_writing.commit_table(
                    transaction, namespace, name, requirements, updates, table
                )
            )
        if not isinstance(self._source, Transaction):
            return staged.response_after_commit()
        if isinstance(table.io, LakehouseFileIO) and table.io is not staged.io:
            staged.io.remember_written(table.io.written_paths)  # a rollback deletes these files
        return staged.response()

    # Namespaces

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace. The parents of a nested namespace need not exist.

        Raises `NamespaceAlreadyExistsError`, and `NoSuchNamespaceError` for an empty name.
        """
        name = namespace_name(namespace)
        text = transform_dict_value_to_str(properties)

        def statement(transaction: Transaction) -> None:
            if transaction._state().exists("namespace", name):
                raise NamespaceAlreadyExistsError(f"Namespace {name} already exists")
            transaction.create_namespace(name, text)

        with pyiceberg_errors(taken=NamespaceAlreadyExistsError):
            self.write(statement)

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Whether the namespace, or a namespace nested in it, exists."""
        try:
            name = namespace_name(namespace)
            with names_checked(NoSuchNamespaceError):
                return namespace_exists(self.state(), name)
        except NoSuchNamespaceError:
            return False

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Drop an empty namespace.

        Raises `NoSuchNamespaceError`, and `NamespaceNotEmptyError` if it has tables, views or nested namespaces.
        """
        name = namespace_name(namespace)

        def statement(transaction: Transaction) -> None:
            core = transaction._state()
            require_namespace(core, name)
            if not core.exists("namespace", name):
                raise NamespaceNotEmptyError(f"Namespace {name} is not empty: namespaces are nested in it")
            try:
                transaction.drop_namespace(name)
            except NamespaceNotEmpty as error:
                raise NamespaceNotEmptyError(f"Namespace {name} is not empty: {error}") from error

        with pyiceberg_errors(), names_checked(NoSuchNamespaceError):
            self.write(statement)

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """The namespaces directly below `namespace`, or at the top level, sorted. Raises `NoSuchNamespaceError`."""
        parent = namespace_name(namespace) if namespace else None
        with names_checked(NoSuchNamespaceError):
            return child_namespaces(self.state(), parent)

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """The properties of a namespace. Raises `NoSuchNamespaceError`."""
        name = namespace_name(namespace)
        with names_checked(NoSuchNamespaceError), self._source._located("namespace", name):
            return namespace_properties(self.state(), name)

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Set and remove properties of a namespace; returns the names of removed, updated and missing properties.

        Raises `NoSuchNamespaceError`, and `ValueError` for a property that is both set and removed.
        """
        name = namespace_name(namespace)
        text = transform_dict_value_to_str(updates)

        def statement(transaction: Transaction) -> PropertiesUpdateSummary:
            present = namespace_properties(transaction._state(), name)
            summary = self.properties_summary(present, removals, text)
            materialize_namespace(transaction, name)
            transaction.alter_namespace(name, text, remove_properties=removals or ())
            return summary

        with pyiceberg_errors(), names_checked(NoSuchNamespaceError):
            return self.write(statement)

    # Shared by the methods above

    def stage_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        """A new table for `create_table_transaction`; it exists in the catalog only after the commit.

        Raises the errors of `create_table`.
        """
        self._writable()
        namespace, name = object_name(identifier)
        state = self.state()
        with names_checked(NoSuchNamespaceError):
            require_namespace(state, namespace)
        if state.exists("table", namespace, name):
            raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists")
        metadata = self.new_metadata(namespace, name, schema, location, partition_spec, sort_order, properties)
        location = f"{metadata_folder(metadata)}/staged.metadata.json"
        return StagedTable(object_tuple(namespace, name), metadata, location, self.file_io(), self)

    def new_metadata(
        self,
        namespace: str,
        name: str,
        schema: Schema | pa.Schema,
        location: str | None,
        partition_spec: PartitionSpec,
        sort_order: SortOrder,
        properties: Properties,
    ) -> TableMetadata:
        """The metadata of a new table, without writing it. Raises the errors of `create_table`."""
        converted = self.iceberg_schema(schema, properties)
        return new_metadata(
            self.file_io(), namespace, name, converted, location, partition_spec, sort_order, properties
        )


def load(
    root: str | os.PathLike[str] | Lakehouse | None = None,
    *,
    version: int | None = None,
    timestamp: datetime | str | None = None,
    transaction: Transaction | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    name: str = "trinitylake",
    **properties: str,
) -> TrinityLakeCatalog:
    """Open a PyIceberg catalog over a lakehouse.

    Args:
        root: the root of the lakehouse, or an open lakehouse; by default the root in PyIceberg's configuration of
            `name`.
        name: name of the catalog.
        version, timestamp, transaction, storage_options: as for `TrinityLakeCatalog`.
        **properties: properties of the catalog, such as `**{"s3.endpoint": …}`; they override the configuration.

    Raises the errors of `TrinityLakeCatalog`.
    """
    if root is not None and not isinstance(root, Lakehouse):
        properties["root"] = os.fspath(root)
    return TrinityLakeCatalog(
        name,
        lakehouse=root if isinstance(root, Lakehouse) else None,
        version=version,
        timestamp=timestamp,
        transaction=transaction,
        storage_options=storage_options,
        **properties,
    )
