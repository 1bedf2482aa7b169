"""The first metadata of a managed table."""

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
from trinitylake.iceberg_storage.table_properties import check_properties, with_gc_disabled


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
    """The metadata of a new table, with fresh field ids; nothing is written.

    `location` is a folder below the root, by default one that the lakehouse chooses (format §9).

    Raises:
        InvalidLocation: for a location, or a property with one, that a managed table cannot have.
        InvalidArgument: for a property that names code.
        ValueError: for what Iceberg cannot have; `ValidationError`, PyIceberg's for a version of the format, pydantic's
            for a property without a value.
    """
    id = new_id()
    folder = managed_location(io, location) if location else default_location(io, namespace, name, id)
    check_properties(properties, folder, io)
    return new_table(schema, partition_spec, sort_order, folder, with_gc_disabled(properties), UUID(id))
