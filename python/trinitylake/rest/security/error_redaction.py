"""What an error tells a client: the library names whatever was in the way, and a client may not see all of that.

Every text of an error passes here on its way out (`rest/errors.py`). Where one holds the library's words about objects
that the request need not have named, which are conflicts and what a namespace still has in it, they are replaced: by
words made of the typed fields of the error, each of which is shown to those who may see it. The log of the page shows
more of the transactions that won, to those who may read all that they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from trinitylake.errors import CommitConflict, NamespaceNotEmpty, TrinityLakeError
from trinitylake.rest.security.principals import Principal, Role

#: Whether there is an object of a kind in a namespace, of a name.
Exists: TypeAlias = Callable[[Literal["table", "view"], str, str], bool]

MAX_NAMED = 20
#: Keys of a conflict that name nothing.
_NAMELESS = frozenset({"lakehouse definition", "earlier version"})


def told_to(principal: Principal, exists: Exists | None = None) -> Callable[[Exception], str]:
    """What errors tell a principal. Without `exists` some names stay hidden that they might see."""

    def told(error: Exception) -> str:
        text = str(error)
        if principal.has_everywhere(Role.READER):
            return text
        for one in _chain(error):
            if isinstance(one, CommitConflict | NamespaceNotEmpty) and (words := str(one)):
                text = text.replace(words, _words(one, principal, exists))
        return text

    return told


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was made of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(error: CommitConflict | NamespaceNotEmpty, principal: Principal, exists: Exists | None) -> str:
    if isinstance(error, NamespaceNotEmpty):
        return "there are tables, views or namespaces in it"
    if not error.keys and not error.winners:  # it is about this transaction alone
        return str(error)
    first = error.keys[:MAX_NAMED]
    shown = [key for key in first if _is_seen(key, principal, exists)]
    hidden = ["what else is not to be told"] if len(shown) < len(error.keys) else []
    versions = [f"version {number}" for number in sorted({one.version for one in error.winners})[:MAX_NAMED]]
    by = f" by {', '.join(versions)}" if versions else ""
    return f"the transaction lost on {', '.join([*shown, *hidden])}: changed meanwhile{by}"


def _is_seen(key: str, principal: Principal, exists: Exists | None) -> bool:
    """Whether a key of a conflict, such as `table shop.orders`, may be told."""
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
    # Of `a.b.c` nobody can tell where the namespace ends: a table may have a dot in its name.
    meant = [(tuple(parts[:end]), ".".join(parts[end:])) for end in range(1, len(parts))]
    if len(meant) > 1:
        there = [(above, last) for above, last in meant if _is_there(kind, above, last, exists)]
        meant = there or meant
    return bool(meant) and all(principal.may(Role.READER, (*above, last)) for above, last in meant)


def _is_there(kind: Literal["table", "view"], namespace: tuple[str, ...], name: str, exists: Exists | None) -> bool:
    try:
        return exists is not None and exists(kind, ".".join(namespace), name)
    except TrinityLakeError:
        return False
