"""Writes Puffin files of deletion vectors. Reads and replaces the paths of data files that Puffin footers contain."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pyiceberg.io import InputStream

_MAGIC = b"PFA1"
_REFERENCED = "referenced-data-file"
#: Size of the last three parts of the footer: the length of its JSON, flags, and the magic.
_TAIL_BYTES = 12


def data_files_of(stream: InputStream, size_bytes: int) -> dict[int, str]:
    """The data files of the vectors in a file, by the offsets of the vectors; empty if the footer is compressed.

    Raises `ValueError` for any other file.
    """
    _, footer = _footer(stream, size_bytes)
    blobs = footer["blobs"] if footer is not None else []
    named = ((blob["offset"], blob.get("properties", {}).get(_REFERENCED)) for blob in blobs)
    return {offset: name for offset, name in named if name is not None}


def _footer(stream: InputStream, size_bytes: int) -> tuple[int, dict[str, Any] | None]:
    """The offset and the JSON of the footer; the JSON is None if it is compressed. Raises as `data_files_of`."""
    if size_bytes < 2 * len(_MAGIC) + _TAIL_BYTES:
        raise ValueError("it is not a Puffin file")
    stream.seek(size_bytes - _TAIL_BYTES)
    tail = stream.read(_TAIL_BYTES)
    start = size_bytes - _TAIL_BYTES - int.from_bytes(tail[:4], "little", signed=True)
    if not 2 * len(_MAGIC) <= start <= size_bytes - _TAIL_BYTES or tail[-4:] != _MAGIC:
        raise ValueError("it is not a Puffin file")
    stream.seek(start - len(_MAGIC))
    text = stream.read(size_bytes - _TAIL_BYTES - start + len(_MAGIC))
    if text[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is not a Puffin file")
    return start, json.loads(text[len(_MAGIC) :]) if tail[4:8] == bytes(4) else None


def with_data_files(file: bytes, renamed: Callable[[str], str]) -> bytes:
    """Rename the data files of the vectors. The offsets of vectors do not change. Returns `file` if no name changes.

    Raises `ValueError` for a file that is not a Puffin file, or whose footer is compressed.
    """
    start, footer = _footer(io.BytesIO(file), len(file))
    if footer is None:
        raise ValueError("its footer is compressed")
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
        field_ids: the columns that the blob describes.
        content: the bytes.
        properties: properties in the footer.
    """

    type: str
    field_ids: list[int]
    content: bytes
    properties: dict[str, str]


def puffin_file(blobs: Iterable[Blob]) -> tuple[bytes, list[int]]:
    """The bytes of a file with these blobs, and their offsets. Blobs inherit the snapshot that adds the file."""
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
