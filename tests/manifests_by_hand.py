"""Data files, manifests and snapshots with arbitrary content, written as an engine writes them."""

from __future__ import annotations

import uuid
from io import BytesIO
from pathlib import Path
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.typedef import Record

from trinitylake.iceberg_storage.manifests.avro_file import _header, _number


def data_file(location: str, rows: int = 1, size_bytes: int = 1, format: FileFormat = FileFormat.PARQUET) -> DataFile:
    """A manifest entry's data file, for a table without partitions."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=format,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=size_bytes,
        spec_id=0,
    )


def new_snapshot_id() -> int:
    return uuid.uuid4().int >> 66


def manifest_of(
    table: Any, folder: str, id: int, file: DataFile, status: ManifestEntryStatus = ManifestEntryStatus.ADDED
) -> ManifestFile:
    """A manifest in a folder, which lists one file and is written for the snapshot `id` of a PyIceberg table."""
    number = None if status == ManifestEntryStatus.ADDED else 1
    output = table.io.new_output(f"{folder}/metadata/{uuid.uuid4()}-m0.avro")
    version = table.metadata.format_version
    with write_manifest(version, table.spec(), table.schema(), output, id, "null") as writer:
        writer.add_entry(
            ManifestEntry.from_args(
                status=status, snapshot_id=id, sequence_number=number, file_sequence_number=number, data_file=file
            )
        )
    return writer.to_manifest_file()


def snapshot_of(
    table: Any, folder: str, id: int, manifests: list[ManifestFile], parent: int | None = None, number: int = 1
) -> Snapshot:
    """A snapshot of these manifests, with a manifest list in the folder."""
    uri = f"{folder}/metadata/snap-{id}-0-{uuid.uuid4()}.avro"
    version = table.metadata.format_version
    with write_manifest_list(version, table.io.new_output(uri), id, parent, number, "null") as writer:
        writer.add_manifests(manifests)
    return Snapshot(
        snapshot_id=id,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=table.metadata.last_updated_ms + 1,
        manifest_list=uri,
        summary=Summary(Operation.APPEND),
        schema_id=0,
    )


#: Blocks of an Avro file: the number of entries and the bytes of each.
Blocks = list[tuple[int, bytes]]


def avro_parts(data: bytes) -> tuple[dict[bytes, bytes], Blocks]:
    """The header and the blocks of an Avro file."""
    stream = BytesIO(data)
    stream.seek(4)
    header, blocks = _header(stream), []
    stream.seek(16, 1)
    while stream.tell() < len(data):
        entries, size_bytes = _number(stream), _number(stream)
        blocks.append((entries, stream.read(size_bytes)))
        stream.seek(16, 1)
    return header, blocks


def avro_file(header: dict[bytes, bytes], blocks: Blocks) -> bytes:
    """An Avro file with this header and these blocks."""
    sync = b"as it was chosen"
    named = b"".join(zigzag(len(part)) + part for item in header.items() for part in item)
    text = b"".join(zigzag(entries) + zigzag(len(block)) + block + sync for entries, block in blocks)
    return b"Obj\x01" + zigzag(len(header)) + named + b"\0" + sync + text


def zigzag(number: int) -> bytes:
    number, parts = number << 1, []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def list_for(uri: str, id: int) -> str:
    """Copy a manifest list on a local disk for another snapshot. Returns the URI of the copy."""
    file = Path(uri.removeprefix("file://"))
    header, blocks = avro_parts(file.read_bytes())
    header[b"snapshot-id"] = str(id).encode()
    copy = file.with_name(f"snap-{id}-{uuid.uuid4()}.avro")
    copy.write_bytes(avro_file(header, blocks))
    return f"{uri.rpartition('/')[0]}/{copy.name}"
