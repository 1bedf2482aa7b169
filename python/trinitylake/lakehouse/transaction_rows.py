"""The rows that each transaction changed, over all tables, in commit order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from trinitylake.base.qualified_names import full_name
from trinitylake.definitions import FEDERATED
from trinitylake.lakehouse.history import TransactionChanges
from trinitylake.tables.change_feed.feed import ChangeFeed
from trinitylake.tables.change_feed.table_versions import (
    TableState,
    TableStep,
    changed_keys,
    steps_of_version,
)
from trinitylake.tables.frozen_table import table_of_state

if TYPE_CHECKING:
    from trinitylake import _core


class ChangedRows(Mapping[str, pa.RecordBatchReader]):
    """The changed rows of the tables that one transaction changed, by the full name of the table.

    Each look-up reads the rows again, as a stream with the columns of `Table.changes`. A table that was dropped has its
    last name; one of which only properties changed has no rows.
    """

    def __init__(self, storage: _core.Storage, steps: Sequence[TableStep]) -> None:
        self._storage = storage
        self._steps = {_name(_state(step)): step for step in steps}

    def __getitem__(self, name: str) -> pa.RecordBatchReader:
        step = self._steps[name]
        open_table = partial(table_of_state, self._storage)
        feed = ChangeFeed(
            self._storage,
            open_table,
            open_table(_state(step)).schema(),
            columns=None,
            names="trinitylake",
            kept=step.version - 1,
            subject=lambda: f"table {name} in version {step.version}",
        )
        return feed.reader([step])

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)


@dataclass(frozen=True, slots=True)
class TransactionRowChanges(TransactionChanges):
    """What one transaction changed, with the rows: an entry of `lake.changes(since, rows=True)`.

    Attributes:
        rows: the changed rows of each table, which are read on demand.
    """

    rows: ChangedRows = field(repr=False, compare=False)


def with_rows(
    storage: _core.Storage, previous: _core.Version, version: _core.Version, entries: Sequence[TransactionChanges]
) -> Iterator[TransactionRowChanges]:
    """The entries of a version with their rows. Of tables in other catalogs there are none."""
    steps = list(steps_of_version(previous, version, changed_keys(previous, version)))
    for entry in entries:
        own = [step for step in steps if step.transaction == entry.position and not _is_federated(step)]
        parts = {name: getattr(entry, name) for name in TransactionChanges.__dataclass_fields__}
        yield TransactionRowChanges(**parts, rows=ChangedRows(storage, own))


def _state(step: TableStep) -> TableState:
    state = step.after or step.before
    assert state is not None
    return state


def _name(state: TableState) -> str:
    return full_name(*state.key)


def _is_federated(step: TableStep) -> bool:
    return bool(_state(step).definition.table_type == FEDERATED)
