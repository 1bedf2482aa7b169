"""`/v1/config`: what a client asks first."""

from __future__ import annotations

from starlette.responses import Response

from trinitylake.rest.catalog.addresses import LATEST, prefix_of
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.principals import forbidden


def config(call: Call) -> Response:
    """The prefix for the warehouse that the client wants, and the endpoints there."""
    service = call.service
    warehouse = call.query.get("warehouse", "")
    if warehouse.startswith("@txn/") and not call.principal.may_read_something():
        raise forbidden(f"{call.principal.name} is a reader of nothing")
    prefix = prefix_of(warehouse, service.lake, service.transactions, call.principal)
    is_past = prefix != LATEST and not prefix.startswith("txn~")
    endpoints = [f"{method} {path}" for method, path, writes in service.endpoints if not (writes and is_past)]
    defaults = dict(service.options.client_properties) if call.principal.is_admin_of_everything else {}
    document = {"defaults": defaults, "overrides": {"prefix": prefix}, "endpoints": endpoints}
    if prefix == LATEST:
        # A key is found as long as its commit is: the log forgets only what retention lets go.
        lifetime = service.lake._definition.maximum_version_age_millis // 1000
        document["idempotency-key-lifetime"] = f"PT{lifetime}S"
    response = json_response(document)
    response.headers["Cache-Control"] = "no-store"  # the defaults may be credentials
    return response
