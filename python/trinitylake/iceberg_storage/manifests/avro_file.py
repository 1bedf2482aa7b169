"""Avro files in memory: encodes records in blocks, decompresses the blocks of any Avro file, and measures its size.

A manifest of 8 MB can decompress to half a gigabyte of paths. So files of other writers are measured before they are
read, in bounded memory.
"""

from __future__ import annotations

import bz2
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import zstandard
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO, KNOWN_CODECS
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader, construct_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.exceptions import ValidationError
from pyiceberg.table import TableProperties

import trinitylake.iceberg_storage.pyiceberg_patches  # noqa: F401  # for all readers of Avro
from trinitylake.base.json_memory_size import parsed_size_bytes

#: The header field that holds the schema.
SCHEMA_KEY = "avro.schema"
BLOCK_MAX_RECORDS = 1000

_HEADER_WRITER = construct_writer(META_SCHEMA)


def avro_bytes(
    avro_schema: str, writer: Writer, records: Sequence[Any], header: Mapping[str, str], sync: bytes | None = None
) -> bytes:
    """The bytes of an Avro file.

    Args:
        avro_schema: of the records, as JSON.
        writer: encodes one record by that schema.
        header: more fields of the header; `avro.codec` is a codec of Avro or of Iceberg.
        sync: the marker between blocks; random by default.

    Raises `ValueError` for a codec that is not known.
    """
    sync = sync or os.urandom(SYNC_SIZE)
    name = header.get(AVRO_CODEC_KEY, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)
    name = CODEC_MAPPING_ICEBERG_TO_AVRO.get(name, name)
    if name not in KNOWN_CODECS:
        raise ValueError(f"Unsupported codec: {name}")
    codec = KNOWN_CODECS[name]
    file = BytesIO()
    encoder = BinaryEncoder(file)
    _HEADER_WRITER.write(
        encoder, AvroFileHeader(MAGIC, {**header, SCHEMA_KEY: avro_schema, AVRO_CODEC_KEY: name}, sync)
    )
    for start in range(0, len(records), BLOCK_MAX_RECORDS):
        block = BytesIO()
        block_encoder = BinaryEncoder(block)
        some = records[start : start + BLOCK_MAX_RECORDS]
        for record in some:
            writer.write(block_encoder, record)
        content = block.getvalue()
        if codec is not None:
            content, _ = codec.compress(content)
        encoder.write_int(len(some))
        encoder.write_int(len(content))
        encoder.write(content)
        encoder.write(sync)
    return file.getvalue()


def blocks_of(data: bytes) -> Iterator[bytes]:
    """The decompressed blocks of an Avro file with any schema. Raises `ValueError` or `EOFError` for a damaged file."""
    decoder = new_decoder(data)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    codec = header.compression_codec()
    position = decoder.tell()
    while position < len(data):
        decoder.read_int()
        block = decoder.read_bytes()
        yield block if codec is None else codec.decompress(block)
        decoder.skip(SYNC_SIZE)
        position = decoder.tell()


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
