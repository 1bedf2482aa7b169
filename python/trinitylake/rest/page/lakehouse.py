"""The lakehouse as a whole: overview, addresses, counts, open and saved transactions."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from trinitylake.base.timestamps import millis_of
from trinitylake.lakehouse.history import tagged_versions
from trinitylake.lakehouse.reader import Kind
from trinitylake.lakehouse.transactions import SavedTransaction
from trinitylake.rest.catalog.warehouses import prefix_of
from trinitylake.rest.handlers import transactions
from trinitylake.rest.page import rows
from trinitylake.rest.page.answers import answer, reads_everything, require_everything, require_something, version_of
from trinitylake.rest.request.call import Call
from trinitylake.rest.transactions.ownership import OWNER_PROPERTY

#: Limit for counting the objects of a kind.
MAX_COUNTED = 10_000


def describe(call: Call) -> Response:
    """The lakehouse, its latest version, and the rights of the principal."""
    require_something(call)
    lake, principal = call.service.lake, call.principal
    everything = reads_everything(principal)
    newest = lake.at()
    document: dict[str, Any] = {
        "name": lake.name,
        "principal": principal.name,
        "version": newest.version,
        "created-at-millis": millis_of(newest.created_at),
        "oldest-version": lake._core.oldest(),
        "reads-everything": everything,
        "may": {
            "rows": rows.can_show(call),
            "counts": everything,
            "sql": everything and rows.can_query(call),
            "tree": everything,
            "maintenance": principal.is_admin_of_everything,
        },
    }
    if everything:
        document["uri"] = lake.uri
        document["properties"] = lake.properties
        document["tags"] = tagged_versions(lake._core.latest())
    return answer(document)


def resolve(call: Call) -> Response:
    """The prefix and version of an address such as `@timestamp/2026-05-01T12:00:00Z`."""
    require_something(call)
    service = call.service
    address = call.query.get("address", "")
    prefix = prefix_of(address, service.lake, service.transactions, call.principal)
    call.raw_names["prefix"] = prefix
    found = version_of(call)
    return answer({"prefix": prefix, "version": found.version, "created-at-millis": millis_of(found.created_at)})


def counts(call: Call) -> Response:
    """Number of objects of each kind in a version, at most `MAX_COUNTED`."""
    require_everything(call, "the number of objects")
    state = version_of(call)._state()
    kinds: tuple[Kind, ...] = "namespace", "table", "view"
    found = {f"{kind}s": state.list(kind, None, MAX_COUNTED + 1).num_rows for kind in kinds}
    return answer({**found, "max-counted": MAX_COUNTED})


def unfinished(call: Call) -> Response:
    """Open and saved transactions that the principal may use."""
    require_something(call)
    service, principal = call.service, call.principal
    here = service.transactions.list(principal)
    return answer(
        {
            "open": [
                {
                    "id": one.id,
                    "isolation": one.isolation,
                    "base-version": one.base_version,
                    "owner": one.properties.get(OWNER_PROPERTY, ""),
                }
                for one in here
            ],
            "saved": [_saved(one) for one in transactions.saved(call)],
        }
    )


def _saved(one: SavedTransaction) -> dict[str, Any]:
    return {
        "id": one.id,
        "isolation": one.isolation,
        "base-version": one.base_version,
        "owner": one.properties.get(OWNER_PROPERTY, ""),
        "author": one.author,
        "message": one.message,
        "began-at-millis": millis_of(one.began_at),
        "expires-at-millis": millis_of(one.expires_at),
        "times-saved": one.times_saved,
    }
