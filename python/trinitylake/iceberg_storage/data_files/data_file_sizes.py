"""Target size of data files of managed tables, and the size below which a file is small.

Writers, `compact` and the statistics of files use them.
"""

from __future__ import annotations

#: Target size if the table has no property for it. Smaller than Iceberg's 512 MiB, because a writer to an object store
#: holds several files in memory.
TARGET_FILE_SIZE_BYTES = 96 << 20
#: A file smaller than this part of the target size is small.
SMALL_PART = 0.75
#: Size below which a file is small, if the table has no property for the target size.
SMALL_FILE_SIZE_BYTES = int(TARGET_FILE_SIZE_BYTES * SMALL_PART)
