"""What may be written to a managed table: nothing that leaves its place in the lakehouse, nothing that loads code.

Every URI and every property that steers file access passes through here before it is staged, whoever sends it:
a PyIceberg user, or an engine behind the REST server.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePropertiesUpdate,
    SetLocationUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)

from trinitylake.errors import InvalidArgument, InvalidLocation
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.metadata_compression import file_suffix

#: Properties that hold a location for files to be written.
LOCATION_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)

#: Says whether engines may delete files of a table. Those of a managed one belong to every version and transaction that
#: reaches them, so only the lakehouse deletes them (format §9), and engines are told that nobody else may.
GC_ENABLED = "gc.enabled"
_GC_DISABLED = "false"


#: Names the key of an encrypted table. Its metadata (version 3) holds keys, which PyIceberg would lose.
ENCRYPTION_KEY = "encryption.key-id"


def collected_by_lakehouse(metadata: TableMetadata) -> TableMetadata:
    """The same metadata, telling engines to delete no files, whatever it said before."""
    if metadata.properties.get(GC_ENABLED) == _GC_DISABLED:
        return metadata
    return metadata.model_copy(update={"properties": with_gc_disabled(metadata.properties)})


def with_gc_disabled(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of a table whose files only the lakehouse deletes."""
    return {**properties, GC_ENABLED: _GC_DISABLED}


def check_update(update: TableUpdate, metadata: TableMetadata, io: LakehouseFileIO) -> None:
    """Refuse an update that would break a rule.

    Raises:
        InvalidLocation: for a URI outside of the lakehouse, or a write path outside of the table.
        InvalidArgument: for a property that names code, lets engines delete files, or names an unknown codec.
    """
    match update:
        case SetPropertiesUpdate():
            check_properties(update.updates, metadata.location, io)
        case RemovePropertiesUpdate() if GC_ENABLED in update.removals:
            raise _gc_is_fixed()
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
    for name in filter(is_code_property, properties):
        raise InvalidArgument(f"the table property {name!r} is not allowed: it would load code from metadata")
    if properties.get(GC_ENABLED, _GC_DISABLED).lower() != _GC_DISABLED:
        raise _gc_is_fixed()
    if ENCRYPTION_KEY in properties:
        raise _encrypted()
    file_suffix(properties)
    table_path = io.path_of(location.rstrip("/"))
    for name, value in properties.items():
        if is_location_property(name) and value:
            path = io.path_of(value.rstrip("/"))
            if path != table_path and not path.startswith(table_path + "/"):
                raise InvalidLocation(f"the table property {name!r} leaves the table at {location!r}: {value!r}")


def is_location_property(name: str) -> bool:
    """Whether a property of a table or view holds a location for files to be written, also one of a newer Iceberg."""
    is_path = name.startswith("write.") and name.endswith((".path", ".location"))
    return name in LOCATION_PROPERTIES or (is_path and ".column." not in name)  # a column may have any name


def is_code_property(name: str) -> bool:
    """Whether a property names a class for whoever opens the table, also one of a newer Iceberg."""
    return name.endswith(("-impl", ".impl")) and ".column." not in name


def check_writable(metadata: TableMetadata) -> None:
    """Refuse to write to a table that was registered and is encrypted or names code. Raises `InvalidArgument`."""
    for name in filter(is_code_property, metadata.properties):
        raise InvalidArgument(f"the table property {name!r} would load code: remove it before writing to the table")
    if ENCRYPTION_KEY in metadata.properties:
        raise _encrypted()


def _encrypted() -> InvalidArgument:
    return InvalidArgument(
        f"the table property {ENCRYPTION_KEY!r} makes an encrypted table, whose keys would not be kept here: encrypt "
        "the storage instead"
    )


def _gc_is_fixed() -> InvalidArgument:
    return InvalidArgument(
        f"the table property {GC_ENABLED!r} is always {_GC_DISABLED} here: only the lakehouse deletes files, because "
        "other versions need them"
    )
