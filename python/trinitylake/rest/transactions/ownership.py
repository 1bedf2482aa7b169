"""Ownership of open transactions.

The owner is the principal that began a transaction, and may use it and end it. Principals in `shared-with` may use it
within their roles, but not end it. An admin of `*` may use and end every transaction. Other principals may do neither,
and do not learn whether the transaction exists. A transaction that a program began without a server has no owner,
unless the program set the property `rest.principal`. Only admins of `*` may use a transaction without an owner.

Roles are checked for each statement, and at the commit again for all changes, because a role may have been withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from trinitylake import core
from trinitylake.definitions import parse_lakehouse_def
from trinitylake.rest.errors import RestError
from trinitylake.rest.security.authorization import Name, Principal, Role, forbidden

if TYPE_CHECKING:
    from trinitylake.lakehouse.transaction import Transaction

#: Properties of a transaction that only the server sets: its owner, and a JSON list of principals that may use it.
OWNER_PROPERTY = "rest.principal"
SHARED_PROPERTY = "rest.shared-with"
OWNERSHIP_PROPERTIES = (OWNER_PROPERTY, SHARED_PROPERTY)


@dataclass(frozen=True)
class Ownership:
    """Owner of a transaction, "" for none, and the principals that may use it."""

    owner: str = ""
    shared_with: frozenset[str] = frozenset()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Self:
        """The ownership that the properties of a transaction describe. An invalid list of principals counts as
        empty.
        """
        try:
            names = json.loads(properties.get(SHARED_PROPERTY) or "[]")
        except ValueError:
            names = []
        shared = frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
        return cls(properties.get(OWNER_PROPERTY, ""), shared)

    @staticmethod
    def properties(owner: str, shared_with: Collection[str] = ()) -> dict[str, str]:
        """The properties of a transaction from which `of` makes its ownership."""
        found = {OWNER_PROPERTY: owner} if owner else {}
        return {**found, SHARED_PROPERTY: json.dumps(sorted(shared_with))} if shared_with else found

    def may_end(self, principal: Principal) -> bool:
        """Whether a principal may commit the transaction or roll it back."""
        return principal.is_admin_of_everything or (self.owner == principal.name and principal.name != "")

    def may_work(self, principal: Principal) -> bool:
        """Whether a principal may read and write in the transaction."""
        return self.may_end(principal) or (principal.name in self.shared_with and principal.name != "")


def require_roles(transaction: Transaction, principal: Principal) -> None:
    """Raise `RestError` 403 unless the present roles of a principal permit all changes of a transaction.

    The message names an object only if the principal can read it.
    """
    if principal.is_admin_of_everything:
        return
    state = transaction._state()
    written = core.decode_keys(state.written_keys()["key"], parse_lakehouse_def(state.base.definition)).to_pylist()
    objects: set[Name] = {
        (*namespace.split("."), name) for namespace, name in transaction._staged_tables.changed_objects
    }
    objects |= {(*row["namespace"].split("."), row["name"]) for row in written if row["kind"] in ("table", "view")}
    for name in sorted(objects):
        if not principal.may(Role.WRITER, name):
            what = ".".join(name) if principal.may(Role.READER, name) else "all objects that the transaction changes"
            raise forbidden(f"{principal.name} is not a writer of {what}")
    for row in written:
        if row["kind"] != "namespace":
            continue
        namespace = tuple(row["namespace"].split("."))
        # A writer may create the first object in a namespace without a key of its own, which also writes the namespace.
        is_implied = not state.base.exists("namespace", row["namespace"]) and any(
            one[:-1] == namespace for one in objects
        )
        if not is_implied and not principal.may(Role.ADMIN, namespace):
            what = row["namespace"] if principal.sees(namespace) else "all objects that the transaction changes"
            raise forbidden(f"{principal.name} is not an admin of {what}")


def not_theirs(id: str, principal: Principal) -> RestError:
    """The error 403 for a transaction of another principal. Its message does not show whether the transaction
    exists.
    """
    return forbidden(f"transaction {id} was neither begun by {principal.name} nor shared with it")
