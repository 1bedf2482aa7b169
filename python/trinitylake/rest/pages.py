"""Pagination: lists are sorted, and a token is the last name of the page before it.

So a page costs no memory between requests, and a name is neither shown twice nor left out because others came or went.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from starlette.datastructures import QueryParams
from starlette.responses import Response

from trinitylake.rest.call import Call, json_response
from trinitylake.rest.errors import bad_request
from trinitylake.rest.principals import Role

#: Of a page, if the client asks for pages without saying how large.
DEFAULT_PAGE_SIZE = 1000


def page_of(names: Sequence[str], query: QueryParams) -> tuple[list[str], str | None]:
    """The names of the page that `pageToken` and `pageSize` ask for, and the token of the next.

    All of them without both. Raises `RestError` 400 for a bad token or size.
    """
    token, size_text = query.get("pageToken"), query.get("pageSize")
    if token is None and size_text is None:
        return list(names), None
    size = DEFAULT_PAGE_SIZE
    if size_text is not None:
        if not (size_text.isascii() and size_text.isdigit() and len(size_text) < 10 and int(size_text) > 0):
            raise bad_request(f"pageSize is a whole number of at least 1, not {size_text!r}")
        size = int(size_text)
    rest = sorted(names)
    if token:
        after = _decoded(token)
        rest = [name for name in rest if name > after]
    page = rest[:size]
    return page, _encoded(page[-1]) if len(rest) > size else None


def identifiers_response(call: Call, namespace: tuple[str, ...], found: Sequence[tuple[str, ...]]) -> Response:
    """The page of the tables or views of one namespace that the caller may see."""
    if not call.principal.is_admin_of_everything:
        found = [one for one in found if call.principal.may(Role.READER, ".".join(one))]
    names, token = page_of([one[-1] for one in found], call.query)
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_response({"identifiers": identifiers, "next-page-token": token})


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise bad_request("pageToken is not one that this server gave") from error
