"""Positions of consumers of change feeds, stored in the lakehouse (`stored_position.py`).

The position in the feed of a table is the number of the version up to which changes were consumed, and the manifest
list of the table in that version.

A position is refused if the table has another manifest list in its version. Then an export has copied the position from
another lakehouse with other version numbers.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from trinitylake import _core
from trinitylake.definitions import MANAGED, MANIFEST_LIST
from trinitylake.errors import InvalidArgument, VersionExpired, VersionNotFound
from trinitylake.tables.change_feed.table_versions import TableName, TableState, state_of
from trinitylake.tables.stored_position import StoredPosition

#: The namespace that contains a namespace for each consumer.
CONSUMERS = "_consumers"
#: Without new changes, a position is advanced only if it is older than this. So a consumer that finds no changes
#: commits no version, and its position seldom expires.
IDLE_MILLIS = 3_600_000


class Position(NamedTuple):
    """Position of a consumer in the feed of one table."""

    version: int
    manifest_list: str

    @classmethod
    def of(cls, text: str) -> Self:
        """The inverse of `str`. Raises `InvalidArgument`."""
        number, _, manifest_list = text.partition(" ")
        if not number.isdecimal():
            raise InvalidArgument(f"{text!r} is not a position in a change feed, such as '12'")
        return cls(int(number), manifest_list)

    def __str__(self) -> str:
        return f"{self.version} {self.manifest_list}".strip()


def advance(
    transaction: _core.Transaction, consumer: str, id: str, key: TableName, now: TableState
) -> tuple[_core.Lakehouse, _core.Version | None]:
    """Advance a consumer to the base version of a transaction, as a part of the transaction.

    Args:
        now: the state of the table in the base version.

    Returns the handle of the lakehouse and the version up to which the consumer had consumed changes; None for a
    new consumer.

    Raises:
        VersionExpired: the version of the position has expired, and the table has changed since then.
        InvalidArgument: the position belongs to another lakehouse.
    """
    core, base = _core.Lakehouse.open(transaction.storage), transaction.base
    namespace = f"{CONSUMERS}.{consumer}"
    stored = StoredPosition(transaction, namespace, id)
    since: _core.Version | None = None
    if stored.text is not None:
        position = Position.of(stored.text)
        other = InvalidArgument(
            f"consumer {consumer} is at version {position.version} of another lakehouse, which this one was copied "
            f"from: remove the property {id} of namespace {namespace}, so that it begins again"
        )
        try:
            since = core.version(position.version)
        except VersionNotFound:
            raise other from None
        except VersionExpired:
            if now.definition.table_type != MANAGED or position.manifest_list != _manifest_list(now):
                raise
            stored.store(str(Position(base.number, position.manifest_list)))  # the table has not changed since
            return core, base
        then = state_of(since, key, id)
        if since.number > base.number or (then is not None and _manifest_list(then) != position.manifest_list):
            raise other
        age_millis = base.info.created_at_millis - since.info.created_at_millis
        if then is not None and then.definition == now.definition and age_millis < IDLE_MILLIS:
            return core, base  # not `since`, because changes that a rollback undid would be returned each time
    stored.store(str(Position(base.number, _manifest_list(now))))
    return core, since


def _manifest_list(state: TableState) -> str:
    found: str = state.definition.format_properties.get(MANIFEST_LIST, "")
    return found
