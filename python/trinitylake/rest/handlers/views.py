"""Endpoints of views."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import suppress

from pydantic import Field
from pyiceberg.exceptions import NoSuchViewError, TableAlreadyExistsError, ViewAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemovePropertiesUpdate, SetLocationUpdate, SetPropertiesUpdate
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion
from starlette.responses import Response

from trinitylake.definitions import new_id, parse_view_def, serialize
from trinitylake.errors import InvalidLocation, StorageError
from trinitylake.iceberg.namespaces import materialize_namespace, object_name
from trinitylake.iceberg_storage.errors import pyiceberg_errors
from trinitylake.iceberg_storage.locations import default_location
from trinitylake.iceberg_storage.manifests.avro_file import SizeLimitExceeded
from trinitylake.iceberg_storage.view_metadata import (
    new_view_metadata,
    read_view_metadata,
    view_definition,
    view_metadata,
)
from trinitylake.iceberg_storage.view_names import named_by_client, named_by_lakehouse
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.catalog.served_catalog import ServedCatalog
from trinitylake.rest.errors import bad_request
from trinitylake.rest.handlers.body_parts import CreatesObject, Rename, check_growth, new_name
from trinitylake.rest.handlers.tables import readable
from trinitylake.rest.handlers.view_changes import (
    AddViewVersion,
    ViewChange,
    ViewUpdate,
    changed,
    check_numbers,
    check_texts,
    check_version_id,
)
from trinitylake.rest.metadata_limits import BoundedFileIO, too_many_incoming_files
from trinitylake.rest.request.call import Call, no_content
from trinitylake.rest.request.pagination import identifiers_response
from trinitylake.rest.security.locations import LocationGate

logger = logging.getLogger("trinitylake.rest")

METADATA_PATH = "write.metadata.path"


class CreateView(CreatesObject):
    location: str | None = None
    view_schema: Schema = Field(alias="schema")
    view_version: ViewVersion = Field(alias="view-version")
    properties: dict[str, str] = Field(default_factory=dict)


class RegisterView(CreatesObject):
    metadata_location: str = Field(alias="metadata-location")


def list_all(call: Call) -> Response:
    """List the views directly in a namespace."""
    namespace = call.namespace()
    with call.catalog() as catalog:
        return identifiers_response(call, catalog, "view", namespace)


def create(call: Call) -> Response:
    body = call.parsed(CreateView)
    check_texts(body.view_version)
    check_version_id(body.view_version.version_id)
    check_numbers(body.view_schema)
    version = body.view_version.model_copy(update={"schema_id": 0})
    namespace, name = object_name((*call.namespace(), body.name))
    with call.catalog() as catalog:
        id, gate = new_id(), call.locations(catalog)
        location = gate.new_object(body.location, (*call.namespace(), body.name))
        location = location or default_location(catalog.file_io(), namespace, name, id)
        gate.view_properties(body.properties, location)
        # PyIceberg's method is not used, because it assigns new field ids, and engines keep theirs.
        metadata = new_view_metadata(id, location, body.view_schema, version, body.properties)
        return _written(catalog, catalog.add_view(namespace, name, metadata))


def load(call: Call) -> Response:
    with call.catalog() as catalog:
        view = catalog.load_view(call.identifier("view"))
        return response_of(View(view.name(), named_by_client(view.metadata, call.sql_catalog)))


def exists(call: Call) -> Response:
    """Check that a view exists: 204 or 404."""
    identifier = call.identifier("view")
    with call.catalog() as catalog:
        if not catalog.view_exists(identifier):
            raise NoSuchViewError(f"View does not exist: {'.'.join(identifier)}")
    return no_content()


def replace(call: Call) -> Response:
    """Commit updates of a view."""
    change = call.parsed(ViewChange)
    identifier = call.identifier("view")
    if change.identifier is not None and change.identifier.identifier() != identifier:
        raise bad_request("the identifiers in body and path are different")
    namespace, name = object_name(identifier, NoSuchViewError)
    with call.catalog() as catalog:
        io, gate = catalog.file_io(), call.locations(catalog)

        def statement(transaction: Transaction) -> View:
            core = transaction._state()
            data = core.read("view", namespace, name)
            if data is None:
                raise NoSuchViewError(f"View does not exist: {namespace}.{name}")
            if not all(isinstance(update, RemovePropertiesUpdate) for update in change.updates):
                check_growth(f"view {namespace}.{name}", len(data), len(call.body))
            definition = parse_view_def(data)
            present = view_metadata(definition, default_location(io, namespace, name, definition.id))
            for update in change.updates:
                _checked_update(gate, update, present)
            metadata = named_by_lakehouse(changed(present, change), catalog.transaction_catalog)
            core.replace("view", namespace, name, serialize(view_definition(metadata)))
            return View(identifier, metadata)

        with pyiceberg_errors(missing=NoSuchViewError):
            return _written(catalog, catalog.write(statement))


def drop(call: Call) -> Response:
    with call.catalog() as catalog:
        catalog.drop_view(call.identifier("view"))
    return no_content()


def rename(call: Call) -> Response:
    """Rename a view, also into another namespace."""
    body = call.parsed(Rename)
    old_namespace, old = object_name(body.source.identifier())
    namespace, name = object_name(new_name(call))

    def statement(transaction: Transaction) -> None:
        core = transaction._state()
        if not core.exists("view", old_namespace, old):
            raise NoSuchViewError(f"View does not exist: {old_namespace}.{old}")
        materialize_namespace(transaction, namespace)
        what = f"Cannot rename {old_namespace}.{old} to {namespace}.{name}"
        if core.exists("view", namespace, name):
            raise ViewAlreadyExistsError(f"{what}. View already exists")
        if core.exists("table", namespace, name):
            raise TableAlreadyExistsError(f"{what}. Table already exists")
        core.rename("view", old_namespace, old, namespace, name)

    with call.catalog() as catalog, pyiceberg_errors(taken=ViewAlreadyExistsError):
        catalog.write(statement)
    return no_content()


def register(call: Call) -> Response:
    """Register a view from a metadata file below the root, which is read once."""
    body = call.parsed(RegisterView)
    namespace, name = object_name((*call.namespace(), body.name))
    with call.catalog() as catalog:
        gate = call.locations(catalog)
        gate.registered(body.metadata_location)
        with readable(body.metadata_location), call.incoming_files() as allowance:
            try:
                metadata = read_view_metadata(BoundedFileIO(catalog.file_io(), allowance), body.metadata_location)
            except SizeLimitExceeded as error:
                raise too_many_incoming_files(error) from error
        # The metadata is not changed, so a location outside of the lakehouse is refused.
        gate.view_properties(metadata.properties, metadata.location)
        return _written(catalog, catalog.add_view(namespace, name, metadata))


def _checked_update(gate: LocationGate, update: ViewUpdate, present: ViewMetadata) -> None:
    """Raise `InvalidLocation` or `RestError` for an invalid update."""
    match update:
        case SetPropertiesUpdate():
            gate.view_properties(update.updates, present.location)
        case SetLocationUpdate():
            gate.view_location(update.location, present.location)
        case AddViewVersion():
            check_texts(update.view_version)


def _metadata_file(view: View) -> tuple[str, str]:
    """Location and content of the metadata file of a view.

    The file name contains a hash of the content, so clients can detect changes by the location.
    """
    document = json.loads(view.metadata.model_dump_json(by_alias=True, exclude_none=True))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    folder = view.metadata.properties.get(METADATA_PATH) or f"{view.metadata.location}/metadata"
    state = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"{folder.rstrip('/')}/{view.metadata.current_version_id:05d}-{state}.metadata.json", text


def response_of(view: View) -> Response:
    location, metadata = _metadata_file(view)
    body = f'{{"metadata-location":{json.dumps(location)},"metadata":{metadata},"config":{{}}}}'
    return Response(body, media_type="application/json")


def _written(catalog: ServedCatalog, view: View) -> Response:
    """The response that holds a view, after writing its metadata file.

    The view is stored in its definition in the lakehouse. Nothing reads the file, so a failure to write it is only
    logged.
    """
    location, metadata = _metadata_file(view)
    io = catalog.file_io()
    with suppress(FileExistsError, InvalidLocation):
        try:
            io.put(io.path_of(location), metadata.encode(), overwrite=False)
        except (StorageError, PermissionError) as error:
            logger.warning("the metadata file of a view was not written: %s", error)
    return response_of(view)
