"""Target size of data files of managed tables, and the size below which a file is small.

Writers, `compact` and the statistics of files use them.
"""

from __future__ import annotations

#: Where the table does not say how large its files are to be. Several are written at once, each whole in memory on an
#: object store, so it is less than Iceberg's 512 MiB.
TARGET_FILE_SIZE_BYTES = 96 << 20
#: A file below this part of the size that it was to have is small.
SMALL_PART = 0.75
#: In a table that does not say how large its files are to be.
SMALL_FILE_SIZE_BYTES = int(TARGET_FILE_SIZE_BYTES * SMALL_PART)
