"""`/v1/config`: the first request of a client."""

from __future__ import annotations

from starlette.responses import Response

from trinitylake.rest.catalog.warehouses import LATEST, prefix_of
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.authorization import forbidden


def config(call: Call) -> Response:
    """The prefix of a warehouse, its endpoints, and properties of the catalog."""
    service = call.service
    warehouse = call.query.get("warehouse", "")
    if warehouse.startswith("@txn/") and not call.principal.may_read_something():
        raise forbidden(f"{call.principal.name} has no role")
    prefix = prefix_of(warehouse, service.lake, service.transactions, call.principal)
    is_past = prefix != LATEST and not prefix.startswith("txn~")
    endpoints = [f"{method} {path}" for method, path, writes in service.endpoints if not (writes and is_past)]
    defaults = dict(service.options.client_properties) if call.principal.is_admin_of_everything else {}
    document = {"defaults": defaults, "overrides": {"prefix": prefix}, "endpoints": endpoints}
    if prefix == LATEST:
        # A key is known until the version that it committed expires.
        lifetime = service.lake._definition.maximum_version_age_millis // 1000
        document["idempotency-key-lifetime"] = f"PT{lifetime}S"
    response = json_response(document)
    response.headers["Cache-Control"] = "no-store"  # the defaults may be credentials
    return response
