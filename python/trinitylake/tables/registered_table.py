"""The definition of a table whose Iceberg metadata file exists: managed below the root, else external (format §9)."""

from __future__ import annotations

from collections.abc import Mapping

from trinitylake.definitions import METADATA_LOCATION, TableDef, new_table_def
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg_storage.brought_files import check_statistics, named_by
from trinitylake.iceberg_storage.external import load_external
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.files_inside import require_none_inside
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.table_location import managed_location
from trinitylake.iceberg_storage.table_properties import check_properties
from trinitylake.tables.table_definition import describe


def registered_definition(
    io: LakehouseFileIO, metadata_location: str, file_io_properties: Mapping[str, str] | None = None
) -> TableDef:
    """The definition of a table whose metadata file exists: managed below the root of `io`, else external.

    Raises:
        InvalidLocation: for a table whose metadata lies in the lakehouse and whose data does not, or the other way
            round; an external file that cannot be read; one that names files as nobody may (`brought_files.py`).
        InvalidArgument: for a property that names code.
        CorruptFile, FileNotFoundError: for a file that is no table metadata, or is not there.
    """
    try:
        path = io.path_of(metadata_location)
    except InvalidLocation:
        external = load_external(metadata_location, file_io_properties)
        require_none_inside(external, io)
        metadata = external.metadata
        definition = new_table_def(table_type="external", format_properties={METADATA_LOCATION: metadata_location})
    else:
        metadata = read_metadata(io, io.uri_of(path), path)
        managed_location(io, metadata.location)
        check_properties(metadata.properties, metadata.location, io)
        check_statistics(io, metadata)
        named_by(io, None, metadata.snapshots)
        definition = new_table_def(str(metadata.table_uuid), format_properties={METADATA_LOCATION: path})
    describe(definition, metadata)
    return definition
