"""Fields of delete files in manifests: the data file, and the offset of a deletion vector.

Each deletion vector in a Puffin file has its own entry in a manifest, so the path alone does not identify an entry.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.types import StringType

#: Reserved field ids of position deletes: the path of the data file, and the position of the row in it.
FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545

_FIELDS = [field.name for field in DATA_FILE_TYPE[3].fields]
_REFERENCED_DATA_FILE = _FIELDS.index("referenced_data_file")
_CONTENT_OFFSET = _FIELDS.index("content_offset")
_CONTENT_SIZE_BYTES = _FIELDS.index("content_size_in_bytes")


def is_vector(file: DataFile) -> bool:
    return bool(file.file_format == FileFormat.PUFFIN)


def referenced_data_file(file: DataFile) -> str | None:
    """The path of the only data file that a file of position deletes applies to; None if there may be several."""
    if file.content != DataFileContent.POSITION_DELETES:
        return None
    if len(file) > _REFERENCED_DATA_FILE and file[_REFERENCED_DATA_FILE] is not None:
        return str(file[_REFERENCED_DATA_FILE])
    lower, upper = ((bounds or {}).get(FILE_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    return from_bytes(StringType(), lower) if lower is not None and lower == upper else None


def blob_of(file: DataFile) -> tuple[int, int] | None:
    """Offset and length in bytes of a deletion vector in its Puffin file; None for any other file."""
    if len(file) <= _CONTENT_SIZE_BYTES or file[_CONTENT_OFFSET] is None or file[_CONTENT_SIZE_BYTES] is None:
        return None
    return file[_CONTENT_OFFSET], file[_CONTENT_SIZE_BYTES]


def file_key(file: DataFile) -> tuple[str, int | None]:
    """Key of a data file or delete file in a snapshot: its path, and the offset of a deletion vector."""
    blob = blob_of(file)
    return file.file_path, None if blob is None else blob[0]


def of_one_data_file(deletes: Iterable[DataFile]) -> list[DataFile]:
    """The delete files that apply to a single data file, and so are obsolete when it is removed."""
    return [file for file in deletes if referenced_data_file(file) is not None]
