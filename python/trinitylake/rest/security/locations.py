"""Checks of all locations in requests, before anything is read or written at these locations.

A location is the URI of a file or folder. It is checked only here, and used later: the server plans scans, writes
metadata and rebases appends, clients get credentials for the folder of a table, and operators compact tables. The rules
for every principal:

- A location is below the root, and not in an internal folder of the lakehouse, whose name starts with `_`.
- The files of a table or view are in its own folder, which does not change. This includes the manifests of a snapshot
  and the files that they name, so manifests are read before the commit (decision 0057).

A role on a name gives access to the folder that the lakehouse chooses for that name and id (format §9). Another folder
may contain files of other tables, so only a reader of `*` may choose another folder or name files outside of the own
one.

The known kinds of updates are listed, and other kinds are refused. So a kind that Iceberg adds later cannot contain an
unchecked location.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pyiceberg.table import update as iceberg
from pyiceberg.table.update import TableUpdate

from trinitylake import _core
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg.namespaces import object_name
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.incoming_files import incoming_paths, snapshots_of
from trinitylake.iceberg_storage.manifests.avro_file import SizeBudget, SizeLimitExceeded
from trinitylake.iceberg_storage.manifests.manifest_consistency import SpecsAndSchemas
from trinitylake.iceberg_storage.table_file_io import TableFileIO
from trinitylake.iceberg_storage.table_properties import is_location_property
from trinitylake.rest.errors import bad_request
from trinitylake.rest.metadata_limits import BoundedFileIO, too_many_incoming_files
from trinitylake.rest.security.authorization import Name, Principal, Role, forbidden

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

#: Property of a namespace that clients read.
LOCATION_PROPERTY = "location"
_RANDOM_DIGITS = re.compile(r"-[0-9a-f]{32}")

#: Updates of a table that make its metadata smaller.
REMOVING = (
    iceberg.RemovePartitionSpecsUpdate,
    iceberg.RemovePartitionStatisticsUpdate,
    iceberg.RemovePropertiesUpdate,
    iceberg.RemoveSchemasUpdate,
    iceberg.RemoveSnapshotRefUpdate,
    iceberg.RemoveSnapshotsUpdate,
    iceberg.RemoveStatisticsUpdate,
)
#: Updates of a table that contain no location.
_WITHOUT_LOCATION = (
    *REMOVING,
    iceberg.AddPartitionSpecUpdate,
    iceberg.AddSchemaUpdate,
    iceberg.AddSortOrderUpdate,
    iceberg.AssignUUIDUpdate,
    iceberg.SetCurrentSchemaUpdate,
    iceberg.SetDefaultSortOrderUpdate,
    iceberg.SetDefaultSpecUpdate,
    iceberg.SetSnapshotRefUpdate,
    iceberg.UpgradeFormatVersionUpdate,
)


class Change(Protocol):
    """A commit to one table."""

    @property
    def full_name(self) -> Name: ...
    @property
    def updates(self) -> Sequence[TableUpdate]: ...
    @property
    def is_creation(self) -> bool: ...


class LocationGate:
    """Checks the locations in requests of one principal.

    Args:
        io: the file access of the lakehouse. Only `incoming_files` opens files.
        principal: the principal.
        overrides: whether to replace a requested location outside of the lakehouse instead of refusing it.
    """

    def __init__(self, io: LakehouseFileIO, principal: Principal, overrides: bool) -> None:
        self._io = io
        self._overrides = overrides
        self._reads_everything = principal.has_everywhere(Role.READER)

    def new_object(self, location: str | None, name: Name) -> str | None:
        """The location of a new table or view; None if the lakehouse chooses it.

        Args:
            location: the requested location, if any.
            name: of the object.

        Raises:
            InvalidLocation: for a location in an internal folder, or outside of the lakehouse unless `overrides` is
                set.
            RestError: 403 for a folder that only readers of `*` may choose.
        """
        if not location:
            return None
        try:
            path = self._path(location)
        except InvalidLocation:
            if self._overrides and self._is_outside(location):
                return None
            raise
        if is_any_new_location(path, name):
            return None
        self._require_own(path, name, None)
        return self._io.uri_of(path)

    def kept(self, updates: Sequence[TableUpdate]) -> list[TableUpdate]:
        """The updates. If `overrides` is set, updates that set a location outside of the lakehouse are left out."""
        return [
            update
            for update in updates
            if not (
                self._overrides
                and isinstance(update, iceberg.SetLocationUpdate)
                and update.location
                and self._is_outside(update.location)
            )
        ]

    def registered(self, location: str) -> None:
        """Check the location of a metadata file to register.

        Raises `RestError` 403 unless the principal is a reader of `*`, because the file may belong to any table or
        view, and `InvalidLocation` for a file that is not named like metadata.
        """
        if not self._reads_everything:
            raise forbidden("only a reader of * may register a metadata file: it may belong to any table")
        if not self._path(location).endswith(".metadata.json"):
            raise InvalidLocation(f"{location!r} is not the metadata file of a table or view")

    def properties(self, properties: Mapping[str, str], folder: str) -> None:
        """Check the locations in the properties of an object, which clients use for new files.

        `folder` is the path of the object's folder. Raises `InvalidLocation`, and `RestError` 403 for a location
        outside of the folder.
        """
        for name, value in properties.items():
            if is_location_property(name) and value:
                self._inside(value, folder, or_is=True)

    def view_properties(self, properties: Mapping[str, str], location: str) -> None:
        """Check the properties of a view at a location. Raises as `properties`."""
        self.properties(properties, self._path(location))

    def view_location(self, location: str, present: str) -> None:
        """Check a new location of a view. Raises `InvalidLocation` and `RestError` as `new_object`."""
        path = self._path(location)
        if path != self._io.path_of(present.rstrip("/")) and not self._reads_everything:
            raise forbidden("only a reader of * may choose the location of a view: leave the location unchanged")

    def table_change(self, change: Change, present: str | None) -> None:
        """Check the locations in a commit to a table. `present` is the table's location; None if it does not exist.

        Raises:
            RestError: 403 for a location outside of the folder of the table, 400 for an update of an unknown kind.
            InvalidLocation: for a location outside of the lakehouse or in an internal folder.
        """
        folder = self._folder(change, present)
        for location in locations_of(change.updates):
            if folder is not None:
                self._inside(location, folder, or_is=False)
            else:
                self._path(location)
                if not self._reads_everything:
                    raise _outside(location)
        for update in change.updates:
            if isinstance(update, iceberg.SetPropertiesUpdate) and folder is not None:
                self.properties(update.updates, folder)

    def incoming_files(self, change: Change, present: TableMetadata | None, allowance: SizeBudget) -> list[str]:
        """The paths of all files that the snapshots of a commit add to a table, from their manifests.

        A principal that is not a reader of `*` may name only files in the folder of the table. Otherwise it could read
        the rows of another table through a manifest.

        Args:
            change: a change that `table_change` has accepted.
            present: the table before the commit; None if the commit creates it.
            allowance: memory budget of the commit.

        Raises:
            RestError: 403 for a file outside of the folder of the table, 413 above the budget.
            InvalidLocation: for an invalid location.
            InvalidArgument: for a manifest that cannot be read or that contradicts itself.
        """
        snapshots = snapshots_of(change.updates)
        if not snapshots:
            return []
        folder = self._folder(change, None if present is None else present.location)
        layout = SpecsAndSchemas.after(present, change.updates)
        try:
            if self._reads_everything or folder is None:
                return incoming_paths(BoundedFileIO(self._io, allowance), present, snapshots, layout)
            own = BoundedFileIO(TableFileIO(self._io, folder), allowance)
            try:
                return incoming_paths(own, present, snapshots, layout)
            except InvalidLocation as error:
                raise forbidden(str(error)) from error
        except SizeLimitExceeded as error:
            raise too_many_incoming_files(error) from error

    def _folder(self, change: Change, present: str | None) -> str | None:
        if not change.is_creation:
            return None if present is None else path_of_object(self._io, present)
        ids = [str(update.uuid) for update in change.updates if isinstance(update, iceberg.AssignUUIDUpdate)]
        folder: str | None = None
        for update in change.updates:
            if isinstance(update, iceberg.SetLocationUpdate):
                folder = self._path(update.location)
                self._require_own(folder, change.full_name, ids[-1] if ids else None)
        return folder

    def _require_own(self, path: str, name: Name, id: str | None) -> None:
        if not (id is not None and is_own(path, name, id)) and not self._reads_everything:
            raise forbidden("only a reader of * may choose the location of a table or view: leave it out")

    def _inside(self, location: str, folder: str, or_is: bool) -> None:
        path = self._path(location)
        if not (path.startswith(f"{folder}/") or (or_is and path == folder)) and not self._reads_everything:
            raise _outside(location)

    def _path(self, location: str) -> str:
        path = self._io.path_of(location.rstrip("/"))
        if path.startswith("_"):
            raise InvalidLocation(f"{location!r} is in an internal folder of the lakehouse, whose name starts with '_'")
        return path

    def _is_outside(self, location: str) -> bool:
        try:
            self._io.path_of(location.rstrip("/"))
        except InvalidLocation:
            return True
        return False


def locations_of(updates: Iterable[TableUpdate]) -> Iterator[str]:
    """The files that updates of a table name. Raises `RestError` 400 for an update of an unknown kind."""
    for update in updates:
        match update:
            case iceberg.AddSnapshotUpdate():
                yield update.snapshot.manifest_list
            case iceberg.SetStatisticsUpdate():
                yield update.statistics.statistics_path
            case iceberg.SetPartitionStatisticsUpdate():
                yield update.partition_statistics.statistics_path
            case iceberg.SetLocationUpdate() | iceberg.SetPropertiesUpdate():
                pass  # a folder and properties have separate checks
            case _ if not isinstance(update, _WITHOUT_LOCATION):
                raise bad_request(f"this server does not know updates of the kind {update.action!r}")


def path_of_object(io: LakehouseFileIO, location: str) -> str | None:
    """The folder of an object as a path below the root; None outside of the root and in internal folders."""
    try:
        path = io.path_of(location.rstrip("/"))
    except InvalidLocation:
        return None
    return None if path.startswith("_") else path


def is_own(path: str, name: Name, id: str) -> bool:
    """Whether `path` is the folder that the lakehouse chooses for an object with that name and id.

    If so, a role on the name gives access to the folder. Another folder, which a client chose or which an object kept
    after a rename, may contain files of other tables.
    """
    return path == _core.managed_table_folder(*object_name(name), id).rstrip("/")


def has_role_on_files(principal: Principal, role: Role, name: Name, is_own: bool) -> bool:
    """Whether a principal may access the files of a table.

    The principal needs the role on the table. If the files are not in the table's own folder (`is_own`), it also needs
    the role on `*`.
    """
    return principal.may(role, name) and (is_own or principal.has_everywhere(role))


def namespace_location(io: LakehouseFileIO, namespace: Name) -> str:
    """The folder below which the lakehouse places the tables of a namespace.

    Trino needs it as property `location` of the namespace, and creates a table at `<location>/<name>-<random digits>`.
    Without the property, Trino creates the table first, and then refuses its location, which has a metadata file.
    """
    return io.uri_of(_parent((*namespace, "table")))


def is_any_new_location(path: str, name: Name) -> bool:
    """Whether a path has the form `<folder>/<name>-<random digits>`, as from Trino (`namespace_location`).

    Such a client has no wish, so the lakehouse chooses the location.
    """
    start = f"{_parent(name)}/{name[-1]}"
    return path.startswith(start) and _RANDOM_DIGITS.fullmatch(path[len(start) :]) is not None


def _parent(name: Name) -> str:
    return _core.managed_table_folder(*object_name(name), "0" * 8).rstrip("/").rpartition("/")[0]


def _outside(location: str) -> Exception:
    return forbidden(f"{location!r} is outside of the folder of this object")
