"""Whose an open transaction is: of the principal who began it, and of those to whom that one has handed it over.

The owner works in it and ends it. Those whom the owner named at its beginning work in it, as far as their roles go, and
do not end it. An admin of everything does both. Nobody else does either, or hears whether it is there. One that a
program began by itself, without a server, is nobody's: it is for admins of everything, unless the program began it with
the property `rest.principal`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from trinitylake.rest.errors import RestError
from trinitylake.rest.security.principals import Principal, forbidden

#: Properties of a transaction, which only the server sets: who began it, and a list in JSON of who else works in it.
OWNER_PROPERTY = "rest.principal"
SHARED_PROPERTY = "rest.shared-with"
OWNERSHIP_PROPERTIES = (OWNER_PROPERTY, SHARED_PROPERTY)


@dataclass(frozen=True)
class Ownership:
    """Who began a transaction, "" for nobody known, and who else may work in it."""

    owner: str = ""
    shared_with: frozenset[str] = frozenset()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """As the properties of a transaction tell it. What cannot be read hands nothing over."""
        try:
            names = json.loads(properties.get(SHARED_PROPERTY) or "[]")
        except ValueError:
            names = []
        shared = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
        return cls(properties.get(OWNER_PROPERTY, ""), shared)

    @staticmethod
    def properties(owner: str, shared_with: Collection[str] = ()) -> dict[str, str]:
        """What `of` reads."""
        told = {OWNER_PROPERTY: owner} if owner else {}
        return {**told, SHARED_PROPERTY: json.dumps(sorted(shared_with))} if shared_with else told

    def may_end(self, who: Principal) -> bool:
        """Whether somebody may commit it or roll it back."""
        return who.is_admin_of_everything or (self.owner == who.name and who.name != "")

    def may_work(self, who: Principal) -> bool:
        """Whether somebody may read and write in it."""
        return self.may_end(who) or (who.name in self.shared_with and who.name != "")


def not_theirs(id: str, who: Principal) -> RestError:
    """403, in the same words whether there is such a transaction or not."""
    return forbidden(f"transaction {id} is not one that {who.name} has begun, or that was handed over to them")
