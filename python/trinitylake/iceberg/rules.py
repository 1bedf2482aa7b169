"""What may be written to a managed table: nothing that leaves its place in the lakehouse, nothing that loads code.

Every URI and every property that steers file access passes through here before it is staged, whoever sends it:
a PyIceberg user, or an engine behind the REST server.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetLocationUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)

from trinitylake.errors import InvalidArgument, InvalidLocation
from trinitylake.iceberg.io import LakehouseFileIO

#: Properties that hold a location for files to be written.
_LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
#: Properties that name a class to be imported by whoever opens the table.
_CODE_PROPERTIES = (
    "write.py-location-provider.impl",
    "write.location-provider.impl",
    "py-io-impl",
    "io-impl",
    "py-catalog-impl",
)


def check_update(update: TableUpdate, metadata: TableMetadata, io: LakehouseFileIO) -> None:
    """Refuse an update that would break a rule.

    Raises:
        InvalidLocation: for a URI outside of the lakehouse, or a write path outside of the table.
        InvalidArgument: for a property that names code.
    """
    match update:
        case SetPropertiesUpdate():
            check_properties(update.updates, metadata.location, io)
        case SetLocationUpdate() if update.location.rstrip("/") != metadata.location.rstrip("/"):
            raise InvalidLocation(
                f"the location of a managed table is chosen by its lakehouse: {metadata.location!r} "
                f"cannot become {update.location!r}"
            )
        case AddSnapshotUpdate():
            io.path_of(update.snapshot.manifest_list)
        case SetStatisticsUpdate():
            io.path_of(update.statistics.statistics_path)
        case SetPartitionStatisticsUpdate():
            io.path_of(update.partition_statistics.statistics_path)


def check_properties(properties: Mapping[str, str], location: str, io: LakehouseFileIO) -> None:
    """Refuse table properties that break a rule. Raises as `check_update` does."""
    for name in _CODE_PROPERTIES:
        if name in properties:
            raise InvalidArgument(f"the table property {name!r} is not allowed: it would load code from metadata")
    table_path = io.path_of(location.rstrip("/"))
    for name in _LOCATION_PROPERTIES:
        if value := properties.get(name):
            path = io.path_of(value.rstrip("/"))
            if path != table_path and not path.startswith(table_path + "/"):
                raise InvalidLocation(f"the table property {name!r} leaves the table at {location!r}: {value!r}")


def check_writable(metadata: TableMetadata) -> None:
    """Refuse to write to a table, registered from elsewhere, whose metadata names code. Raises `InvalidArgument`."""
    for name in _CODE_PROPERTIES:
        if name in metadata.properties:
            raise InvalidArgument(f"the table property {name!r} would load code: remove it before writing to the table")
