"""Idempotent requests: a client that got no answer sends the request again with the same `Idempotency-Key`.

The id of the transaction is derived from the key, and a transaction id can be committed only once. The lakehouse stores
the id, so a repetition is recognised by all servers and after restarts. The id also depends on the principal, so equal
keys of two principals are different. The commit contains a fingerprint of the request, and the same key with another
request is refused. A repeated request whose commit was undone by a rollback gets the original response.

A key is known until the version of its commit expires; `/v1/config` returns this lifetime. Iceberg's clients send UUIDs
of version 7, which start with their creation time. So an unknown key was not committed if it is younger than all
expired versions, by the clock of the store (`oldest_version.py`). An unknown key without a creation time counts as new.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from starlette.responses import Response

from trinitylake.errors import CommitStateUnknown, TrinityLakeError
from trinitylake.lakehouse.history import CommittedTransaction
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.catalog.warehouses import LATEST
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.request.call import REQUEST_ID_PREFIX, RESERVED_PROPERTY_PREFIX, Call

HEADER = "Idempotency-Key"
FINGERPRINT_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}request"
_KEY = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

#: Size of the parts in which a body is hashed.
_PART_SIZE_BYTES = 64 << 10
#: Version digit of UUIDs that start with their creation time.
_TIMED = "7"

Handler = Callable[[Call], Response]
Replay = Callable[[Call, LakehouseVersion], Response]


def answered_once(call: Call, handler: Handler, replay: Replay) -> Response:
    """The response of the handler, or of the earlier request with the same key.

    Args:
        call: a request that writes.
        handler: makes the commit.
        replay: makes the response from the version of the commit.

    Raises:
        RestError: 400 for a key that is not a UUID, 422 for a key that was used for another request.
        CommitStateUnknown: the request was committed in a version that has expired.
    """
    key = call.headers.get(HEADER)
    if key is None or call.prefix != LATEST:
        return handler(call)
    if not _KEY.fullmatch(key):
        raise bad_request(f"{HEADER} must be a UUID, not {key[:100]!r}")
    id = f"{REQUEST_ID_PREFIX}{_digest(call.principal.name, key.lower())[:40]}"
    fingerprint = _fingerprint(call)
    if (version := _committed(call, id)) is None:
        _require_remembered(call, key)
        call.commit.id = id
        call.commit.properties = {**call.commit.properties, FINGERPRINT_PROPERTY: fingerprint}
        try:
            response = handler(call)
        except Exception:
            # The same request may have been sent twice at the same time, and the other one was committed.
            if (version := _committed(call, id)) is None:
                raise
        else:
            version = call.commit.version
            if version is None or not _transactions(call, version, id):
                return response  # there was nothing to change
    return _again(call, id, fingerprint, version, replay)


def _fingerprint(call: Call) -> str:
    """Hash of method, path and body."""
    body = call.body
    parts = (call.method, _route_without_prefix(call), body[:_PART_SIZE_BYTES].hex())
    digest = hashlib.sha256("\0".join(parts).encode())
    for start in range(_PART_SIZE_BYTES, len(body), _PART_SIZE_BYTES):
        digest.update(body[start : start + _PART_SIZE_BYTES].hex().encode())
    return digest.hexdigest()


def _route_without_prefix(call: Call) -> str:
    """The path without the prefix of the latest version, which clients may leave out."""
    prefix = call.raw_names.get("prefix")
    return call.route if prefix is None else call.route.replace(f"/{prefix}/", "/", 1)


def _committed(call: Call, id: str) -> int | None:
    lake = call.service.lake
    if not lake.transactions.is_committed(id):
        return None
    if (version := lake.transactions.outcome(id).version) is None:
        raise CommitStateUnknown("the request was committed in a version that has expired")
    return version


def _transactions(call: Call, version: int, id: str) -> list[CommittedTransaction]:
    return [one for one in call.service.lake.at(version).entry.transactions if one.id == id]


def _require_remembered(call: Call, key: str) -> None:
    """Refuse a key that may have been used for a version that has expired."""
    if key[14] != _TIMED:
        return
    made_at_millis = int(key.replace("-", "")[:12], 16)
    oldest_version_millis = call.service.oldest_version.written_at_millis()
    if oldest_version_millis is not None and made_at_millis < oldest_version_millis:
        raise CommitStateUnknown(
            "it is unknown whether this request was committed: its key is older than all versions that have not "
            "expired, or the clock of the client is behind that of the store"
        )


def _again(call: Call, id: str, fingerprint: str, version: int, replay: Replay) -> Response:
    try:
        state = call.service.lake.at(version)
        [mine] = _transactions(call, version, id)
        if mine.properties.get(FINGERPRINT_PROPERTY) != fingerprint:
            raise RestError(422, "UnprocessableEntityException", f"this {HEADER} was used for another request")
        call.commit.version, call.commit.transaction_id = version, id
        return replay(call, state)
    except (TrinityLakeError, ValueError) as error:
        raise CommitStateUnknown(f"the request was committed, but its response is lost: {error}") from error


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
