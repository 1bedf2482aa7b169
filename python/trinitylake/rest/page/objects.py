"""Endpoints of the page for one table: description and history."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from starlette.responses import Response

from trinitylake.base.timestamps import millis_of
from trinitylake.definitions.iceberg_types import sql_text
from trinitylake.errors import ObjectNotFound, TrinityLakeError
from trinitylake.iceberg.namespaces import object_name
from trinitylake.iceberg_storage.snapshot_counts import count_in, live_rows, summary_of
from trinitylake.lakehouse.object_history import changes_of_object
from trinitylake.rest.handlers.external_tables import with_deadline
from trinitylake.rest.page.answers import answer, parts_of, require_something, sees, version_of
from trinitylake.rest.request.call import Call

#: Number of snapshots of a table in the response, newest first.
MAX_SNAPSHOTS = 200
_MAX_HISTORY = 50
#: Limits of one request for totals: tables, their metadata files read at once, and its duration.
MAX_TOTALS, _TOTALS_THREADS, _TOTALS_SECONDS = 100, 8, 3.0


def table(call: Call) -> Response:
    """A table: columns, partitions, sort order, properties, sizes, snapshots."""
    version_of(call)
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        document = with_deadline(call, catalog, identifier, lambda: _described(catalog.load_table(identifier)))
        document["type"] = catalog.source.table(identifier).type
    return answer({"name": list(identifier), **document})


class TableNames(BaseModel):
    """Body of `totals`: names of tables, each a list of parts."""

    model_config = ConfigDict(extra="forbid")

    tables: list[list[str]] = Field(max_length=MAX_TOTALS)


def totals(call: Call) -> Response:
    """Rows, size and last change of tables.

    Null for a table that does not exist in the version, that the principal cannot see, whose metadata is damaged or
    outside of the lakehouse, or that was not read within `_TOTALS_SECONDS`.
    """
    require_something(call)
    view = version_of(call)
    deadline = time.monotonic() + _TOTALS_SECONDS

    def of(parts: list[str]) -> dict[str, Any] | None:
        if time.monotonic() > deadline or len(parts) < 2 or not sees(call.principal, "table", tuple(parts)):
            return None
        try:
            table = view.table((".".join(parts[:-1]), parts[-1]))
            if table.type != "managed":
                return None
            return {
                **_totals(table.iceberg.current_snapshot()),
                "last-updated-millis": table.iceberg.metadata.last_updated_ms,
            }
        except TrinityLakeError:
            return None

    with call.service.long_requests.lease(call.principal.name), ThreadPoolExecutor(_TOTALS_THREADS) as pool:
        return answer({"tables": list(pool.map(of, call.parsed(TableNames).tables))})


def history(call: Call) -> Response:
    """The versions that changed a table, newest first, also under former names, up to a name that is not visible."""
    version_of(call)
    identifier = call.identifier("table")
    object_name(identifier, NoSuchTableError)
    entries: list[dict[str, Any]] = []
    with call.service.long_requests.lease(call.principal.name):
        try:
            for change in changes_of_object(call.service.lake._core, identifier):
                name = parts_of(change.kind, *_split(change.name, identifier))
                if len(entries) == _MAX_HISTORY or not sees(call.principal, change.kind, name):
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
    """Namespace and name of `full_name`. Only a table name that the client requested may contain dots."""
    if full_name == ".".join(identifier):
        return ".".join(identifier[:-1]), identifier[-1]
    namespace, _, name = full_name.rpartition(".")
    return namespace, name


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
                "type": sql_text(one.field_type),
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
    summary = summary_of(snapshot)
    return {
        "id": str(snapshot.snapshot_id),  # more than a browser's numbers hold
        "parent-id": None if snapshot.parent_snapshot_id is None else str(snapshot.parent_snapshot_id),
        "created-at-millis": snapshot.timestamp_ms,
        "operation": "" if snapshot.summary is None else snapshot.summary.operation.value,
        "added-rows": count_in(summary, "added-records"),
        "deleted-rows": count_in(summary, "deleted-records"),
        "added-files": count_in(summary, "added-data-files"),
        "rows": live_rows(summary),
    }


def _totals(snapshot: Snapshot | None) -> dict[str, int | None]:
    summary = summary_of(snapshot)
    names = {"files": "total-data-files", "delete-files": "total-delete-files", "size-bytes": "total-files-size"}
    if snapshot is None:
        return dict.fromkeys(("rows", *names), 0)
    return {"rows": live_rows(summary), **{name: count_in(summary, key) for name, key in names.items()}}
