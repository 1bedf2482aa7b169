"""Manifests that the server reads for its clients: no more of them than it may."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile

from trinitylake.base.parsed_size import parsed_size_bytes
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, LakehouseInputFile
from trinitylake.iceberg_storage.manifests.avro_size import SizeBudget, SizeLimitExceeded
from trinitylake.rest.errors import RestError

#: Of a manifest or manifest list as it is stored, of all of a request decompressed, and of what they name.
MAX_STORED_SIZE_BYTES = 64 << 20
MAX_SIZE_BYTES = 128 << 20
MAX_ENTRIES = 500_000
#: Of metadata of a table or view, which is JSON, perhaps compressed; and what it takes once it is parsed.
MAX_METADATA_SIZE_BYTES, MAX_PARSED_SIZE_BYTES = 32 << 20, 512 << 20
_GZIP_MAGIC = b"\x1f\x8b"
#: For the plan of one scan.
MAX_PLAN_SECONDS = 60
#: Manifests and lists that a commit brings, of all its tables.
MAX_BROUGHT_FILES = 10_000


class ManifestsAtWork:
    """What all requests of a server read of manifests at a time. Safe to share between threads.

    An entry becomes about ten times its bytes in memory, so what one request may read many must not read at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[object, _Taken] = {}

    @contextmanager
    def for_plan(self, who: str) -> Iterator[SizeBudget]:
        """What is read to plan one scan, and in how much time."""
        deadline = time.monotonic() + MAX_PLAN_SECONDS
        with self._taking(who) as taken:

            def taken_in_time(size_bytes: int, entries: int) -> None:
                if time.monotonic() > deadline:
                    raise SizeLimitExceeded(f"to plan the scan takes more than {MAX_PLAN_SECONDS} s")
                taken(size_bytes, entries)

            yield SizeBudget(MAX_SIZE_BYTES, MAX_ENTRIES, on_spent=taken_in_time)

    @contextmanager
    def for_commit(self, who: str) -> Iterator[SizeBudget]:
        """What one commit may bring, of all its tables."""
        with self._taking(who) as taken:
            yield SizeBudget(MAX_SIZE_BYTES, MAX_ENTRIES, MAX_BROUGHT_FILES, taken)

    @contextmanager
    def _taking(self, who: str) -> Iterator[Callable[[int, int], None]]:
        request = object()

        def taken(size_bytes: int, entries: int) -> None:
            with self._lock:
                mine = self._taken.setdefault(request, _Taken(who))
                mine.size_bytes += size_bytes
                mine.entries += entries
                if len(self._taken) > 1 and not self._fits(who):
                    raise RestError(
                        503, "ServiceUnavailableException", "too many manifests are read at the same time: try again"
                    )

        try:
            yield taken
        finally:
            with self._lock:
                self._taken.pop(request, None)

    def _fits(self, who: str) -> bool:
        """Whether all that is read is no more than one alone may read, and of one principal no more than half."""
        for part, of in ((1, list(self._taken.values())), (2, [one for one in self._taken.values() if one.who == who])):
            size_bytes, entries = sum(one.size_bytes for one in of), sum(one.entries for one in of)
            alone = part == 2 and len(of) == 1
            if not alone and (size_bytes * part > MAX_SIZE_BYTES or entries * part > MAX_ENTRIES):
                return False
        return True


@dataclass
class _Taken:
    """What one request has read."""

    who: str
    size_bytes: int = 0
    entries: int = 0


def too_much_incoming(error: SizeLimitExceeded) -> RestError:
    """The answer to a commit that brings more than `ManifestsAtWork.for_commit` allows."""
    return RestError(
        413,
        "RequestTooLargeException",
        f"{error}: metadata have at most {MAX_METADATA_SIZE_BYTES >> 20} MiB, and a commit brings at most "
        f"{MAX_BROUGHT_FILES} manifests and lists of them, {MAX_SIZE_BYTES >> 20} MiB in all once decompressed, which "
        f"name at most {MAX_ENTRIES} files. Commit in parts, or by a program that opens the lakehouse itself",
    )


