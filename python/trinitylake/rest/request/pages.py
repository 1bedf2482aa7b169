"""Pagination: lists are sorted, and a token is the last name of the page before it.

So the server keeps nothing between two pages, and names that are added or removed meanwhile neither repeat nor hide
one. Of tables and views only those of the page are read, save in an open transaction, which sees its own writes as
well.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, cast

from starlette.datastructures import QueryParams
from starlette.responses import Response

from trinitylake.iceberg.namespaces import require_namespace
from trinitylake.lakehouse.transaction import Transaction
from trinitylake.rest.errors import bad_request
from trinitylake.rest.request.call import Call, json_response
from trinitylake.rest.security.principals import Name, Role
from trinitylake.rest.state.listing import MAX_KEYS_AT_ONCE, names_after

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.rest.state.served_catalog import ServedCatalog

#: Of a page, if the client asks for pages without saying how large.
DEFAULT_PAGE_SIZE = 1000


def page_of(names: Sequence[str], query: QueryParams) -> tuple[list[str], str | None]:
    """The names of the page that `pageToken` and `pageSize` ask for, and the token of the next.

    All of them without both. Raises `RestError` 400 for a bad token or size.
    """
    after, size = _asked(query)
    if size is None:
        return list(names), None
    return _page((name for name in sorted(names) if after is None or name > after), size)


def identifiers_response(
    call: Call, catalog: ServedCatalog, kind: Literal["table", "view"], namespace: Name
) -> Response:
    """The page of the tables or views of one namespace that the caller may see. Raises `NoSuchNamespaceError`."""
    after, size = _asked(call.query)
    state = catalog.state()
    token: str | None = None
    names: list[str]
    if size is None or isinstance(catalog.source, Transaction):
        found = catalog.list_tables(namespace) if kind == "table" else catalog.list_views(namespace)
        names, token = page_of([one[-1] for one in found if _is_visible(call, one)], call.query)
    else:
        following = names_after(
            cast("_core.Version", state), kind, ".".join(namespace), after, min(size + 1, MAX_KEYS_AT_ONCE)
        )
        names, token = _page((name for name in following if _is_visible(call, (*namespace, name))), size)
        if not names:
            require_namespace(state, ".".join(namespace))
    identifiers = [{"namespace": namespace, "name": name} for name in names]
    return json_response({"identifiers": identifiers, "next-page-token": token})


def _asked(query: QueryParams) -> tuple[str | None, int | None]:
    """The name after which a page begins, None for the first one; and its size, None for all there is."""
    token, size_text = query.get("pageToken"), query.get("pageSize")
    if token is None and size_text is None:
        return None, None
    size = DEFAULT_PAGE_SIZE
    if size_text is not None:
        if not (size_text.isascii() and size_text.isdigit() and len(size_text) < 10 and int(size_text) > 0):
            raise bad_request(f"pageSize is a whole number of at least 1, not {size_text!r}")
        size = int(size_text)
    return (_decoded(token) if token else None), size


def _page(names: Iterator[str], size: int) -> tuple[list[str], str | None]:
    """The first of these names, and the token of those after them."""
    page = list(islice(names, size))
    return page, _encoded(page[-1]) if len(page) == size and next(names, None) is not None else None


def _is_visible(call: Call, name: Name) -> bool:
    return call.principal.may(Role.READER, name)


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise bad_request("pageToken is not one that this server gave") from error
