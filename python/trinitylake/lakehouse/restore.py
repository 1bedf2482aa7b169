"""Restore of a lakehouse from a backup."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from trinitylake import _core
from trinitylake.base.arguments import checked_as, version_reference
from trinitylake.definitions import LakehouseDef, parse_lakehouse_def
from trinitylake.errors import ObjectAlreadyExists
from trinitylake.lakehouse.bulk.engines import engine_module
from trinitylake.lakehouse.export import FROM_PROPERTY, MODE_PROPERTY, PART_PROPERTY, export, opened_at, part_of
from trinitylake.lakehouse.handle import Handle
from trinitylake.lakehouse.lakehouse import Lakehouse
from trinitylake.lakehouse.opening import open as open_lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from trinitylake.base.version_reference import VersionReference
    from trinitylake.lakehouse.export import Mode
    from trinitylake.lakehouse.object_copier import OnProgress
    from trinitylake.lakehouse.opening import Durability


@checked_as(version=version_reference)
def restore(
    source: str | PathLike[str],
    to: str | PathLike[str],
    version: VersionReference | None = None,
    *,
    mode: Mode = "full",
    source_storage_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    durability: Durability | None = None,
    message: str = "",
    author: str = "",
    progress: OnProgress | None = None,
    engine: SparkSession | None = None,
) -> Lakehouse:
    """Copy a backup, or any other lakehouse, to a new root, and open the copy.

    Files are copied as by `Lakehouse.export`. Then one more version removes the marks of an export from the copy. The
    backup does not change. After an interruption, the same call continues the restore.

    Args:
        source: the root of the backup.
        to: the root of the new lakehouse, which must be empty.
        version: the version of the backup to restore, as for `Lakehouse.at`; by default the latest.
        mode: "full" copies all kept versions up to that one, under their numbers, "minimal" only that version.
        source_storage_options: options for the storage of the backup.
        storage_options: options for the storage of the new lakehouse.
        durability: durability of the new lakehouse, as for `create`.
        message: stored in the log; by default "restored from" and the root of the backup.
        author: stored in the log.
        progress: called from time to time with the number of objects copied, and of objects found so far.
        engine: a Spark session whose executors copy, as for `Lakehouse.export`.

    Raises `ObjectAlreadyExists` if another lakehouse exists at `to`, and the errors of `Lakehouse.export`.
    """
    lake = open_lakehouse(source, storage_options=source_storage_options)
    storage = _core.Storage(str(to), storage_options, durability)
    there = opened_at(storage)
    if there is not None:
        properties = parse_lakehouse_def(there.latest().definition).properties
        if properties.get(FROM_PROPERTY) != lake.uri:
            raise ObjectAlreadyExists(f"{storage.root}: a lakehouse exists there already")
    state = lake.at(version)._state()
    message = message or f"restored from {lake.uri}"
    export(
        lake._core,
        storage,
        state,
        mode=mode,
        part=part_of((), (), state),
        message=message,
        author=author,
        progress=progress,
        workers=None if engine is None else engine_module(engine, "export").Executors(engine, progress),
    )
    handle = Handle(_core.Lakehouse.open(storage))

    def end_export(definition: LakehouseDef) -> None:
        for name in (FROM_PROPERTY, MODE_PROPERTY, PART_PROPERTY):
            definition.properties.pop(name, None)

    handle.change_definition(end_export, message, author)
    return Lakehouse(handle.core)
