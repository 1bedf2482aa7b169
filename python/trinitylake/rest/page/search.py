"""Search for names of objects, with page tokens that only this process can decrypt.

A search reads keys that the principal cannot see, and may stop at such a key. So the position in a token is padded and
encrypted with a key of this process. After a restart, or at another server, a search must start again.
"""

from __future__ import annotations

import time
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from starlette.responses import Response

from trinitylake.rest.catalog.listing import names_with
from trinitylake.rest.errors import bad_request
from trinitylake.rest.page.answers import answer, parts_of, require_something, sees, version_of, whole_number
from trinitylake.rest.request.call import Call

#: Limits of one request: results, keys that it reads, and its duration.
MAX_FOUND, MAX_LOOKED_AT, SECONDS = 100, 500_000, 3.0
#: Maximum length of the searched string.
MAX_TEXT = 200
_PADDED_SIZE_BYTES = 1 << 10
_fernet = Fernet(Fernet.generate_key())


def search(call: Call) -> Response:
    """Namespaces, tables and views whose full name contains `text`, in key order; without `text`, all of them.

    With `namespace`, searches only the own names of tables and views directly in that namespace. `next` is the token of
    the next page, null at the end. A page that is not the last may be short or empty.
    """
    require_something(call)
    text = call.query.get("text", "").strip()
    if len(text) > MAX_TEXT:
        raise bad_request(f"the text to search for must have at most {MAX_TEXT} characters")
    size, token = max(whole_number(call, "size", 50, MAX_FOUND), 1), call.query.get("next")
    found: list[dict[str, Any]] = []
    looked_at, following = 0, None
    deadline = time.monotonic() + SECONDS
    with call.service.long_requests.lease(call.principal.name):
        state = version_of(call)._state()
        for page in names_with(state, text, call.query.get("namespace"), None if token is None else decrypted(token)):
            for one in page.found:
                name = parts_of(one.kind, one.namespace, one.name)
                if sees(call.principal, one.kind, name):
                    found.append({"kind": one.kind, "name": list(name)})
                    if len(found) == size:
                        following = one.position
                        break
            looked_at += page.n_keys
            if following is None and (looked_at >= MAX_LOOKED_AT or time.monotonic() > deadline):
                following = page.position
            if following is not None:
                break
    return answer({"found": found, "next": None if following is None else encrypted(following)})


def encrypted(position: str) -> str:
    data = position.encode()
    size_bytes = -(-(len(data) + 1) // _PADDED_SIZE_BYTES) * _PADDED_SIZE_BYTES
    return _fernet.encrypt(data + b"\x00" * (size_bytes - len(data))).decode()


def decrypted(token: str) -> str:
    """The position in a token. Raises `RestError` 400 for a token that this process did not make."""
    try:
        return _fernet.decrypt(token.encode()).rstrip(b"\x00").decode()
    except (InvalidToken, ValueError) as error:
        raise bad_request("next is not a token of this server since it started: start the search again") from error
