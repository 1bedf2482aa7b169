"""The rows that each transaction changed, over all tables, in commit order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from trinitylake.base.qualified_names import full_name
from trinitylake.definitions import FEDERATED
from trinitylake.iceberg_storage.data_files.schema_projection import with_wider_types
from trinitylake.lakehouse.history import TransactionChanges, changes_of
from trinitylake.tables.change_feed.feed import ChangeFeed
from trinitylake.tables.change_feed.table_versions import TableStep, changes_ahead, steps_of_version
from trinitylake.tables.frozen_table import table_of_state

if TYPE_CHECKING:
    from trinitylake import _core
    from trinitylake.definitions import TableDef


@dataclass(frozen=True, slots=True)
class TableRowChanges:
    """The rows that one transaction changed in one table.

    Supports the Arrow C stream protocol, as `read` does.

    Attributes:
        table_id: the id of the table, which a rename does not change.
        name: its full name after the transaction; None if the transaction dropped it.
        former_name: its full name before the transaction; None if the transaction created or restored it.
    """

    table_id: str
    name: str | None
    former_name: str | None
    _storage: _core.Storage = field(repr=False, compare=False)
    _step: TableStep = field(repr=False, compare=False)

    def read(self) -> pa.RecordBatchReader:
        """The changed rows, as `Table.changes` returns them; each call reads them again."""
        open_table = partial(table_of_state, self._storage)
        after, *before = (open_table(one).schema() for one in (self._step.after, self._step.before) if one is not None)
        schema = with_wider_types(after, before[0]) if before else after
        feed = ChangeFeed(
            self._storage,
            open_table,
            schema,
            columns=None,
            names="trinitylake",
            kept=self._step.version - 1,
            subject=lambda: f"table {self.name or self.former_name} in version {self._step.version}",
        )
        return feed.reader([self._step])

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.read().__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class TransactionRowChanges(TransactionChanges):
    """Changes of one transaction, with the rows: an entry of `lake.changes(since, rows=True)`.

    Attributes:
        rows: the tables that the transaction changed, dropped ones first. One of which only properties or the name
            changed has no rows.
    """

    rows: tuple[TableRowChanges, ...] = field(repr=False, compare=False)


def changes_with_rows(
    core: _core.Lakehouse, since: _core.Version, until: _core.Version
) -> Iterator[TransactionRowChanges]:
    """The changes of each transaction after `since`, up to `until`; tables in other catalogs have no rows."""
    for previous, version, changed in changes_ahead(core, since, until):
        steps = list(steps_of_version(previous, version, changed))
        for entry in changes_of(version.info, version.changes(previous).to_pylist()):
            own = [step for step in steps if step.transaction == entry.position and not _is_federated(step)]
            own.sort(key=lambda step: step.after is not None)
            parts = {name: getattr(entry, name) for name in TransactionChanges.__dataclass_fields__}
            yield TransactionRowChanges(**parts, rows=tuple(_of_table(core.storage, step) for step in own))


def _of_table(storage: _core.Storage, step: TableStep) -> TableRowChanges:
    former, now = (None if one is None else full_name(*one.key) for one in (step.before, step.after))
    return TableRowChanges(_definition(step).id, now, former, storage, step)


def _definition(step: TableStep) -> TableDef:
    state = step.after or step.before
    assert state is not None
    return state.definition


def _is_federated(step: TableStep) -> bool:
    return bool(_definition(step).table_type == FEDERATED)
