"""Files and catalogs outside of the lakehouse, read in worker processes with a deadline.

Their stores may answer slowly or never. PyIceberg's access to them cannot be interrupted, but a worker can be killed.
"""

from __future__ import annotations

import os
import pickle
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pyiceberg.catalog.rest.auth import AUTH_MANAGER
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, load_file_io
from pyiceberg.table import Table

from trinitylake.definitions import TableDef
from trinitylake.errors import InvalidArgument, ObjectNotFound, PermissionDenied, StorageError
from trinitylake.iceberg_storage.extended_pyiceberg.scan import ReadOnlyCatalog
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed
from trinitylake.iceberg_storage.federated_tables import open_federated
from trinitylake.iceberg_storage.manifests.avro_file import SizeBudget
from trinitylake.iceberg_storage.metadata import parsed
from trinitylake.rest import metadata_limits, outbound
from trinitylake.rest.outbound import CallAtWork
from trinitylake.rest.workers.pool import WorkerDied, WorkerPool
from trinitylake.rest.workers.worker import Job

#: Added to the deadline of a call, so that the caller gets its response before its job is killed.
_GRACE_SECONDS = 1.0
#: Number of bytes that are read at once. A read of the maximum size would allocate it even for a small file.
_PIECE_SIZE_BYTES = 1 << 20
#: Classes of errors that a job may raise. An error becomes the first class that it is an instance of, or `OSError`.
_ERRORS: tuple[type[Exception], ...] = (
    ObjectNotFound,
    InvalidArgument,
    PermissionDenied,
    StorageError,
    FileNotFoundError,
    PermissionError,
    OSError,
    ImportError,
    ValueError,
)


class ForeignJob(Job):
    """A job that waits for a store or catalog outside of the lakehouse."""

    kind: ClassVar[str] = "foreign"

    def run(self, report: Callable[[str], None]) -> Any:
        """Raises one of `_ERRORS`."""
        try:
            return self.read()
        except MemoryError:
            raise OSError("a file outside of the lakehouse exceeds the memory limit of its worker process") from None
        except Exception as error:
            kind = next((one for one in _ERRORS if isinstance(error, one)), OSError)
            raise kind(str(error)) from error

    @abstractmethod
    def read(self) -> Any:
        """The result. Raises the errors of the libraries."""


@dataclass(frozen=True)
class FileJob(ForeignJob):
    """Reads a file, its size, or whether it exists.

    Attributes:
        io: class and properties of the file access.
        location: URI of the file.
        operation: what to read.
        max_size_bytes: maximum number of bytes of the content that are read.
    """

    io: tuple[type[FileIO], dict[str, Any]]
    location: str
    operation: Literal["content", "size", "exists"]
    max_size_bytes: int = 0

    def read(self) -> bytes | int | bool:
        """The content, the size in bytes, or whether the file exists."""
        file = _file_io(pickle.dumps(self.io)).new_input(self.location)
        if self.operation == "size":
            return len(file)
        if self.operation == "exists":
            return file.exists()
        data = bytearray()
        with file.open(seekable=False) as stream:
            while piece := stream.read(min(_PIECE_SIZE_BYTES, self.max_size_bytes - len(data))):
                data += piece
        return bytes(data)


@dataclass(frozen=True)
class FederatedTableJob(ForeignJob):
    """Loads a table of another catalog.

    Attributes:
        stored: properties of the table definition that describe the catalog (`iceberg_storage/federated_tables.py`).
    """

    stored: dict[str, str]

    def read(self) -> tuple[str, dict[str, Any], bytes]:
        """Location of the metadata, properties of the file access, and the metadata as JSON."""
        table = open_federated(self.stored)
        return table.metadata_location, _properties_of(table.io), indexed(table.metadata).model_dump_json().encode()


@lru_cache(maxsize=8)
def _file_io(pickled: bytes) -> FileIO:
    kind, properties = pickle.loads(pickled)
    io: FileIO = kind(properties)
    return io


