"""The rows that each transaction changed, over all tables, in commit order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import pyarrow as pa

from trinitylake.base.qualified_names import full_name
from trinitylake.definitions import FEDERATED, MANAGED, Schema
from trinitylake.definitions.iceberg_types import from_iceberg
from trinitylake.iceberg_storage.data_files.schema_projection import with_wider_types
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.lakehouse.history import TransactionChanges, changes_of
from trinitylake.tables.change_feed.feed import ChangeFeed, ListedSnapshots
from trinitylake.tables.change_feed.table_versions import (
    PAGE_VERSIONS,
    TableState,
    TableStep,
    changes_ahead,
    steps_of_version,
)
from trinitylake.tables.frozen_table import table_of_state

if TYPE_CHECKING:
    from pyiceberg.schema import Schema as IcebergSchema

    from trinitylake import _core
    from trinitylake.definitions import TableDef


@dataclass(frozen=True, slots=True)
class TableRowChanges:
    """The rows that one transaction changed in one table.

    Arrow libraries read the rows through the Arrow C stream protocol.

    Attributes:
        table_id: the id of the table, which a rename does not change.
        name: the table's full name after the transaction; None if the transaction dropped the table.
        former_name: the full name before the transaction; None if the transaction created or restored the table.
    """

    table_id: str
    name: str | None
    former_name: str | None
    _storage: _core.Storage = field(repr=False, compare=False)
    _step: TableStep = field(repr=False, compare=False)
    _page: _Page = field(repr=False, compare=False)

    def read(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The changed rows, as `Table.changes` returns them; each call reads them again."""
        after, *before = (self._page.schema(one) for one in (self._step.after, self._step.before) if one is not None)
        schema = with_wider_types(after, before[0]) if before else after
        listed = self._page.listed(self.table_id)
        if listed is not None:  # the last state can have another current schema than this state
            is_known = any(one is after for one in listed.metadata.schemas)
            metadata = listed.metadata.model_copy(update={"current_schema_id": after.schema_id})
            listed = listed._replace(metadata=metadata) if is_known else None
        feed = ChangeFeed(
            self._storage,
            partial(table_of_state, self._storage),
            schema,
            columns,
            names="trinitylake",
            kept=self._step.version - 1,
            subject=lambda: f"table {self.name or self.former_name} in version {self._step.version}",
            listed=listed,
        )
        return feed.reader([self._step])

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.read().__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class TransactionRowChanges(TransactionChanges):
    """Changes of one transaction, with the rows: an entry of `lake.changes(since, rows=True)`.

    Attributes:
        rows: the tables that the transaction changed, dropped tables first. A table has no rows if only its properties
            or its name changed.
    """

    rows: tuple[TableRowChanges, ...] = field(repr=False, compare=False)


def changes_with_rows(
    core: _core.Lakehouse, since: _core.Version, until: _core.Version
) -> Iterator[TransactionRowChanges]:
    """The changes of each transaction after `since`, up to `until`; tables in other catalogs have no rows."""
    changes = changes_ahead(core, since, until)
    while versions := list(islice(changes, PAGE_VERSIONS)):
        steps_of = [list(steps_of_version(*one)) for one in versions]
        page = _Page(core.storage, chain(*steps_of))
        for (previous, version, _), steps in zip(versions, steps_of, strict=True):
            for entry in changes_of(version.info, version.changes(previous).to_pylist()):
                own = [step for step in steps if step.transaction == entry.position and not _is_federated(step)]
                own.sort(key=lambda step: step.after is not None)
                parts = {name: getattr(entry, name) for name in TransactionChanges.__dataclass_fields__}
                rows = tuple(_of_table(core.storage, step, page) for step in own)
                yield TransactionRowChanges(**parts, rows=rows)


class _Page:
    """The tables that some consecutive versions changed, each opened once, in its last state in these versions.

    The metadata of the last state lists the snapshots and schemas of most earlier states. Opening every state would
    take time in proportion to the number of snapshots, for each state.
    """

    def __init__(self, storage: _core.Storage, steps: Iterable[TableStep]) -> None:
        self._storage = storage
        self._last = {_definition(one).id: one.after for one in steps if one.after is not None}
        self._listed: dict[str, ListedSnapshots] = {}

    def listed(self, table_id: str) -> ListedSnapshots | None:
        """The snapshots of a table's last state; None for a dropped table, and for a table that is not managed."""
        last = self._last.get(table_id)
        if last is None or last.definition.table_type != MANAGED:
            return None
        if table_id not in self._listed:
            metadata = table_of_state(self._storage, last).metadata
            self._listed[table_id] = ListedSnapshots.of(metadata, LakehouseFileIO(self._storage))
        return self._listed[table_id]

    def schema(self, state: TableState) -> IcebergSchema:
        """The columns of a table's state, with their default values, which only the metadata has."""
        definition = state.definition
        listed = self.listed(definition.id)
        if listed is not None and definition.HasField("schema"):
            expected = Schema.from_definition(definition.schema, sorted(definition.primary_keys))
            for one in listed.metadata.schemas:
                if Schema(*from_iceberg(one)) == expected:
                    return one
        return table_of_state(self._storage, state).schema()


def _of_table(storage: _core.Storage, step: TableStep, page: _Page) -> TableRowChanges:
    former, now = (None if one is None else full_name(*one.key) for one in (step.before, step.after))
    return TableRowChanges(_definition(step).id, now, former, storage, step, page)


def _definition(step: TableStep) -> TableDef:
    state = step.after or step.before
    assert state is not None
    return state.definition


def _is_federated(step: TableStep) -> bool:
    return bool(_definition(step).table_type == FEDERATED)
