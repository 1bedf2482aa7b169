"""Scan planning by the server: a client sends a filter and gets the files to read, instead of reading manifests.

A plan is made synchronously. A plan of more than `MAX_FILES` files ends with a task for the rest: a token with the
request and the position, with which any server can continue. The server that made the plan caches the rest.

PyIceberg's models are used for requests, but not for responses: they accept no null in a partition, write a residual
filter as `{}`, and write file formats in capitals, where the specification has small letters.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
import zlib
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import Any, cast

from pydantic import BaseModel, Field, field_validator
from pyiceberg.catalog.rest.scan_planning import FetchScanTasksRequest, PlanTableScanRequest
from pyiceberg.conversions import to_json
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import PrimitiveType
from starlette.responses import Response

from trinitylake.iceberg.namespaces import object_name
from trinitylake.iceberg_storage.delete_files import blob_of, file_key, referenced_data_file
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadAheadScan, appended_files
from trinitylake.iceberg_storage.extended_pyiceberg.scan_planner import PlanTooLarge
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.avro_file import SizeLimitExceeded
from trinitylake.iceberg_storage.metadata_invariants import check_parents
from trinitylake.iceberg_storage.pyiceberg_patches import schema_with_sources
from trinitylake.iceberg_storage.row_ids import first_row_id_of_file
from trinitylake.iceberg_storage.table_file_io import TableFileIO
from trinitylake.rest.errors import RestError, bad_request, input_fault, unsupported
from trinitylake.rest.handlers.external_tables import with_deadline
from trinitylake.rest.handlers.plan_filter import filter_of, with_binary_values
from trinitylake.rest.metadata_limits import BoundedFileIO
from trinitylake.rest.request.body import HEAVY_VALUES, check_values
from trinitylake.rest.request.call import Call, json_response, parsed_json
from trinitylake.rest.security.authorization import Role
from trinitylake.rest.security.locations import is_own, path_of_object
from trinitylake.rest.workers.foreign_files import ForeignFileIO
from trinitylake.tables.transaction_table import TransactionTable

MAX_FILES = 5000
#: Maximum number of evaluations in one plan: the number of predicates and values of the filter times the number of
#: files and manifests.
MAX_LOOKS = 20_000_000
#: Size of the residual filters of all files of a plan.
MAX_RESIDUALS_SIZE_BYTES = 32 << 20
#: Lock for parsing a token with very many values, as for heavy bodies.
_one_at_a_time = threading.Lock()
#: Columns that clients compute from files and positions; Spark selects them to update and delete rows.
_METADATA_COLUMNS = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
)
_CONTENT = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}


class PlanRequest(PlanTableScanRequest):
    """Body of `plan`, whose filter has either form of the specification."""

    @field_validator("filter", mode="before")
    @classmethod
    def _parse_filter(cls, filter: Any) -> Any:
        return None if filter is None else filter_of(filter)


class Continuation(BaseModel):
    """Content of a token."""

    request: PlanRequest
    start: int = Field(ge=0)
    plan: str = ""


def plan(call: Call) -> Response:
    """The files of a scan of a snapshot, or the files that were appended between two snapshots.

    Raises `RestError` 406 above the limits, and for a table outside of its own folder (`locations.py`) unless the
    principal is a reader of `*`.
    """
    request = call.parsed(PlanRequest)
    if request.end_snapshot_id is not None and request.start_snapshot_id is None:
        raise bad_request("end-snapshot-id needs a start-snapshot-id")
    return json_response({"status": "completed", "plan-id": str(uuid.uuid4()), **_tasks(call, request, 0)})


def fetch_tasks(call: Call) -> Response:
    """The next part of a plan."""
    continuation = _continuation(call.parsed(FetchScanTasksRequest).plan_task)
    if (kept := call.service.plans.get(_key(call, continuation.plan), continuation.start)) is None:
        return json_response(_tasks(call, continuation.request, continuation.start))
    part, following = kept
    rest = [] if following is None else [_token(continuation, following)]
    return json_response({**json.loads(zlib.decompress(part)), "plan-tasks": rest})


def _continuation(token: str) -> Continuation:
    """The content of a token. Clients may forge tokens, so it has the limits of a body."""
    try:
        text = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
        with _one_at_a_time if check_values(text) >= HEAVY_VALUES else nullcontext():
            return parsed_json(Continuation, text)
    except (ValueError, RestError) as error:
        raise RestError(404, "NoSuchPlanTaskException", "plan-task is not a token of this server") from error


def _key(call: Call, plan: str) -> tuple[str, ...]:
    return (plan, call.principal.name, call.prefix, *call.identifier("table"))


def _token(continuation: Continuation, start: int) -> str:
    text = continuation.model_copy(update={"start": start}).model_dump_json(by_alias=True, exclude_none=True)
    return base64.urlsafe_b64encode(text.encode()).decode()


def _tasks(call: Call, request: PlanRequest, start: int) -> dict[str, Any]:
    with call.catalog() as catalog:
        identifier = call.identifier("table")
        if (table := catalog.tracked_table(*object_name(identifier, NoSuchTableError))) is not None:
            _note(table, request)
        return with_deadline(
            call, catalog, identifier, lambda: _planned(call, catalog.load_table(identifier), request, start)
        )


def _note(table: TransactionTable, request: PlanRequest) -> None:
    """Record the rows that the client reads by its scan."""
    if request.start_snapshot_id is not None:
        table._note_whole()
        return
    metadata = table._open_staged().metadata
    snapshot = metadata.current_snapshot()
    filter: BooleanExpression = AlwaysTrue()
    # Reads are recorded with the current schema. If the filter belongs to another schema, all rows count as read.
    if not request.use_snapshot_schema or (
        snapshot is not None and snapshot.schema_id in (None, metadata.current_schema_id)
    ):
        with suppress(ValueError, TypeError):  # the filter is invalid, and planning will say so
            filter = with_binary_values(request.filter or filter, metadata.schema(), request.case_sensitive)
    table._note_scan(filter, request.snapshot_id, request.case_sensitive)


def _planned(call: Call, table: Table, request: PlanRequest, start: int) -> dict[str, Any]:
    """The part of a plan from file number `start` on. Later parts are cached."""
    if isinstance(table.io, LakehouseFileIO) and not call.principal.has_everywhere(Role.READER):
        path = path_of_object(table.io, table.location())
        if path is None or not is_own(path, call.identifier("table"), str(table.metadata.table_uuid)):
            raise unsupported("the files of the table are outside of its folder: plan the scan at the client")
        table.io = TableFileIO(table.io, path)
    with call.service.manifests.for_plan(call.principal.name) as allowance:
        if isinstance(table.io, LakehouseFileIO):
            table.io = BoundedFileIO(table.io, allowance)
        elif isinstance(table.io, ForeignFileIO):
            table.io = table.io.within(allowance)
        return _document_of(call, table, request, start)


def _document_of(call: Call, table: Table, request: PlanRequest, start: int) -> dict[str, Any]:
    request = _pinned(table, request)
    try:
        check_parents(table.metadata.snapshots)  # PyIceberg follows them, also of external tables
        planned = sorted(_files(table, request), key=lambda task: task.file.file_path)
        _check_residuals(planned)
    except PlanTooLarge as error:
        raise bad_request(str(error)) from error
    except SizeLimitExceeded as error:
        raise unsupported(f"{error}: plan the scan at the client") from error
    except TypeError as error:
        raise bad_request("the scan is invalid: the filter compares a column with a value of another type") from error
    except (ValueError, RecursionError) as error:  # an unknown column, a value that the column cannot have
        raise bad_request(f"the scan is invalid: {input_fault(error)}") from error
    first, *others = range(start, max(len(planned), start + 1), MAX_FILES)
    document = _document(table, planned[first : first + MAX_FILES])
    if not others:
        return {**document, "plan-tasks": []}
    continuation = Continuation(request=request, start=others[0], plan=uuid.uuid4().hex)
    documents = {one: json.dumps(_document(table, planned[one : one + MAX_FILES])) for one in others}
    parts = {one: zlib.compress(text.encode(), 1) for one, text in documents.items()}
    call.service.plans.put(_key(call, continuation.plan), parts)
    return {**document, "plan-tasks": [_token(continuation, others[0])]}


def _pinned(table: Table, request: PlanRequest) -> PlanRequest:
    """The request with its snapshot id. Raises `RestError` 400 for an unknown snapshot."""
    if request.start_snapshot_id is None and request.snapshot_id is None:
        current = table.current_snapshot()
        return request if current is None else request.model_copy(update={"snapshot_id": current.snapshot_id})
    for id in (request.snapshot_id, request.end_snapshot_id):  # the start may have expired: it is not read
        if id is not None and table.snapshot_by_id(id) is None:
            raise bad_request(f"the table has no snapshot {id}")
    return request


def _files(table: Table, request: PlanRequest) -> Iterable[FileScanTask]:
    metadata, case_sensitive = table.metadata, request.case_sensitive
    filter = with_binary_values(request.filter or AlwaysTrue(), _schema(table, request), case_sensitive)
    if request.start_snapshot_id is not None:
        between = request.start_snapshot_id, request.end_snapshot_id
        return appended_files(metadata, table.io, filter, case_sensitive, *between, max_looks=MAX_LOOKS)
    id = request.snapshot_id
    if not request.use_snapshot_schema:
        metadata, id = metadata.model_copy(update={"current_snapshot_id": id}), None
    selected = (
        ("*",)
        if not request.select
        else tuple(one for one in request.select if one.partition(".")[0] not in _METADATA_COLUMNS)
    )
    scan = ReadAheadScan(metadata, table.io, filter, selected, case_sensitive, snapshot_id=id)
    scan.projection()
    return scan.bounded(MAX_LOOKS).plan_files()


def _schema(table: Table, request: PlanRequest) -> Schema:
    snapshot = None if request.snapshot_id is None else table.snapshot_by_id(request.snapshot_id)
    if request.use_snapshot_schema and snapshot is not None and snapshot.schema_id is not None:
        return table.schemas()[snapshot.schema_id]
    return table.schema()


def _check_residuals(tasks: Iterable[FileScanTask]) -> None:
    sizes = {id(task.residual): task.residual for task in tasks}
    length = {key: len(residual.model_dump_json()) for key, residual in sizes.items()}
    if (total := sum(length[id(task.residual)] for task in tasks)) > MAX_RESIDUALS_SIZE_BYTES:
        raise PlanTooLarge(
            f"the residual filters of the files have {total} bytes, and the limit is {MAX_RESIDUALS_SIZE_BYTES}: plan "
            "the scan at the client"
        )


def _document(table: Table, tasks: Iterable[FileScanTask]) -> dict[str, Any]:
    deletes: dict[tuple[str, int | None], int] = {}
    delete_files: list[dict[str, Any]] = []
    file_scan_tasks: list[dict[str, Any]] = []
    residuals: dict[int, Any] = {}  # by identity, because files of one partition share a residual filter
    for task in tasks:
        keys = []
        for file in sorted(task.delete_files, key=lambda one: one.file_path):
            keys.append(file_key(file))
            if keys[-1] not in deletes:
                deletes[keys[-1]] = len(delete_files)
                delete_files.append(_file(table, file))
        found: dict[str, Any] = {"data-file": _file(table, task.file)}
        if (row_id := first_row_id_of_file(task.file)) is not None:
            found["data-file"]["first-row-id"] = row_id
        if keys:
            found["delete-file-references"] = sorted(deletes[key] for key in keys)
        if id(task.residual) not in residuals:
            residuals[id(task.residual)] = json.loads(task.residual.model_dump_json())
        found["residual-filter"] = residuals[id(task.residual)]
        file_scan_tasks.append(found)
    return {"file-scan-tasks": file_scan_tasks, "delete-files": delete_files}


def _file(table: Table, file: DataFile) -> dict[str, Any]:
    """A file in the form of the specification, without column statistics, which the plan has already applied."""
    spec = table.specs()[file.spec_id]
    types = [
        cast(PrimitiveType, field.field_type)
        for field in spec.partition_type(schema_with_sources(table.metadata)).fields
    ]
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
    if (blob := blob_of(file)) is not None:
        document["content-offset"], document["content-size-in-bytes"] = blob
        document["referenced-data-file"] = referenced_data_file(file)
    return {name: value for name, value in document.items() if value is not None}
