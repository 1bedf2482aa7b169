"""Answers to repeated requests, read from the version that the first one committed (`idempotency.py`)."""

from __future__ import annotations

import json

from starlette.responses import Response

from trinitylake.errors import ObjectNotFound
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.handlers import namespaces, tables, views
from trinitylake.rest.request.call import Call, json_response, no_content


def nothing(call: Call, state: LakehouseVersion) -> Response:
    """204, for what answers with nothing more."""
    return no_content()


def table(call: Call, state: LakehouseVersion) -> Response:
    """The table in the path, as it was committed."""
    return tables.load_response(call, call.served(state), call.identifier("table"))


def new_table(call: Call, state: LakehouseVersion) -> Response:
    """The table of the name in the body, as it was committed, with access to its files if the first answer had that.

    Not if another table has that name now, or none: then its files may be no more the client's.
    """
    identifier = (*call.namespace(), str(json.loads(call.body)["name"]))
    made = call.served(state)
    response = tables.load_response(call, made, identifier)
    delegation = call.service.delegation
    if delegation is None or not delegation.is_wished(call):
        return response
    if tables.table_id(made, identifier) != tables.table_id(call.served(call.service.lake), identifier):
        return response
    return delegation.added(call, identifier, response)


def unregistered_table(call: Call, state: LakehouseVersion) -> Response:
    """The table in the path, as it was before."""
    earlier = call.served(call.service.lake.at(version=state.version - 1))
    return tables.load_response(call, earlier, (*call.namespace(), call.name("table")))


def view(call: Call, state: LakehouseVersion) -> Response:
    """The view in the path, or of the name in the body, as it was committed."""
    name = call.name("view") if "view" in call.raw_names else str(json.loads(call.body)["name"])
    return views.response_of(call.served(state).load_view((*call.namespace(), name)))


def created_namespace(call: Call, state: LakehouseVersion) -> Response:
    """The namespace with the properties that it was created with."""
    body = call.parsed(namespaces.CreateNamespace)
    return json_response({"namespace": body.namespace, "properties": body.properties})


def changed_properties(call: Call, state: LakehouseVersion) -> Response:
    """What was set and removed, and what had not been there before."""
    body = call.parsed(namespaces.UpdateProperties)
    before: set[str] = set()
    try:
        earlier = call.service.lake.at(version=state.version - 1)
        before = set(earlier.namespace(call.namespace()).properties)
    except ObjectNotFound:  # created in the same version, by somebody who committed together with this request
        pass
    removed = [name for name in body.removals if name in before]
    missing = [name for name in body.removals if name not in before]
    return json_response({"updated": list(body.updates), "removed": removed, "missing": missing})
