"""Files of the lakehouse that the metadata of an external table names, though it lies elsewhere.

Vacuum follows what is named below the root. Metadata outside of it, it cannot read, so files below the root that
nothing else names would go, and the external table would lose them. Such a table is refused; `fsck` reports one that is
there.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table.metadata import TableMetadata

from trinitylake.errors import InvalidLocation
from trinitylake.iceberg_storage.external import ExternalTable
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri


def require_none_inside(table: ExternalTable, io: LakehouseFileIO) -> None:
    """Refuse an external table that lies elsewhere and names files of the lakehouse: all its manifests are read.

    Raises `InvalidLocation` if it names one, or if a manifest cannot be read, so that nobody can tell.
    """
    try:
        inside = first_inside(table, io)
    except (OSError, ValueError) as error:
        raise InvalidLocation(
            f"{table.metadata_location} names a manifest that cannot be read, and could name files of this lakehouse: "
            f"{error}"
        ) from error
    if inside is not None:
        raise InvalidLocation(
            f"{table.metadata_location} names {inside}, a file of this lakehouse, which vacuum would delete: all of an "
            "external table lies elsewhere, or its metadata lies in the lakehouse, too"
        )


def first_inside(table: ExternalTable, io: LakehouseFileIO) -> str | None:
    """A location below the root that metadata outside of it names; None for none.

    Raises `OSError` or `ValueError` if a manifest cannot be read.
    """
    roots = tuple(canonical_uri(root) for root in (io.root, *io.storage.other_roots))
    if canonical_uri(table.metadata_location).startswith(roots):  # vacuum reads it
        return None
    named = _named(table.metadata, table.io)
    return next((location for location in named if _is_inside(location, io)), None)


def _named(metadata: TableMetadata, io: FileIO) -> Iterator[str]:
    yield metadata.location.rstrip("/")
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
    for statistics in [*metadata.statistics, *metadata.partition_statistics]:
        yield statistics.statistics_path
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        for manifest in read_manifest_list(io.new_input(snapshot.manifest_list)):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(io):
                yield entry.data_file.file_path


def _is_inside(location: str, io: LakehouseFileIO) -> bool:
    try:
        io.path_of(location)
    except InvalidLocation:
        return False
    return True
