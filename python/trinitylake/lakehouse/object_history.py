"""The history of one object: the versions that changed it, through renames, by its id.

The core returns the versions that changed a key of the tree. An object has one key at a time. If one version removes a
key and adds another key with the same object id, then the version renamed the object, and the object's earlier history
is found under the former key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from trinitylake.base.qualified_names import Identifier, full_name, namespace_name, split
from trinitylake.definitions import object_id, read_definition
from trinitylake.errors import InvalidName, ObjectNotFound
from trinitylake.lakehouse.history import CommittedTransaction, log_entry

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.lakehouse.reader import Kind

Action: TypeAlias = Literal["created", "changed", "renamed", "dropped", "restored"]

#: Maximum number of changes of a key in one request.
_PAGE = 32


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A version that changed an object.

    Attributes:
        version: number of the version.
        created_at: time of the commit, in UTC.
        action: "created", "changed", "renamed", "dropped", or "restored" after a drop.
        kind: "namespace", "table" or "view".
        name: the full name of the object; after a drop its last name.
        former_name: for a rename, the full name before it; otherwise None.
        rollback_from: if a rollback changed the object, the version that was the latest before the rollback; otherwise
            None.
        transaction: the transaction in the log; None if the log does not have it.
    """

    version: int
    created_at: datetime
    action: Action
    kind: Kind
    name: str
    former_name: str | None
    rollback_from: int | None
    transaction: CommittedTransaction | None

    @property
    def transactions(self) -> list[CommittedTransaction]:
        """The transaction in a list; an empty list if the log does not have it."""
        return [] if self.transaction is None else [self.transaction]


class ObjectKey(NamedTuple):
    """The parts of an object's key in the tree; for a namespace `name` is ""."""

    kind: Kind
    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        return full_name(self.namespace, self.name)


class _Step(NamedTuple):
    """A version that changed a key, with the locations of the definition before and after."""

    version: int
    before: str | None
    after: str | None


def changes_of_object(core: _core.Lakehouse, identifier: Identifier) -> Iterator[ObjectChange]:
    """All changes of the object with this name, newest first.

    If no object has the name now, the changes are those of the last object that had it. Raises `ObjectNotFound` at
    once, not when the first change is requested.
    """
    return _Walk(core).changes(identifier)


def version_of_former_object(core: _core.Lakehouse, identifier: Identifier) -> int | None:
    """The last version in which another object had the name of this object; None if no kept version is known."""
    return _Walk(core).version_of_former(identifier)


class _Walk:
    """Follows the history of one object from the newest kept version to the oldest."""

    def __init__(self, core: _core.Lakehouse) -> None:
        self._core = core
        self._newest = core.latest().number
        self._oldest = core.oldest()
        self._ids: dict[tuple[Kind, str], str] = {}

    def changes(self, identifier: Identifier) -> Iterator[ObjectChange]:
        key, id = self._found(identifier)
        return self._of(key, id)

    def version_of_former(self, identifier: Identifier) -> int | None:
        key, id = self._found(identifier)
        for step in self._all_steps(key, self._newest):
            if step.before is not None and self._id(key.kind, step.before) != id:
                return step.version - 1
        return None

    def _found(self, identifier: Identifier) -> tuple[ObjectKey, str]:
        """The present or last key of the object, and its id."""
        latest = self._core.version(self._newest)
        keys = [ObjectKey("namespace", namespace_name(identifier), "")]
        try:
            namespace, name = split(identifier)
            keys += [ObjectKey("table", namespace, name), ObjectKey("view", namespace, name)]
        except InvalidName:  # a name with one part can only be a namespace's
            pass
        for key in keys:
            location = latest.locate(*key)
            if location is not None:
                return key, self._id(key.kind, location)
        last = [(step, key) for key in keys for step in self._steps(key, self._newest, 1)]
        if not last:
            raise ObjectNotFound(f"{keys[0].full_name} does not exist, and no retained version has it")
        step, key = max(last)
        return key, self._id(key.kind, step.before or "")

    def _of(self, key: ObjectKey, id: str) -> Iterator[ObjectChange]:
        newest, appeared = self._newest, None
        while True:
            for step in self._all_steps(key, newest):
                was = step.before is not None and self._id(key.kind, step.before) == id
                now = step.after is not None and self._id(key.kind, step.after) == id
                # The object appeared in the later step `appeared`: this step shows whether it had been dropped before.
                if appeared is not None:
                    yield self._change(appeared, "restored" if was and not now else "created", key)
                    appeared = None
                if was and now:
                    yield self._change(step, "changed", key)
                elif was:
                    partner = self._partner(step, key, id, lambda row: row["after"])
                    if partner is None:
                        yield self._change(step, "dropped", key)
                    else:
                        yield self._change(step, "renamed", partner, key)
                elif now:
                    partner = self._partner(step, key, id, lambda row: row["before"])
                    if partner is None:
                        appeared = step
                        continue
                    yield self._change(step, "renamed", key, partner)
                    key, newest = partner, step.version - 1
                    break
                else:
                    return  # this step is about another object that had the name before
            else:
                if appeared is not None:
                    yield self._change(appeared, "created", key)
                return

    def _all_steps(self, key: ObjectKey, newest: int) -> Iterator[_Step]:
        while steps := self._steps(key, newest, _PAGE):
            yield from steps
            newest = steps[-1].version - 1

    def _steps(self, key: ObjectKey, newest: int, limit: int) -> list[_Step]:
        return [_Step(*step) for step in self._core.key_history(*key, newest, self._oldest, limit)]

    def _partner(
        self, step: _Step, key: ObjectKey, id: str, location_of: Callable[[dict[str, Any]], str | None]
    ) -> ObjectKey | None:
        """The other key of the object before or after a version that renamed it."""
        for row in self._rows(step.version):
            location = location_of(row)
            other = ObjectKey(row["kind"], row["namespace"], row["name"])
            if location is None or other == key or other.kind != key.kind:
                continue
            if self._id(other.kind, location) == id:
                return other
        return None

    def _rows(self, version: int) -> list[dict[str, Any]]:
        """Changes of a version, with the keys kind, namespace, name, before, after and transaction."""
        rows: list[dict[str, Any]] = self._core.version(version).changes(self._core.version(version - 1)).to_pylist()
        return rows

    def _change(self, step: _Step, action: Action, key: ObjectKey, former: ObjectKey | None = None) -> ObjectChange:
        entry = log_entry(self._core.version(step.version).info)
        keys = {key, former}
        positions = [
            row["transaction"]
            for row in self._rows(step.version)
            if row["transaction"] is not None and ObjectKey(row["kind"], row["namespace"], row["name"]) in keys
        ]
        transaction = entry.transactions[positions[0]] if positions else None
        return ObjectChange(
            version=step.version,
            created_at=entry.created_at,
            action=action,
            kind=key.kind,
            name=key.full_name,
            former_name=None if former is None else former.full_name,
            rollback_from=entry.rollback_from,
            transaction=transaction,
        )

    def _id(self, kind: Kind, location: str) -> str:
        if (kind, location) not in self._ids:
            self._ids[kind, location] = object_id(kind, read_definition(self._core.storage, location), location)
        return self._ids[kind, location]
