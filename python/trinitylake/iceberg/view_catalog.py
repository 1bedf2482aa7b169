"""Methods of the catalog for views. `view_metadata.py` converts definitions of views to Iceberg's metadata."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError, TableAlreadyExistsError, ViewAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from trinitylake.definitions import new_id, parse_view_def, serialize
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg.bound_catalog import BoundCatalog, names_checked
from trinitylake.iceberg.namespaces import (
    materialize_namespace,
    namespace_name,
    object_name,
    object_tuple,
    require_namespace,
)
from trinitylake.iceberg_storage.errors import pyiceberg_errors
from trinitylake.iceberg_storage.locations import default_location, managed_location
from trinitylake.iceberg_storage.view_metadata import (
    new_view_metadata,
    read_view_metadata,
    view_definition,
    view_metadata,
)
from trinitylake.iceberg_storage.view_names import named_by_lakehouse
from trinitylake.lakehouse.transaction import Transaction


class ViewCatalog(BoundCatalog):
    """Methods for views.

    Attributes:
        transaction_catalog: for a catalog of a transaction, the client's name of the catalog in SQL; otherwise "".
    """

    transaction_catalog: str = ""

    def create_view(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> View:
        """Create a view without writing a file; engines may write files below `location`.

        Raises:
            InvalidLocation: the location is outside of the lakehouse, or in an internal folder of the lakehouse.
            NoSuchNamespaceError: the namespace does not exist.
            ViewAlreadyExistsError: a view with this name exists.
            TableAlreadyExistsError: a table with this name exists.
            InvalidArgument: the view has no SQL, or two representations in one dialect.
        """
        namespace, name = object_name(identifier)
        id = new_id()
        metadata = new_view_metadata(
            id,
            managed_location(self.file_io(), location)
            if location
            else default_location(self.file_io(), namespace, name, id),
            assign_fresh_schema_ids(self.iceberg_schema(schema)),
            view_version,
            transform_dict_value_to_str(properties),
        )
        return self.add_view(namespace, name, metadata)

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        """Create a view from a view metadata file, which is read once and not needed afterwards.

        Raises the errors of `create_view`, and `CorruptFile` for a file that is not view metadata.
        """
        namespace, name = object_name(identifier)
        io = self.file_io()
        try:
            io.path_of(metadata_location)
        except InvalidLocation:
            metadata = read_view_metadata(
                load_file_io(self._file_io_properties(), metadata_location), metadata_location
            )
        else:
            metadata = read_view_metadata(io, metadata_location)
        return self.add_view(namespace, name, metadata)

    def load_view(self, identifier: str | Identifier) -> View:
        """Load a view. Raises `NoSuchViewError`."""
        namespace, name = object_name(identifier, NoSuchViewError)
        with names_checked(NoSuchViewError), self._source._located("view", namespace, name):
            definition = self.state().read("view", namespace, name)
            if definition is None:
                raise NoSuchViewError(f"View does not exist: {namespace}.{name}")
            view = parse_view_def(definition)
            metadata = view_metadata(view, default_location(self.file_io(), namespace, name, view.id))
        return View(object_tuple(namespace, name), metadata)

    def view_exists(self, identifier: str | Identifier) -> bool:
        """Whether the view exists."""
        return self._exists("view", identifier)

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """The views directly in a namespace, sorted. Raises `NoSuchNamespaceError`."""
        return self._list("view", namespace)

    def drop_view(self, identifier: str | Identifier) -> None:
        """Drop a view. Raises `NoSuchViewError`."""
        namespace, name = object_name(identifier, NoSuchViewError)

        def statement(transaction: Transaction) -> None:
            core = transaction._state()
            if not core.exists("view", namespace, name):
                raise NoSuchViewError(f"View does not exist: {namespace}.{name}")
            core.drop("view", namespace, name)

        with pyiceberg_errors(missing=NoSuchViewError), names_checked(NoSuchViewError):
            self.write(statement)

    def add_view(self, namespace: str, name: str, metadata: ViewMetadata) -> View:
        metadata = named_by_lakehouse(metadata, self.transaction_catalog)
        definition = serialize(view_definition(metadata))

        def statement(transaction: Transaction) -> None:
            materialize_namespace(transaction, namespace)
            core = transaction._state()
            if core.exists("table", namespace, name):
                raise TableAlreadyExistsError(f"Table with same name already exists: {namespace}.{name}")
            if core.exists("view", namespace, name):
                raise ViewAlreadyExistsError(f"View {namespace}.{name} already exists")
            core.create("view", namespace, name, definition)

        with pyiceberg_errors(taken=ViewAlreadyExistsError):
            self.write(statement)
        return View(object_tuple(namespace, name), metadata)

    def _exists(self, kind: Literal["table", "view"], identifier: str | Identifier) -> bool:
        try:
            namespace, name = object_name(identifier, NoSuchViewError)
            with names_checked(NoSuchViewError):
                return self.state().exists(kind, namespace, name)
        except NoSuchViewError:
            return False

    def _list(self, kind: str, identifier: str | Identifier) -> list[Identifier]:
        namespace = namespace_name(identifier)
        with names_checked(NoSuchNamespaceError):
            state = self.state()
            names = state.list("table" if kind == "table" else "view", namespace).column(1).to_pylist()
            if not names:
                require_namespace(state, namespace)
        parts = tuple(namespace.split("."))
        return [(*parts, name) for name in names]
