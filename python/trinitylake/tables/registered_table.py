"""Definitions of tables from existing metadata files: managed if the file is below the root, else external (§9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trinitylake.definitions import EXTERNAL, FEDERATED, METADATA_LOCATION, TableDef, new_table_def
from trinitylake.errors import InvalidArgument, InvalidLocation
from trinitylake.iceberg_storage.external_tables import load_external, require_none_inside
from trinitylake.iceberg_storage.federated_tables import stored_properties
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.incoming_files import incoming_paths, statistics_of
from trinitylake.iceberg_storage.locations import managed_location
from trinitylake.iceberg_storage.manifests.manifest_consistency import SpecsAndSchemas
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.metadata_invariants import check_metadata, check_schema
from trinitylake.iceberg_storage.table_properties import check_properties
from trinitylake.tables.table_definition import describe, name_metadata


class RegisteredTable(NamedTuple):
    """A table that was made from an existing metadata file.

    Attributes:
        definition: the definition, of a managed, external or federated table.
        incoming: paths of the files of a managed table. No version may reference them yet, so the transaction must
            adopt them, to protect them from garbage collection (format §7).
    """

    definition: TableDef
    incoming: list[str]


def registered_table(
    io: LakehouseFileIO, table: str | TableDef, file_io_properties: Mapping[str, str] | None = None
) -> RegisteredTable:
    """Make a table from an existing metadata file: managed if the file is below the root of `io`, else external.

    Args:
        io: the file access of the lakehouse.
        table: the location of the metadata file, or a definition that names it and is updated in place, or the
            definition of a federated table.
        file_io_properties: settings of PyIceberg's file access, for metadata outside of the lakehouse.

    Raises:
        InvalidLocation: for a table of which only the metadata, or only the data, is in the lakehouse; for an external
            file that cannot be read; for files at locations that are not allowed (`incoming_files.py`).
        InvalidArgument: for a property that names code, metadata that other readers refuse, a manifest that
            contradicts itself (`manifest_consistency.py`), and a definition that names no metadata of its type.
        CorruptFile, FileNotFoundError: for a file that is not table metadata, or does not exist.
    """
    given = table if isinstance(table, TableDef) else None
    if given is not None and given.table_type == FEDERATED:
        stored_properties(given)
        return RegisteredTable(given, [])
    metadata_location = table if isinstance(table, str) else _named_metadata(io, table)
    try:
        path = io.path_of(metadata_location)
    except InvalidLocation:
        external = load_external(metadata_location, file_io_properties)
        require_none_inside(external, io)
        metadata = external.metadata
        definition = new_table_def(table_type="external", format_properties={METADATA_LOCATION: metadata_location})
        incoming = []
    else:
        metadata = read_metadata(io, io.uri_of(path), table_id=None if given is None else given.id)
        managed_location(io, metadata.location)
        check_properties(metadata.properties, metadata.location, io)
        try:
            for schema in metadata.schemas:
                check_schema(schema)
            check_metadata(metadata)
        except ValueError as error:
            raise InvalidArgument(f"the table at {metadata_location!r} cannot be registered: {error}") from error
        files = incoming_paths(io, None, metadata.snapshots, SpecsAndSchemas.after(metadata, ()), may_have_expired=True)
        incoming = [path, *statistics_of(io, metadata), *files]
        definition = new_table_def(str(metadata.table_uuid), format_properties={METADATA_LOCATION: path})
    if given is not None:
        if given.table_type != definition.table_type:
            raise InvalidArgument(
                f"{metadata_location!r}: a managed table has its metadata below the root, an external one elsewhere"
            )
        name_metadata(given, definition.format_properties[METADATA_LOCATION])
        definition = given
    describe(definition, metadata)
    return RegisteredTable(definition, list(dict.fromkeys(incoming)))


def _named_metadata(io: LakehouseFileIO, definition: TableDef) -> str:
    location = definition.format_properties.get(METADATA_LOCATION, "")
    if not location:
        raise InvalidArgument("the definition of a table names no metadata file")
    return location if definition.table_type == EXTERNAL else io.uri_of(location)
