"""Endpoints of namespaces."""

from __future__ import annotations

from pydantic import BaseModel, Field
from pyiceberg.exceptions import NoSuchNamespaceError
from starlette.responses import Response

from trinitylake.rest.errors import RestError
from trinitylake.rest.handlers import transaction_namespaces as reserved
from trinitylake.rest.handlers.body_parts import check_growth
from trinitylake.rest.request.call import Call, checked_namespace, json_response, namespace_of, no_content
from trinitylake.rest.request.pagination import namespaces_response, page_of
from trinitylake.rest.security.locations import LOCATION_PROPERTY, namespace_location


class CreateNamespace(BaseModel):
    namespace: list[str]
    properties: dict[str, str] = Field(default_factory=dict)


class UpdateProperties(BaseModel):
    removals: list[str] = Field(default_factory=list)
    updates: dict[str, str] = Field(default_factory=dict)


def name_to_create(call: Call) -> list[tuple[str, ...]]:
    """The namespace that a request creates; empty if it begins a transaction, which any writer may do."""
    namespace = checked_namespace(call.parsed(CreateNamespace).namespace)
    return [] if call.is_reserved(namespace) else [namespace]


def in_path(call: Call) -> list[tuple[str, ...]]:
    """The namespace in the path; empty if it stands for a transaction, because only its owner may use it."""
    return [] if call.is_reserved(call.namespace()) else [call.namespace()]


def list_all(call: Call) -> Response:
    """List the namespaces directly below `parent`, or at the top."""
    parent = namespace_of(call.query["parent"]) if call.query.get("parent") else ()
    found = reserved.children(call, parent)
    if found is not None:
        names, token = page_of([one[-1] for one in found], call.query)
        return json_response({"namespaces": [(*parent, name) for name in names], "next-page-token": token})
    if parent:
        call.principal.require_sight(parent)
    with call.catalog() as catalog:
        return namespaces_response(call, catalog, parent)


def create(call: Call) -> Response:
    """Create a namespace with properties."""
    body = call.parsed(CreateNamespace)
    namespace = checked_namespace(body.namespace)
    if call.is_reserved(namespace):
        return reserved.create(call, namespace, body.properties)
    with call.catalog() as catalog:
        catalog.create_namespace(namespace, body.properties)
    return json_response({"namespace": namespace, "properties": body.properties})


def load(call: Call) -> Response:
    """Load a namespace and its properties, with a default for `location`, the folder of new tables."""
    if call.is_reserved(call.namespace()):
        return reserved.load(call, call.namespace())
    with call.catalog() as catalog:
        properties = catalog.load_namespace_properties(call.namespace())
        properties = {LOCATION_PROPERTY: namespace_location(catalog.file_io(), call.namespace()), **properties}
    return json_response({"namespace": call.namespace(), "properties": properties})


def exists(call: Call) -> Response:
    """Check that a namespace exists: 204 or 404."""
    if call.is_reserved(call.namespace()):
        reserved.load(call, call.namespace())
        return no_content()
    with call.catalog() as catalog:
        if not catalog.namespace_exists(call.namespace()):
            raise NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(call.namespace())}")
    return no_content()


def drop(call: Call) -> Response:
    """Drop an empty namespace."""
    if call.is_reserved(call.namespace()):
        return reserved.drop(call, call.namespace())
    with call.catalog() as catalog:
        catalog.drop_namespace(call.namespace())
    return no_content()


def update_properties(call: Call) -> Response:
    """Set and remove properties of a namespace."""
    body = call.parsed(UpdateProperties)
    if both := sorted(set(body.removals) & body.updates.keys()):
        raise RestError(422, "UnprocessableEntityException", f"properties are both set and removed: {both}")
    if call.is_reserved(call.namespace()):
        return reserved.update(call, call.namespace(), body.updates, body.removals)
    with call.catalog() as catalog:
        if body.updates:
            present = catalog.load_namespace_properties(call.namespace())
            size_bytes = sum(len(name) + len(value) for name, value in present.items())
            check_growth(f"namespace {'.'.join(call.namespace())}", size_bytes, len(call.body))
        summary = catalog.update_namespace_properties(call.namespace(), set(body.removals), body.updates)
    return json_response({"updated": summary.updated, "removed": summary.removed, "missing": summary.missing})
