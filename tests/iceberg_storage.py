"""Storages for tests of the Iceberg layer: on disk, in memory, and a simulated remote store."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from trinitylake import _core
from trinitylake.errors import ObjectAlreadyExists, StorageError

STORES = ("disk", "memory", "remote")


def make_store(kind: str, folder: Path) -> Store:
    """An empty storage of one of the `STORES`."""
    if kind not in STORES:
        raise ValueError(f"{kind} is none of {STORES}")  # otherwise a test could use another store
    if kind == "disk":
        return _core.Storage(str(folder), durability="none")
    return _core.Storage(f"memory://{uuid.uuid4()}") if kind == "memory" else RemoteStorage()


class RemoteStorage:
    """A remote store as a dictionary of files, which reads whole files and ranges. Counts requests by verb."""

    def __init__(self, root: str = "s3://bucket/lake/") -> None:
        self.root = root
        self.other_roots: list[str] = []
        self.collected_before_millis = 0
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

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(path, offset, length) for offset, length in ranges]

    def get_end(self, path: str, max_size_bytes: int) -> tuple[bytes, int]:
        self._count("get_end")
        if path not in self.files:
            raise StorageError(f"{path}: no such file")
        data = self.files[path]
        return data[max(len(data) - max_size_bytes, 0) :], len(data)

    def read_ahead(self, paths: Sequence[str], max_size_bytes: int) -> None:
        self._count("read_ahead")

    def size(self, path: str) -> int:
        self._count("size")
        if path not in self.files:
            raise StorageError(f"{path}: no such file")
        return len(self.files[path])

    def exists(self, path: str) -> bool:
        self._count("exists")
        return path in self.files

    def begin(self, path: str) -> None:
        """Files are put whole."""

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

    def check_retained(self, version: int) -> None:
        """Does nothing, because no version of this store expires."""

    def delete(self, path: str) -> None:
        self._count("delete")
        self.files.pop(path, None)

    def delete_unneeded(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def _count(self, verb: str) -> None:
        with self._lock:
            self.requests[verb] = self.requests.get(verb, 0) + 1


Store: TypeAlias = _core.Storage | RemoteStorage
