"""Qualified names of tables, views and namespaces.

`"nyc.flights"` is the table or view `flights` in the namespace `nyc`; `"a.b.t"` is `t` in the nested namespace `a.b`.
An identifier may also be a tuple: `("a.b", "t")` or `("a", "b", "t")`. Only a tuple can name a table with a dot in its
own name. The core checks the characters of names (`key.rs`, format §4).
"""

from __future__ import annotations

from typing import TypeAlias

from trinitylake.errors import InvalidName

Identifier: TypeAlias = str | tuple[str, ...]


def split(identifier: Identifier) -> tuple[str, str]:
    """Split a name into namespace and name of a table or view. Raises `InvalidName` for a name of one part."""
    check_text(identifier)
    if isinstance(identifier, str):
        namespace, dot, name = identifier.rpartition(".")
        if dot:
            return namespace, name
    elif len(identifier) > 1:
        return ".".join(identifier[:-1]), identifier[-1]
    raise InvalidName(f'{identifier!r} does not name a table or view: expected "namespace.name"')


def namespace_name(identifier: Identifier) -> str:
    """The full name of a namespace."""
    check_text(identifier)
    return identifier if isinstance(identifier, str) else ".".join(identifier)


def check_text(identifier: Identifier) -> None:
    """Raise `InvalidName` for anything except a string in valid Unicode, or a tuple of such strings."""
    if isinstance(identifier, str):
        if identifier.isascii():
            return
        try:
            identifier.encode()
        except UnicodeEncodeError as error:
            raise InvalidName(
                f"{identifier!r} is not a name: {error.object[error.start]!r} is not valid UTF-8"
            ) from None
    elif isinstance(identifier, tuple) and identifier and all(isinstance(part, str) for part in identifier):
        for part in identifier:
            check_text(part)
    else:
        raise InvalidName(f"{identifier!r} is not a name: expected a string, or a tuple of strings")


def full_name(namespace: str, name: str) -> str:
    """The inverse of `split`; an empty `name` gives the namespace itself."""
    return f"{namespace}.{name}" if name else namespace
