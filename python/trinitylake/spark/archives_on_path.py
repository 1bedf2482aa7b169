"""Import finders for the archives on Python's module path in Spark's workers.

Spark adds its own Python code, as an archive, and every jar of `spark.jars.packages`, because some jars contain Python
modules. Before each task a worker calls `importlib.invalidate_caches`. Then Python reads the list of entries of an
archive again, for every package that it imported from the archive. Iceberg's runtime has 26,000 entries and no module:
without these finders, reading its entries takes longer than most tasks.
"""

from __future__ import annotations

import os
import struct
import sys
from zipimport import zipimporter

#: The record at the end of an archive that locates its list of entries (APPNOTE of ZIP, 4.3.16), without a comment.
_END = struct.Struct("<4s4xHHII2x")
_SIGNATURE = b"PK\x05\x06"
#: Ending of the names of modules, or the beginning of the ending `.pyc`.
_MODULE = b".py"


class NoModules:
    """Finder for an archive without modules."""

    def find_spec(self, name: str, target: object = None) -> None:
        """Find nothing, because the archive has no modules."""


class ArchiveFinder(zipimporter):
    """Finder for the modules in an archive, which reads the list of entries again only if the file has changed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._read = self._identity()

    def invalidate_caches(self) -> None:
        """Read the list of entries again if the file has changed."""
        found = self._identity()
        if found != self._read:
            super().invalidate_caches()
            self._read = found

    def _identity(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.archive)
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def finder(path: str) -> NoModules | ArchiveFinder:
    """A hook of `sys.path_hooks` for archives and for folders in archives. Raises `ImportError` for any other path."""
    jar = _jar_of(path)
    if jar is not None and os.path.isfile(jar) and not _may_hold_modules(jar):
        return NoModules()
    return ArchiveFinder(path)


def install() -> None:
    """Make this process, and processes that it forks, read the list of entries of each archive only once."""
    if finder not in sys.path_hooks:
        sys.path_hooks.insert(0, finder)
    for path, found in list(sys.path_importer_cache.items()):
        if isinstance(found, zipimporter):
            del sys.path_importer_cache[path]


def _jar_of(path: str) -> str | None:
    """The jar that a path names, or that contains the path."""
    jar, ending, _ = f"{path}/".partition(".jar/")
    return f"{jar}.jar" if ending else None


def _may_hold_modules(jar: str) -> bool:
    """Whether a jar may contain Python modules; False only if its whole list of entries was read, and has none."""
    try:
        with open(jar, "rb") as archive:
            length = archive.seek(0, os.SEEK_END)
            archive.seek(max(0, length - _END.size))
            record = archive.read(_END.size)
            if len(record) < _END.size or not record.startswith(_SIGNATURE):
                return True
            _, _, entries, size, _ = _END.unpack(record)
            # The list ends where the record begins. The recorded start of the list is wrong if bytes precede the
            # archive.
            start = length - _END.size - size
            if entries == 0xFFFF or start < 0:
                return True
            archive.seek(start)
            return _MODULE in archive.read(size)
    except OSError:  # an error in a hook would make every import fail
        return True
