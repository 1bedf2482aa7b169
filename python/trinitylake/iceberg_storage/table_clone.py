"""Clone of a table: a second table over the same files."""

from __future__ import annotations

import uuid

from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.metadata import encoded, new_file_stem, read_metadata
from trinitylake.iceberg_storage.metadata_compression import file_bytes, file_suffix
from trinitylake.iceberg_storage.table_properties import LOCATION_PROPERTIES


def cloned_metadata(io: LakehouseFileIO, path: str, table_uuid: str, folder: str) -> tuple[str, str]:
    """Write metadata for a second table with the same files, another id and another folder for its writes.

    Args:
        io: the file access of the lakehouse.
        path: the metadata file of the first one.
        table_uuid: of the second one.
        folder: the URI of the second one.

    Returns: the paths of the new metadata file, and of the folder of the first table. Raises as `read_metadata` does.
    """
    metadata = read_metadata(io, io.uri_of(path), path)
    properties = {name: value for name, value in metadata.properties.items() if name not in LOCATION_PROPERTIES}
    copy = metadata.model_copy(
        update={
            "table_uuid": uuid.UUID(table_uuid),
            "location": folder,
            "metadata_log": [],
            "properties": properties,
        }
    )
    new_path = io.path_of(f"{folder}/metadata/{new_file_stem(None)}{file_suffix(properties)}")
    io.put(new_path, file_bytes(encoded(copy), new_path), overwrite=False)
    return new_path, io.path_of(metadata.location.rstrip("/"))
