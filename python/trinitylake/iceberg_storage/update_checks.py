"""Checks of the updates of a managed table, from PyIceberg or from engines over REST, before they are staged.

Updates must not name files that a commit may not name (`locations.py`), and must follow the rules for properties
(`table_properties.py`).
"""

from __future__ import annotations

from pyiceberg.table import update as iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile

from trinitylake.errors import InvalidArgument, InvalidLocation
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.locations import qualified_path
from trinitylake.iceberg_storage.table_properties import (
    ENCRYPTION_KEY,
    GC_DISABLED,
    GC_ENABLED,
    check_properties,
    encrypted,
    gc_is_fixed,
    is_code_property,
    with_gc_disabled,
)


def collected_by_lakehouse(metadata: TableMetadata) -> TableMetadata:
    """The metadata with `gc.enabled=false`, so that engines delete no files."""
    if metadata.properties.get(GC_ENABLED) == GC_DISABLED:
        return metadata
    return metadata.model_copy(update={"properties": with_gc_disabled(metadata.properties)})


def check_update(update: iceberg.TableUpdate, metadata: TableMetadata, io: LakehouseFileIO) -> None:
    """Check one update.

    Raises:
        InvalidLocation: for a file that a commit may not name (`locations.py`), for another location of the table, and
            for a write path outside of the table.
        InvalidArgument: for a property that names code, lets engines delete files, or names an unknown codec.
    """
    match update:
        case iceberg.SetPropertiesUpdate():
            check_properties(update.updates, metadata.location, io)
        case iceberg.RemovePropertiesUpdate() if GC_ENABLED in update.removals:
            raise gc_is_fixed()
        case iceberg.SetLocationUpdate() if update.location.rstrip("/") != metadata.location.rstrip("/"):
            raise InvalidLocation(
                f"the location of a managed table is chosen by its lakehouse: {metadata.location!r} "
                f"cannot become {update.location!r}"
            )
        case iceberg.AddSnapshotUpdate():
            qualified_path(io, update.snapshot.manifest_list)
        case iceberg.SetStatisticsUpdate():
            _check_statistics(update.statistics, io)
        case iceberg.SetPartitionStatisticsUpdate():
            _check_statistics(update.partition_statistics, io)


def _check_statistics(file: StatisticsFile | PartitionStatisticsFile, io: LakehouseFileIO) -> None:
    qualified_path(io, file.statistics_path)
    try:
        size = len(io.new_input(file.statistics_path))
    except FileNotFoundError as error:
        raise InvalidArgument(f"the file of statistics {file.statistics_path} is missing") from error
    if size != file.file_size_in_bytes:
        raise InvalidArgument(
            f"the file of statistics {file.statistics_path} has {size} bytes, not {file.file_size_in_bytes}"
        )


def check_writable(metadata: TableMetadata) -> None:
    """Raise `InvalidArgument` if a table is encrypted or has a property that names a class to load."""
    for name in filter(is_code_property, metadata.properties):
        raise InvalidArgument(f"the table property {name!r} would load code: remove it before writing to the table")
    if ENCRYPTION_KEY in metadata.properties:
        raise encrypted()
