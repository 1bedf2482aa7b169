"""PyIceberg's file access (`FileIO`), implemented on the storage of the lakehouse.

Iceberg's metadata has absolute URIs, and the storage of a lakehouse has paths below its root. `LakehouseFileIO`
converts URIs to paths, and refuses all locations outside of the root. External tables (`external_tables.py`) use
PyIceberg's own file access.

Files are immutable. A file is written when its stream is closed (`file_writer.py`), and only if it does not exist.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from typing import Any, NoReturn, Self

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from trinitylake import _core
from trinitylake._core import FileInParts, Storage
from trinitylake.errors import (
    InvalidLocation,
    ObjectAlreadyExists,
    TransactionClosed,
    TransactionExpired,
    VersionExpired,
)
from trinitylake.iceberg_storage.file_writer import FileWriter
from trinitylake.iceberg_storage.remote_reads import Prefetch, RangeReader, column_ranges

#: Files up to this size are fetched by one request. For a larger file, the first request fetches the last bytes.
WHOLE_FILE_MAX_SIZE_BYTES = 1 << 20
#: Larger manifests are not prefetched, because the cache does not store them.
METADATA_AHEAD_MAX_SIZE_BYTES = 4 << 20

#: Schemes of the same store, as the core and its garbage collection define them.
_SAME_STORE = _core.scheme_spellings()
#: Suffixes of files that are always read as a whole.
_READ_WHOLE = (".avro", ".json", ".puffin", ".stats")


class MissingFile(FileNotFoundError):
    """A file of the lakehouse does not exist.

    Attributes:
        path: of the file, relative to the root.
    """

    def __init__(self, uri: str, path: str) -> None:
        super().__init__(f"{uri} does not exist")
        self.path = path


class LakehouseFileIO(FileIO):
    """File access below the root of one lakehouse.

    Args:
        properties: settings of PyIceberg, without credentials.
        check_kept: called if a file is missing. Raises `VersionExpired` or `TransactionExpired` if the version or
            transaction of the file has expired.
    """

    def __init__(
        self,
        storage: Storage,
        properties: Mapping[str, str] | None = None,
        *,
        check_kept: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(dict(properties or {}))
        self.storage = storage
        self.check_kept = check_kept
        self.root = storage.root
        #: All roots of the lakehouse, the longest first, because one may contain another.
        self._canonical_roots, self._is_longest_root = _roots(self.root, *storage.other_roots)
        # On Windows all files are read through the core, which knows its paths.
        is_posix_folder = self.root.startswith("file:///") and sys.platform != "win32"
        self._local_root = self.root[len("file://") :] if is_posix_folder else None
        #: Whether requests take long enough to send them in parallel.
        self.is_remote = not self.root.startswith(("file:", "memory:"))
        self._begin(None)

    @cached_property
    def _real_local_root(self) -> str | None:
        """The root without symbolic links. Computed when the first file is read."""
        return os.path.realpath(self._local_root) + "/" if self._local_root else None

    def _begin(self, whole: LakehouseFileIO | None) -> None:
        """Set the state that copies do not share."""
        # `whole` is the file access of the enclosing operation. It also records each file that this object writes.
        self._ahead: dict[str, Prefetch] = {}
        self._columns: dict[str, Container[int]] = {}
        self._written: dict[str, None] = {}
        self._incoming: dict[str, None] = {}
        self._whole = whole
        self._is_discarded = False
        self._lock = threading.Lock()

    def _again(self, whole: LakehouseFileIO | None) -> Self:
        """A copy with a separate record of written files; it shares the values computed from the root."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.properties = dict(self.properties)
        other._begin(whole)
        return other

    def __reduce__(self) -> tuple[Callable[..., LakehouseFileIO], tuple[Any, ...]]:
        """Pickle the file access without its record of written files."""
        return partial(LakehouseFileIO, check_kept=self.check_kept), (self.storage, dict(self.properties))

    def scoped(self) -> LakehouseFileIO:
        """The same file access with a separate record of written files."""
        return self._again(None)

    def part(self) -> LakehouseFileIO:
        """File access for a part of the operation. This object also records the files that the part writes."""
        return self._again(self)

    def of_lakehouse(self) -> LakehouseFileIO:
        """Access to all files of the lakehouse. Subclasses may restrict this object to the files of a table."""
        return self

    def discard(self) -> None:
        """Delete the written files as far as possible, and refuse further writes.

        PyIceberg writes with many threads. A thread that finishes a file after this call deletes that file.
        """
        with self._lock:
            self._is_discarded = True
            paths = list(self._written)
        self.storage.delete_unneeded(paths)
        for path in paths:
            self.forget(path)

    @property
    def written_paths(self) -> list[str]:
        """The files that were written through this object and not deleted, in order."""
        with self._lock:
            return list(self._written)

    def remember_written(self, paths: Iterable[str]) -> None:
        """Record files that another process wrote for the same transaction."""
        with self._lock:
            self._written.update(dict.fromkeys(paths))

    def add_incoming(self, path: str) -> None:
        """Record a data file that a commit names, and that another process may have written."""
        with self._lock:
            self._incoming[path] = None
        if self._whole is not None:
            self._whole.add_incoming(path)

    def take_incoming(self) -> list[str]:
        """The files that were recorded since the last call and were not written through this object."""
        with self._lock:
            incoming, self._incoming = self._incoming, {}
            return [path for path in incoming if path not in self._written]

    def path_of(self, location: str) -> str:
        """Convert an absolute URI to a path below the root; the inverse of `uri_of`.

        `file:/x` equals `file:///x`, and `s3a://` equals `s3://`. Percent signs are not decoded. A URI below a former
        root of a moved lakehouse stands for the file below the current root (format §2). A local URI may lead below the
        root through a symbolic link.

        Raises:
            InvalidLocation: for a URI outside of the root, or with an empty, `.` or `..` segment (format §2).
        """
        path: str | None
        if self._is_longest_root and location.startswith(self.root):
            path = location[len(self.root) :]
        else:
            canonical = canonical_uri(location)
            root = next((root for root in self._canonical_roots if canonical.startswith(root)), None)
            path = self._path_behind_links(canonical) if root is None else canonical[len(root) :]
        if path is None:
            raise InvalidLocation(f"{location!r} is outside of the lakehouse {self.root!r}")
        for segment in path.split("/") if _may_be_unqualified(path) else ():
            if segment in ("", ".", "..") or "\0" in segment:
                raise InvalidLocation(f"{location!r} is not a qualified location: it has the segment {segment!r}")
        return path

    def make_local_folder(self, location: str) -> None:
        """Create a folder and its parents if the root is on a local disk, because some engines expect them to exist.

        Does nothing if a symbolic link leads out of the root. Raises as `path_of` does.
        """
        if self._local_root is None or self._real_local_root is None:
            return
        path = os.path.realpath(self._local_root + self.path_of(location))
        if path.startswith(self._real_local_root):
            os.makedirs(path, exist_ok=True)

    def _path_behind_links(self, canonical: str) -> str | None:
        """The path below a local root to which a file URI leads through symbolic links; None if outside of the root."""
        if self._real_local_root is None or not canonical.startswith("file:///"):
            return None
        literal = canonical[len("file://") :]
        if any(segment in ("", ".", "..") for segment in literal[1:].split("/")) or "\0" in literal:
            return None
        real = os.path.realpath(literal)
        return real[len(self._real_local_root) :] if real.startswith(self._real_local_root) else None

    def uri_of(self, path: str) -> str:
        return self.root + path

    def new_input(self, location: str) -> LakehouseInputFile:
        """A file to read. Raises `InvalidLocation` outside of the root."""
        return LakehouseInputFile(self, location)

    def new_output(self, location: str) -> LakehouseOutputFile:
        """A file to write. Raises `InvalidLocation` outside of the root."""
        return LakehouseOutputFile(self, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file. Raises `FileNotFoundError`, or `InvalidLocation` outside of the root."""
        path = self.path_of(location if isinstance(location, str) else location.location)
        try:
            self.storage.delete(path)
        except Exception as error:
            if not isinstance(error, FileNotFoundError) and not self.storage.exists(path):
                raise MissingFile(self.uri_of(path), path) from error
            raise
        self.forget(path)

    def read(self, path: str) -> bytes:
        """Read a whole file. Raises as `missed` does."""
        with self.reading(path):
            return self.storage.get(path)

    def read_ahead(self, files: Iterable[tuple[str, int]]) -> None:
        """Start to fetch files of a remote store that will be read in this order.

        Args:
            files: the URI and the recorded size of each file. Errors are raised later, when the file is read.
        """
        wanted = []
        for location, size_bytes in files:
            whole = METADATA_AHEAD_MAX_SIZE_BYTES if location.endswith(".avro") else WHOLE_FILE_MAX_SIZE_BYTES
            with suppress(InvalidLocation):
                if size_bytes <= whole:
                    wanted.append((self.path_of(location), size_bytes))
        if self.is_remote and len(wanted) > 1:
            ahead = Prefetch(lambda paths: self.storage.read_ahead(paths, METADATA_AHEAD_MAX_SIZE_BYTES), wanted)
            self._ahead.update(dict.fromkeys((path for path, _ in wanted), ahead))
            ahead.fetch_more()

    def begin_to_fetch(self, path: str) -> None:
        """Start to fetch one small file of a remote store."""
        if path and self.is_remote:
            self.storage.read_ahead([path], METADATA_AHEAD_MAX_SIZE_BYTES)

    def expect_columns(self, locations: Iterable[str], field_ids: Container[int]) -> None:
        """Arrange that the columns of each of these large Parquet files are fetched in parallel when it is opened."""
        for location in locations:
            with suppress(InvalidLocation):
                self._columns[self.path_of(location)] = field_ids

    def read_columns(self, path: str, end: bytes, size_bytes: int) -> list[tuple[int, bytes]]:
        """Offsets and contents of the expected columns of a file that are not in its `end`."""
        if (field_ids := self._columns.pop(path, None)) is None:
            return []
        ranges = column_ranges(end, size_bytes, field_ids)
        if len(ranges) < 2:  # the reader fetches a single range by one request itself
            return []
        parts = self.storage.get_ranges(path, ranges)
        return [(offset, part) for (offset, _), part in zip(ranges, parts, strict=True)]

    def opened(self, path: str) -> None:
        """Record that a file is read, so that the prefetch of other files can continue."""
        if (ahead := self._ahead.pop(path, None)) is not None:
            ahead.opened(path)

    def read_end(self, path: str, max_size_bytes: int) -> tuple[bytes, int]:
        """The last bytes of a file, and its size in the store. The size in a manifest may be wrong.

        Raises as `missed` does.
        """
        with self.reading(path):
            return self.storage.get_end(path, max_size_bytes)

    def local_path(self, path: str) -> str | None:
        """The local path of a file, without symbolic links; None if the root is not local.

        Raises `InvalidLocation` for a link that leaves the lakehouse.
        """
        if self._local_root is None or self._real_local_root is None:
            return None
        real_path = os.path.realpath(self._local_root + path)
        if not real_path.startswith(self._real_local_root):
            raise InvalidLocation(f"{self.uri_of(path)!r} is a symbolic link to a path outside of the lakehouse")
        return real_path

    def open_local(self, path: str) -> pa.NativeFile | None:
        """Open a local file that Arrow reads without Python; None if the root is not local.

        A path that is not a regular file counts as missing, because Arrow would wait forever for a pipe. Raises as
        `missed`.
        """
        if (real_path := self.local_path(path)) is None:
            return None
        if not os.path.isfile(real_path):
            self.missed(path)
        try:
            return pa.OSFile(real_path, "rb")
        except FileNotFoundError as error:
            self.missed(path, error)

    def put(self, path: str, data: bytes, overwrite: bool) -> None:
        """Write a complete file and record it. With `overwrite`, a file that this object wrote is replaced.

        Raises `FileExistsError` if another file exists.
        """
        self._make_room(path, overwrite)
        try:
            self.storage.put(path, data)
        except (ObjectAlreadyExists, FileExistsError) as error:
            raise self._exists(path) from error
        except Exception:
            self.remember(path)  # the file may exist in spite of the error
            raise
        self.remember(path)

    def begin(self, path: str, overwrite: bool) -> FileInParts | None:
        """Begin a multipart upload; None if the store writes whole files. The file is recorded when it is complete.

        Raises as `put` does.
        """
        self._make_room(path, overwrite)
        try:
            return self.storage.begin(path)
        except (ObjectAlreadyExists, FileExistsError) as error:
            raise self._exists(path) from error

    def _make_room(self, path: str, overwrite: bool) -> None:
        with self._lock:
            own = path in self._written
        if self.is_unneeded:
            raise TransactionClosed(
                f"{self.uri_of(path)} is not written: its transaction was rolled back; begin another one"
            )
        if own and overwrite:
            self.storage.delete(path)

    def _exists(self, path: str) -> FileExistsError:
        return FileExistsError(f"{self.uri_of(path)} exists, and files of a lakehouse are immutable")

    def remember(self, path: str) -> None:
        """Record a written file, or delete it if the operation was discarded."""
        with self._lock:
            self._written[path] = None
        if self._whole is not None:
            self._whole.remember(path)
        if self.is_unneeded:  # the operation was discarded during the write
            self.storage.delete_unneeded([path])
            self.forget(path)

    @property
    def is_unneeded(self) -> bool:
        """Whether this operation, or an enclosing operation, was discarded."""
        return self._is_discarded or (self._whole is not None and self._whole.is_unneeded)

    def forget(self, path: str) -> None:
        """Remove a deleted file from the record."""
        with self._lock:
            self._written.pop(path, None)
        if self._whole is not None:
            self._whole.forget(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """The bytes of a range; fewer if the file is shorter. Raises as `missed` does."""
        with self.reading(path):
            return self.storage.get_range(path, offset, length)

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """Context manager that raises as `missed` does after an error, if the file does not exist."""
        try:
            yield
        except (MissingFile, VersionExpired, TransactionExpired):
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) or not self.storage.exists(path):
                self.missed(path, error)
            raise

    def missed(self, path: str, error: Exception | None = None) -> NoReturn:
        """Raise the error for a file that does not exist.

        Raises:
            VersionExpired: the version that is read has expired.
            TransactionExpired: files of the open transaction may have been collected.
            FileNotFoundError: otherwise, because the file is lost.
        """
        if self.check_kept is not None:
            self.check_kept()
        raise MissingFile(self.uri_of(path), path) from error


class LakehouseInputFile(InputFile):
    def __init__(self, file_io: LakehouseFileIO, location: str, size_bytes: int | None = None) -> None:
        super().__init__(location)
        self._io = file_io
        self.path = file_io.path_of(location)
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        if self._size_bytes is None:
            with self._io.reading(self.path):
                self._size_bytes = self._io.storage.size(self.path)
        return self._size_bytes

    def exists(self) -> bool:
        return self._io.storage.exists(self.path)

    def open(self, seekable: bool = True) -> InputStream:
        """A seekable binary stream: Arrow's for a local file, in memory for a small file, otherwise by ranges.

        Raises as `LakehouseFileIO.missed` does.
        """
        if (local := self._io.open_local(self.path)) is not None:
            return local  # type: ignore[no-any-return]
        self._io.opened(self.path)
        if self.path.endswith(_READ_WHOLE):
            data = self._io.read(self.path)
            self._size_bytes = len(data)
            return pa.BufferReader(data)  # type: ignore[no-any-return]
        end, self._size_bytes = self._io.read_end(self.path, WHOLE_FILE_MAX_SIZE_BYTES)
        if len(end) == self._size_bytes:
            return pa.BufferReader(end)  # type: ignore[no-any-return]
        parts = self._io.read_columns(self.path, end, self._size_bytes)
        return RangeReader(self._io.read_range, self.path, self._size_bytes, end, parts)


class LakehouseOutputFile(OutputFile):
    """A file of the lakehouse to be written once."""

    def __init__(self, file_io: LakehouseFileIO, location: str) -> None:
        super().__init__(location)
        self._io = file_io
        self._path = file_io.path_of(location)
        self._size_bytes: int | None = None

    def __len__(self) -> int:
        if self._size_bytes is None:
            self._size_bytes = len(self.to_input_file())
        return self._size_bytes

    def exists(self) -> bool:
        return self._io.storage.exists(self._path)

    def to_input_file(self) -> LakehouseInputFile:
        return LakehouseInputFile(self._io, self.location, self._size_bytes)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Open a stream, and create the file when the stream is closed. PyIceberg always sets `overwrite`.

        Raises `FileExistsError` if the file exists: at once without `overwrite`, otherwise when the stream is closed,
        unless this file access wrote the file.
        """
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} exists, and files of a lakehouse are immutable")
        return FileWriter(self, overwrite)

    def put(self, data: bytes, overwrite: bool) -> None:
        self._io.put(self._path, data, overwrite)
        self._size_bytes = len(data)

    def begin(self, overwrite: bool) -> FileInParts | None:
        """Begin a multipart upload; None if the store writes whole files. Raises as `put` does."""
        return self._io.begin(self._path, overwrite)

    def finish(self, parts: FileInParts, size_bytes: int) -> None:
        parts.finish()
        self._io.remember(self._path)
        self._size_bytes = size_bytes


