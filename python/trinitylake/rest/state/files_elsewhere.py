"""Access to files of others that ends by a deadline, whatever their store does (`reading_processes.py`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, load_file_io
from pyiceberg.table import Table

from trinitylake.definitions import TableDef
from trinitylake.iceberg_storage.external import ExternalCatalog
from trinitylake.iceberg_storage.federated import is_asked_over_http
from trinitylake.iceberg_storage.metadata import parsed
from trinitylake.rest import bounded_files, outbound
from trinitylake.rest.outbound import CallAtWork
from trinitylake.rest.state.reading_processes import ReadingProcesses
from trinitylake.rest.state.reading_program import (
    AboutFile,
    Content,
    Exists,
    FederatedTable,
    Question,
    Size,
    settings_of,
)

#: Whoever waits for a call has been told by then that nobody answers.
_GRACE_SECONDS = 1.0


class FileIOElsewhere(FileIO):
    """The same files, read by the deadline of the call to others in which this was made.

    Those of a local disk are read here, and so are all where a process cannot inherit a connection (Windows).

    Args:
        io: how they are reached.
        processes: that read.
    """

    def __init__(self, io: FileIO, processes: ReadingProcesses) -> None:
        super().__init__(io.properties)
        self.io = io
        self._processes = processes
        # Not asked for when a file is read: manifests of a plan are read by threads that know of no call.
        self._call = outbound.call_at_work()

    def new_input(self, location: str) -> InputFile:
        if os.name != "posix" or urlsplit(location).scheme in ("", "file"):
            return self.io.new_input(location)
        return _FileElsewhere(self, location)

    def new_output(self, location: str) -> OutputFile:
        return self.io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.io.delete(location)

    def asked(self, location: str, kind: type[AboutFile], *arguments: int) -> bytes:
        """The answer to a question about a file (`reading_program.py`). Raises as `ReadingProcesses.ask` does."""
        question = kind((type(self.io), settings_of(self.io)), location, *arguments)
        return asked(self._processes, question, self._call, urlsplit(location).netloc)


class _FileElsewhere(InputFile):
    def __init__(self, io: FileIOElsewhere, location: str) -> None:
        super().__init__(location)
        self._io = io

    def __len__(self) -> int:
        return int(self._io.asked(self.location, Size))

    def exists(self) -> bool:
        return bool(self._io.asked(self.location, Exists))

    def open(self, seekable: bool = True) -> InputStream:
        """The content, at most one byte more than what is read of any file (`bounded_files.py`)."""
        most = bounded_files.MAX_STORED_SIZE_BYTES + 1
        return pa.BufferReader(self._io.asked(self.location, Content, most))  # type: ignore[no-any-return]


def asked(processes: ReadingProcesses, question: Question, call: CallAtWork | None, peer: str = "others") -> bytes:
    """The answer to a question by the deadline of a call to others, or of one that begins now."""
    call = call or CallAtWork(peer, time.monotonic() + outbound.CALL_SECONDS)
    return processes.ask(call.peer, question, call.deadline + _GRACE_SECONDS)


def federated_table(
    definition: TableDef, processes: ReadingProcesses, guarded: Callable[[FileIO], FileIO]
) -> Table | None:
    """The table of another catalog, to be read, by the deadline of the call in which this is called. None for one whose
    catalog has a deadline of its own, as those that are asked over HTTP have, and where there are no such processes.

    Raises as `open_federated` and `ReadingProcesses.ask` do, and `TooHeavy`.
    """
    if os.name != "posix" or is_asked_over_http(definition):
        return None
    question = FederatedTable(dict(definition.format_properties))
    head, _, metadata = asked(processes, question, outbound.call_at_work()).partition(b"\n")
    told = json.loads(head)
    bounded_files.check_metadata(metadata, told["location"])
    found = parsed(metadata)
    io = guarded(load_file_io(told["settings"], found.location))
    return Table(("federated",), found, told["location"], io, ExternalCatalog("federated"))
