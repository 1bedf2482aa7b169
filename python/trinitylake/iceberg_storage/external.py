"""External tables: Iceberg metadata that lies somewhere else, read as it is (format §9).

The definition holds the URI of one metadata file. The table stays at that file until the definition is changed, and
it is read-only. Files are reached through PyIceberg's own file access, with settings from the caller, from its
configuration or from the environment; never from the metadata file, which is not ours and could name code to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import urlsplit

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import SCHEMA_TO_FILE_IO, FileIO, load_file_io
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from trinitylake.definitions.files import METADATA_LOCATION
from trinitylake.definitions.trinitylake_pb2 import TableDef
from trinitylake.errors import InvalidArgument, InvalidLocation, PermissionDenied, StorageError
from trinitylake.iceberg_storage.metadata import read_metadata
from trinitylake.iceberg_storage.pickled_io import PickledIO, pickled, unpickled


class ExternalTable(StaticTable):
    """A PyIceberg table that reads one metadata file and refuses every write with `InvalidArgument`."""

    def __reduce__(self) -> tuple[Callable[..., ExternalTable], tuple[Any, ...]]:
        return _arrived, (self.name(), self.metadata, self.metadata_location, pickled(self.io))

    def refresh(self) -> Table:
        """Itself: an external table stands still until its definition is changed."""
        return self

    def transaction(self) -> NoReturn:
        raise InvalidArgument(_refusal(self.metadata_location))

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> NoReturn:
        raise InvalidArgument(_refusal(self.metadata_location))

    def update_spec(self, case_sensitive: bool = True) -> NoReturn:
        raise InvalidArgument(_refusal(self.metadata_location))

    def update_sort_order(self, case_sensitive: bool = True) -> NoReturn:
        raise InvalidArgument(_refusal(self.metadata_location))

    def update_statistics(self) -> NoReturn:
        raise InvalidArgument(_refusal(self.metadata_location))

    def manage_snapshots(self) -> NoReturn:
        raise InvalidArgument(_refusal(self.metadata_location))

    @property
    def maintenance(self) -> MaintenanceTable:
        raise InvalidArgument(_refusal(self.metadata_location))


class ExternalCatalog(NoopCatalog):
    """The catalog of external tables: every attempt to write through it is refused."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> NoReturn:
        raise InvalidArgument(_refusal(table.metadata_location))

    def supports_server_side_planning(self) -> bool:
        return False


def load_external(
    source: TableDef | str,
    properties: Mapping[str, str] | None = None,
    identifier: tuple[str, ...] = ("external",),
    guarded: Callable[[FileIO], FileIO] = lambda io: io,
) -> ExternalTable:
    """The table behind a metadata file.

    Args:
        source: the URI of a `*.metadata.json`, or the definition of an external table.
        properties: settings of PyIceberg's file access, such as an endpoint or credentials. They are not stored.
        identifier: the name that the table shows.
        guarded: the file access that is used instead of PyIceberg's, given that.

    Raises:
        InvalidLocation: for something that is not the URI of a metadata file (§2), or if nothing is there.
        CorruptFile: if it is not Iceberg metadata.
        StorageError, PermissionDenied: if it cannot be read.
    """
    uri = source if isinstance(source, str) else source.format_properties[METADATA_LOCATION]
    scheme = urlsplit(uri).scheme
    if scheme not in SCHEMA_TO_FILE_IO:
        known = ", ".join(SCHEMA_TO_FILE_IO)
        raise InvalidLocation(f"{uri!r} is not a location that can be read: expected one of {known}")
    if not uri.endswith(".metadata.json"):
        raise InvalidLocation(f"{uri!r} is not an Iceberg metadata file: its name ends in .metadata.json")
    if step := next((segment for segment in uri.split("/") if segment in (".", "..")), None):
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
    return ExternalTable(identifier, metadata, uri, io, ExternalCatalog("external"))


def _arrived(identifier: tuple[str, ...], metadata: TableMetadata, uri: str, io: FileIO | PickledIO) -> ExternalTable:
    return ExternalTable(identifier, metadata, uri, unpickled(io), ExternalCatalog("external"))


def _refusal(uri: str) -> str:
    return f"the table is external and read-only: write to it where it lives, {uri}"
