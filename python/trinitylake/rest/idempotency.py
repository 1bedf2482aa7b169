"""Requests that may be sent twice: a client that got no answer sends the same `Idempotency-Key` again.

The key becomes the id of the transaction, and an id commits once, ever: the log of the lakehouse itself remembers, for
every server and after every restart. The id also depends on the principal, so that a key of somebody else is another
key. What the request was is kept beside it; the same key with another request is refused. What was committed and then
undone by a rollback is answered as at first: the request was done, and to do it again would be another request.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from starlette.responses import Response

from trinitylake.errors import CommitStateUnknown, TrinityLakeError
from trinitylake.rest.addresses import LATEST
from trinitylake.rest.call import RESERVED_PROPERTY_PREFIX, Call
from trinitylake.rest.errors import RestError, bad_request
from trinitylake.view_at import ViewAt

HEADER = "Idempotency-Key"
FINGERPRINT_PROPERTY = f"{RESERVED_PROPERTY_PREFIX}request"
_KEY = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

Handler = Callable[[Call], Response]
Replay = Callable[[Call, ViewAt], Response]


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
    id = f"rest-{_digest(call.principal.name, key.lower())[:40]}"
    fingerprint = _digest(call.method, call.route.replace(f"/{LATEST}/", "/", 1), call.body.hex())
    if (version := _committed(call, id)) is None:
        call.commit.id = id
        call.commit.properties = {**call.commit.properties, FINGERPRINT_PROPERTY: fingerprint}
        try:
            response = handler(call)
        except Exception:
            # Perhaps because the same request, sent twice at once, was faster.
            if (version := _committed(call, id)) is None:
                raise
        else:
            if (version := _committed(call, id)) is None:
                return response  # nothing was to be changed
    return _again(call, id, fingerprint, version, replay)


def _committed(call: Call, id: str) -> int | None:
    outcome = call.service.lake.outcome(id)
    if outcome.status == "unknown":
        raise CommitStateUnknown("nothing tells any more whether this request was committed")
    return outcome.version


def _again(call: Call, id: str, fingerprint: str, version: int, replay: Replay) -> Response:
    try:
        state = call.service.lake.at(version=version)
        [mine] = [one for one in state.entry.transactions if one.id == id]
        if mine.properties.get(FINGERPRINT_PROPERTY) != fingerprint:
            raise RestError(422, "UnprocessableEntityException", f"this {HEADER} was used for another request")
        call.commit.version, call.commit.transaction_id = version, id
        return replay(call, state)
    except (TrinityLakeError, ValueError) as error:
        raise CommitStateUnknown(f"the request was committed, and its answer is not there any more: {error}") from error


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
