"""Pagination: a token is the position in key order after which the next page begins.

So the server keeps nothing between two pages, a page reads no more than it shows, and names that are added or removed
meanwhile neither repeat nor hide one. That holds in an open transaction, too, which sees its own writes.
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
from trinitylake.rest.security.principals import Name, Role

#: Of a page, if the client asks for pages without saying how large.
DEFAULT_PAGE_SIZE = 1000


def page_of(names: Iterable[str], query: QueryParams) -> tuple[list[str], str | None]:
    """The page of a list that is short and known, as `pageToken` and `pageSize` ask for it, and the token of the next.

    Raises `RestError` 400 for a bad token or size.
    """
    after, size = _asked(query)
    return _page((Listed(name, name) for name in sorted(names) if after is None or name > after), size)


def identifiers_response(
    call: Call, catalog: ServedCatalog, kind: Literal["table", "view"], namespace: Name
) -> Response:
    """The page of the tables or views of one namespace that the caller may see. Raises `NoSuchNamespaceError`."""
    after, size = _asked(call.query)
    token: str | None = None
    if size is None:
        found = catalog.list_tables(namespace) if kind == "table" else catalog.list_views(namespace)
        names = [one[-1] for one in found if call.principal.may(Role.READER, one)]
    else:
        state, within = catalog.state(), ".".join(namespace)
        following = objects_after(state, kind, within, after, _expected(size))
        names, token = _page(
            (one for one in following if call.principal.may(Role.READER, (*namespace, one.name))), size
        )
        if not names:
            require_namespace(state, within)
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_response({"identifiers": identifiers, "next-page-token": token})


def namespaces_response(call: Call, catalog: ServedCatalog, parent: Name) -> Response:
    """The page of the namespaces directly below one, or at the top, that the caller may see.

    Raises `NoSuchNamespaceError`.
    """
    after, size = _asked(call.query)
    token: str | None = None
    if size is None:
        found = [one for one in catalog.list_namespaces(parent) if call.principal.sees(one)]
    else:
        state, above = catalog.state(), ".".join(parent) or None
        following = children_after(state, above, after, _expected(size))
        names, token = _page((one for one in following if call.principal.sees((*parent, one.name))), size)
        found = [(*parent, name) for name in names]
        if not found and above is not None:
            require_namespace(state, above)
    return json_response({"namespaces": found, "next-page-token": token})


def _expected(size: int) -> int:
    """How many keys to read at first: one more than are shown tells whether a page follows."""
    return min(size + 1, MAX_KEYS_AT_ONCE)


def _asked(query: QueryParams) -> tuple[str | None, int | None]:
    """The position after which a page begins, None for the first one; and its size, None for all there is."""
    token, size_text = query.get("pageToken"), query.get("pageSize")
    if token is None and size_text is None:
        return None, None
    size = DEFAULT_PAGE_SIZE
    if size_text is not None:
        if not (size_text.isascii() and size_text.isdigit() and len(size_text) < 10 and int(size_text) > 0):
            raise bad_request(f"pageSize is a whole number of at least 1, not {size_text!r}")
        size = int(size_text)
    return (_decoded(token) if token else None), size


def _page(listed: Iterator[Listed], size: int | None) -> tuple[list[str], str | None]:
    """The first of these names, all of them without a size, and the token of those after them."""
    page = list(islice(listed, size))
    has_more = size is not None and len(page) == size and next(listed, None) is not None
    return [one.name for one in page], _encoded(page[-1].position) if has_more else None


def _encoded(position: str) -> str:
    return base64.urlsafe_b64encode(position.encode()).decode()


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise bad_request("pageToken is not one that this server gave") from error
