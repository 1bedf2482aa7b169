"""Decompressed size of Avro files, measured in bounded memory.

A manifest of 8 MB can decompress to half a gigabyte of paths. Files of other writers are measured before they are read.
"""

from __future__ import annotations

import bz2
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO

from pyiceberg.exceptions import ValidationError

from trinitylake.base.json_memory_size import parsed_size_bytes

#: Maximum size of one decompressed manifest. Engines begin a new manifest at a compressed size of 8 MB.
MAX_MANIFEST_SIZE_BYTES = 256 << 20
#: Maximum size of the parsed schema in the header. The schema of manifest entries takes 0.1 MiB, with 1,000 partition
#: fields 2 MiB.
MAX_SCHEMA_SIZE_BYTES = 4 << 20

_MAGIC = b"Obj\x01"
_SYNC_SIZE = 16
_PIECE_SIZE_BYTES = 1 << 20


class SizeLimitExceeded(ValidationError):
    """A file, or the files that were read so far, exceed a limit."""


@dataclass
class SizeBudget:
    """Limit of the decompressed size of several files. Safe to share between threads.

    Attributes:
        size_bytes: bytes left.
        entries: entries left; None for no limit.
        files: files left; None for no limit.
        on_spent: called with bytes and entries before they are decompressed; may raise.
    """

    size_bytes: int
    entries: int | None = None
    files: int | None = None
    on_spent: Callable[[int, int], None] = lambda size_bytes, entries: None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def spend(self, data: bytes, location: str) -> None:
        """Subtract the decompressed size of an Avro file, or the length of any other file. A block counts as one entry.

        Raises:
            SizeLimitExceeded: if the file exceeds the rest of the budget. At most one further block is decompressed.
            ValueError: for a file that is cut off, has an unknown codec, or has data after an empty block. Some readers
                stop at an empty block, and others do not.
        """
        with self._lock:
            if self.files is not None:
                self.files -= 1
        if self.files is not None and self.files < 0:
            raise SizeLimitExceeded(f"{location} exceeds the limit on the number of files")
        for size_bytes, entries in _blocks(data):
            self.on_spent(size_bytes, entries)
            with self._lock:
                self.size_bytes -= size_bytes
                if self.entries is not None:
                    self.entries -= entries
            if self.size_bytes < 0 or (self.entries is not None and self.entries < 0):
                raise SizeLimitExceeded(f"{location} exceeds the limit on bytes that one request reads")


def _blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the decompressed size and the number of entries of each part of an Avro file."""
    if not data.startswith(_MAGIC):
        yield len(data), 0
        return
    stream = BytesIO(data)
    stream.seek(len(_MAGIC))
    header = _header(stream)
    codec = header.get(b"avro.codec", b"null")
    if (pieces := _PIECES.get(codec)) is None:
        raise ValueError(f"an Avro file has the unknown codec {codec!r}")
    if parsed_size_bytes(header.get(b"avro.schema", b"")) > MAX_SCHEMA_SIZE_BYTES:
        raise SizeLimitExceeded("the schema of an Avro file exceeds its limit")
    yield stream.tell(), 0
    stream.seek(_SYNC_SIZE, 1)
    while stream.tell() < len(data):
        entries, size_bytes = _number(stream), _number(stream)
        block = stream.read(size_bytes)
        if entries < 0 or size_bytes < 0 or len(block) < size_bytes:
            raise ValueError("an Avro file is cut off")
        yield 0, max(entries, 1)
        for piece_size_bytes in pieces(block):
            yield piece_size_bytes, 0
        stream.seek(_SYNC_SIZE, 1)
        if entries == 0 and stream.tell() < len(data):
            raise ValueError("an Avro file has data after an empty block")


def _header(stream: BytesIO) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while (count := _number(stream)) != 0:
        if count < 0:  # the size of the block in bytes follows
            _number(stream)
        for _ in range(abs(count)):
            name = stream.read(_number(stream))
            found[name] = stream.read(_number(stream))
    return found


def _number(stream: BytesIO) -> int:
    number, shift = 0, 0
    while True:
        byte = stream.read(1)
        if not byte or shift > 63:
            raise ValueError("an Avro file is cut off")
        number |= (byte[0] & 0x7F) << shift
        shift += 7
        if not byte[0] & 0x80:
            return (number >> 1) ^ -(number & 1)


def _deflated(block: bytes) -> Iterator[int]:
    decompressor, rest = zlib.decompressobj(-15), block
    while rest and not decompressor.eof:
        yield len(decompressor.decompress(rest, _PIECE_SIZE_BYTES))
        rest = decompressor.unconsumed_tail


def _bzipped(block: bytes) -> Iterator[int]:
    decompressor, rest = bz2.BZ2Decompressor(), block
    while not decompressor.eof and (piece := decompressor.decompress(rest, _PIECE_SIZE_BYTES)):
        yield len(piece)
        rest = b""


def _zstd(block: bytes) -> Iterator[int]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(block, read_across_frames=True) as reader:
        while piece := reader.read(_PIECE_SIZE_BYTES):
            yield len(piece)


def _snappy(block: bytes) -> Iterator[int]:
    size_bytes, shift = 0, 0
    for byte in block[:5]:  # a block begins with its decompressed length, which the decompressor enforces
        size_bytes |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    yield size_bytes


_PIECES: dict[bytes, Callable[[bytes], Iterator[int]]] = {
    b"null": lambda block: iter((len(block),)),
    b"deflate": _deflated,
    b"bzip2": _bzipped,
    b"zstandard": _zstd,
    b"snappy": _snappy,
}
