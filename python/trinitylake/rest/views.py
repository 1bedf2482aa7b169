"""Views over HTTP."""

from __future__ import annotations

import hashlib
import json

from pydantic import BaseModel, Field
from pyiceberg.exceptions import NoSuchViewError, TableAlreadyExistsError, ViewAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewVersion
from starlette.responses import Response

from trinitylake.definitions import parse_view_def, serialize
from trinitylake.iceberg.catalog.errors import translated
from trinitylake.iceberg.catalog.identifiers import object_name
from trinitylake.iceberg.catalog.namespaces import materialize_namespace
from trinitylake.iceberg.catalog.table_writing import default_location
from trinitylake.iceberg.catalog.view_metadata import view_definition, view_metadata
from trinitylake.rest.call import Call, json_response, no_content
from trinitylake.rest.errors import bad_request
from trinitylake.rest.names import Rename
from trinitylake.rest.pages import page_of
from trinitylake.rest.tables import inside, readable
from trinitylake.rest.view_changes import ViewChange, changed
from trinitylake.transaction import Transaction


class CreateView(BaseModel):
    """The body of `create`."""

    name: str
    location: str | None = None
    view_schema: Schema = Field(alias="schema")
    view_version: ViewVersion = Field(alias="view-version")
    properties: dict[str, str] = Field(default_factory=dict)


class RegisterView(BaseModel):
    """The body of `register`."""

    name: str
    metadata_location: str = Field(alias="metadata-location")


def list_all(call: Call) -> Response:
    """The views in exactly one namespace."""
    namespace = call.namespace()
    with call.catalog() as catalog:
        found = catalog.list_views(namespace)
    names, token = page_of([one[-1] for one in found], call.query)
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_response({"identifiers": identifiers, "next-page-token": token})


def create(call: Call) -> Response:
    """A new view."""
    body = call.parsed(CreateView)
    version = body.view_version.model_copy(update={"schema_id": max(body.view_version.schema_id, 0)})
    with call.catalog() as catalog:
        view = catalog.create_view(
            (*call.namespace(), body.name), body.view_schema, version, body.location, body.properties
        )
    return _response(view)


def load(call: Call) -> Response:
    """A view."""
    with call.catalog() as catalog:
        return _response(catalog.load_view(call.identifier("view")))


def exists(call: Call) -> Response:
    """204 or 404."""
    identifier = call.identifier("view")
    with call.catalog() as catalog:
        if not catalog.view_exists(identifier):
            raise NoSuchViewError(f"View does not exist: {'.'.join(identifier)}")
    return no_content()


def replace(call: Call) -> Response:
    """Updates of a view."""
    change = call.parsed(ViewChange)
    identifier = call.identifier("view")
    if change.identifier is not None and change.identifier.identifier() != identifier:
        raise bad_request("the identifier in the body is not the one in the path")
    namespace, name = object_name(identifier, NoSuchViewError)
    with call.catalog() as catalog:
        io = catalog._io()

        def statement(transaction: Transaction) -> View:
            core = transaction._open_core()
            data = core.read("view", namespace, name)
            if data is None:
                raise NoSuchViewError(f"View does not exist: {namespace}.{name}")
            definition = parse_view_def(data)
            metadata = changed(view_metadata(definition, default_location(io, namespace, name, definition.id)), change)
            core.replace("view", namespace, name, serialize(view_definition(metadata)))
            return View(identifier, metadata)

        with translated(missing=NoSuchViewError):
            return _response(catalog._write(statement))


def drop(call: Call) -> Response:
    """Drop a view."""
    with call.catalog() as catalog:
        catalog.drop_view(call.identifier("view"))
    return no_content()


def rename(call: Call) -> Response:
    """Another name, in another namespace if wished."""
    body = call.parsed(Rename)
    old_namespace, old = object_name(body.source.identifier())
    namespace, name = object_name(body.destination.identifier())

    def statement(transaction: Transaction) -> None:
        core = transaction._open_core()
        if not core.exists("view", old_namespace, old):
            raise NoSuchViewError(f"View does not exist: {old_namespace}.{old}")
        materialize_namespace(transaction, namespace)
        if core.exists("view", namespace, name):
            raise ViewAlreadyExistsError(f"View {namespace}.{name} already exists")
        if core.exists("table", namespace, name):
            raise TableAlreadyExistsError(f"Table {namespace}.{name} has that name already")
        core.rename("view", old_namespace, old, namespace, name)

    with call.catalog() as catalog, translated(taken=ViewAlreadyExistsError):
        catalog._write(statement)
    return no_content()


def register(call: Call) -> Response:
    """A view from a metadata file below the root, which is read once."""
    body = call.parsed(RegisterView)
    with call.catalog() as catalog:
        inside(catalog, body.metadata_location)
        with readable(body.metadata_location):
            return _response(catalog.register_view((*call.namespace(), body.name), body.metadata_location))


def _response(view: View) -> Response:
    """A view has no metadata file; the location is a name for its present state, which clients compare."""
    metadata = view.metadata.model_dump_json(by_alias=True, exclude_none=True)
    state = hashlib.sha256(metadata.encode()).hexdigest()[:32]
    location = f"{view.metadata.location}/metadata/{view.metadata.current_version_id:05d}-{state}.metadata.json"
    body = f'{{"metadata-location":{json.dumps(location)},"metadata":{metadata},"config":{{}}}}'
    return Response(body, media_type="application/json")
