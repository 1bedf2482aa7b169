"""Who asks, and what they may do: roles over patterns of names.

A grant is `role:pattern`. The pattern is a full name such as `shop.orders`, in which `*` stands for anything;
`shop.*` is the namespace `shop` and all that is in it. A `reader` loads and lists. A `writer` also makes, changes,
renames and drops tables and views. An `admin` also makes, changes and drops namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Self

from trinitylake.errors import InvalidArgument
from trinitylake.rest.errors import RestError

EVERYTHING = "*"


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
    _regex: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = self.pattern
        below = ""
        if pattern.endswith(".*"):
            pattern, below = pattern[:-2], r"(?:\..*)?"
        text = ".*".join(map(re.escape, pattern.split("*"))) + below
        object.__setattr__(self, "_regex", re.compile(text, re.S))

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `role:pattern`. Raises `InvalidArgument`."""
        role, separator, pattern = text.partition(":")
        if not separator or not pattern or role.upper() not in Role.__members__:
            raise InvalidArgument(f"a grant is reader, writer or admin, a colon, and a pattern of names, not {text!r}")
        return cls(Role[role.upper()], pattern)

    def fits(self, name: str) -> bool:
        """Whether it is about that name."""
        return self.pattern == EVERYTHING or self._regex.fullmatch(name) is not None

    def leads_through(self, namespace: str) -> bool:
        """Whether it is about something that may be below that namespace."""
        if "*" not in self.pattern:
            return self.pattern.startswith(f"{namespace}.")
        fixed = self.pattern.partition("*")[0]
        return fixed.startswith(f"{namespace}.") or f"{namespace}.".startswith(fixed)


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
        return any(grant.role is Role.ADMIN and grant.pattern == EVERYTHING for grant in self.grants)

    def may(self, role: Role, name: str) -> bool:
        """Whether they have at least that role on an object or namespace of that full name."""
        return any(grant.role >= role and grant.fits(name) for grant in self.grants)

    def may_write_somewhere(self) -> bool:
        """Whether there is anything that they may change."""
        return any(grant.role >= Role.WRITER for grant in self.grants)

    def sees(self, namespace: str) -> bool:
        """Whether a namespace may be shown: it, or something that may be below it, is theirs to read."""
        return any(grant.fits(namespace) or grant.leads_through(namespace) for grant in self.grants)

    def require(self, role: Role, name: str) -> None:
        """Raises `RestError` 403, in the same words whether the object is there or not."""
        if not self.may(role, name):
            raise forbidden(f"{self.name} is not a {role.name.lower()} of {name}")

    def require_sight(self, namespace: str) -> None:
        """Raises `RestError` 403."""
        if not self.sees(namespace):
            raise forbidden(f"{self.name} is not a reader of {namespace}")


def forbidden(message: str) -> RestError:
    """403: somebody who is known may not do that."""
    return RestError(403, "ForbiddenException", message)


#: Every program on this machine, where no token is asked for.
ANYBODY = Principal.of("anonymous", ["admin:*"])
