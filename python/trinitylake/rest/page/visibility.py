"""Visibility of objects that the path of a request does not name: in the log, in differences, in searches.

The rules are those of the catalog's lists: a table or view is visible to its readers, a namespace to readers of it or
of something below it. Information about the whole lakehouse, such as its tree and sizes, is for readers of `*`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trinitylake.rest.request.call import Call
from trinitylake.rest.security.authorization import Name, Principal, Role, forbidden


def parts_of(kind: str, namespace: str, name: str) -> Name:
    """The full name of an object in the form of grants."""
    above = tuple(namespace.split("."))
    return above if kind == "namespace" else (*above, name)


def sees(principal: Principal, kind: str, name: Name) -> bool:
    """Whether an object is visible."""
    return principal.sees(name) if kind == "namespace" else principal.may(Role.READER, name)


def reads_everything(principal: Principal) -> bool:
    """Whether everything is visible."""
    return principal.has_everywhere(Role.READER)


def require_everything(call: Call, what: str) -> None:
    """Raise `RestError` 403 unless the principal is a reader of `*`."""
    if not reads_everything(call.principal):
        raise forbidden(f"{what} needs the role reader on *, which {call.principal.name} does not have")


def visible_changes(principal: Principal, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The visible rows of a difference, in the form of the response."""
    found = []
    for row in rows:
        name = parts_of(row["kind"], row["namespace"], row["name"])
        if sees(principal, row["kind"], name):
            sign = "+" if row["before"] is None else "-" if row["after"] is None else "~"
            found.append({"sign": sign, "kind": row["kind"], "name": list(name)})
    return found
