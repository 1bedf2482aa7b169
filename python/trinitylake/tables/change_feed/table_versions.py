"""The versions that changed a table, found by the id of the table.

A version changes a table at most once, in one transaction. A table that is missing in a version counts as empty, so a
drop deletes its rows, and a restore inserts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeAlias

from trinitylake import _core
from trinitylake.base.timestamps import time_of
from trinitylake.base.version_reference import versions_after
from trinitylake.definitions import TableDef, parse_table_def
from trinitylake.iceberg_storage.file_io import LakehouseFileIO

#: Versions whose definitions are fetched in parallel.
PAGE_VERSIONS = 64


class TableName(NamedTuple):
    """The key of a table in the tree."""

    namespace: str
    name: str


#: For each table name: the position of the `transaction` in the version, and metadata paths `before` and `after` it.
ChangedTables: TypeAlias = dict[TableName, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table in one version."""

    version: int
    key: TableName
    definition: TableDef


@dataclass(frozen=True, slots=True)
class TableStep:
    """Change of one table by one version.

    Attributes:
        version: number of the version.
        committed_at: time of the commit, in UTC.
        transaction: the position of the transaction in the version; None if the log does not have it.
        transaction_id: id of the transaction; None if the log does not have it.
        before: the table in the previous version; None if it is missing.
        after: the table in this version; None if it is missing.
    """

    version: int
    committed_at: datetime
    transaction: int | None
    transaction_id: str | None
    before: TableState | None
    after: TableState | None


def state_of(version: _core.Version, key: TableName, id: str | None = None) -> TableState | None:
    """The state of the table with this name in a version; None if no table has the name, or if its id is not `id`."""
    found = version.read("table", *key)
    if found is None:
        return None
    definition = parse_table_def(found)
    return TableState(version.number, key, definition) if id in (None, definition.id) else None


def state_in(
    core: _core.Lakehouse, id: str, key: TableName, version: _core.Version, newest: _core.Version
) -> TableState | None:
    """The state of a table in a version, in which it may have had another name than `key` in the newest version."""
    if (found := state_of(version, key, id)) is not None:
        return found
    changed = next(steps_of_table(core, id, key, version, newest), None)
    return None if changed is None else changed.before


def steps_of_table(
    core: _core.Lakehouse, id: str, key: TableName, since: _core.Version, until: _core.Version
) -> Iterator[TableStep]:
    """The versions after `since`, up to `until`, that changed a table, in order.

    Args:
        key: a name of the table. If the table gets this name only in a later version, its earlier name is found.
        since: the version before the first version.

    Raises `VersionExpired` when it reaches a version that has expired.
    """
    state = state_of(since, key, id)
    others: set[TableName] = set()  # changed names so far, while it is unknown whether this table exists
    is_unknown = state is None
    for previous, version, changed in changes_ahead(core, since, until, key):
        if state is not None and state.key in changed:
            steps = steps_of_version(previous, version, changed, [state], id)
        elif state is None and changed:
            before = _states(previous, changed.keys() - others) if is_unknown else ()
            steps = steps_of_version(previous, version, changed, before, id)
            others |= changed.keys()
        else:
            steps = iter(())
        for step in steps:
            if step.before is not None and is_unknown:  # the table had another name before this version
                yield from steps_of_table(core, id, step.before.key, since, previous)
            yield step
            state, is_unknown = step.after, False


def changes_ahead(
    core: _core.Lakehouse, since: _core.Version, until: _core.Version, key: TableName | None = None
) -> Iterator[tuple[_core.Version, _core.Version, ChangedTables]]:
    """The previous version, the version and its changed tables, for each version after `since` up to `until`.

    From a remote store, the definitions of all changed tables, or of the table named `key`, are prefetched in parallel,
    except those that a root contains.
    """
    io, versions = LakehouseFileIO(core.storage), versions_after(core, since, until)
    while page := list(islice(versions, PAGE_VERSIONS)):
        changes = [(before, version, changed_tables(before, version)) for before, version in pairwise([since, *page])]
        for _, version, changed in changes:
            for name in changed if key is None else changed.keys() & {key}:
                if not version.holds_definition(path := changed[name]["after"] or ""):
                    io.begin_to_fetch(path)
        yield from changes
        since = page[-1]


def net_step_of_table(
    core: _core.Lakehouse, id: str, key: TableName, since: _core.Version, until: _core.Version
) -> Iterator[TableStep]:
    """One step from `since` to `until`, as if made by one transaction. The arguments are as for `steps_of_table`."""
    before, after = state_of(since, key, id), state_of(until, key, id)
    if before is None or after is None:  # the table may have another name in that version
        for number, step in enumerate(steps_of_table(core, id, key, since, until)):
            before = step.before if number == 0 else before
            after = step.after
    yield _step(until, None, before, after)


def first_step(version: _core.Version, state: TableState) -> TableStep:
    """A version as if it had created the table with all rows."""
    return _step(version, None, None, state)


def changed_tables(previous: _core.Version, version: _core.Version) -> ChangedTables:
    """The tables that a version created, changed or dropped."""
    return {
        TableName(row["namespace"], row["name"]): row
        for row in version.changes(previous).to_pylist()
        if row["kind"] == "table"
    }


def steps_of_version(
    previous: _core.Version,
    version: _core.Version,
    changed: ChangedTables,
    before: Iterable[TableState] | None = None,
    id: str | None = None,
) -> Iterator[TableStep]:
    """Yield the changes of a version to its tables; with `id`, only the changes of one table.

    Args:
        changed: from `changed_tables`.
        before: the result of `changed_tables` for the previous version, if it is known.
        id: the id of the table; None for all tables.
    """
    then = {one.definition.id: one for one in (_states(previous, changed) if before is None else before)}
    # A change seldom renames a table, so the old name is looked up first.
    kept = None if id is None or id not in then else state_of(version, then[id].key, id)
    now = {one.definition.id: one for one in ([kept] if kept is not None else _states(version, changed))}
    for one in dict.fromkeys([*then, *now]):
        if id in (None, one):
            changing = now.get(one) or then[one]
            yield _step(version, changed[changing.key]["transaction"], then.get(one), now.get(one))


def _states(version: _core.Version, keys: Iterable[TableName]) -> Iterator[TableState]:
    keys = list(keys)
    for key, found in zip(keys, version.read_many("table", keys), strict=True):
        if found is not None:
            yield TableState(version.number, key, parse_table_def(found))


def _step(
    version: _core.Version, transaction: int | None, before: TableState | None, after: TableState | None
) -> TableStep:
    info: Any = version.info
    transactions: Sequence[_core.TransactionInfo] = info.transactions
    return TableStep(
        version=version.number,
        committed_at=time_of(info.created_at_millis),
        transaction=transaction,
        transaction_id=None if transaction is None else transactions[transaction].id,
        before=before,
        after=after,
    )
