"""Import finder for the archives on Python's module path in Spark's workers.

Spark adds its own Python code, as an archive, and every jar of `spark.jars.packages`, because some jars contain Python
modules. Before each task a worker calls `importlib.invalidate_caches`. Then Python reads the list of entries of an
archive again, for every package that it imported from the archive. Iceberg's runtime has 26,000 entries and no module:
without these finders, reading its entries takes longer than most tasks.
"""

from __future__ import annotations

import os
import sys
from zipimport import zipimporter


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


def install() -> None:
    """Make this process, and processes that it forks, read the list of entries of each archive only once."""
    if ArchiveFinder not in sys.path_hooks:
        sys.path_hooks.insert(0, ArchiveFinder)
    for path, found in list(sys.path_importer_cache.items()):
        if type(found) is zipimporter:
            del sys.path_importer_cache[path]
