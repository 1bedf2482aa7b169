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
    return json_response({"defaults": {}, "overrides": {"prefix": prefix}, "endpoints": endpoints})
