"""Policy, last runs and estimated deletions of maintenance, for principals with the role admin on everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from trinitylake.base.timestamps import millis_of
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.maintenance_policy import DEFAULTS
from trinitylake.lakehouse.vacuum_report import Files
from trinitylake.rest.maintenance.estimates import Estimate
from trinitylake.rest.maintenance.schedule import MaintenanceSchedule
from trinitylake.rest.page.answers import answer
from trinitylake.rest.request.call import Call
from trinitylake.rest.security.authorization import forbidden

_MAX_FOLDERS = 50


def load(call: Call) -> Response:
    """The policy, the last steps in the log, the last run of the schedule, and the newest estimate."""
    _require_admin(call)
    service = call.service
    return answer({**_document(service.estimates.newest), **_policy(service.lake, service.schedule)})


def begin(call: Call) -> Response:
    """Start an estimate. Deletes nothing."""
    _require_admin(call)
    service = call.service
    return answer({**_document(service.estimates.begin()), **_policy(service.lake, service.schedule)})


def _require_admin(call: Call) -> None:
    if not call.principal.is_admin_of_everything:
        raise forbidden(f"maintenance needs the role admin on *, which {call.principal.name} does not have")


def _policy(lake: Lakehouse, schedule: MaintenanceSchedule) -> dict[str, Any]:
    definition, run = lake.at().definition, schedule.last_run
    return {
        "last-steps": [
            {
                "step": one.step,
                "version": one.version,
                "created-at-millis": millis_of(one.created_at),
                "author": one.author,
                "message": one.message,
            }
            for one in lake.maintenance.last_steps()
        ],
        "policy": {
            "maximum-version-age-millis": definition.maximum_version_age_millis,
            "minimum-versions-to-keep": definition.minimum_versions_to_keep,
            "transaction-age-millis": definition.txn_ttl_millis,
            "period-seconds": schedule.period_seconds,
            "properties": {name: definition.properties.get(name, default) for name, default in DEFAULTS.items()},
        },
        "last-run": None
        if run is None
        else {
            "ended-at-millis": int(run.ended_at * 1000),
            "outcome": run.outcome,
            "seconds": round(run.seconds, 3),
            "counts": run.counts,
        },
    }


def _document(estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {"state": "none"}
    document: dict[str, Any] = {
        "state": estimate.state,
        "began-at-millis": int(estimate.began_at * 1000),
        "ended-at-millis": None if estimate.ended_at is None else int(estimate.ended_at * 1000),
        "progress": dict(estimate.progress),
        "problem": estimate.problem,
    }
    if (expired := estimate.expired) is not None:
        document["expire"] = {
            "versions": len(expired),
            "first": expired[0] if expired else None,
            "last": expired[-1] if expired else None,
            "size-bytes": expired.size_bytes,
            "oldest-kept": expired.oldest,
        }
    if (found := estimate.vacuumed) is not None:
        folders = sorted(found.deleted_by_table.items(), key=lambda one: -one[1].size_bytes)
        document["vacuum"] = {
            "before-millis": millis_of(found.before),
            "deleted": _files(found.deleted),
            "deleted-by-folder": _files(dict(folders[:_MAX_FOLDERS])),
            "kept": _files(found.kept),
            "young": _files({"young": found.young})["young"],
            "unknown": _files({"unknown": found.unknown})["unknown"],
        }
    return document


def _files(counts: Mapping[str, Files]) -> dict[str, Any]:
    return {what: {"files": one.files, "size-bytes": one.size_bytes} for what, one in counts.items()}
