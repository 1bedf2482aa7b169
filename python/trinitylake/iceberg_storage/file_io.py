"""PyIceberg's file access (`FileIO`), implemented on the storage of the lakehouse.

Iceberg's metadata holds absolute URIs; the storage of a lakehouse knows paths below its root. `LakehouseFileIO`
translates, and refuses what lies outside: a table of the lakehouse can neither read nor write beyond the root, whatever
its properties or manifests say. Tables elsewhere (`external.py`) use PyIceberg's own file access.

Files are immutable: one is written when its stream is closed (`file_writer.py`), and only if nothing is there yet.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from trinitylake import _core
from trinitylake.errors import (
    InvalidLocation,
    ObjectAlreadyExists,
    TransactionClosed,
    TransactionExpired,
    TrinityLakeError,
    VersionExpired,
)
from trinitylake.iceberg_storage.column_ranges import column_ranges
from trinitylake.iceberg_storage.file_writer import FileWriter
from trinitylake.iceberg_storage.range_reader import RangeReader
from trinitylake.iceberg_storage.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from trinitylake._core import FileInParts

#: Files up to this size are fetched by one request; of larger ones it fetches the end, where the footer is.
WHOLE_FILE_MAX_SIZE_BYTES = 1 << 20
#: Larger manifests are not fetched ahead, since they would not be kept.
METADATA_AHEAD_MAX_SIZE_BYTES = 4 << 20

#: Spellings of one and the same store: those of the core, by which a collection of garbage goes.
_SAME_STORE = _core.scheme_spellings()
#: Folders of a local disk that are known to lie where they do.
_MAX_KNOWN_FOLDERS = 1000
#: Always read from start to end, whatever their size.
_READ_WHOLE = (".avro", ".json", ".puffin", ".stats")


class Storage(Protocol):
    """What is used of `trinitylake._core.Storage`. Paths are relative to `root`, which ends in "/"."""

    @property
    def root(self) -> str: ...
    @property
    def other_roots(self) -> Sequence[str]: ...
    def get(self, path: str) -> bytes: ...
    def get_range(self, path: str, offset: int, length: int) -> bytes: ...
    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...
    def get_end(self, path: str, max_size_bytes: int) -> tuple[bytes, int]: ...
    def read_ahead(self, paths: Sequence[str], max_size_bytes: int) -> None: ...
    def size(self, path: str) -> int: ...
    def list(self, prefix: str) -> list[tuple[str, int, int]]: ...
    def exists(self, path: str) -> bool: ...
    def put(self, path: str, data: bytes) -> None: ...
    def begin(self, path: str) -> FileInParts | None: ...
    def delete(self, path: str) -> None: ...
    def check_retained(self, version: int) -> None: ...


class MissingFile(FileNotFoundError):
    """A file of the lakehouse that is not there.

    Attributes:
        path: of the file, relative to the root.
    """

    def __init__(self, uri: str, path: str) -> None:
        super().__init__(f"{uri} does not exist")
        self.path = path


class LakehouseFileIO(FileIO):
    """File access below the root of one lakehouse.

    Args:
        storage: the storage of the lakehouse.
        properties: kept for PyIceberg, which reads some of its own settings from them. Never credentials.
        check_kept: asked when a file is missing: raises `VersionExpired` if the version that is read here is not kept
            any more, and `TransactionExpired` for files of a transaction. Else the file is lost.
        whole: the access of the work that this one is a part of; it learns of every file that is written here.
    """

    def __init__(
        self,
        storage: Storage,
        properties: Mapping[str, str] | None = None,
        *,
        check_kept: Callable[[], None] | None = None,
        whole: LakehouseFileIO | None = None,
    ) -> None:
        super().__init__(dict(properties or {}))
        self.storage = storage
        self.check_kept = check_kept
        self.root = storage.root
        #: Where files of the lakehouse are named, the longest first: of two roots, one may lie in the other.
        self._canonical_roots, self._is_longest_root = _roots(self.root, *storage.other_roots)
        self._local_root = self.root[len("file://") :] if self.root.startswith("file:///") else None
        #: Whether a request takes long, so that it pays to send many at once.
        self.is_remote = not self.root.startswith(("file:", "memory:"))
        self._begin(whole)

    @cached_property
    def _real_local_root(self) -> str | None:
        """Where the root really lies, with links followed. Who reads no file does not ask."""
        return os.path.realpath(self._local_root) + "/" if self._local_root else None

    def _begin(self, whole: LakehouseFileIO | None) -> None:
        """What each access has for itself."""
        self._ahead: dict[str, ReadAhead] = {}
        self._columns: dict[str, Container[int]] = {}
        self._real_folders: dict[str, str] = {}
        self._written: dict[str, None] = {}
        self._incoming: dict[str, None] = {}
        self._whole = whole
        self._is_discarded = False
        self._lock = threading.Lock()

    def _again(self, whole: LakehouseFileIO | None) -> Self:
        """The same access, as narrow. A transaction has many, so what is known of the root is not worked out again."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.properties = dict(self.properties)
        other._begin(whole)
        return other

    def __reduce__(self) -> tuple[Callable[..., LakehouseFileIO], tuple[Any, ...]]:
        """The same access elsewhere, with a record of written files of its own."""
        return _arrived, (self.storage, dict(self.properties), self.check_kept)

    def scoped(self) -> LakehouseFileIO:
        """The same access with a record of written files of its own."""
        return self._again(None)

    def part(self) -> LakehouseFileIO:
        """The same access for a part of the work: what it writes is in its own record and in this one."""
        return self._again(self)

    def of_lakehouse(self) -> LakehouseFileIO:
        """The access to all files of the lakehouse, which a narrower one is a part of."""
        return self

    def discard(self) -> None:
        """Delete what was written, as far as possible, and refuse to write from now on.

        PyIceberg writes with many threads. Those that are still at it when one of them has failed delete what they
        wrote themselves.
        """
        with self._lock:
            self._is_discarded = True
            paths = list(self._written)
        for path in paths:
            self._delete_unneeded(path)

    @property
    def written_paths(self) -> list[str]:
        """The files that were written through this object and not deleted again, in order."""
        with self._lock:
            return list(self._written)

    def remember_written(self, paths: Iterable[str]) -> None:
        """Take over the record of files that another process wrote for the same transaction."""
        with self._lock:
            self._written.update(dict.fromkeys(paths))

    def add_incoming(self, path: str) -> None:
        """Record a data file that a commit names, and that may not have been written for it."""
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
        """The path below the root of an absolute URI; the inverse of `uri_of`.

        `file:/x` equals `file:///x`, `s3a://` equals `s3://`. A URI is read literally, like an object key. One below
        a root that the lakehouse had before it was moved means the file below the present root (format §2), and a
        local one that leads below the root through a symbolic link means that file.

        Raises:
            InvalidLocation: outside of the root, or with an empty, `.` or `..` segment (format §2).
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
        """Make a folder and those above it if the root is on a local disk, where some engines expect them.

        A folder that a symbolic link leads out of the root is left alone. Raises `InvalidLocation` as `path_of` does.
        """
        if self._local_root is None or self._real_local_root is None:
            return
        path = os.path.realpath(self._local_root + self.path_of(location))
        if path.startswith(self._real_local_root):
            os.makedirs(path, exist_ok=True)

    def _path_behind_links(self, canonical: str) -> str | None:
        """The path below a local root that a file URI means whose folders are spelled through links."""
        if self._real_local_root is None or not canonical.startswith("file:///"):
            return None
        literal = canonical[len("file://") :]
        if any(segment in ("", ".", "..") for segment in literal[1:].split("/")) or "\0" in literal:
            return None
        real = os.path.realpath(literal)
        return real[len(self._real_local_root) :] if real.startswith(self._real_local_root) else None

    def uri_of(self, path: str) -> str:
        """The absolute URI of a path below the root."""
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
        """A whole file by its path. Raises as `missed` does."""
        try:
            return self.storage.get(path)
        except Exception as error:
            self.raise_if_missing(path, error)
            raise

    def read_ahead(self, files: Iterable[tuple[str, int]]) -> None:
        """Begin to fetch files of a remote store that are about to be read in this order.

        Args:
            files: the URI of each, and how large it is said to be. Who reads one of them gets the error of fetching it.
        """
        wanted = []
        for location, size_bytes in files:
            whole = METADATA_AHEAD_MAX_SIZE_BYTES if location.endswith(".avro") else WHOLE_FILE_MAX_SIZE_BYTES
            with suppress(InvalidLocation):
                if size_bytes <= whole:
                    wanted.append((self.path_of(location), size_bytes))
        if self.is_remote and len(wanted) > 1:
            ahead = ReadAhead(lambda paths: self.storage.read_ahead(paths, METADATA_AHEAD_MAX_SIZE_BYTES), wanted)
            self._ahead.update(dict.fromkeys((path for path, _ in wanted), ahead))
            ahead.go_on()

    def begin_to_fetch(self, path: str) -> None:
        """Begin to fetch one small file of a remote store, while another is read that leads to it."""
        if path and self.is_remote:
            self.storage.read_ahead([path], METADATA_AHEAD_MAX_SIZE_BYTES)

    def expect_columns(self, locations: Iterable[str], field_ids: Container[int]) -> None:
        """Have large Parquet files fetch these columns whole and at once when they are opened next."""
        for location in locations:
            with suppress(InvalidLocation):
                self._columns[self.path_of(location)] = field_ids

    def read_columns(self, path: str, end: bytes, size_bytes: int) -> list[tuple[int, bytes]]:
        """Offset and content of what was expected of a file, as far as it is not in its `end`."""
        if (field_ids := self._columns.pop(path, None)) is None:
            return []
        ranges = column_ranges(end, size_bytes, field_ids)
        if len(ranges) < 2:  # one is fetched as soon when it is asked for
            return []
        parts = self.storage.get_ranges(path, ranges)
        return [(offset, part) for (offset, _), part in zip(ranges, parts, strict=True)]

    def opened(self, path: str) -> None:
        """A file is read now, perhaps one that was fetched ahead."""
        if (ahead := self._ahead.pop(path, None)) is not None:
            ahead.opened(path)

    def read_end(self, path: str, max_size_bytes: int) -> tuple[bytes, int]:
        """The last bytes of a file, all of it if it has no more, and its size. Raises as `missed` does.

        The size is what the store says it is now, not what a manifest says: a wrong number there cuts nothing off.
        """
        try:
            return self.storage.get_end(path, max_size_bytes)
        except Exception as error:
            self.raise_if_missing(path, error)
            raise

    def local_path(self, path: str) -> str | None:
        """Where a file lies on this machine, links followed; None if the root is not local.

        Raises `InvalidLocation` for a link that leaves the lakehouse.
        """
        if self._local_root is None or self._real_local_root is None:
            return None
        real_path = self._followed(self._local_root + path)
        if not real_path.startswith(self._real_local_root):
            raise InvalidLocation(f"{self.uri_of(path)!r} is a link that leaves the lakehouse")
        return real_path

    def _followed(self, local_path: str) -> str:
        """An absolute path without links.

        Where a folder is, is asked once, as in the core: to follow every folder of a path takes as long as to read a
        small file.
        """
        folder, _, name = local_path.rpartition("/")
        real_folder = self._real_folders.get(folder)
        if real_folder is None:
            try:
                real_folder = os.path.realpath(folder, strict=True)
            except OSError:  # it may become a link yet
                return os.path.realpath(local_path)
            if len(self._real_folders) >= _MAX_KNOWN_FOLDERS:
                self._real_folders.clear()
            self._real_folders[folder] = real_folder
        real_path = f"{real_folder}/{name}"
        return os.path.realpath(real_path) if os.path.islink(real_path) else real_path

    def open_local(self, path: str) -> pa.NativeFile | None:
        """A local file, read by Arrow itself without Python in between; None if the root is not local.

        As in the core, what is no file is not there: Arrow would wait for a pipe for ever. Raises as `missed` does.
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
        """Write a whole file and remember it. `overwrite` replaces only what this object wrote itself.

        Raises:
            FileExistsError: if another file is there.
        """
        self._make_room(path, overwrite)
        try:
            self.storage.put(path, data)
        except (ObjectAlreadyExists, FileExistsError) as error:
            raise self._exists(path) from error
        except Exception:
            self.remember(path)  # it may have been written all the same
            raise
        self.remember(path)

    def begin(self, path: str, overwrite: bool) -> FileInParts | None:
        """Begin a file that comes part by part, to be remembered at its end; None where files are written whole.

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
        """Take a file that was written into the record, or delete it if nobody needs it any more."""
        with self._lock:
            self._written[path] = None
        if self._whole is not None:
            self._whole.remember(path)
        if self.is_unneeded:  # since after the write began
            self._delete_unneeded(path)

    @property
    def is_unneeded(self) -> bool:
        """Whether this work, or the whole that it is a part of, was given up."""
        return self._is_discarded or (self._whole is not None and self._whole.is_unneeded)

    def forget(self, path: str) -> None:
        """Take a file that was deleted out of the record."""
        with self._lock:
            self._written.pop(path, None)
        if self._whole is not None:
            self._whole.forget(path)

    def _delete_unneeded(self, path: str) -> None:
        with suppress(TrinityLakeError):  # what is left is for vacuum
            self.storage.delete(path)
        self.forget(path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """The bytes of a range, fewer if the file ends before. Raises as `missed` does."""
        try:
            return self.storage.get_range(path, offset, length)
        except Exception as error:
            self.raise_if_missing(path, error)
            raise

    def raise_if_missing(self, path: str, error: Exception) -> None:
        """Raises as `missed` does if that is why `error` was raised: there is no file of that path."""
        if isinstance(error, (MissingFile, VersionExpired, TransactionExpired)):
            return
        if isinstance(error, FileNotFoundError) or not self.storage.exists(path):
            self.missed(path, error)

    def missed(self, path: str, error: Exception | None = None) -> NoReturn:
        """A file is not there which was to be read.

        Raises:
            VersionExpired: the version that is read here is not kept any more.
            TransactionExpired: files of the transaction that is open here may have been collected.
            FileNotFoundError: it is kept, so the file is lost.
        """
        if self.check_kept is not None:
            self.check_kept()
        raise MissingFile(self.uri_of(path), path) from error


def _arrived(storage: Storage, properties: Mapping[str, str], check_kept: Callable[[], None] | None) -> LakehouseFileIO:
    return LakehouseFileIO(storage, properties, check_kept=check_kept)


class LakehouseInputFile(InputFile):
    """A file of the lakehouse, to be read."""

    def __init__(self, file_io: LakehouseFileIO, location: str, size_bytes: int | None = None) -> None:
        super().__init__(location)
        self._io = file_io
        self._path = file_io.path_of(location)
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        if self._size_bytes is None:
            try:
                self._size_bytes = self._io.storage.size(self._path)
            except Exception as error:
                self._io.raise_if_missing(self._path, error)
                raise
        return self._size_bytes

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._io.storage.exists(self._path)

    def open(self, seekable: bool = True) -> InputStream:
        """A seekable binary stream: Arrow's own for local files, from memory for small ones, else by ranges.

        Raises as `LakehouseFileIO.missed` does.
        """
        if (local := self._io.open_local(self._path)) is not None:
            return local  # type: ignore[no-any-return]
        self._io.opened(self._path)
        if self._path.endswith(_READ_WHOLE):
            data = self._io.read(self._path)
            self._size_bytes = len(data)
            return pa.BufferReader(data)  # type: ignore[no-any-return]
        end, self._size_bytes = self._io.read_end(self._path, WHOLE_FILE_MAX_SIZE_BYTES)
        if len(end) == self._size_bytes:
            return pa.BufferReader(end)  # type: ignore[no-any-return]
        parts = self._io.read_columns(self._path, end, self._size_bytes)
        return RangeReader(self._io, self._path, self._size_bytes, end, parts)


class LakehouseOutputFile(OutputFile):
    """A file of the lakehouse, to be written once."""

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
        """Whether the file is there."""
        return self._io.storage.exists(self._path)

    def to_input_file(self) -> LakehouseInputFile:
        """The same file, to be read."""
        return LakehouseInputFile(self._io, self.location, self._size_bytes)

    def create(self, overwrite: bool = False) -> OutputStream:
        """A stream that becomes the file when it is closed. PyIceberg always asks to overwrite: see `put`.

        Raises:
            FileExistsError: at once if something is there and `overwrite` is False, else when the stream is closed.
        """
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location} exists, and files of a lakehouse are immutable")
        return FileWriter(self, overwrite)

    def put(self, data: bytes, overwrite: bool) -> None:
        """Write the whole file at once."""
        self._io.put(self._path, data, overwrite)
        self._size_bytes = len(data)

    def begin(self, overwrite: bool) -> FileInParts | None:
        """Begin to write it part by part; None where files are written whole. Raises as `put` does."""
        return self._io.begin(self._path, overwrite)

    def finish(self, parts: FileInParts, size_bytes: int) -> None:
        """All parts are there."""
        parts.finish()
        self._io.remember(self._path)
        self._size_bytes = size_bytes


def _may_be_unqualified(path: str) -> bool:
    """Whether it is worth a look at each segment of a path. Every file of an append is asked about four times."""
    return "//" in path or "/." in path or "\0" in path or path.startswith((".", "/")) or path[-1:] in ("", "/")


@lru_cache(64)  # each transaction asks
def _roots(root: str, *others: str) -> tuple[tuple[str, ...], bool]:
    """The canonical spellings of a root and of others, the longest first, and whether that root is the first."""
    canonical = tuple(sorted({canonical_uri(one) for one in (root, *others)}, key=len, reverse=True))
    return canonical, canonical[0] == canonical_uri(root)


def canonical_uri(location: str) -> str:
    """One spelling for equal locations: `s3a://b/k` is `s3://b/k`; `/x`, `file:/x` and `file:///x` are `file:///x`."""
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
