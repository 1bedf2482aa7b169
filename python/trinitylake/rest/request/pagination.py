"""Pagination: a token is the position in key order after which the next page begins.

So the server has no state between two pages, and a page reads little more than it returns. If names are added or
removed between two pages, all other names are still listed exactly once, also in an open transaction.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

from starlette.datastructures import QueryParams
from starlette.responses import Response

from trinitylake.iceberg.namespaces import require_namespace
from trinitylake.rest.catalog.listing import MAX_KEYS_AT_ONCE, Listed, children_after, objects_after
from trinitylake.rest.catalog.served_catalog import ServedCatalog
from trinitylake.rest.errors import bad_request
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.authorization import Name, Role

#: Page size for a client that sends a token without a size.
DEFAULT_PAGE_SIZE = 1000


def page_of(names: Iterable[str], query: QueryParams) -> tuple[list[str], str | None]:
    """The page of a short list that `pageToken` and `pageSize` select, and the token of the next page.

    Raises `RestError` 400 for an invalid token or size.
    """
    after, size = _asked(query)
    return _page((Listed(name, name) for name in sorted(names) if after is None or name > after), size)


def identifiers_response(
    call: Call, catalog: ServedCatalog, kind: Literal["table", "view"], namespace: Name
) -> Response:
    """A page of the visible tables or views of one namespace. Raises `NoSuchNamespaceError`."""
    after, size = _asked(call.query)
    state, within = catalog.state(), ".".join(namespace)
    following = objects_after(state, kind, within, after, _expected(size))
    names, token = _page((one for one in following if call.principal.may(Role.READER, (*namespace, one.name))), size)
    if not names:
        require_namespace(state, within)
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_response({"identifiers": identifiers, "next-page-token": token})


def namespaces_response(call: Call, catalog: ServedCatalog, parent: Name) -> Response:
    """A page of the visible namespaces directly below `parent`. Raises `NoSuchNamespaceError`."""
    after, size = _asked(call.query)
    state, above = catalog.state(), ".".join(parent) or None
    following = children_after(state, above, after, _expected(size))
    names, token = _page((one for one in following if call.principal.sees((*parent, one.name))), size)
    if not names and above is not None:
        require_namespace(state, above)
    return json_response({"namespaces": [(*parent, name) for name in names], "next-page-token": token})


def _expected(size: int | None) -> int:
    """Number of keys to read first: one more than the page, to know whether another page follows."""
    return MAX_KEYS_AT_ONCE if size is None else min(size + 1, MAX_KEYS_AT_ONCE)


def _asked(query: QueryParams) -> tuple[str | None, int | None]:
    """The position after which the page starts (None for the first page) and its size (None for no limit)."""
    token, size_text = query.get("pageToken"), query.get("pageSize")
    if token is None and size_text is None:
        return None, None
    size = DEFAULT_PAGE_SIZE
    if size_text is not None:
        if not (size_text.isascii() and size_text.isdigit() and len(size_text) < 10 and int(size_text) > 0):
            raise bad_request(f"pageSize must be a whole number of at least 1, not {size_text!r}")
        size = int(size_text)
    return (_decoded(token) if token else None), size


def _page(listed: Iterator[Listed], size: int | None) -> tuple[list[str], str | None]:
    """The first `size` names, or all if `size` is None, and the token of the next page, if any."""
    page = list(islice(listed, size))
    has_more = size is not None and len(page) == size and next(listed, None) is not None
    token = base64.urlsafe_b64encode(page[-1].position.encode()).decode() if has_more else None
    return [one.name for one in page], token


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise bad_request("pageToken is not a token of this server") from error
