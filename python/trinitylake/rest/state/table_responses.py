"""Answers that hold a table: its metadata file between two braces, and an entity tag.

A metadata file never changes, so its bytes are sent as they lie in the store and kept in memory by their location;
they are parsed only for a client that wants the referenced snapshots alone.
"""

from __future__ import annotations

import hashlib
import json
import threading
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from starlette.responses import Response

from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.metadata_compression import file_text
from trinitylake.iceberg_storage.table_properties import with_gc_disabled
from trinitylake.rest.errors import RestError

if TYPE_CHECKING:
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO

Snapshots = Literal["all", "refs"]

CACHE_MAX_SIZE_BYTES = 64 << 20
#: How every body ends.
_END = b',"config":{}}'


class TableResponses:
    """Bodies by metadata location, the least recently used dropped first. Safe to share between threads."""

    def __init__(self, max_size_bytes: int = CACHE_MAX_SIZE_BYTES) -> None:
        self._bodies: OrderedDict[tuple[str, Snapshots], bytes] = OrderedDict()
        self._size_bytes = 0
        self._max_size_bytes = max_size_bytes
        self._lock = threading.Lock()

    def of_file(
        self, io: LakehouseFileIO, path: str, snapshots: Snapshots = "all", if_none_match: str | None = None
    ) -> Response:
        """The answer for a metadata file below the root; 304 for a client that has it, without looking for the file.

        Raises `CorruptFile`, and `RestError` 404 for a file that is missing, as Iceberg's clients expect it.
        """
        uri = io.uri_of(path)
        tag = entity_tag(uri, snapshots)
        if if_none_match is not None and _matches(if_none_match, tag):
            return Response(status_code=304, headers={"ETag": tag})
        body = self._get((uri, snapshots))
        if body is None:
            body = table_body(uri, _metadata_text(io, path), snapshots)
            self._put((uri, snapshots), body)
        return Response(body, media_type="application/json", headers={"ETag": tag})

    def of_metadata(
        self, uri: str, data: bytes, snapshots: Snapshots = "all", if_none_match: str | None = None
    ) -> Response:
        """The answer for metadata that is in memory, as JSON or as the bytes of its file."""
        tag = entity_tag(uri, snapshots)
        if if_none_match is not None and _matches(if_none_match, tag):
            return Response(status_code=304, headers={"ETag": tag})
        return Response(
            table_body(uri, file_text(data), snapshots), media_type="application/json", headers={"ETag": tag}
        )

    def _get(self, key: tuple[str, Snapshots]) -> bytes | None:
        with self._lock:
            if (body := self._bodies.get(key)) is not None:
                self._bodies.move_to_end(key)
            return body

    def _put(self, key: tuple[str, Snapshots], body: bytes) -> None:
        if len(body) > self._max_size_bytes:
            return
        with self._lock:
            self._size_bytes += len(body) - len(self._bodies.pop(key, b""))
            self._bodies[key] = body
            while self._size_bytes > self._max_size_bytes:
                _, dropped = self._bodies.popitem(last=False)
                self._size_bytes -= len(dropped)


def table_body(uri: str | None, data: bytes, snapshots: Snapshots = "all") -> bytes:
    """The body of an answer that loads a table. `uri` is None for a table that is only staged."""
    if snapshots == "refs":
        data = _with_referenced_snapshots(data)
    location = b"" if uri is None else b'"metadata-location":' + json.dumps(uri).encode() + b","
    return b"{" + location + b'"metadata":' + data + _END


def with_access(table: Response, settings: Mapping[str, str], credentials: Sequence[Mapping[str, Any]]) -> Response:
    """An answer that holds a table, with what its client needs to reach the files.

    It has no entity tag and nobody may keep it: what it gives away expires.
    """
    body = bytes(table.body)
    assert body.endswith(_END)
    added = json.dumps({"config": dict(settings), "storage-credentials": list(credentials)})
    body = body[: -len(_END)] + b"," + added.encode()[1:]
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


def entity_tag(uri: str, snapshots: Snapshots) -> str:
    """Equal only for equal bodies: a location names one content for ever."""
    return f'"{hashlib.sha256(f"{snapshots} {uri}".encode()).hexdigest()[:32]}"'


def _matches(if_none_match: str, tag: str) -> bool:
    given = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag in given or "*" in given


def _metadata_text(io: LakehouseFileIO, path: str) -> bytes:
    try:
        data = io.read(path)
        data = file_text(data)
        metadata = json.loads(data)
        if not isinstance(metadata, dict):
            raise ValueError("it is not an object")
        properties = metadata.get("properties") or {}
        if (fixed := with_gc_disabled(properties)) != properties:
            data = json.dumps({**metadata, "properties": fixed}, separators=(",", ":")).encode()
    except FileNotFoundError as error:
        message = f"the table is there, but not its metadata file {io.uri_of(path)}"
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
