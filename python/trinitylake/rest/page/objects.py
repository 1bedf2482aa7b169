"""Tables as the page shows them, and the search for names."""

from __future__ import annotations

import time
from typing import Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, Summary
from starlette.responses import Response

from trinitylake.errors import ObjectNotFound
from trinitylake.iceberg.identifiers import object_name
from trinitylake.lakehouse.history import millis_of
from trinitylake.lakehouse.object_history import changes_of_object
from trinitylake.rest.errors import bad_request
from trinitylake.rest.page import visibility
from trinitylake.rest.page.answers import answer, require_something, version_of, whole_number
from trinitylake.rest.page.sealed_positions import opened, sealed
from trinitylake.rest.request.call import Call
from trinitylake.rest.resources.elsewhere import reached
from trinitylake.rest.state.listing import names_with
from trinitylake.rest.state.served_catalog import ServedCatalog

#: The newest snapshots of a table that are shown.
MAX_SNAPSHOTS = 200
#: Results of one request for a search, keys that it looks at, and for how long; then it says where to go on.
MAX_FOUND, MAX_LOOKED_AT, SECONDS = 100, 500_000, 3.0
#: Of the text that is looked for.
MAX_TEXT = 200
_MAX_HISTORY = 50


def table(call: Call) -> Response:
    """What a table is: columns, partitions, order, properties, sizes, snapshots."""
    version_of(call)
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        document = reached(call, catalog, identifier, lambda: _described(catalog.load_table(identifier)))
        document["type"] = _type_of(catalog, identifier)
    return answer({"name": list(identifier), **document})


def search(call: Call) -> Response:
    """Namespaces, tables and views whose full name holds a text, or in one namespace those whose own name does, in the
    order of their keys.

    `next` is a token for going on, null at the end. A page may be short or empty all the same.
    """
    require_something(call)
    text = call.query.get("text", "").strip()
    if not 0 < len(text) <= MAX_TEXT:
        raise bad_request(f"a search is for a text of 1 to {MAX_TEXT} characters")
    size = max(whole_number(call, "size", 50, MAX_FOUND), 1)
    found: list[dict[str, Any]] = []
    looked_at, following = 0, None
    deadline = time.monotonic() + SECONDS
    with call.service.long_requests.taken(call.principal.name):
        state = version_of(call).state()
        for page in names_with(state, text, call.query.get("namespace"), _position(call)):
            for one in page.found:
                name = visibility.parts_of(one.kind, one.namespace, one.name)
                if visibility.sees(call.principal, one.kind, name):
                    found.append({"kind": one.kind, "name": list(name)})
                    if len(found) == size:
                        following = one.position
                        break
            looked_at += page.n_keys
            if following is None and (looked_at >= MAX_LOOKED_AT or time.monotonic() > deadline):
                following = page.position
            if following is not None:
                break
    return answer({"found": found, "next": None if following is None else sealed(following)})


def history(call: Call) -> Response:
    """The versions that changed a table, the newest first, through renames, as far as its former names may be seen."""
    version_of(call)
    identifier = call.identifier("table")
    object_name(identifier, NoSuchTableError)
    entries: list[dict[str, Any]] = []
    with call.service.long_requests.taken(call.principal.name):
        try:
            for change in changes_of_object(call.service.lake.core, identifier):
                name = visibility.parts_of(change.kind, *_split(change.name, identifier))
                if len(entries) == _MAX_HISTORY or not visibility.sees(call.principal, change.kind, name):
                    break
                entries.append(
                    {
                        "version": change.version,
                        "created-at-millis": millis_of(change.created_at),
                        "action": change.action,
                        "name": list(name),
                    }
                )
        except ObjectNotFound as error:
            raise NoSuchTableError(str(error)) from error
    return answer({"entries": entries})


def _split(full_name: str, identifier: tuple[str, ...]) -> tuple[str, str]:
    """Namespace and name, of which the latter may have dots if it is the one that was asked for."""
    if full_name == ".".join(identifier):
        return ".".join(identifier[:-1]), identifier[-1]
    namespace, _, name = full_name.rpartition(".")
    return namespace, name


def _position(call: Call) -> str | None:
    token = call.query.get("next")
    return None if token is None else opened(token)


def _type_of(catalog: ServedCatalog, identifier: tuple[str, ...]) -> str:
    return catalog.source.table(identifier).type


def _described(table: Table) -> dict[str, Any]:
    metadata, schema = table.metadata, table.schema()
    newest = sorted(metadata.snapshots, key=lambda one: (one.sequence_number or 0, one.timestamp_ms), reverse=True)
    current = table.current_snapshot()
    keys = set(schema.identifier_field_ids)
    return {
        "id": str(metadata.table_uuid),
        "format-version": metadata.format_version,
        "location": metadata.location,
        "last-updated-millis": metadata.last_updated_ms,
        "columns": [
            {
                "id": one.field_id,
                "name": one.name,
                "type": str(one.field_type),
                "required": one.required,
                "comment": one.doc or "",
                "is-key": one.field_id in keys,
            }
            for one in schema.fields
        ],
        "partitions": [
            {
                "name": one.name,
                "transform": str(one.transform),
                "column": schema.find_column_name(one.source_id) or str(one.source_id),
            }
            for one in table.spec().fields
        ],
        "order": [
            {
                "column": schema.find_column_name(one.source_id) or str(one.source_id),
                "transform": str(one.transform),
                "direction": one.direction.value,
                "nulls": one.null_order.value,
            }
            for one in table.sort_order().fields
        ],
        "properties": dict(sorted(metadata.properties.items())),
        "totals": _totals(current),
        "current-snapshot-id": None if current is None else str(current.snapshot_id),
        "n-snapshots": len(metadata.snapshots),
        "snapshots": [_snapshot(one) for one in newest[:MAX_SNAPSHOTS]],
        "references": {
            name: {"type": one.snapshot_ref_type.value, "snapshot-id": str(one.snapshot_id)}
            for name, one in sorted(metadata.refs.items())
        },
    }


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    summary = snapshot.summary
    return {
        "id": str(snapshot.snapshot_id),  # more than a browser's numbers hold
        "parent-id": None if snapshot.parent_snapshot_id is None else str(snapshot.parent_snapshot_id),
        "created-at-millis": snapshot.timestamp_ms,
        "operation": "" if summary is None else summary.operation.value,
        "added-rows": _number(summary, "added-records"),
        "deleted-rows": _number(summary, "deleted-records"),
        "added-files": _number(summary, "added-data-files"),
        "rows": _number(summary, "total-records"),
    }


def _totals(snapshot: Snapshot | None) -> dict[str, int | None]:
    summary = None if snapshot is None else snapshot.summary
    return {
        "rows": 0 if snapshot is None else _number(summary, "total-records"),
        "files": 0 if snapshot is None else _number(summary, "total-data-files"),
        "delete-files": 0 if snapshot is None else _number(summary, "total-delete-files"),
        "size-bytes": 0 if snapshot is None else _number(summary, "total-files-size"),
    }


def _number(summary: Summary | None, name: str) -> int | None:
    text = None if summary is None else summary[name]
    return int(text) if text is not None and text.isdigit() else None
