"""What a principal sees of what is not named by the path of a request: names in the log, in differences, in searches.

The rules are those of the catalog's lists: a table or view is seen by its readers, a namespace by whoever may read it
or something below it. What is about the lakehouse as a whole, its tree and its sizes, tells of all names and is for
readers of everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trinitylake.rest.request.call import Call
from trinitylake.rest.security.principals import Name, Principal, Role, forbidden


def parts_of(kind: str, namespace: str, name: str) -> Name:
    """The full name of an object as grants are compared with it."""
    above = tuple(namespace.split("."))
    return above if kind == "namespace" else (*above, name)


def sees(principal: Principal, kind: str, name: Name) -> bool:
    """Whether an object may be shown."""
    return principal.sees(name) if kind == "namespace" else principal.may(Role.READER, name)


def reads_everything(principal: Principal) -> bool:
    """Whether nothing has to be left out."""
    return principal.has_everywhere(Role.READER)


def require_everything(call: Call, what: str) -> None:
    """Raises `RestError` 403 for somebody who does not read everything."""
    if not reads_everything(call.principal):
        raise forbidden(f"{what} tells of everything: {call.principal.name} is not a reader of *")


def visible_changes(principal: Principal, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a difference that may be shown, as they are sent."""
    found = []
    for row in rows:
        name = parts_of(row["kind"], row["namespace"], row["name"])
        if sees(principal, row["kind"], name):
            sign = "+" if row["before"] is None else "-" if row["after"] is None else "~"
            found.append({"sign": sign, "kind": row["kind"], "name": list(name)})
    return found
