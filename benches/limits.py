"""The best figures that the machine can reach, as limits for the measured figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


class RawFiles:
    """Creates files and nothing else: create, write, and sync on request."""

    def __init__(self, folder: Path, sizes: Sequence[int], *, fsync: bool) -> None:
        """`sizes` in bytes of the files of one call, each in a folder of its own."""
        self._fsync = fsync
        self._files = []
        for position, size in enumerate(sizes):
            place = folder / str(position)
            place.mkdir(parents=True)
            self._files.append((place, os.urandom(size)))

    def create(self, number: int) -> None:
        """Create one file of each size; with `fsync`, sync each file and then its folder."""
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


def size_on_disk(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
