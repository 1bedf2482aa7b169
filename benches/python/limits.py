"""What the machine can do at best: the limits that our figures are held against."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class RawFiles:
    """Creates files as a program would that wants nothing but the files: created, written, synced if asked to."""

    def __init__(self, folder: Path, sizes: Sequence[int], *, fsync: bool) -> None:
        """`sizes` in bytes of the files that one call makes, each in a folder of its own."""
        self._fsync = fsync
        self._files = []
        for position, size in enumerate(sizes):
            place = folder / str(position)
            place.mkdir(parents=True)
            self._files.append((place, os.urandom(size)))

    def create(self, number: int) -> None:
        """One file of each size; with `fsync` each one synced, and then its folder."""
        for folder, data in self._files:
            descriptor = os.open(folder / f"file-{number:09d}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.write(descriptor, data)
                if self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if self._fsync:
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


class CommitCalls:
    """The system calls of a commit on a local disk that is not synced, and nothing between them.

    A definition under its own name, a root that appears whole or not at all, the hint, three looks at what is there.
    """

    def __init__(self, folder: Path, definition_size_bytes: int, root_size_bytes: int) -> None:
        (folder / "definitions").mkdir(parents=True)
        self._folder = str(folder)
        self._definition, self._root = os.urandom(definition_size_bytes), os.urandom(root_size_bytes)

    def create(self, number: int) -> None:
        """One commit."""
        root, staged = f"{self._folder}/_{number:032b}.arrow", f"{self._folder}/_staged#{number:09d}"
        _create(f"{self._folder}/definitions/{number:09d}.binpb", self._definition)
        _is_there(root)
        descriptor = os.open(staged, _CREATE, 0o644)
        os.write(descriptor, self._root)
        os.link(staged, root)
        os.unlink(staged)
        os.close(descriptor)
        _is_there(f"{self._folder}/_expired")
        hint = f"{self._folder}/_latest_hint.txt"
        _is_there(hint)
        descriptor = os.open(hint, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(descriptor, str(number).encode(), 0)
        os.fstat(descriptor)
        os.close(descriptor)


class FilesOfTransaction:
    """The files of a transaction and nothing that makes their bytes.

    They are created, all of them and their folders synced at the same time, then the root, which is linked to its name.
    """

    #: That wait for the disk at the same time.
    THREADS = 8

    def __init__(self, folder: Path, sizes: Mapping[str, int], root_size_bytes: int) -> None:
        """`sizes` in bytes of the files before the root, by their paths."""
        self._folder = str(folder)
        self._files = [(f"{folder}/{path}", os.urandom(size)) for path, size in sizes.items()]
        self._folders = sorted({os.path.dirname(path) for path, _ in self._files})
        self._root = os.urandom(root_size_bytes)
        self._pool = ThreadPoolExecutor(self.THREADS)
        for one in self._folders:
            os.makedirs(one, exist_ok=True)

    def create(self, number: int) -> None:
        """One transaction."""
        for path, data in self._files:
            _create(f"{path}-{number}", data)
        staged, root = f"{self._folder}/_staged#{number}", f"{self._folder}/_{number:032b}.arrow"
        _create(staged, self._root)
        names = [*(f"{path}-{number}" for path, _ in self._files), staged, *self._folders]
        list(self._pool.map(_sync, names))
        os.link(staged, root)
        os.unlink(staged)
        _sync(self._folder)


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _create(path: str, data: bytes) -> None:
    descriptor = os.open(path, _CREATE, 0o644)
    os.write(descriptor, data)
    os.close(descriptor)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.fsync(descriptor)
    os.close(descriptor)


def _is_there(path: str) -> bool:
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def size_on_disk(folder: Path) -> int:
    """Bytes of all files below a folder, as `ls` counts them."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
