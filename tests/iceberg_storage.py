"""A trivially simple stand-in for `trinitylake._core.Storage`, over a local folder or a dictionary."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from trinitylake.errors import ObjectAlreadyExists, StorageError


class FolderStorage:
    """Files in a local folder. Counts what is asked of it, by verb."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: dict[str, int] = {}

    @property
    def root(self) -> str:
        return f"file://{self.folder}/"

    def get(self, path: str) -> bytes:
        self._count("get")
        try:
            return (self.folder / path).read_bytes()
        except FileNotFoundError as error:
            raise StorageError(f"{path}: no such file") from error

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        self._count("get_range")
        return self.get(path)[offset : offset + length]

    def size(self, path: str) -> int:
        self._count("size")
        try:
            return (self.folder / path).stat().st_size
        except FileNotFoundError as error:
            raise StorageError(f"{path}: no such file") from error

    def exists(self, path: str) -> bool:
        self._count("exists")
        return (self.folder / path).exists()

    def put(self, path: str, data: bytes) -> None:
        self._count("put")
        file = self.folder / path
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError as error:
            raise ObjectAlreadyExists(f"{path} exists") from error
        try:
            os.write(handle, data)
        finally:
            os.close(handle)

    def put_many(self, files: Sequence[tuple[str, bytes]]) -> None:
        for path, data in files:
            self.put(path, data)

    def list(self, prefix: str) -> list[tuple[str, int, int]]:
        found = [file for file in self.folder.rglob("*") if file.is_file()]
        rows = [(str(file.relative_to(self.folder)), file.stat()) for file in found]
        return sorted((path, s.st_size, s.st_mtime_ns // 1_000_000) for path, s in rows if path.startswith(prefix))

    def delete(self, path: str) -> None:
        self._count("delete")
        (self.folder / path).unlink(missing_ok=True)

    def _count(self, verb: str) -> None:
        self.requests[verb] = self.requests.get(verb, 0) + 1


class MemoryStorage:
    """Files in a dictionary, as a remote store shows them: no local path, only whole files and ranges."""

    def __init__(self, root: str = "s3://bucket/lake/") -> None:
        self.root = root
        self.files: dict[str, bytes] = {}
        self.requests: dict[str, int] = {}
        self._lock = threading.Lock()

    def get(self, path: str) -> bytes:
        self._count("get")
        if path not in self.files:
            raise StorageError(f"{path}: no such file")
        return self.files[path]

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        self._count("get_range")
        if path not in self.files:
            raise StorageError(f"{path}: no such file")
        return self.files[path][offset : offset + length]

    def size(self, path: str) -> int:
        self._count("size")
        if path not in self.files:
            raise StorageError(f"{path}: no such file")
        return len(self.files[path])

    def exists(self, path: str) -> bool:
        self._count("exists")
        return path in self.files

    def put(self, path: str, data: bytes) -> None:
        self._count("put")
        with self._lock:
            if path in self.files:
                raise ObjectAlreadyExists(f"{path} exists")
            self.files[path] = bytes(data)

    def put_many(self, files: Sequence[tuple[str, bytes]]) -> None:
        for path, data in files:
            self.put(path, data)

    def list(self, prefix: str) -> list[tuple[str, int, int]]:
        return sorted((path, len(data), 0) for path, data in self.files.items() if path.startswith(prefix))

    def delete(self, path: str) -> None:
        self._count("delete")
        self.files.pop(path, None)

    def _count(self, verb: str) -> None:
        with self._lock:
            self.requests[verb] = self.requests.get(verb, 0) + 1
