"""Idempotent requests: a client that got no answer sends the request again with the same `Idempotency-Key`.

The key becomes the id of the transaction, and an id commits once, ever: the log of the lakehouse itself remembers, for
every server and after every restart. The id also depends on the principal, so that a key of somebody else is another
key. What the request was is kept beside it; the same key with another request is refused. What was committed and then
undone by a rollback is answered as at first: the request was done, and to do it again would be another request.

A key is known as long as the version that it committed is kept, so for the time that `config` tells. Iceberg's clients
send UUIDs of version 7, which begin with the time at which they were made: one that is younger than all that has
expired, and is not in what is kept, was not committed. When something expired the store tells (`oldest_version.py`); no
clock of a server or of a writer counts. Without a time in it, a key that is not in what is kept is new.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from starlette.responses import Response

from trinitylake.errors import CommitStateUnknown, TrinityLakeError
from trinitylake.lakehouse.history import CommittedTransaction
from trinitylake.lakehouse.lakehouse_version import LakehouseVersion
from trinitylake.rest.catalog.addresses import LATEST
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.rest.request.call import REQUEST_ID_PREFIX, RESERVED_PROPERTY_PREFIX, Call

HEADER = "Idempotency-Key"
FINGERPRINT_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}request"
_KEY = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

#: Of a body, at a time.
_PART_SIZE_BYTES = 64 << 10
#: The digit of a UUID that tells its version, where the time is in front.
_TIMED = "7"

Handler = Callable[[Call], Response]
Replay = Callable[[Call, LakehouseVersion], Response]


def answered_once(call: Call, handler: Handler, replay: Replay) -> Response:
    """The answer of the handler; if the key was used before, the answer to the request that used it.

    Args:
        call: a request that writes.
        handler: makes the commit.
        replay: the answer again, from the version that the commit made.

    Raises:
        RestError: 400 for a key that is not a UUID, 422 for one that was used for another request.
        CommitStateUnknown: it was committed, and what it answered has expired.
    """
    key = call.headers.get(HEADER)
    if key is None or call.prefix != LATEST:
        return handler(call)
    if not _KEY.fullmatch(key):
        raise bad_request(f"{HEADER} is a UUID, not {key[:100]!r}")
    id = f"{REQUEST_ID_PREFIX}{_digest(call.principal.name, key.lower())[:40]}"
    fingerprint = _fingerprint(call)
    if (version := _committed(call, id)) is None:
        _require_remembered(call, key)
        call.commit.id = id
        call.commit.properties = {**call.commit.properties, FINGERPRINT_PROPERTY: fingerprint}
        try:
            response = handler(call)
        except Exception:
            # Perhaps because the same request, sent twice at once, was faster.
            if (version := _committed(call, id)) is None:
                raise
        else:
            version = call.commit.version
            if version is None or not _transactions(call, version, id):
                return response  # nothing was to be changed
    return _again(call, id, fingerprint, version, replay)


def _fingerprint(call: Call) -> str:
    """What the request is. Of a large body a part at a time is written in hexadecimal, and copied."""
    body = call.body
    parts = (call.method, _route_without_prefix(call), body[:_PART_SIZE_BYTES].hex())
    digest = hashlib.sha256("\0".join(parts).encode())
    for start in range(_PART_SIZE_BYTES, len(body), _PART_SIZE_BYTES):
        digest.update(body[start : start + _PART_SIZE_BYTES].hex().encode())
    return digest.hexdigest()


def _route_without_prefix(call: Call) -> str:
    """The path of a request is the same with the prefix of the latest version and without one."""
    prefix = call.raw_names.get("prefix")
    return call.route if prefix is None else call.route.replace(f"/{prefix}/", "/", 1)


def _committed(call: Call, id: str) -> int | None:
    lake = call.service.lake
    if not lake.transactions.is_committed(id):
        return None
    if (version := lake.transactions.outcome(id).version) is None:
        raise CommitStateUnknown("the request was committed, in a version that has expired")
    return version


def _transactions(call: Call, version: int, id: str) -> list[CommittedTransaction]:
    return [one for one in call.service.lake.at(version).entry.transactions if one.id == id]


def _require_remembered(call: Call, key: str) -> None:
    """Refuse a key from before what has expired: the version that it committed, if it did, may be gone."""
    if key[14] != _TIMED:
        return
    made_at_millis = int(key.replace("-", "")[:12], 16)
    oldest_kept_millis = call.service.oldest_version.written_at_millis()
    if oldest_kept_millis is not None and made_at_millis < oldest_kept_millis:
        raise CommitStateUnknown(
            "nothing tells any more whether this request was committed: its key is older than all versions that are "
            "kept, or the clock of the client is behind that of the store"
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
        raise CommitStateUnknown(f"the request was committed, and its answer is not there any more: {error}") from error


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
