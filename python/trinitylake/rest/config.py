"""`/v1/config`: what a client asks first."""

from __future__ import annotations

from starlette.responses import Response

from trinitylake.rest.addresses import LATEST, prefix_of
from trinitylake.rest.call import Call, json_response


def config(call: Call) -> Response:
    """The prefix for the warehouse that the client wants, and the endpoints there."""
    service = call.service
    prefix = prefix_of(call.query.get("warehouse", ""), service.lake, service.transactions)
    is_past = prefix != LATEST and not prefix.startswith("txn~")
    endpoints = [f"{method} {path}" for method, path, writes in service.endpoints if not (writes and is_past)]
    document = {"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": endpoints}
    if prefix == LATEST:
        # A key is found as long as its commit is: the log forgets only what retention lets go.
        lifetime = service.lake.definition.maximum_version_age_millis // 1000
        document["idempotency-key-lifetime"] = f"PT{lifetime}S"
    return json_response(document)
