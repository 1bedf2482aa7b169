"""Limits on the metadata and manifests that the server reads for clients."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.io import InputStream

from trinitylake.base.json_memory_size import parsed_size_bytes
from trinitylake.iceberg_storage.file_io import LakehouseFileIO, LakehouseInputFile
from trinitylake.iceberg_storage.manifests.avro_file import SizeBudget, SizeLimitExceeded
from trinitylake.rest.errors import RestError, too_large
from trinitylake.rest.limits import SharedLimit

#: Limits of manifests and manifest lists: stored size of one, and decompressed size and entries of all in a request.
MAX_STORED_SIZE_BYTES = 64 << 20
MAX_SIZE_BYTES = 128 << 20
MAX_ENTRIES = 500_000
#: Limits of the metadata of a table or view: size of the decompressed JSON, and memory of its parsed values.
MAX_METADATA_SIZE_BYTES, MAX_PARSED_SIZE_BYTES = 32 << 20, 512 << 20
_GZIP_MAGIC = b"\x1f\x8b"
#: Time limit of the plan of one scan.
MAX_PLAN_SECONDS = 60
#: Maximum number of manifests and manifest lists that one commit adds.
MAX_INCOMING_FILES = 10_000


class ManifestLimit:
    """Limit on the manifests that all requests of a server have in memory. Thread-safe.

    All requests together have the same limit as one request, because a parsed entry takes about ten times its bytes.
    """

    def __init__(self) -> None:
        busy = "too many manifests are read at the same time: try again"
        self._limit = SharedLimit(MAX_SIZE_BYTES, MAX_SIZE_BYTES // 2, busy)

    @contextmanager
    def for_plan(self, principal: str) -> Iterator[SizeBudget]:
        """Memory budget for planning one scan, which also ends with an error after `MAX_PLAN_SECONDS`."""
        deadline = time.monotonic() + MAX_PLAN_SECONDS

        def check_time() -> None:
            if time.monotonic() > deadline:
                raise SizeLimitExceeded(f"planning the scan takes more than {MAX_PLAN_SECONDS} s")

        with self._allowance(principal, check_time) as allowance:
            yield allowance

    @contextmanager
    def for_commit(self, principal: str) -> Iterator[SizeBudget]:
        """Budget of one commit to any number of tables."""
        with self._allowance(principal, files=MAX_INCOMING_FILES) as allowance:
            yield allowance

    @contextmanager
    def _allowance(
        self, principal: str, check: Callable[[], None] = lambda: None, files: int | None = None
    ) -> Iterator[SizeBudget]:
        entry_size_bytes = MAX_SIZE_BYTES // MAX_ENTRIES
        with self._limit.lease(principal, 0) as lease:

            def spend(size_bytes: int, entries: int) -> None:
                check()
                lease.grow(max(size_bytes, entries * entry_size_bytes))

            yield SizeBudget(MAX_SIZE_BYTES, MAX_ENTRIES, files, on_spent=spend)


def too_many_incoming_files(error: SizeLimitExceeded) -> RestError:
    """The response to a commit above the budget of `ManifestLimit.for_commit`."""
    return too_large(
        f"{error}: metadata may have {MAX_METADATA_SIZE_BYTES >> 20} MiB, and a commit may add {MAX_INCOMING_FILES} "
        f"manifests and manifest lists of {MAX_SIZE_BYTES >> 20} MiB decompressed with {MAX_ENTRIES} entries. Commit "
        "in parts, or without the server, by a program that opens the lakehouse"
    )


class BoundedFileIO(LakehouseFileIO):
    """File access of the lakehouse within a budget.

    Args:
        io: the wrapped file access.
        allowance: the budget, which may be shared with other instances.
    """

    def __init__(self, io: LakehouseFileIO, allowance: SizeBudget) -> None:
        super().__init__(io.storage, io.properties)
        self._files = io
        self._allowance = allowance

    def path_of(self, location: str) -> str:
        return self._files.path_of(location)

    def of_lakehouse(self) -> LakehouseFileIO:
        """Access to all files of the lakehouse, within the same budget."""
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
        if len(self) > MAX_STORED_SIZE_BYTES:
            raise _too_large(self.location)
        with super().open(seekable=False) as stream:
            return spent(stream.read(MAX_STORED_SIZE_BYTES + 1), self.location, self._allowance)


def spent(data: bytes, location: str, budget: SizeBudget | None) -> InputStream:
    """A stream of the content of a file, charged to a budget, by default a new one. Raises `SizeLimitExceeded`.

    `data` may have one byte more than `MAX_STORED_SIZE_BYTES`.
    """
    if len(data) > MAX_STORED_SIZE_BYTES:
        raise _too_large(location)
    if location.endswith(".metadata.json"):
        check_metadata(data, location)
    (budget or SizeBudget(MAX_SIZE_BYTES, MAX_ENTRIES)).spend(data, location)
    return pa.BufferReader(data)  # type: ignore[no-any-return]


def _too_large(location: str) -> SizeLimitExceeded:
    return SizeLimitExceeded(f"{location} exceeds the limit of {MAX_STORED_SIZE_BYTES >> 20} MiB")


def check_metadata(data: bytes, location: str) -> None:
    """Raise `SizeLimitExceeded` for metadata that would take too much memory, `zlib.error` for a damaged file."""
    text = data
    if data.startswith(_GZIP_MAGIC):
        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
        text = stream.decompress(data, MAX_METADATA_SIZE_BYTES + 1)
        if stream.eof and stream.unused_data.strip(b"\0"):  # more gzip members: decoding millions of them takes hours
            raise SizeLimitExceeded(f"{location} has data after the end of its compressed text")
    if len(text) > MAX_METADATA_SIZE_BYTES or parsed_size_bytes(text) > MAX_PARSED_SIZE_BYTES:
        raise SizeLimitExceeded(f"{location} exceeds the limits of metadata")
