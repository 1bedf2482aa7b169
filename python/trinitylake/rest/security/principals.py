"""Who asks, and what they may do: roles over patterns of names.

A grant is `role:pattern`. Names and patterns have parts, and are compared part by part: those of a namespace, then the
name of a table or view, which may have a dot in it. So `shop.x.*` is about the namespace `x` in `shop`, and never about
a table `x.y` of `shop`. In a pattern dots stand between the parts (`\\.` is a dot in a part), and `*` for anything in
one part. If the last part ends in `*`, all that is below fits, too: `shop.*` is the namespace `shop` and all in it,
`tmp*` every namespace that begins so and all in them, and `*` everything.

A `reader` loads and lists. A `writer` also makes, changes, renames and drops tables and views. An `admin` also makes,
changes and drops namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self, TypeAlias

from trinitylake.errors import InvalidArgument
from trinitylake.rest.errors import RestError

EVERYTHING = "*"

#: The parts of a namespace, then the name of a table or view in it, if it is about one.
Name: TypeAlias = tuple[str, ...]

_DOT = re.compile(r"(?<!\\)\.")


class Role(IntEnum):
    """What a principal may do; each includes those before it."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True)
class Grant:
    """A role on every name that fits a pattern."""

    role: Role
    pattern: str
    #: For each part the texts between its stars.
    _parts: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    _is_open: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = [part.replace("\\.", ".") for part in _DOT.split(self.pattern)]
        if not all(parts):
            raise InvalidArgument(f"the pattern {self.pattern!r} has an empty part")
        object.__setattr__(self, "_is_open", parts[-1].endswith("*"))
        if parts[-1] == "*":  # the namespace before it fits, too
            parts.pop()
        object.__setattr__(self, "_parts", tuple(tuple(part.split("*")) for part in parts))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `role:pattern`. Raises `InvalidArgument`."""
        role, separator, pattern = text.partition(":")
        if not separator or not pattern or role.upper() not in Role.__members__:
            raise InvalidArgument(f"a grant is reader, writer or admin, a colon, and a pattern of names, not {text!r}")
        return cls(Role[role.upper()], pattern)

    def fits(self, name: Name) -> bool:
        """Whether it is about that name."""
        is_as_long = len(name) == len(self._parts) or (self._is_open and len(name) > len(self._parts))
        return is_as_long and self._fits_start(name)

    def leads_through(self, namespace: Name) -> bool:
        """Whether it is about something that may be below that namespace."""
        return (self._is_open or len(self._parts) > len(namespace)) and self._fits_start(namespace)

    def _fits_start(self, name: Name) -> bool:
        return not self._parts or all(_fits(part, text) for part, text in zip(self._parts, name, strict=False))


@dataclass(frozen=True)
class Principal:
    """Somebody who was let in. `name` is what logs and commits call them."""

    name: str
    grants: tuple[Grant, ...]

    @classmethod
    def of(cls, name: str, grants: Iterable[str]) -> Self:
        """From grants as text. Raises `InvalidArgument`."""
        return cls(name, tuple(Grant.parse(text) for text in grants))

    @property
    def is_admin_of_everything(self) -> bool:
        """Whether nothing is closed to them."""
        return self.has_everywhere(Role.ADMIN)

    def has_everywhere(self, role: Role) -> bool:
        """Whether they have at least that role on whatever there is."""
        return any(grant.role >= role and grant.pattern == EVERYTHING for grant in self.grants)

    def may(self, role: Role, name: Name) -> bool:
        """Whether they have at least that role on an object or namespace of that full name."""
        return any(grant.role >= role and grant.fits(name) for grant in self.grants)

    def may_read_something(self) -> bool:
        """Whether they have any role at all."""
        return bool(self.grants)

    def may_write_somewhere(self) -> bool:
        """Whether there is anything that they may change."""
        return any(grant.role >= Role.WRITER for grant in self.grants)

    def sees(self, namespace: Name) -> bool:
        """Whether a namespace may be shown: it, or something that may be below it, is theirs to read."""
        return any(grant.fits(namespace) or grant.leads_through(namespace) for grant in self.grants)

    def require(self, role: Role, name: Name) -> None:
        """Raises `RestError` 403, in the same words whether the object is there or not."""
        if not self.may(role, name):
            raise forbidden(f"{self.name} is not a {role.name.lower()} of {'.'.join(name)}")

    def require_sight(self, namespace: Name) -> None:
        """Raises `RestError` 403."""
        if not self.sees(namespace):
            raise forbidden(f"{self.name} is not a reader of {'.'.join(namespace)}")


def forbidden(message: str) -> RestError:
    """403: somebody who is known may not do that."""
    return RestError(403, "ForbiddenException", message)


def _fits(pieces: tuple[str, ...], text: str) -> bool:
    """Whether a text is these pieces, in order, with anything between them. Looks at each character once."""
    first, *rest = pieces
    if not rest:
        return text == first
    *between, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    position, end = len(first), len(text) - len(last)
    for piece in between:
        found = text.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True


#: Somebody who was not let in.
STRANGER = Principal.of("", [])
#: The program that runs the server.
THIS_PROGRAM = Principal.of("", ["admin:*"])
#: Every program on this machine, where no token is asked for.
ANYBODY = Principal.of("anonymous", ["admin:*"])
