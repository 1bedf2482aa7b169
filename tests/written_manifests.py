"""Decodes each manifest that a test writes with our reader and with PyIceberg's, before it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from types import SimpleNamespace
from typing import Any, Self

import pytest
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import _SCHEMA_KEY, AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.avro.writer import Writer
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from trinitylake.iceberg_storage.data_files.partitioned_rows import spelled
from trinitylake.iceberg_storage.manifests import manifest_file


def check_written_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode each written manifest with both readers. Raises `AssertionError` if a result differs from the entries."""
    encode = manifest_file.avro_bytes

    def checked(
        avro_schema: str,
        writer: Writer,
        records: Sequence[ManifestEntry],
        header: Mapping[str, str],
        sync: bytes | None = None,
    ) -> bytes:
        data = encode(avro_schema, writer, records, header, sync)
        expected = [_content(entry) for entry in records]
        assert [_content(entry) for entry in _by_us(data)] == expected
        assert [_content(entry) for entry in _by_pyiceberg(data)] == expected
        return data

    monkeypatch.setattr(manifest_file, "avro_bytes", checked)


def _content(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.data_file
    bounds = [sorted((known or {}).items()) for known in (file.lower_bounds, file.upper_bounds)]
    counts = [sorted((known or {}).items()) for known in (file.value_counts, file.null_value_counts)]
    return entry.status, file.file_path, spelled(file.partition), file.record_count, bounds, counts


def _by_us(data: bytes) -> list[ManifestEntry]:
    with manifest_file.RecordFile[ManifestEntry](_file(data), manifest_file._entry_reader) as file:
        return list(file)


class _TheirFile(AvroFile[ManifestEntry]):
    """PyIceberg's Avro file with cached readers: building a reader took a quarter of the time of tests that write."""

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = self._read_header()
        self.schema, self.reader = _their_reader(self.header.meta[_SCHEMA_KEY])
        return self


@cache
def _their_reader(avro_schema: str) -> tuple[Schema, Reader]:
    types = {-1: ManifestEntry, 2: DataFile}
    enums = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    schema = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    return schema, resolve_reader(schema, MANIFEST_ENTRY_SCHEMAS[2], types, enums)


def _by_pyiceberg(data: bytes) -> list[ManifestEntry]:
    with _TheirFile(_file(data)) as file:
        return list(file)


def _file(data: bytes) -> Any:
    return SimpleNamespace(location="manifest", open=lambda: BytesIO(data))