def _may_be_unqualified(path: str) -> bool:
    """Quick test whether a path may have an empty, `.` or `..` segment. A result of False is certain."""
    return "//" in path or "/." in path or "\0" in path or path.startswith((".", "/")) or path[-1:] in ("", "/")


@lru_cache(64)  # called for each transaction
def _roots(root: str, *others: str) -> tuple[tuple[str, ...], bool]:
    """The canonical URIs of all roots, longest first, and whether the present root `root` is the longest."""
    canonical = tuple(sorted({canonical_uri(one) for one in (root, *others)}, key=len, reverse=True))
    return canonical, canonical[0] == canonical_uri(root)


def canonical_uri(location: str) -> str:
    """The canonical URI of a location: `s3a://b/k` is `s3://b/k`; `/x`, `file:/x` and `file:///x` are `file:///x`."""
    if location.startswith("/") and not location.startswith("//"):
        return "file://" + location
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return location
    scheme = scheme.lower()
    if scheme == "file":
        if rest.startswith("//localhost/"):
            rest = rest[len("//localhost") :]
        elif rest.startswith("///"):
            rest = rest[2:]
        return "file://" + rest if rest.startswith("/") and not rest.startswith("//") else location
    return f"{_SAME_STORE.get(scheme, scheme)}:{rest}"
