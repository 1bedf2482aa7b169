"""Scans planned by the server: a client sends a filter and gets the files to read, instead of reading manifests.

A plan is made while the client waits, so there is nothing to ask for later. One with more than `MAX_FILES` files ends
in a task, which stands for the rest: a token that holds the request and where to go on, so that any server can go on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any, cast

from pydantic import BaseModel, Field
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
from pyiceberg.conversions import to_json
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import PrimitiveType
from starlette.responses import Response

from trinitylake.rest.call import Call, json_response
from trinitylake.rest.errors import RestError, bad_request

MAX_FILES = 5000

_CONTENT = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}


class FetchTasks(BaseModel):
    """The body of `fetch_tasks`."""

    plan_task: str = Field(alias="plan-task")


class Continuation(BaseModel):
    """What a token holds."""

    request: PlanTableScanRequest
    start: int = Field(ge=0)


def plan(call: Call) -> Response:
    """The files that a scan has to read. 406 for what changed between two snapshots, which is not planned here."""
    request = call.parsed(PlanTableScanRequest)
    if request.start_snapshot_id is not None:
        raise RestError(406, "UnsupportedOperationException", "scans between two snapshots are planned by clients")
    return json_response({"status": "completed", **_tasks(call, request, 0)})


def fetch_tasks(call: Call) -> Response:
    """More of a plan."""
    token = call.parsed(FetchTasks).plan_task
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
        continuation = Continuation.model_validate_json(text)
    except ValueError as error:
        raise RestError(404, "NoSuchPlanTaskException", "plan-task is not one that this server gave") from error
    return json_response(_tasks(call, continuation.request, continuation.start))


def _tasks(call: Call, request: PlanTableScanRequest, start: int) -> dict[str, Any]:
    with call.catalog() as catalog:
        table = catalog.load_table(call.identifier("table"))
        snapshot_id = request.snapshot_id
        if snapshot_id is None and (snapshot := table.current_snapshot()) is not None:
            snapshot_id = snapshot.snapshot_id
        if snapshot_id is not None and table.snapshot_by_id(snapshot_id) is None:
            raise bad_request(f"the table has no snapshot {snapshot_id}")
        try:
            scan = table.scan(
                row_filter=request.filter or AlwaysTrue(),
                selected_fields=tuple(request.select or ("*",)),
                case_sensitive=request.case_sensitive,
                snapshot_id=snapshot_id,
            )
            planned = sorted(scan.plan_files(), key=lambda task: task.file.file_path)
        except (ValueError, TypeError) as error:  # a column that is not there, a value that is none of its type
            raise bad_request(f"the scan makes no sense: {error}") from error
        document = _document(table, planned[start : start + MAX_FILES])
    rest: list[str] = []
    if start + MAX_FILES < len(planned):
        pinned = request.model_copy(update={"snapshot_id": snapshot_id})
        text = Continuation(request=pinned, start=start + MAX_FILES).model_dump_json(by_alias=True, exclude_none=True)
        rest = [base64.urlsafe_b64encode(text.encode()).decode()]
    return {**document, "plan-tasks": rest}


def _document(table: Table, tasks: Iterable[FileScanTask]) -> dict[str, Any]:
    deletes: dict[str, int] = {}
    delete_files: list[dict[str, Any]] = []
    file_scan_tasks: list[dict[str, Any]] = []
    for task in tasks:
        for file in sorted(task.delete_files, key=lambda one: one.file_path):
            if file.file_path not in deletes:
                deletes[file.file_path] = len(delete_files)
                delete_files.append(_file(table, file))
        found: dict[str, Any] = {"data-file": _file(table, task.file)}
        if task.delete_files:
            found["delete-file-references"] = sorted(deletes[one.file_path] for one in task.delete_files)
        found["residual-filter"] = json.loads(task.residual.model_dump_json())
        file_scan_tasks.append(found)
    return {"file-scan-tasks": file_scan_tasks, "delete-files": delete_files}


def _file(table: Table, file: DataFile) -> dict[str, Any]:
    """A file as the specification writes it, without statistics of columns: what they rule out is not in the plan."""
    spec = table.specs()[file.spec_id]
    types = [cast(PrimitiveType, field.field_type) for field in spec.partition_type(table.schema()).fields]
    values = [file.partition[position] for position in range(len(types))]
    document = {
        "spec-id": file.spec_id,
        "partition": [
            None if value is None else to_json(type, value) for type, value in zip(types, values, strict=True)
        ],
        "content": _CONTENT[file.content],
        "file-path": file.file_path,
        "file-format": file.file_format.value.lower(),
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
        "split-offsets": file.split_offsets,
        "sort-order-id": file.sort_order_id,
    }
    if file.content is DataFileContent.EQUALITY_DELETES:
        document["equality-ids"] = file.equality_ids
    return {name: value for name, value in document.items() if value is not None}
