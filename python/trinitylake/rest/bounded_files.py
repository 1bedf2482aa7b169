"""Manifests that the server reads for its clients: no more of them than it may."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io import InputStream

from trinitylake.iceberg_storage.extended_pyiceberg.avro_weight import Allowance, TooHeavy
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, LakehouseInputFile
from trinitylake.rest.errors import RestError

#: Of a manifest or manifest list as it is stored, of all of a request decompressed, and of what they name.
MAX_STORED_SIZE_BYTES = 64 << 20
MAX_SIZE_BYTES = 256 << 20
MAX_ENTRIES = 500_000
#: Manifests and lists that a commit brings, of all its tables.
MAX_BROUGHT_FILES = 10_000


def for_plan() -> Allowance:
    """What is read to plan one scan."""
    return Allowance(MAX_SIZE_BYTES, MAX_ENTRIES)


def for_commit() -> Allowance:
    """What one commit may bring, of all its tables."""
    return Allowance(MAX_SIZE_BYTES, MAX_ENTRIES, MAX_BROUGHT_FILES)


def too_much_brought(error: TooHeavy) -> RestError:
    """The answer to a commit that brings more than `for_commit` allows."""
    return RestError(
        413,
        "RequestTooLargeException",
        f"{error}: a commit brings at most {MAX_BROUGHT_FILES} manifests and lists of them, {MAX_SIZE_BYTES >> 20} "
        f"MiB in all once decompressed, which name at most {MAX_ENTRIES} files. Commit in parts, or by a program that "
        "opens the lakehouse itself",
    )


class BoundedFileIO(LakehouseFileIO):
    """Manifests and lists of them, which are weighed before they are read.

    Args:
        io: how they are reached, and which.
        allowance: what they may weigh, these and others.
    """

    def __init__(self, io: LakehouseFileIO, allowance: Allowance) -> None:
        super().__init__(io.storage, io.properties)
        self._files = io
        self._allowance = allowance

    def path_of(self, location: str) -> str:
        return self._files.path_of(location)

    def of_lakehouse(self) -> LakehouseFileIO:
        """As bounded: what a table has is read again for what is to come."""
        return BoundedFileIO(self._files.of_lakehouse(), self._allowance)

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
