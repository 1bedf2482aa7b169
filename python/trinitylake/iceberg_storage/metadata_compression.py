"""Compression of metadata files. The suffix of the file name shows the codec, as in Iceberg for Java."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

from trinitylake.errors import InvalidArgument

#: The table property that says whether metadata files are compressed.
COMPRESSION_CODEC = "write.metadata.compression-codec"
_SUFFIXES = {"none": ".metadata.json", "gzip": ".gz.metadata.json"}
_GZIP_MAGIC = b"\x1f\x8b"


def file_suffix(properties: Mapping[str, str]) -> str:
    """Suffix of the next metadata file. Raises `InvalidArgument` for an unknown codec."""
    codec = properties.get(COMPRESSION_CODEC, "none")
    if codec.lower() not in _SUFFIXES:
        raise InvalidArgument(f"the table property {COMPRESSION_CODEC!r} is none or gzip, not {codec[:100]!r}")
    return _SUFFIXES[codec.lower()]


def file_bytes(text: bytes, name: str) -> bytes:
    """The bytes of a metadata file of that name, from its JSON."""
    return gzip.compress(text, mtime=0) if name.endswith(_SUFFIXES["gzip"]) else text


def file_text(data: bytes) -> bytes:
    """The JSON in the bytes of a metadata file; the inverse of `file_bytes`. Raises `OSError`, `EOFError`."""
    return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
