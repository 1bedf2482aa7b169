"""File access restricted to the folder of one table, and pickling of PyIceberg's own file access.

A client that writes to a table writes its manifests, and can name any file of the lakehouse in them. So a server or an
operator that reads the table for other principals uses `TableFileIO`. Otherwise a client could read the rows of a table
that it may not see. The properties of PyIceberg's `FileIO` classes may be credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from trinitylake.base.pickling import PickledOption, pickled_options, unpickled_options
from trinitylake.errors import InvalidLocation
from trinitylake.iceberg_storage.file_io import LakehouseFileIO


class TableFileIO(LakehouseFileIO):
    """File access to the folder of one table.

    Args:
        shared: folders of other tables that may be read as well.
    """

    def __init__(self, io: LakehouseFileIO, path: str, shared: Sequence[str] = ()) -> None:
        super().__init__(io.storage, io.properties, check_kept=io.check_kept)
        self._lakehouse = io.of_lakehouse()
        self._path = path
        self._shared = tuple(shared)
        self._folders = [(f"{one}/", f"{self.local_path(one)}/") for one in (path, *self._shared)]

    def __reduce__(self) -> tuple[Callable[..., LakehouseFileIO], tuple[Any, ...]]:
        io = LakehouseFileIO(self.storage, self.properties, check_kept=self.check_kept)
        return TableFileIO, (io, self._path, self._shared)

    def of_lakehouse(self) -> LakehouseFileIO:
        return self._lakehouse

    def path_of(self, location: str) -> str:
        """The path below the root. Raises `InvalidLocation` also for a location outside of the table's folder.

        A symbolic link on a local disk that leads out of the folder counts as outside.
        """
        path = super().path_of(location)
        real_path = self.local_path(path)
        if not any(
            path.startswith(folder) and (real_path is None or real_path.startswith(real_folder))
            for folder, real_folder in self._folders
        ):
            raise InvalidLocation(
                f"{location!r} is outside of the table, whose files are below {self.uri_of(self._path)!r}: it may "
                "belong to another table, so it is not read here"
            )
        return path


def own_files(io: FileIO, metadata: TableMetadata, shared_folders: Sequence[str] = ()) -> FileIO:
    """File access for work on behalf of other principals: for a managed table limited to its folder, for any other
    table `io`.

    The folder is the location of the table. The lakehouse or an administrator chose it, and it never changes, also for
    a renamed or registered table. In a moved lakehouse, locations below its earlier roots are mapped to the present
    root.

    A cloned table also has files in the folders of its source tables (`shared_folders`), which its definition names.
    Clients cannot change this list, but a client that may write the clone can make it name any file in these folders.
    """
    if not isinstance(io, LakehouseFileIO):
        return io
    return TableFileIO(io, io.path_of(metadata.location.rstrip("/")), shared_folders)


def own_file_check(io: FileIO, metadata: TableMetadata) -> Callable[[str], bool]:
    """Function that returns whether a location is inside the folder of this table; always True for unmanaged tables."""
    own = own_files(io, metadata)

    def is_own(location: str) -> bool:
        try:
            return not isinstance(own, TableFileIO) or bool(own.path_of(location))
        except InvalidLocation:
            return False

    return is_own


@dataclass(frozen=True)
class PickledIO:
    """Pickled form of file access outside of a lakehouse."""

    kind: type[FileIO]
    properties: dict[str, PickledOption]


def pickled(io: FileIO) -> FileIO | PickledIO:
    """The pickled form. Raises `InvalidArgument` for a secret that must not be in a pickle (`base/pickling.py`)."""
    if isinstance(io, LakehouseFileIO):
        return io
    return PickledIO(type(io), pickled_options({name: str(value) for name, value in io.properties.items()}))


def unpickled(io: FileIO | PickledIO) -> FileIO:
    return io.kind(unpickled_options(io.properties)) if isinstance(io, PickledIO) else io
