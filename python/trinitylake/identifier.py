"""The names of objects, as people write them.

`"nyc.flights"` is the table or view `flights` in the namespace `nyc`; `"a.b.t"` is `t` in the nested namespace
`a.b`. Wherever an identifier is accepted a tuple is too: `("a.b", "t")` or `("a", "b", "t")`; a tuple is the only
way to name a table with a dot in its own name. What a name may hold is the core's business (format §4).
"""

from __future__ import annotations

from typing import TypeAlias

from trinitylake.errors import InvalidName

Identifier: TypeAlias = str | tuple[str, ...]


def split(identifier: Identifier) -> tuple[str, str]:
    """The namespace and the own name of a table or view. Raises `InvalidName` if there is only one part."""
    if type(identifier) is str:
        namespace, dot, name = identifier.rpartition(".")
        if dot:
            return namespace, name
    elif isinstance(identifier, tuple) and len(identifier) > 1:
        return ".".join(identifier[:-1]), identifier[-1]
    raise InvalidName(f'{identifier!r} does not name a table or view: expected "namespace.name"')


def namespace_name(identifier: Identifier) -> str:
    """The full name of a namespace."""
    if isinstance(identifier, str):
        return identifier
    if isinstance(identifier, tuple) and identifier:
        return ".".join(identifier)
    raise InvalidName(f"{identifier!r} does not name a namespace")


def full_name(namespace: str, name: str) -> str:
    """The inverse of `split`; an empty `name` gives the namespace itself."""
    return f"{namespace}.{name}" if name else namespace
