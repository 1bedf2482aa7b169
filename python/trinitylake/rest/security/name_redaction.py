"""Removes the names of objects that a principal cannot see from error messages.

The message of a conflict, or of a namespace that is not empty, names objects that the request did not name. It is
replaced by a message from the fields of the error that contains only visible names. `rest/errors.py` passes every
message through this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from trinitylake.errors import CommitConflict, NamespaceNotEmpty, TrinityLakeError
from trinitylake.rest.security.authorization import Principal, Role

#: Whether an object exists: its kind, namespace and name.
Exists: TypeAlias = Callable[[Literal["table", "view"], str, str], bool]

MAX_NAMED = 20
#: Keys of a conflict that contain no name.
_NAMELESS = frozenset({"lakehouse definition", "earlier version"})


def message_for(principal: Principal, exists: Exists | None = None) -> Callable[[Exception], str]:
    """A function that returns the message of an error for a principal. Without `exists`, more names are hidden."""

    def message(error: Exception) -> str:
        text = str(error)
        if principal.has_everywhere(Role.READER):
            return text
        for one in _chain(error):
            if isinstance(one, CommitConflict | NamespaceNotEmpty) and (text_of_one := str(one)):
                text = text.replace(text_of_one, _message(one, principal, exists))
        return text

    return message


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _message(error: CommitConflict | NamespaceNotEmpty, principal: Principal, exists: Exists | None) -> str:
    if isinstance(error, NamespaceNotEmpty):
        return "it contains tables, views or namespaces"
    if not error.keys and not error.winners:  # the message is about this transaction only
        return str(error)
    first = error.keys[:MAX_NAMED]
    shown = [key for key in first if _is_seen(key, principal, exists)]
    hidden = ["objects that are not visible to you"] if len(shown) < len(error.keys) else []
    versions = [f"version {number}" for number in sorted({one.version for one in error.winners})[:MAX_NAMED]]
    with_whom = ", ".join(versions) or "another transaction"
    return f"conflict on {', '.join([*shown, *hidden])} with {with_whom}: the transaction was not committed"


def _is_seen(key: str, principal: Principal, exists: Exists | None) -> bool:
    """Whether a key of a conflict, such as `table shop.orders`, is visible."""
    if key in _NAMELESS:
        return True
    kind, _, name = key.partition(" ")
    parts = name.split(".")
    if kind == "namespace":
        return principal.sees(tuple(parts))
    if kind == "table":
        return _is_seen_object("table", parts, principal, exists)
    return kind == "view" and _is_seen_object("view", parts, principal, exists)


def _is_seen_object(
    kind: Literal["table", "view"], parts: list[str], principal: Principal, exists: Exists | None
) -> bool:
    # In `a.b.c` the namespace may be `a` or `a.b`, because the name of a table may contain a dot.
    meant = [(tuple(parts[:end]), ".".join(parts[end:])) for end in range(1, len(parts))]
    if len(meant) > 1:
        existing = [(above, last) for above, last in meant if _exists(kind, above, last, exists)]
        meant = existing or meant
    return bool(meant) and all(principal.may(Role.READER, (*above, last)) for above, last in meant)


def _exists(kind: Literal["table", "view"], namespace: tuple[str, ...], name: str, exists: Exists | None) -> bool:
    try:
        return exists is not None and exists(kind, ".".join(namespace), name)
    except TrinityLakeError:
        return False