def weighing(io: FileIO, allowance: SizeBudget) -> FileIO:
    """The same files, of which manifests and lists of them are weighed before they are read."""
    if isinstance(io, LakehouseFileIO):
        return BoundedFileIO(io, allowance)
    return BoundedForeignFileIO(io.io if isinstance(io, BoundedForeignFileIO) else io, allowance)


class BoundedFileIO(LakehouseFileIO):
    """Manifests and lists of them, which are weighed before they are read.

    Args:
        io: how they are reached, and which.
        allowance: what they may weigh, these and others.
    """

    def __init__(self, io: LakehouseFileIO, allowance: SizeBudget) -> None:
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
    def __init__(self, io: LakehouseFileIO, location: str, allowance: SizeBudget) -> None:
        super().__init__(io, location)
        self._allowance = allowance

    def open(self, seekable: bool = True) -> InputStream:
        """Raises `SizeLimitExceeded`."""
        return _weighed(super().open, len(self), self.location, self._allowance)


class BoundedForeignFileIO(FileIO):
    """Metadata of a table that lies elsewhere, which are weighed before they are read.

    Args:
        io: how they are reached.
        allowance: what they may weigh, these and others; without one, each by itself.
    """

    def __init__(self, io: FileIO, allowance: SizeBudget | None = None) -> None:
        super().__init__(io.properties)
        self.io = io
        self._allowance = allowance

    def new_input(self, location: str) -> InputFile:
        return _WeighedForeignFile(self.io.new_input(location), self._allowance)

    def new_output(self, location: str) -> OutputFile:
        return self.io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.io.delete(location)


class _WeighedForeignFile(InputFile):
    def __init__(self, file: InputFile, allowance: SizeBudget | None) -> None:
        super().__init__(file.location)
        self._file = file
        self._allowance = allowance

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def open(self, seekable: bool = True) -> InputStream:
        """Raises `SizeLimitExceeded`."""
        # Without the request for its size: what the other side says of it is only what it says.
        return _weighed(self._file.open, 0, self.location, self._allowance)


def _weighed(
    open_file: Callable[[bool], InputStream], size_bytes: int, location: str, allowance: SizeBudget | None
) -> InputStream:
    """The content of a file. Raises `SizeLimitExceeded`, when no more of it than that is in memory."""
    if size_bytes <= MAX_STORED_SIZE_BYTES:
        with open_file(False) as stream:
            data = stream.read(MAX_STORED_SIZE_BYTES + 1)
    if size_bytes > MAX_STORED_SIZE_BYTES or len(data) > MAX_STORED_SIZE_BYTES:
        raise SizeLimitExceeded(f"{location} holds more than what is read here")
    if location.endswith(".metadata.json"):
        check_metadata(data, location)
    (allowance or SizeBudget(MAX_SIZE_BYTES, MAX_ENTRIES)).spend(data, location)
    return pa.BufferReader(data)  # type: ignore[no-any-return]


def check_metadata(data: bytes, location: str) -> None:
    """Refuse metadata that takes too much memory.

    Raises `SizeLimitExceeded`, and `zlib.error` for damaged compression.
    """
    text = data
    if data.startswith(_GZIP_MAGIC):
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = stream.decompress(data, MAX_METADATA_SIZE_BYTES + 1)
        if stream.eof and stream.unused_data.strip(b"\0"):  # nobody writes several; millions of empty ones take hours
            raise SizeLimitExceeded(f"{location} goes on behind the end of its compressed text")
    if len(text) > MAX_METADATA_SIZE_BYTES or parsed_size_bytes(text) > MAX_PARSED_SIZE_BYTES:
        raise SizeLimitExceeded(f"{location} holds more than what is read here")
