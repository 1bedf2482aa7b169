"""Files of tables that the server reads for its clients: those of one table, and no more of them than it may."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io import InputStream

from trinitylake.errors import InvalidLocation
from trinitylake.iceberg_storage.extended_pyiceberg.avro_weight import Allowance, TooHeavy
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, LakehouseInputFile

#: Of a manifest or manifest list as it is stored, of all of a request decompressed, and of what they name.
MAX_STORED_SIZE_BYTES = 64 << 20
MAX_SIZE_BYTES = 256 << 20
MAX_ENTRIES = 500_000


class TableFileIO(LakehouseFileIO):
    """Files of one table. Its snapshots may name others', whose partitions and statistics a plan would tell."""

    def __init__(self, io: LakehouseFileIO, path: str) -> None:
        super().__init__(io.storage, io.properties)
        self._folder = f"{path}/"
        self._real_folder = self.local_path(path)

    def path_of(self, location: str) -> str:
        """As for any file of the lakehouse. Raises `InvalidLocation` for one outside of the table, too, also for one
        that a symbolic link of a local disk leads out of it."""
        path = super().path_of(location)
        real_path = self.local_path(path)
        leaves = real_path is not None and not real_path.startswith(f"{self._real_folder}/")
        if leaves or not path.startswith(self._folder):
            raise InvalidLocation(f"{location!r} is outside of the table, so the server does not read it")
        return path


class BoundedFileIO(LakehouseFileIO):
    """Manifests and lists of them, which are weighed before they are read.

    Args:
        io: how they are reached, and which.
    """

    def __init__(self, io: LakehouseFileIO) -> None:
        super().__init__(io.storage, io.properties)
        self._files = io
        self._allowance = Allowance(MAX_SIZE_BYTES, MAX_ENTRIES)

    def new_input(self, location: str) -> LakehouseInputFile:
        return _WeighedFile(self._files, location, self._allowance)

    def read_ahead(self, files: Iterable[tuple[str, int]]) -> None:
        self._files.read_ahead(files)


class _WeighedFile(LakehouseInputFile):
    def __init__(self, io: LakehouseFileIO, location: str, allowance: Allowance) -> None:
        super().__init__(io, location)
        self._allowance = allowance

    def open(self, seekable: bool = True) -> InputStream:
        """Raises `TooHeavy`."""
        if len(self) > MAX_STORED_SIZE_BYTES:
            raise TooHeavy(f"{self.location} holds more than what is read here")
        with super().open(seekable) as stream:
            data = stream.read()
        self._allowance.spend(data, self.location)
        return pa.BufferReader(data)  # type: ignore[no-any-return]
