"""The program of a process that reads what others have for a server (`reading_processes.py`).

A file is read by PyIceberg's own access to it, with the settings of whoever asks, and a table of another catalog is
loaded, as they would be in the server. Each in a thread of its own; nobody waits for the others.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from pyiceberg.catalog.rest.auth import AUTH_MANAGER
from pyiceberg.io import FileIO, InputFile

from trinitylake.errors import InvalidArgument, ObjectNotFound, PermissionDenied, StorageError
from trinitylake.iceberg_storage.extended_pyiceberg.table_metadata import indexed
from trinitylake.iceberg_storage.federated import open_federated
from trinitylake.rest.state.limited_memory import limit_memory

#: What is asked for at once, so that no more memory is taken than there are bytes.
_PIECE_SIZE_BYTES = 1 << 20
#: Kinds of errors that stay themselves on the way back, the first that fits; others are an `OSError`.
ERRORS: tuple[type[Exception], ...] = (
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


class Question(ABC):
    """What such a process is sent."""

    @abstractmethod
    def answer(self) -> bytes:
        """The answer. Raises what the access to others raises."""


@dataclass(frozen=True)
class AboutFile(Question):
    """A file of others.

    Attributes:
        io: how it is reached: the kind of the access and its settings.
        location: where it is.
    """

    io: tuple[type[FileIO], dict[str, Any]]
    location: str

    def file(self) -> InputFile:
        """The file, through access that is kept for others of the same store."""
        pickled = pickle.dumps(self.io)
        with _IOS_LOCK:
            if (io := _IOS.get(pickled)) is None:
                if len(_IOS) >= _MAX_IOS:
                    _IOS.clear()
                kind, settings = self.io
                io = _IOS[pickled] = kind(settings)
        return io.new_input(self.location)


@dataclass(frozen=True)
class Content(AboutFile):
    """No more than so many bytes of it."""

    max_size_bytes: int

    def answer(self) -> bytes:
        data = bytearray()
        with self.file().open(seekable=False) as stream:
            while piece := stream.read(min(_PIECE_SIZE_BYTES, self.max_size_bytes - len(data))):
                data += piece
        return bytes(data)


@dataclass(frozen=True)
class Size(AboutFile):
    """How many bytes it has, as text."""

    def answer(self) -> bytes:
        return str(len(self.file())).encode()


@dataclass(frozen=True)
class Exists(AboutFile):
    """Whether it is there: something, or nothing."""

    def answer(self) -> bytes:
        return b"1" if self.file().exists() else b""


@dataclass(frozen=True)
class FederatedTable(Question):
    """A table of another catalog, as JSON: where its metadata is, the settings of its files, and in a line of its own
    the metadata.

    Attributes:
        stored: what its definition says (`iceberg_storage/federated.py`).
    """

    stored: dict[str, str]

    def answer(self) -> bytes:
        table = open_federated(self.stored)
        head = {"location": table.metadata_location, "settings": settings_of(table.io)}
        return json.dumps(head).encode() + b"\n" + indexed(table.metadata).model_dump_json().encode()


_IOS: dict[bytes, FileIO] = {}
_IOS_LOCK = threading.Lock()
#: Whoever hands out credentials hands out new ones again and again.
_MAX_IOS = 8


def settings_of(io: FileIO) -> dict[str, Any]:
    """The settings of file access, without what cannot leave a process."""
    settings = {name: value for name, value in io.properties.items() if isinstance(value, str | int | float | dict)}
    manager = io.properties.get(AUTH_MANAGER)
    if manager is not None and "s3.signer" in settings:  # who signs requests gets what it would be asked for
        header = manager.auth_header()
        if header and header.startswith("Bearer "):
            settings["token"] = header.removeprefix("Bearer ")
    return settings


class Answering:
    """Answers questions, each in a thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def answer_all(self) -> None:
        """Answer until the other end is closed. Raises `EOFError` then."""
        while True:
            asked = pickle.loads(self._connection.recv_bytes())
            threading.Thread(target=self._answer, args=asked, daemon=True).start()

    def _answer(self, id: int, question: Question) -> None:
        head: dict[str, object] = {"id": id}
        data = b""
        try:
            data = question.answer()
        except MemoryError:
            head |= {"error": "OSError", "message": "it takes more memory than there is for what others have"}
        except Exception as error:
            kind = next((one for one in ERRORS if isinstance(error, one)), OSError)
            head |= {"error": kind.__name__, "message": str(error)}
        with self._lock:
            self._connection.send_bytes(json.dumps(head).encode() + b"\n" + data)


def main(descriptor: int, memory_size_bytes: int) -> None:
    """Answer until the server closes the connection, or is gone.

    Args:
        descriptor: of the connection.
        memory_size_bytes: that it may take.
    """
    import pyiceberg.io.pyarrow  # noqa: F401 (so that no file waits for it, and the limit does not count it)

    connection = Connection(descriptor)
    limit_memory(memory_size_bytes)
    try:
        Answering(connection).answer_all()
    except (EOFError, OSError):
        os._exit(0)  # without waiting for threads whose store drips
