"""What a commit may name, of those who may not read everything: the table's own folder, and nothing around it.

A snapshot names its manifest list, statistics name their file, and a new table may name its folder. Whoever reads the
table afterwards trusts them: the server when it plans or redoes an append, an operator who compacts it. With those of
another table, its writer would get to what only they may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssignUUIDUpdate,
    SetLocationUpdate,
    SetPartitionStatisticsUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)

from trinitylake.errors import InvalidLocation
from trinitylake.iceberg.io import LakehouseFileIO
from trinitylake.rest.own_location import is_own, path_of_table
from trinitylake.rest.principals import EVERYTHING, Principal, Role, forbidden

if TYPE_CHECKING:
    from trinitylake.rest.table_changes import TableChange
    from trinitylake.transaction import Transaction


def check_location(principal: Principal, location: str | None) -> None:
    """Refuse the location of a new table that its creator has chosen, though it may lie around others: 403."""
    if location is not None and not principal.may(Role.READER, EVERYTHING):
        raise forbidden("only a reader of everything chooses the location of a table: leave it out")


def check_changes(principal: Principal, transaction: Transaction, changes: Sequence[TableChange]) -> None:
    """Refuse changes that name what lies outside of their tables: 403."""
    if principal.may(Role.READER, EVERYTHING):
        return
    io = LakehouseFileIO(transaction._lakehouse.storage)
    for change in changes:
        folder = _folder(principal, transaction, io, change)
        for location in _named(change.updates):
            if folder is None or not _is_below(io, location, folder):
                raise forbidden(f"{location!r} is outside of the table {'.'.join(change.table)}")


def _folder(principal: Principal, transaction: Transaction, io: LakehouseFileIO, change: TableChange) -> str | None:
    """The folder of a table, that is there or is to be made; None if it has none that could be named."""
    namespace, name = change.table
    if not change.is_creation:
        if not transaction._open_core().exists("table", namespace, name):
            return None  # nobody could commit to it
        return path_of_table(io, transaction.table((namespace, name)).location)
    chosen = [update.location for update in change.updates if isinstance(update, SetLocationUpdate)]
    ids = [str(update.uuid) for update in change.updates if isinstance(update, AssignUUIDUpdate)]
    folder = None
    for location in chosen:
        folder = path_of_table(io, location)
        if folder is None or not ids or not is_own(folder, (*namespace.split("."), name), ids[-1]):
            check_location(principal, location)
    return folder


def _named(updates: Sequence[TableUpdate]) -> Iterator[str]:
    for update in updates:
        match update:
            case AddSnapshotUpdate():
                yield update.snapshot.manifest_list
            case SetStatisticsUpdate():
                yield update.statistics.statistics_path
            case SetPartitionStatisticsUpdate():
                yield update.partition_statistics.statistics_path


def _is_below(io: LakehouseFileIO, location: str, folder: str) -> bool:
    try:
        return io.path_of(location).startswith(f"{folder}/")
    except InvalidLocation:
        return False
