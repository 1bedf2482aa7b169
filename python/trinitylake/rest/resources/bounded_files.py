"""Manifests that the server reads for its clients: no more of them than it may."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io import InputStream

from trinitylake.iceberg_storage.extended_pyiceberg.avro_weight import Allowance, TooHeavy
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, LakehouseInputFile

#: Of a manifest or manifest list as it is stored, of all of a request decompressed, and of what they name.
MAX_STORED_SIZE_BYTES = 64 << 20
MAX_SIZE_BYTES = 256 << 20
MAX_ENTRIES = 500_000


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
