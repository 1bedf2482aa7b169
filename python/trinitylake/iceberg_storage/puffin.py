"""Puffin files of deletion vectors: writing, and renaming of the data files in the footer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

_MAGIC = b"PFA1"
_REFERENCED = "referenced-data-file"
#: The length of the footer's text, flags, and the magic.
_TAIL_BYTES = 12


def with_data_files(file: bytes, renamed: Callable[[str], str]) -> bytes:
    """Rename the data files of the vectors, which keep their offsets; the same bytes if no name changes.

    Raises `ValueError` for a file that is no such one, or whose footer is compressed.
    """
    size = int.from_bytes(file[-_TAIL_BYTES:-8], "little", signed=True)
    start = len(file) - _TAIL_BYTES - size
    if len(file) < 2 * len(_MAGIC) + _TAIL_BYTES or size < 0 or start < 2 * len(_MAGIC):
        raise ValueError("it is not a Puffin file")
    if not (file[:4] == file[-4:] == file[start - 4 : start] == _MAGIC):
        raise ValueError("it is not a Puffin file")
    if file[-8:-4] != bytes(4):
        raise ValueError("its footer is compressed")
    footer = json.loads(file[start:-_TAIL_BYTES])
    changed = False
    for blob in footer["blobs"]:
        properties = blob.get("properties", {})
        if _REFERENCED in properties and (new := renamed(properties[_REFERENCED])) != properties[_REFERENCED]:
            properties[_REFERENCED] = new
            changed = True
    if not changed:
        return file
    text = json.dumps(footer, separators=(",", ":")).encode()
    return file[:start] + text + len(text).to_bytes(4, "little") + file[-8:]


class Blob(NamedTuple):
    """A blob of a Puffin file, uncompressed.

    Attributes:
        type: as in the Puffin specification.
        field_ids: of the columns that it is about.
        content: its bytes.
        properties: in the footer.
    """

    type: str
    field_ids: list[int]
    content: bytes
    properties: dict[str, str]


def puffin_file(blobs: Iterable[Blob]) -> tuple[bytes, list[int]]:
    """Bytes of a file with these blobs, and the offset of each; their snapshot is the one that adds the file."""
    parts, offsets, described = [_MAGIC], [], []
    offset = len(_MAGIC)
    for blob in blobs:
        parts.append(blob.content)
        offsets.append(offset)
        described.append(
            {
                "type": blob.type,
                "fields": blob.field_ids,
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": offset,
                "length": len(blob.content),
                "properties": blob.properties,
            }
        )
        offset += len(blob.content)
    footer = json.dumps({"blobs": described, "properties": {"created-by": "TrinityLake"}}, separators=(",", ":"))
    text = footer.encode()
    parts += [_MAGIC, text, len(text).to_bytes(4, "little"), bytes(4), _MAGIC]
    return b"".join(parts), offsets
