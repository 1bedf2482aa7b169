"""Relocation of a lakehouse that was moved or copied: records the new root, and rewrites the files of tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trinitylake import _core
from trinitylake.base.qualified_names import full_name
from trinitylake.errors import CorruptFile

if TYPE_CHECKING:
    from trinitylake.definitions import TableDef
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO
    from trinitylake.lakehouse.handle import Handle
    from trinitylake.lakehouse.transaction import Transaction

#: Callback with the number of tables that were read and the number of all tables.
OnProgress = Callable[[int, int], object]

#: Maximum number of tables that are rewritten at a time.
_PARALLEL_TABLES = 8
#: Maximum number of definitions that are in memory at a time.
_BATCH_TABLES = 1000


class SkippedTable(NamedTuple):
    """A table whose files were not rewritten, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class Relocation:
    """Result of `Lakehouse.relocate`, also of a dry run.

    Attributes:
        root: the present root, which the lakehouse now records.
        former_roots: earlier roots. A file that is named below one of these roots is read below `root`.
        version: the new version; None after a dry run, or if nothing changed.
        tables: full names of the managed tables whose Iceberg files were rewritten, sorted.
        files: number of the written files: metadata, manifest lists, manifests, position deletes.
        skipped: managed tables that could not be rewritten.
    """

    root: str
    former_roots: tuple[str, ...]
    version: int | None
    tables: tuple[str, ...]
    files: int
    skipped: tuple[SkippedTable, ...]


class _Rewritten(NamedTuple):
    """Result for one table: the new metadata file (None if unchanged) and the number of written files, or why it
    failed.
    """

    name: str
    metadata_path: str | None = None
    files: int = 0
    reason: str = ""


def relocate(
    lake: Handle,
    *,
    rewrite: bool = True,
    former: Sequence[str] = (),
    dry_run: bool = False,
    message: str = "",
    author: str = "",
    on_progress: OnProgress | None = None,
) -> Relocation:
    """Run `LakehouseMaintenance.relocate`."""
    from trinitylake.iceberg_storage.file_io import LakehouseFileIO

    former = [_core.normalize_root(root) for root in former]
    storage = storage_with(lake.storage, former)
    io = LakehouseFileIO(storage)
    transaction = lake.begin(message=message or f"relocated to {lake.storage.root}", author=author)
    version = None
    try:
        is_new = transaction._state().relocate(list(former))
        done = _rewrite_tables(transaction, io, dry_run, on_progress) if rewrite else []
        if not dry_run and (is_new or any(one.metadata_path for one in done)):
            version = transaction.commit()
        else:
            transaction.rollback()
    except BaseException:
        if transaction.is_open:
            transaction.rollback()
        if transaction._files_are_unreachable:
            io.discard()
        raise
    return Relocation(
        lake.storage.root,
        tuple(storage.other_roots),
        version,
        tuple(one.name for one in done if one.metadata_path),
        sum(one.files for one in done),
        tuple(SkippedTable(one.name, one.reason) for one in done if one.reason),
    )


def storage_with(storage: _core.Storage, former: Sequence[str]) -> _core.Storage:
    """The same storage, which also resolves URIs below `former`. Raises `InvalidLocation` for an invalid root."""
    root, options, durability, other_roots = storage.__getnewargs__()
    return _core.Storage(root, options, durability, list(dict.fromkeys([*other_roots, *former]))) if former else storage


def _rewrite_tables(
    transaction: Transaction, io: LakehouseFileIO, dry_run: bool, on_progress: OnProgress | None
) -> list[_Rewritten]:
    """Rewrite the files of all managed tables, and put their definitions into the transaction."""
    from trinitylake.definitions import (
        MANAGED,
        METADATA_LOCATION,
        PREVIOUS_METADATA_LOCATION,
        parse_table_def,
        serialize,
    )
    from trinitylake.iceberg_storage.relocation import TableRelocation
    from trinitylake.tables.table_definition import metadata_path, name_metadata

    base = transaction._state().base
    listing = base.list("table")
    names = list(zip(listing.column(0).to_pylist(), listing.column(1).to_pylist(), strict=True))
    done: list[_Rewritten] = []

    def rewrite(name: str, definition: TableDef) -> _Rewritten:
        own_io = io.part()
        relocation = TableRelocation(own_io, dry_run=dry_run)
        try:
            path = relocation.run(metadata_path(definition, name), definition.id)
        except (CorruptFile, FileNotFoundError, ValueError) as error:
            # Skip the table: it is as readable as before the relocation, and the other tables can be relocated.
            own_io.discard()
            return _Rewritten(name, reason=str(error))
        return _Rewritten(name, path, relocation.files)

    with ThreadPoolExecutor(_PARALLEL_TABLES) as pool:
        for start in range(0, len(names), _BATCH_TABLES):
            batch = names[start : start + _BATCH_TABLES]
            definitions = [parse_table_def(data or b"") for data in base.read_many("table", batch)]
            managed = [
                (*name, definition)
                for name, definition in zip(batch, definitions, strict=True)
                if definition.table_type == MANAGED
            ]
            full_names = [full_name(namespace, name) for namespace, name, _ in managed]
            rewritten = pool.map(rewrite, full_names, [definition for *_, definition in managed])
            for (namespace, name, definition), one in zip(managed, rewritten, strict=True):
                done.append(one)
                if one.metadata_path is not None and not dry_run:
                    locations = definition.format_properties
                    locations[PREVIOUS_METADATA_LOCATION] = locations[METADATA_LOCATION]
                    name_metadata(definition, one.metadata_path)
                    transaction._state().replace("table", namespace, name, serialize(definition))
            if on_progress is not None:
                on_progress(start + len(batch), len(names))
    return done
