"""Responses that hold a table: the bytes of its metadata file and an entity tag.

The bytes of a metadata file are sent without parsing. They change only if an erasure of rows replaces the file of an
earlier version. Each erasure ends with a garbage collection, so the tag includes the time of the last one.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import Response

from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.metadata_compression import file_text
from trinitylake.iceberg_storage.table_properties import with_gc_disabled
from trinitylake.rest.errors import RestError

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO

Snapshots = Literal["all", "refs"]

#: The last field of each body, before `with_access`.
_CONFIG = b',"config":'


def response_of_file(
    io: LakehouseFileIO, path: str, table_id: str, snapshots: Snapshots = "all", if_none_match: str | None = None
) -> Response:
    """The response for a metadata file below the root; 304, without a read, if the client has it.

    Raises `CorruptFile`, and `RestError` 404 for a missing file, as Iceberg's clients expect.
    """
    uri = io.uri_of(path)
    return _response(io, uri, snapshots, if_none_match, lambda: _metadata_text(io, path, table_id))


def response_of_metadata(
    io: LakehouseFileIO | None, uri: str, data: bytes, snapshots: Snapshots = "all", if_none_match: str | None = None
) -> Response:
    """The response for metadata in memory, JSON or the bytes of a file. `io` is None for an external table."""
    return _response(io, uri, snapshots, if_none_match, lambda: file_text(data))


def _response(
    io: LakehouseFileIO | None, uri: str, snapshots: Snapshots, if_none_match: str | None, text: Callable[[], bytes]
) -> Response:
    state = f"{snapshots} {uri} {0 if io is None else io.storage.collected_before_millis}"
    tag = f'"{hashlib.sha256(state.encode()).hexdigest()[:32]}"'
    headers = {"ETag": tag}
    if if_none_match is not None:
        known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
        if tag in known or "*" in known:
            return Response(status_code=304, headers=headers)
    return Response(table_body(uri, text(), snapshots), media_type="application/json", headers=headers)


def table_body(uri: str | None, data: bytes, snapshots: Snapshots = "all") -> bytes:
    """The body of a response that holds a table. `uri` is None for a table that is only staged."""
    if snapshots == "refs":
        data = _with_referenced_snapshots(data)
    location = b"" if uri is None else b'"metadata-location":' + json.dumps(uri).encode() + b","
    return b"{" + location + b'"metadata":' + data + _CONFIG + b"{}}"


def with_config(table: Response, config: Mapping[str, str], more: Mapping[str, Any] = MappingProxyType({})) -> Response:
    """A response that holds a table, with settings for its client, and more fields."""
    before, _, present = bytes(table.body).rpartition(_CONFIG)
    added = json.dumps({"config": {**json.loads(present[:-1]), **config}, **more})
    headers = {"ETag": tag} if (tag := table.headers.get("etag")) is not None else {}
    return Response(before + b"," + added.encode()[1:], media_type="application/json", headers=headers)


def with_access(
    table: Response,
    config: Mapping[str, str],
    credentials: Sequence[Mapping[str, Any]],
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Response:
    """A response that holds a table, with the access of its client to the files, and more fields.

    It has no entity tag and must not be cached: credentials expire and belong to one principal.
    """
    response = with_config(table, config, {"storage-credentials": list(credentials), **more})
    del response.headers["etag"]
    response.headers["Cache-Control"] = "no-store"
    return response


def _metadata_text(io: LakehouseFileIO, path: str, table_id: str) -> bytes:
    try:
        data = io.read(path)
        data = file_text(data)
        metadata = json.loads(data)
        if not isinstance(metadata, dict):
            raise ValueError("it is not an object")
        given = {"table-uuid": table_id, **metadata} if metadata.get("format-version") == 1 else metadata
        if str(given.get("table-uuid")).lower() != table_id:
            raise ValueError(f"it is the metadata of table {given.get('table-uuid')}, not {table_id}")
        fixed = {**given, "properties": with_gc_disabled(metadata.get("properties") or {})}
        if fixed != metadata:
            data = json.dumps(fixed, separators=(",", ":")).encode()
    except FileNotFoundError as error:
        message = f"the metadata file {io.uri_of(path)} of the table does not exist"
        raise RestError(404, "NotFoundException", message) from error
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise CorruptFile(f"{path}: not Iceberg table metadata: {error}", path=path) from error
    return data


def _with_referenced_snapshots(data: bytes) -> bytes:
    metadata = json.loads(data)
    kept = {reference["snapshot-id"] for reference in metadata.get("refs", {}).values()}
    kept.add(metadata.get("current-snapshot-id"))
    metadata["snapshots"] = [one for one in metadata.get("snapshots", ()) if one["snapshot-id"] in kept]
    return json.dumps(metadata, separators=(",", ":")).encode()