class ForeignFileIO(FileIO):
    """Access to files outside of the lakehouse, within a memory budget and the deadline of an outbound call.

    Args:
        io: the access that worker processes use; for files of a local disk, this process uses it.
        workers: worker processes of the server.
        budget: shared by all files; None for a separate budget of each file.
    """

    def __init__(self, io: FileIO, workers: WorkerPool, budget: SizeBudget | None = None) -> None:
        super().__init__(io.properties)
        self._io = io
        self._workers = workers
        self.budget = budget
        # Stored now, because the threads that read manifests later have no context of the call.
        self._call = outbound.call_at_work()

    def within(self, budget: SizeBudget) -> ForeignFileIO:
        """The same access within a budget."""
        return ForeignFileIO(self._io, self._workers, budget)

    def new_input(self, location: str) -> InputFile:
        return _ForeignFile(self, location)

    def new_output(self, location: str) -> OutputFile:
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._io.delete(location)

    def read(self, location: str, operation: Literal["content", "size", "exists"], max_size_bytes: int = 0) -> Any:
        """The result of a `FileJob`. Raises as `run_job`."""
        job = FileJob((type(self._io), _properties_of(self._io)), location, operation, max_size_bytes)
        if urlsplit(location).scheme in ("", "file"):
            return job.read()
        return run_job(self._workers, job, self._call, urlsplit(location).netloc)


class _ForeignFile(InputFile):
    def __init__(self, io: ForeignFileIO, location: str) -> None:
        super().__init__(location)
        self._io = io

    def __len__(self) -> int:
        return int(self._io.read(self.location, "size"))

    def exists(self) -> bool:
        return bool(self._io.read(self.location, "exists"))

    def open(self, seekable: bool = True) -> InputStream:
        """Raises `SizeLimitExceeded`."""
        # Does not ask for the size, which an untrusted store may report wrongly.
        content = self._io.read(self.location, "content", metadata_limits.MAX_STORED_SIZE_BYTES + 1)
        return metadata_limits.spent(content, self.location, self._io.budget)


def run_job(workers: WorkerPool, job: ForeignJob, call: CallAtWork | None, peer: str = "a catalog") -> Any:
    """Run a job until the deadline of `call`, or of a new call to `peer` if `call` is None. Returns the job's result.

    Windows has no worker processes, and runs the job in this process. Raises `TimeoutError` at the deadline, and one of
    `_ERRORS`.
    """
    if os.name != "posix":
        return job.run(lambda progress: None)
    call = call or CallAtWork(peer, time.monotonic() + outbound.CALL_SECONDS)
    seconds = max(call.deadline + _GRACE_SECONDS - time.monotonic(), 0.0)
    try:
        return workers.run(job, call.peer, seconds=seconds, wait_seconds=seconds)
    except WorkerDied as error:
        raise OSError(
            f"{call.peer}: a file outside of the lakehouse exceeds the memory limit of its worker process"
        ) from error


def load_federated_table(definition: TableDef, workers: WorkerPool) -> Table:
    """A table of another catalog, for reading. Raises as `open_federated` and `run_job` do, and `SizeLimitExceeded`."""
    job = FederatedTableJob(dict(definition.format_properties))
    location, properties, metadata = run_job(workers, job, outbound.call_at_work())
    metadata_limits.check_metadata(metadata, location)
    found = parsed(metadata)
    io = ForeignFileIO(load_file_io(properties, found.location), workers)
    return Table(
        ("federated",), found, location, io, ReadOnlyCatalog("the table is federated: write to it with its own catalog")
    )


def _properties_of(io: FileIO) -> dict[str, Any]:
    """The properties of file access that can be sent to a worker."""
    properties = {name: value for name, value in io.properties.items() if isinstance(value, str | int | float | dict)}
    manager = io.properties.get(AUTH_MANAGER)
    # A worker cannot use the authentication manager, so the request signer gets its token.
    if manager is not None and "s3.signer" in properties:
        header = manager.auth_header()
        if header and header.startswith("Bearer "):
            properties["token"] = header.removeprefix("Bearer ")
    return properties
