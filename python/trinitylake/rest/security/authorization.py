"""Principals and their roles on patterns of names.

A grant is `role:pattern`. Names and patterns are compared part by part: the parts of a namespace, then the name of a
table or view, which may contain a dot. So `shop.x.*` matches the namespace `x` in `shop`, and never a table `x.y` of
`shop`. In a pattern dots separate parts (`\\.` is a dot in a part), and `*` matches any characters in one part. If the
last part ends in `*`, everything below matches too. `shop.*` matches the namespace `shop` with its content, `tmp*` all
namespaces with that prefix and their content, and `*` everything.

A `reader` loads and lists. A `writer` also creates, changes, renames and drops tables and views. An `admin` also
creates, changes and drops namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self, TypeAlias

from trinitylake.errors import InvalidArgument
from trinitylake.rest.errors import RestError

EVERYTHING = "*"

#: The parts of a namespace, then the name of a table or view, if any.
Name: TypeAlias = tuple[str, ...]

_DOT = re.compile(r"(?<!\\)\.")


class Role(IntEnum):
    """Rights of a principal. Each role includes all roles before it."""

    READER = 1
    WRITER = 2
    ADMIN = 3


@dataclass(frozen=True)
class Grant:
    """A role on all names that match a pattern."""

    role: Role
    pattern: str
    #: For each part of the pattern, the strings between its stars.
    _parts: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    _is_open: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = [part.replace("\\.", ".") for part in _DOT.split(self.pattern)]
        if not all(parts):
            raise InvalidArgument(f"the pattern {self.pattern!r} has an empty part")
        object.__setattr__(self, "_is_open", parts[-1].endswith("*"))
        if parts[-1] == "*":  # without the star, the rest also matches the namespace itself
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
        """Whether the pattern matches a name."""
        is_as_long = len(name) == len(self._parts) or (self._is_open and len(name) > len(self._parts))
        return is_as_long and self._fits_start(name)

    def leads_through(self, namespace: Name) -> bool:
        """Whether the pattern can match something below a namespace."""
        return (self._is_open or len(self._parts) > len(namespace)) and self._fits_start(namespace)

    def _fits_start(self, name: Name) -> bool:
        return not self._parts or all(_fits(part, text) for part, text in zip(self._parts, name, strict=False))


@dataclass(frozen=True)
class Principal:
    """An authenticated client.

    Attributes:
        name: name in logs and commits.
        grants: roles.
        refusal: appended to errors about missing roles.
    """

    name: str
    grants: tuple[Grant, ...]
    refusal: str = ""

    @classmethod
    def of(cls, name: str, grants: Iterable[str]) -> Self:
        """From strings `role:pattern`. Raises `InvalidArgument`."""
        return cls(name, tuple(Grant.parse(text) for text in grants))

    def as_reader(self) -> Self:
        """The same principal on a read-only server, with the role "reader" in place of each of its roles."""
        grants = tuple(Grant(Role.READER, grant.pattern) for grant in self.grants)
        return replace(self, grants=grants, refusal=": this server is read-only")

    @property
    def is_admin_of_everything(self) -> bool:
        """Whether the principal is an admin of `*`."""
        return self.has_everywhere(Role.ADMIN)

    def has_everywhere(self, role: Role) -> bool:
        """Whether the principal has at least this role on `*`."""
        return any(grant.role >= role and grant.pattern == EVERYTHING for grant in self.grants)

    def may(self, role: Role, name: Name) -> bool:
        """Whether the principal has at least this role on an object or namespace."""
        return any(grant.role >= role and grant.fits(name) for grant in self.grants)

    def may_read_something(self) -> bool:
        """Whether the principal has any role."""
        return bool(self.grants)

    def may_write_somewhere(self) -> bool:
        """Whether the principal may write any object."""
        return any(grant.role >= Role.WRITER for grant in self.grants)

    def sees(self, namespace: Name) -> bool:
        """Whether a namespace is visible: the principal can read it, or may be able to read an object below it."""
        return any(grant.fits(namespace) or grant.leads_through(namespace) for grant in self.grants)

    def require(self, role: Role, name: Name) -> None:
        """Raise `RestError` 403 without the role. The message does not show whether the object exists."""
        if not self.may(role, name):
            raise forbidden(f"{self.name} lacks the role {role.name.lower()} on {'.'.join(name)}{self.refusal}")

    def require_sight(self, namespace: Name) -> None:
        """Raise `RestError` 403 unless the namespace is visible."""
        if not self.sees(namespace):
            raise forbidden(f"{self.name} lacks the role reader on {'.'.join(namespace)}")


def forbidden(message: str) -> RestError:
    """403: the principal lacks a right."""
    return RestError(403, "ForbiddenException", message)


def _fits(pieces: tuple[str, ...], text: str) -> bool:
    """Whether `text` is these pieces in order, with any characters between them. Takes linear time."""
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


#: The program that runs the server.
THIS_PROGRAM = Principal.of("", ["admin:*"])
#: Any program on this machine, at a server without tokens.
ANYBODY = Principal.of("anonymous", ["admin:*"])
