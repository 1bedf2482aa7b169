"""Endpoints of tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from pydantic import Field, field_validator
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from starlette.responses import Response

from trinitylake.base.arguments import user_names
from trinitylake.definitions import MANAGED, parse_table_def
from trinitylake.errors import CorruptFile
from trinitylake.iceberg import table_writing
from trinitylake.iceberg.bound_catalog import names_checked
from trinitylake.iceberg.namespaces import object_name
from trinitylake.iceberg_storage.errors import pyiceberg_errors
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed
from trinitylake.iceberg_storage.manifests.avro_file import SizeLimitExceeded
from trinitylake.iceberg_storage.staging.staged_table import StagedTable
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.catalog.served_catalog import ServedCatalog
from trinitylake.rest.catalog.table_responses import (
    Snapshots,
    response_of_file,
    response_of_metadata,
    table_body,
    with_config,
)
from trinitylake.rest.errors import bad_request, client_faults, unsupported
from trinitylake.rest.handlers.body_parts import CreatesObject, Name, Rename, new_name
from trinitylake.rest.handlers.external_tables import peer_of
from trinitylake.rest.handlers.table_changes import TableChange, stage, with_field_ids
from trinitylake.rest.metadata_limits import BoundedFileIO, too_many_incoming_files
from trinitylake.rest.request.call import Call, json_response, no_content
from trinitylake.rest.request.pagination import identifiers_response
from trinitylake.rest.security.authorization import Role
from trinitylake.rest.security.locations import is_own, path_of_object
from trinitylake.tables.table_definition import metadata_path


class CreateTable(CreatesObject):
    location: str | None = None
    table_schema: Schema = Field(alias="schema")
    partition_spec: PartitionSpec | None = Field(alias="partition-spec", default=None)
    write_order: SortOrder | None = Field(alias="write-order", default=None)
    stage_create: bool = Field(alias="stage-create", default=False)
    properties: dict[str, str] = Field(default_factory=dict)

    @field_validator("partition_spec", mode="before")
    @classmethod
    def _may_lack_ids(cls, spec: Any) -> Any:
        return with_field_ids(spec)


class Register(CreatesObject):
    metadata_location: str = Field(alias="metadata-location")
    overwrite: bool = False


def list_all(call: Call) -> Response:
    """List the tables directly in a namespace."""
    namespace = call.namespace()
    with call.catalog() as catalog:
        return identifiers_response(call, catalog, "table", namespace)


def create(call: Call) -> Response:
    """Create a table; with `stage-create` only its metadata, for a commit with `assert-create`."""
    body = call.parsed(CreateTable)
    identifier = (*call.namespace(), body.name)
    user_names(body.properties, "properties")
    spec = body.partition_spec or UNPARTITIONED_PARTITION_SPEC
    order = body.write_order or UNSORTED_SORT_ORDER
    with call.catalog() as catalog:
        location = call.locations(catalog).new_object(body.location, identifier)
        with client_faults("the table"):
            if body.stage_create:
                staged = catalog.stage_table(identifier, body.table_schema, location, spec, order, body.properties)
                _make_folders(catalog, staged.metadata.location)
                text = table_body(None, staged.metadata.model_dump_json().encode())
                return with_access(call, identifier, Response(text, media_type="application/json"))
            namespace, name = object_name(identifier)
            metadata = catalog.new_metadata(namespace, name, body.table_schema, location, spec, order, body.properties)
        with pyiceberg_errors():
            made = catalog.write(lambda transaction: table_writing.create_table(transaction, namespace, name, metadata))
        _make_folders(catalog, metadata.location)
        response = _staged_response(call, made)
    return with_access(call, identifier, response)


def load(call: Call) -> Response:
    """Load the metadata of a table; 304 if the client has it."""
    snapshots = call.query.get("snapshots", "all")
    if snapshots not in ("all", "refs"):
        raise bad_request(f"snapshots must be all or refs, not {snapshots!r}")
    identifier = call.identifier("table")
    if_none_match = call.headers.get("if-none-match")
    delegation = call.service.delegation
    if delegation is not None and delegation.is_requested(call):
        if_none_match = None  # credentials of the client may have expired
    with call.catalog() as catalog:
        response = load_response(call, catalog, identifier, cast(Snapshots, snapshots), if_none_match)
        if response.status_code == 200 and _plans_scans(call, catalog, identifier):
            response = with_config(response, {"scan-planning-mode": "server"})
    return with_access(call, identifier, response)


def _plans_scans(call: Call, catalog: ServedCatalog, identifier: tuple[str, ...]) -> bool:
    """Whether the response asks the client to let the server plan its scans.

    By planning, the server learns which rows a serializable transaction reads. If it cannot plan the scans, the
    transaction counts as a reader of the whole table.
    """
    table = catalog.tracked_table(*object_name(identifier, NoSuchTableError))
    if table is None or (staged := table._open_staged()).created:
        return False
    snapshot = staged.metadata.current_snapshot()
    if snapshot is None:  # clients plan no scan of an empty table
        table._note_scan(AlwaysTrue(), None)
        return False
    has_equality_deletes = snapshot.summary is None or snapshot.summary["total-equality-deletes"] not in (None, "0")
    path = path_of_object(staged.io, staged.metadata.location)
    is_own_folder = path is not None and is_own(path, identifier, str(staged.metadata.table_uuid))
    if has_equality_deletes or not (is_own_folder or call.principal.has_everywhere(Role.READER)):
        table._note_whole()
        return False
    return True


def exists(call: Call) -> Response:
    """Check that a table exists: 204 or 404."""
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        if not catalog.table_exists(identifier):
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")
    return no_content()


def commit(call: Call) -> Response:
    """Commit updates to one table, or its creation."""
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        change = call.parsed(TableChange)
        if change.identifier is not None and change.identifier.identifier() != identifier:
            raise bad_request("the identifiers in body and path are different")

        def statement(transaction: Transaction) -> StagedTable:
            gate = call.locations(catalog)
            whole = change.model_copy(
                update={
                    "identifier": Name(namespace=list(identifier[:-1]), name=identifier[-1]),
                    "updates": gate.kept(change.updates),
                }
            )
            [staged] = stage(transaction, [whole], gate, call.incoming_files, len(call.body))
            return staged

        with pyiceberg_errors(missing=NoSuchTableError), names_checked(NoSuchTableError):
            staged = catalog.write(statement)
        return _staged_response(call, staged)


def drop(call: Call) -> Response:
    """Drop a table. `purgeRequested` has no effect: vacuum deletes files after the last version with them expires."""
    with call.catalog() as catalog:
        catalog.drop_table(call.identifier("table"))
    return no_content()


def rename(call: Call) -> Response:
    """Rename a table, also into another namespace."""
    body = call.parsed(Rename)
    (old_namespace, old), (namespace, name) = (object_name(body.source.identifier()), object_name(new_name(call)))
    with call.catalog() as catalog, pyiceberg_errors():
        try:
            catalog.write(
                lambda transaction: table_writing.rename_table(transaction, old_namespace, old, namespace, name)
            )
        except TableAlreadyExistsError as error:
            kind = "View" if str(error).startswith("View") else "Table"
            what = f"Cannot rename {old_namespace}.{old} to {namespace}.{name}"
            raise TableAlreadyExistsError(f"{what}. {kind} already exists") from error
    return no_content()


def register(call: Call) -> Response:
    """Register a table from a metadata file below the root. Other locations are refused.

    The file may belong to any table, so the principal must be a reader of `*`.
    """
    body = call.parsed(Register)
    identifier = (*call.namespace(), body.name)
    namespace, name = object_name(identifier)
    with call.catalog() as catalog:
        call.locations(catalog).registered(body.metadata_location)

        def statement(transaction: Transaction) -> None:
            with call.incoming_files() as allowance:
                io = BoundedFileIO(catalog.file_io(), allowance)
                table_writing.register_table(
                    transaction, namespace, name, body.metadata_location, body.overwrite, io=io
                )

        with readable(body.metadata_location), pyiceberg_errors():
            try:
                catalog.write(statement)
            except SizeLimitExceeded as error:
                raise too_many_incoming_files(error) from error
        response = load_response(call, catalog, identifier)
    return with_access(call, identifier, response)


def unregister(call: Call) -> Response:
    """Remove an external table, and return its metadata for another catalog.

    The response is 400 for a managed table, because the lakehouse deletes its files when the versions with them expire.
    """
    identifier = call.identifier("table")
    namespace, name = object_name(identifier, NoSuchTableError)
    with call.catalog() as catalog:
        response = load_response(call, catalog, identifier)

        def statement(transaction: Transaction) -> None:
            data = transaction._state().read("table", namespace, name)
            if data is not None and parse_table_def(data).table_type == MANAGED:
                raise bad_request(
                    f"table {namespace}.{name} is managed: its files belong to this lakehouse, which deletes them when "
                    "no version needs them. Copy the table to the other catalog, and drop it here"
                )
            table_writing.drop_table(transaction, namespace, name)

        with pyiceberg_errors():
            catalog.write(statement)
    return response


def load_credentials(call: Call) -> Response:
    """Temporary credentials for the files of a table; an empty list for a caller without access to them."""
    identifier = call.identifier("table")
    with call.catalog() as catalog:
        table = load_response(call, catalog, identifier)
    delegation = call.service.delegation
    found = [] if delegation is None else delegation.credentials(call, identifier, table)
    response = json_response({"storage-credentials": found})
    response.headers["Cache-Control"] = "no-store"
    return response


def sign(call: Call) -> Response:
    """Sign a request to the store for files of a table. Raises `RestError` 406 if the server does not sign."""
    delegation = call.service.delegation
    if delegation is None or not delegation.signs:
        raise unsupported("this server does not sign requests")
    identifier = call.identifier("table")
    table: Response | None = None
    with suppress(NoSuchTableError), call.catalog() as catalog:
        table = load_response(call, catalog, identifier)
    response = json_response(delegation.sign(call, identifier, table))
    response.headers["Cache-Control"] = "no-cache"
    return response


def with_access(call: Call, identifier: tuple[str, ...], response: Response) -> Response:
    """The response with access to the files of its table, if the client asks for it and has the right."""
    delegation = call.service.delegation
    return response if delegation is None else delegation.added(call, identifier, response)


@contextmanager
def readable(location: str) -> Iterator[None]:
    """Raise `RestError` 400 if the metadata file that a client named is missing or damaged."""
    try:
        yield
    except (FileNotFoundError, CorruptFile) as error:
        raise bad_request(f"{location!r} is not a readable metadata file") from error


def load_response(
    call: Call,
    catalog: ServedCatalog,
    identifier: tuple[str, ...],
    snapshots: Snapshots = "all",
    if_none_match: str | None = None,
) -> Response:
    """The response that holds a table. Raises as `load`."""
    namespace, name = object_name(identifier, NoSuchTableError)
    source = catalog.source
    with names_checked(NoSuchTableError), source._located("table", namespace, name):
        data = catalog.definition(namespace, name)
        if data is None:
            raise table_writing.no_such_table(namespace, name)
        definition = parse_table_def(data)
    if definition.table_type != MANAGED:
        external = call.service.outbound.run(peer_of(definition), lambda: catalog.load_table(identifier))
        text = indexed(external.metadata).model_dump_json().encode()
        return response_of_metadata(None, external.metadata_location, text, snapshots, if_none_match)
    if isinstance(source, Transaction):
        staged = source._staged_tables.open(namespace, name, data)._open_staged()
        if staged.changed:
            path, text = staged.finish()
            io = call.service.io
            return response_of_metadata(io, io.uri_of(path), text, snapshots, if_none_match)
    path = metadata_path(definition, f"{namespace}.{name}")
    return response_of_file(call.service.io, path, definition.id, snapshots, if_none_match)


def table_id(catalog: ServedCatalog, identifier: tuple[str, ...]) -> str | None:
    """The id of a table; None if it does not exist."""
    data = catalog.definition(*object_name(identifier, NoSuchTableError))
    return None if data is None else parse_table_def(data).id


def _make_folders(catalog: ServedCatalog, location: str) -> None:
    """Create the folders of a table on a local disk, because DuckDB does not create them when it writes."""
    io = catalog.file_io()
    for folder in ("data", "metadata"):
        io.make_local_folder(f"{location}/{folder}")


def _staged_response(call: Call, staged: StagedTable) -> Response:
    """The response that holds a table as committed, or as staged in the open transaction."""
    if not staged.changed:
        assert staged.base_metadata_path is not None
        return response_of_file(staged.io, staged.base_metadata_path, str(staged.metadata.table_uuid))
    path, data = staged.finish()
    return response_of_metadata(call.service.io, call.service.io.uri_of(path), data)
