"""What all answers for the page have in common: the version that they are about, and how they are sent."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from trinitylake.lakehouse.view_at import ViewAt
from trinitylake.rest.errors import bad_request
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.principals import forbidden
from trinitylake.rest.state.addresses import is_transaction


def answer(document: Any) -> Response:
    """A document that no browser keeps, and that none takes for anything but JSON."""
    return _unkept(json_response(document))


def answer_of_bytes(body: bytes, code: int) -> Response:
    """The same for JSON that is ready."""
    return _unkept(Response(body, code, media_type="application/json"))


def _unkept(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def version_of(call: Call) -> ViewAt:
    """The version that the prefix leads to.

    Raises `RestError` 400 for an open transaction: what is read in one counts for its conflicts, and somebody who only
    looks must not make it fail.
    """
    if is_transaction(call.prefix):
        raise bad_request("the page shows versions: what is read in an open transaction would count as read by it")
    with call.catalog() as catalog:
        source = catalog.source
        assert not hasattr(source, "commit")
        return source if isinstance(source, ViewAt) else source.at()


def require_something(call: Call) -> None:
    """Raises `RestError` 403 for somebody without any role."""
    if not call.principal.may_read_something():
        raise forbidden(f"{call.principal.name} is a reader of nothing")


def whole_number(call: Call, parameter: str, default: int, maximum: int) -> int:
    """A number of the query, from 0 on. Raises `RestError` 400."""
    text = call.query.get(parameter)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= maximum):
        raise bad_request(f"{parameter} is a whole number of at most {maximum}, not {text[:40]!r}")
    return int(text)
