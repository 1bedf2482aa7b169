"""Responses to repeated requests, from the version that the first request committed (`idempotency.py`)."""

from __future__ import annotations

from starlette.responses import Response

from trinitylake.errors import ObjectNotFound
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.handlers import namespaces, tables, views
from trinitylake.rest.handlers.body_parts import CreatesObject
from trinitylake.rest.request.call import Call, json_response, no_content


def nothing(call: Call, state: LakehouseVersion) -> Response:
    """204, for requests without a body in the response."""
    return no_content()


def table(call: Call, state: LakehouseVersion) -> Response:
    """The table in the path, as committed."""
    return tables.load_response(call, call.served(state), call.identifier("table"))


def new_table(call: Call, state: LakehouseVersion) -> Response:
    """The table with the name in the body, as committed, with access to its files if the client asks for it.

    Without access if the table has another name now, because the client may have lost the right to its files.
    """
    identifier = (*call.namespace(), call.parsed(CreatesObject).name)
    made = call.served(state)
    response = tables.load_response(call, made, identifier)
    delegation = call.service.delegation
    if delegation is None or not delegation.is_requested(call):
        return response
    if tables.table_id(made, identifier) != tables.table_id(call.served(call.service.lake), identifier):
        return response
    return delegation.added(call, identifier, response)


def unregistered_table(call: Call, state: LakehouseVersion) -> Response:
    """The table in the path, as it was before the commit."""
    earlier = call.served(call.service.lake.at(version=state.version - 1))
    return tables.load_response(call, earlier, (*call.namespace(), call.name("table")))


def view(call: Call, state: LakehouseVersion) -> Response:
    """The view in the path, or with the name in the body, as committed."""
    name = call.name("view") if "view" in call.raw_names else call.parsed(CreatesObject).name
    return views.response_of(call.served(state).load_view((*call.namespace(), name)))


def created_namespace(call: Call, state: LakehouseVersion) -> Response:
    """The namespace with the properties that it was created with."""
    body = call.parsed(namespaces.CreateNamespace)
    return json_response({"namespace": body.namespace, "properties": body.properties})


def changed_properties(call: Call, state: LakehouseVersion) -> Response:
    """Names of properties that were set, removed, or missing."""
    body = call.parsed(namespaces.UpdateProperties)
    before: set[str] = set()
    try:
        earlier = call.service.lake.at(version=state.version - 1)
        before = set(earlier.namespace(call.namespace()).properties)
    except ObjectNotFound:  # created in the same version, by another member of the group commit
        pass
    removed = [name for name in body.removals if name in before]
    missing = [name for name in body.removals if name not in before]
    return json_response({"updated": list(body.updates), "removed": removed, "missing": missing})
