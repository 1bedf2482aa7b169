"""Creates the first metadata of a new managed table or of a clone."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import EMPTY_DICT

from trinitylake.definitions import new_id
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import new_table
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.locations import default_location, managed_location
from trinitylake.iceberg_storage.metadata import encoded, metadata_uri, new_file_stem, read_metadata
from trinitylake.iceberg_storage.metadata_compression import file_bytes
from trinitylake.iceberg_storage.table_properties import LOCATION_PROPERTIES, check_properties, with_gc_disabled


def new_metadata(
    io: LakehouseFileIO,
    namespace: str,
    name: str,
    schema: Schema,
    location: str | None = None,
    partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    sort_order: SortOrder = UNSORTED_SORT_ORDER,
    properties: Mapping[str, str] = EMPTY_DICT,
) -> TableMetadata:
    """The metadata of a new table, with newly assigned field ids. Writes no file.

    `location` is a folder below the root, by default one that the lakehouse chooses (format §9).

    Raises:
        InvalidLocation: for a location, also in a property, that a managed table cannot have.
        InvalidArgument: for a property that names code.
        ValueError: for a schema, spec, order or property that Iceberg does not support.
        ValidationError: PyIceberg's for an unknown format version, pydantic's for a property without a value.
    """
    id = new_id()
    folder = managed_location(io, location) if location else default_location(io, namespace, name, id)
    check_properties(properties, folder, io)
    return new_table(schema, partition_spec, sort_order, folder, with_gc_disabled(properties), UUID(id))


def cloned_metadata(io: LakehouseFileIO, path: str, id: str, folder: str) -> tuple[str, str]:
    """Write the metadata of a clone: a table with the same files, another id and another folder for its writes.

    Args:
        io: the file access of the lakehouse.
        path: the metadata file of the source table.
        folder: the URI of the folder of the clone.

    Returns: the paths of the new metadata file, and of the folder of the source. Raises as `read_metadata` does.
    """
    metadata = read_metadata(io, io.uri_of(path))
    properties = {name: value for name, value in metadata.properties.items() if name not in LOCATION_PROPERTIES}
    changes = {"table_uuid": UUID(id), "location": folder, "metadata_log": [], "properties": properties}
    copy = metadata.model_copy(update=changes)
    new_path = io.path_of(metadata_uri(copy, new_file_stem()))
    io.put(new_path, file_bytes(encoded(copy), new_path), overwrite=False)
    return new_path, io.path_of(metadata.location.rstrip("/"))
