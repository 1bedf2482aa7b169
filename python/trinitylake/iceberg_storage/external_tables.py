"""External tables: read-only tables whose Iceberg metadata is outside of the lakehouse (format §9).

The definition has the URI of one metadata file, which determines the content of the table until the definition changes.
PyIceberg's file access reads the files, with settings of the caller, of PyIceberg's configuration or of the
environment. Settings in the metadata file are ignored, because they could name code to load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from pyiceberg.io import SCHEMA_TO_FILE_IO, FileIO, load_file_io
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from trinitylake.definitions.files import METADATA_LOCATION
from trinitylake.definitions.trinitylake_pb2 import TableDef
from trinitylake.errors import InvalidLocation, PermissionDenied, StorageError
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadOnlyCatalog
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, canonical_uri
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.table_file_io import PickledIO, pickled, unpickled


class ExternalTable(StaticTable):
    """A PyIceberg table that reads one metadata file."""

    catalog: ReadOnlyCatalog

    def __reduce__(self) -> tuple[Callable[..., ExternalTable], tuple[Any, ...]]:
        return _external, (self.name(), self.metadata, self.metadata_location, pickled(self.io))

    def refresh(self) -> Table:
        """Return the same table, because its metadata changes only with its definition."""
        return self

    def transaction(self) -> NoReturn:
        self.catalog.refuse_write()


def load_external(
    source: TableDef | str,
    properties: Mapping[str, str] | None = None,
    identifier: tuple[str, ...] = ("external",),
    guarded: Callable[[FileIO], FileIO] = lambda io: io,
) -> ExternalTable:
    """Open the table that a metadata file describes.

    Args:
        source: the URI of a `*.metadata.json`, or the definition of an external table.
        properties: settings of PyIceberg's file access, such as an endpoint or credentials. They are not stored.
        identifier: the value of `name()` of the table.
        guarded: wraps PyIceberg's file access.

    Raises:
        InvalidLocation: the URI is not the qualified location of a metadata file (format §2), or the file does not
            exist.
        CorruptFile: the file is not Iceberg metadata.
        StorageError, PermissionDenied: the file cannot be read.
    """
    uri = source if isinstance(source, str) else source.format_properties[METADATA_LOCATION]
    scheme = urlsplit(uri).scheme
    if scheme not in SCHEMA_TO_FILE_IO:
        known = ", ".join(SCHEMA_TO_FILE_IO)
        raise InvalidLocation(f"{uri!r} is not a location that can be read: expected one of {known}")
    if not uri.endswith(".metadata.json"):
        raise InvalidLocation(f"{uri!r} is not an Iceberg metadata file: its name ends in .metadata.json")
    segments = uri.removeprefix("file://").removeprefix("file:").split("/")[1:] if scheme == "file" else uri.split("/")
    # On an object store, an empty segment is part of the key. On a disk, `a//b` is another spelling of `a/b`.
    for step in (".", "..", "") if scheme == "file" else (".", ".."):
        if step in segments:
            raise InvalidLocation(f"{uri!r} is not a qualified location: it has the segment {step!r}")
    io = guarded(load_file_io(dict(properties or {}), uri))
    try:
        metadata = read_metadata(io, uri)
    except FileNotFoundError as error:
        raise InvalidLocation(f"{uri!r}: there is no such metadata file") from error
    except PermissionError as error:
        raise PermissionDenied(f"{uri!r} may not be read: {error}") from error
    except OSError as error:
        raise StorageError(f"{uri!r} cannot be read: {error}", retryable=True) from error
    return _external(identifier, metadata, uri, io)


def _external(identifier: tuple[str, ...], metadata: TableMetadata, uri: str, io: FileIO | PickledIO) -> ExternalTable:
    if metadata.sort_order_by_id(metadata.default_sort_order_id) is None:  # order 0 need not be listed
        metadata = metadata.model_copy(update={"sort_orders": [*metadata.sort_orders, UNSORTED_SORT_ORDER]})
    catalog = ReadOnlyCatalog(f"the table is external and read-only: write to it with the catalog that owns {uri}")
    return ExternalTable(identifier, metadata, uri, unpickled(io), catalog)


def require_none_inside(table: ExternalTable, io: LakehouseFileIO) -> None:
    """Raise `InvalidLocation` if metadata outside of the lakehouse names files of the lakehouse, or cannot be read.

    Vacuum does not read metadata outside of the lakehouse, so it would delete these files. This function reads all
    manifests.
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
            f"{table.metadata_location} names {inside}, a file of this lakehouse, which vacuum would delete: keep the "
            "metadata in the lakehouse as well, or all files outside of it"
        )


def first_inside(table: ExternalTable, io: LakehouseFileIO) -> str | None:
    """A location below the root that a table with metadata outside of the root names; None if no location is below it.

    Raises `OSError` or `ValueError` if a manifest cannot be read.
    """
    roots = tuple(canonical_uri(root) for root in (io.root, *io.storage.other_roots))
    if canonical_uri(table.metadata_location).startswith(roots):  # vacuum reads this metadata
        return None
    named = map(_plain, _named(table.metadata, table.io))
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


def _plain(location: str) -> str:
    """A location in its plain form: on a disk, without `//`, `.` and `..`."""
    scheme, colon, path = location.partition(":")
    is_local = location.startswith("/") or (colon and scheme.lower() == "file")
    return os.path.normpath("/" + (path if colon else location).lstrip("/")) if is_local else location


def _is_inside(location: str, io: LakehouseFileIO) -> bool:
    try:
        io.path_of(location)
    except InvalidLocation:
        return False
    return True
