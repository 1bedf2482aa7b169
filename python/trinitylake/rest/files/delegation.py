"""Access delegation for clients without credentials for the store: temporary credentials or signed requests.

Both are off by default (`S3Access`), and are restricted to the location of the table. A role on a table gives access to
its location only if the lakehouse chose the location for the table's name. A location that a client chose may contain
other tables, so access to it needs the role on `*`. Past versions are read-only.

Access is always to the present content of a folder. So the role on the table's name in the latest version decides: if
a table was renamed or dropped since the version that a client reads, the client needs the role on `*`.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.responses import Response

from trinitylake import _core
from trinitylake.definitions import parse_table_def
from trinitylake.iceberg.namespaces import object_name
from trinitylake.rest.catalog.table_responses import with_access
from trinitylake.rest.catalog.warehouses import LATEST, is_transaction
from trinitylake.rest.errors import RestError, unavailable
from trinitylake.rest.files.s3_store import S3Store, Scope, not_given
from trinitylake.rest.files.signing import SignRequest, check, signed
from trinitylake.rest.files.vending import Vendor
from trinitylake.rest.request.call import SEPARATOR
from trinitylake.rest.security.audit import audit
from trinitylake.rest.security.authorization import Role, forbidden
from trinitylake.rest.security.locations import has_role_on_files, is_own, path_of_object

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.rest.options import S3Access
    from trinitylake.rest.outbound import Outbound
    from trinitylake.rest.request.call import Call

logger = logging.getLogger("trinitylake.rest")

HEADER = "x-iceberg-access-delegation"
VENDED, SIGNED = "vended-credentials", "remote-signing"
_MAX_PLACES = 10_000


class _Place(NamedTuple):
    """Location and id of a table."""

    location: str
    table_id: str


class S3Delegation:
    """Access delegation of one server.

    Args:
        io: resolves locations below the root.
        settings: the operator's settings.
        outbound: runs the calls to the services that issue credentials.

    Raises `InvalidArgument` for invalid settings.
    """

    def __init__(self, io: LakehouseFileIO, settings: S3Access, outbound: Outbound) -> None:
        self._io = io
        self._outbound = outbound
        self._store = S3Store(io.root, settings.storage_options, outbound)
        self.signs = settings.signs_requests
        self._places: dict[str, _Place] = {}
        self._vendor = (
            Vendor(self._store, settings.role_arn, settings.sts_endpoint, settings.seconds)
            if settings.role_arn
            else None
        )

    def is_requested(self, call: Call) -> bool:
        """Whether the client asks for access that the server can delegate."""
        return self._requested_access(call) is not None

    def added(self, call: Call, identifier: tuple[str, ...], response: Response) -> Response:
        """A response that holds a table, with access to its files if the client asks for it and has the right."""
        access = self._requested_access(call)
        if access is None or response.status_code != 200:
            return response
        if (scope := self._scope(call, identifier, response)) is None:
            return response
        path = _table_path(call, identifier)
        if access == SIGNED:
            settings = {
                **self._store.client_settings,
                "s3.remote-signing-enabled": "true",
                "s3.signer": "S3V4RestSigner",
                "s3.signer.endpoint": f"{path}/sign",
                "signer.endpoint": f"{path}/sign",
            }
            return with_access(response, settings, [], {"remote-signing-config": {}})
        try:
            credentials = self._vended(call, identifier, scope)
        except RestError:
            return response  # a client without own credentials gets the error from the credentials endpoint
        settings = {**self._store.client_settings, "client.refresh-credentials-endpoint": f"{path}/credentials"}
        return with_access(response, settings if credentials else {}, credentials)

    def credentials(self, call: Call, identifier: tuple[str, ...], table: Response) -> list[dict[str, Any]]:
        """Temporary credentials for a table in the form of the specification; empty without the right to any.

        Raises `RestError` 503 if the service is not available.
        """
        if self._vendor is None or (scope := self._scope(call, identifier, table)) is None:
            return []
        return self._vended(call, identifier, scope)

    def sign(self, call: Call, identifier: tuple[str, ...], table: Response | None) -> dict[str, Any]:
        """The response to a sign request. `table` is None for a table that is only staged.

        Raises `RestError` 403 for a request outside of the table or the role.
        """
        request = call.parsed(SignRequest)
        try:
            if table is None:
                scope = self._staged_scope(call, identifier, request)
            else:
                scope = self._scope(call, identifier, table)
            if scope is None:
                raise forbidden("you have no access to the files of this table through this server")
            creates = check(request, self._store, scope)
            headers = signed(request, self._store, creates)
        except RestError as error:
            self._audit(call, f"sign {request.method[:10]!a}", identifier, error.code)
            raise
        if request.method not in ("GET", "HEAD"):
            self._audit(call, f"sign {request.method}", identifier, 200)
        return {"uri": request.uri, "headers": headers}

    def _requested_access(self, call: Call) -> str | None:
        requested = {one.strip().lower() for one in call.headers.get(HEADER, "").split(",")}
        if VENDED in requested and self._vendor is not None:
            return VENDED
        return SIGNED if SIGNED in requested and self.signs else None

    def _vended(self, call: Call, identifier: tuple[str, ...], scope: Scope) -> list[dict[str, Any]]:
        vendor, who = self._vendor, call.principal.name
        assert vendor is not None
        what = f"vend {'read and write' if scope.writable else 'read'}"
        try:
            if (credentials := vendor.kept(scope, who)) is None:
                credentials = self._outbound.run("the store's STS", lambda: vendor.credentials(scope, who))
        except not_given() as error:
            logger.warning("no temporary credentials: %s", error)
            self._audit(call, what, identifier, 503)
            raise unavailable("the store issues no credentials at present: try again") from error
        if credentials is None:
            return []
        self._audit(call, what, identifier, 200)
        prefix = f"s3://{scope.bucket}/{scope.key}/"
        return [{"prefix": prefix, "config": {**self._store.client_settings, **credentials}}]

    def _scope(self, call: Call, identifier: tuple[str, ...], table: Response) -> Scope | None:
        """The files of a table that the principal may access; None for none."""
        place = self._place(table)
        path = path_of_object(self._io, place.location)
        if path is None:
            return None
        opens_by_name = is_own(path, identifier, place.table_id) and _has_name_now(call, identifier, place.table_id)
        return self._granted(call, identifier, path, opens_by_name)

    def _place(self, table: Response) -> _Place:
        tag = table.headers.get("etag")
        if tag is not None and (known := self._places.get(tag)) is not None:
            return known
        metadata = json.loads(bytes(table.body))["metadata"]
        place = _Place(str(metadata["location"]), str(metadata["table-uuid"]))
        if tag is not None:
            if len(self._places) >= _MAX_PLACES:
                self._places = {}
            self._places[tag] = place
        return place

    def _staged_scope(self, call: Call, identifier: tuple[str, ...], request: SignRequest) -> Scope | None:
        """The scope of a table that is only staged: a folder that the lakehouse may choose for it.

        A folder with a metadata file is refused to principals without the role on `*`: it belongs to a table that was
        renamed or dropped.
        """
        namespace, name = object_name(identifier)
        start, _, _ = _core.managed_table_folder(namespace, name, "0" * 8).rstrip("/").rpartition("-")
        root = self._store.key("")
        found = re.match(re.escape(root + start) + "-[0-9a-f]{8}(?=/)", unquote(self._store.key_of(request.uri) or ""))
        if found is None:
            return None
        path = found[0][len(root) :]
        is_new = not any(".metadata.json" in one for one, _, _ in self._io.storage.list(f"{path}/metadata/"))
        return self._granted(call, identifier, path, is_new)

    def _granted(self, call: Call, identifier: tuple[str, ...], path: str, is_own: bool) -> Scope | None:
        if not has_role_on_files(call.principal, Role.READER, identifier, is_own):
            return None
        is_past = call.prefix != LATEST and not is_transaction(call.prefix)
        is_writable = has_role_on_files(call.principal, Role.WRITER, identifier, is_own) and not is_past
        return Scope(self._store.bucket, self._store.key(path), is_writable)

    def _audit(self, call: Call, what: str, identifier: tuple[str, ...], code: int) -> None:
        audit(call.principal.name, what, [".".join(identifier)], code, None, None, call.request_id)


def _has_name_now(call: Call, identifier: tuple[str, ...], table_id: str) -> bool:
    """Whether the table has that name in the latest version, or is new in the client's open transaction."""
    if call.prefix == LATEST:
        return True
    name, core = object_name(identifier), call.service.lake._core
    if (present := core.latest().read("table", *name)) is not None:
        return parse_table_def(present).id == table_id
    if call.base_version is None:
        return False
    before = core.version(call.base_version).read("table", *name)
    return before is None or parse_table_def(before).id != table_id


def _table_path(call: Call, identifier: tuple[str, ...]) -> str:
    *namespace, name = identifier
    text = quote(SEPARATOR.join(namespace), safe="")
    return f"v1/{quote(call.prefix, safe='~')}/namespaces/{text}/tables/{quote(name, safe='')}"
