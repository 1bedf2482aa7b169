"""Whose an open transaction is: of the principal who began it, and of those to whom that one has handed it over.

The owner works in it and ends it. Those whom the owner named at its beginning work in it, as far as their roles go, and
do not end it. An admin of everything does both. Nobody else does either, or hears whether it is there. One that a
program began by itself, without a server, is nobody's: it is for admins of everything, unless the program began it with
the property `rest.principal`.

Roles are asked for each statement, and for all that the transaction changes once more when it commits: a role may have
been withdrawn in between.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from trinitylake import core
from trinitylake.definitions import parse_lakehouse_def
from trinitylake.rest.errors import RestError
from trinitylake.rest.security.principals import Name, Principal, Role, forbidden

if TYPE_CHECKING:
    from trinitylake.lakehouse.transaction import Transaction

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


def require_roles(transaction: Transaction, who: Principal) -> None:
    """Refuse the commit of a transaction by a principal who may not make all of its changes, as roles are now.

    Raises `RestError` 403, which names what is not theirs only to those who may read it.
    """
    if who.is_admin_of_everything:
        return
    state = transaction._state()
    written = core.decode_keys(state.written_keys()["key"], parse_lakehouse_def(state.base.definition)).to_pylist()
    objects: set[Name] = {
        (*namespace.split("."), name) for namespace, name in transaction._staged_tables.changed_objects
    }
    objects |= {(*row["namespace"].split("."), row["name"]) for row in written if row["kind"] in ("table", "view")}
    for name in sorted(objects):
        if not who.may(Role.WRITER, name):
            what = ".".join(name) if who.may(Role.READER, name) else "all that the transaction changes"
            raise forbidden(f"{who.name} is not a writer of {what}")
    for row in written:
        if row["kind"] != "namespace":
            continue
        namespace = tuple(row["namespace"].split("."))
        # The first object in a namespace that only has nested ones makes it, too.
        is_implied = not state.base.exists("namespace", row["namespace"]) and any(
            one[:-1] == namespace for one in objects
        )
        if not is_implied and not who.may(Role.ADMIN, namespace):
            what = row["namespace"] if who.sees(namespace) else "all that the transaction changes"
            raise forbidden(f"{who.name} is not an admin of {what}")


def not_theirs(id: str, who: Principal) -> RestError:
    """403, in the same words whether there is such a transaction or not."""
    return forbidden(f"transaction {id} is not one that {who.name} has begun, or that was handed over to them")
