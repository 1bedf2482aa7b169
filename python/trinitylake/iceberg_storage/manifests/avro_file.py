"""Avro files in memory: encodes records in blocks, and decompresses the blocks of any Avro file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO, KNOWN_CODECS
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader, construct_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.table import TableProperties

from trinitylake.iceberg_storage.pyiceberg_patches import avro_decoding  # noqa: F401  # for all readers of Avro

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
        records: the content.
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
