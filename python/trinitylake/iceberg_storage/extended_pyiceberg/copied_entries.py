"""Entries that go from one manifest into another: what they say of their file is copied as bytes.

Who replaces files writes an entry for each of them, as deleted, and one for each file that was listed beside them, as
existing. PyIceberg takes many times as long to encode an entry as to copy it. It can be copied from a manifest that has
the same Avro schema; any other entry is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.reader import Reader, StructReader
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, ManifestEntry, ManifestEntryStatus

from trinitylake.iceberg_storage.extended_pyiceberg.avro_encoding import Encode, number

#: How Avro says which of two types follows: null, or the other one.
_NULL, _OTHER = b"\x00", b"\x02"

#: Of a file: its path, partition, rows and what stands between them.
_READ_FIELDS = 1 + [field.name for field in DATA_FILE_TYPE[2].fields].index("record_count")


class CopiedEntry(ManifestEntry):
    """An entry with the bytes that encode its file. The file has its first fields alone, up to the number of rows.

    Attributes:
        avro_schema: of the manifest that it was read from.
        encoded_file: the last field of the entry.
    """

    avro_schema: str
    encoded_file: bytes


def moved(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    """The entry of the same file in another manifest: with another status, and the snapshot that gave it."""
    fields = (status, snapshot_id, entry.sequence_number, entry.file_sequence_number, entry.data_file)
    if not isinstance(entry, CopiedEntry):
        return ManifestEntry(*fields)
    copied = CopiedEntry(*fields)
    copied.avro_schema, copied.encoded_file = entry.avro_schema, entry.encoded_file
    return copied


def copied_entry_reader(whole: StructReader) -> StructReader:
    """Reads entries to be copied.

    What is not read is skipped: for the statistics of a file, Python makes twenty objects, which nobody looks at.

    Args:
        whole: reads all fields.
    """
    *head, (place, file) = whole.field_readers
    assert isinstance(file, StructReader)
    fields = tuple((at if at is not None and at < _READ_FIELDS else None, reader) for at, reader in file.field_readers)
    return StructReader((*head, (place, StructReader(fields, DataFile, file.struct))), CopiedEntry, whole.struct)


def entries_of(block: bytes, count: int, avro_schema: str, reader: Reader) -> Iterator[CopiedEntry]:
    """The entries of a block of a manifest.

    Args:
        block: decompressed.
        count: how many it has.
        avro_schema: of the manifest, one of format version 2.
        reader: of its entries, as `copied_entry_reader` gives it.
    """
    decoder = new_decoder(block)
    for _ in range(count):
        begin = decoder.tell()
        entry: CopiedEntry = reader.read(decoder)
        entry.avro_schema, entry.encoded_file = avro_schema, block[_file_at(block, begin) : decoder.tell()]
        yield entry


def entry_encoder(whole: Encode, avro_schema: str) -> Encode:
    """Encodes entries by a schema of format version 2, copying what has it already.

    Args:
        whole: encodes an entry field by field.
        avro_schema: of the manifest.
    """

    def encode(append: Callable[[bytes], object], value: ManifestEntry) -> None:
        if not isinstance(value, CopiedEntry) or value.avro_schema != avro_schema:
            whole(append, value)
            return
        append(_head(value.status, value.snapshot_id, value.sequence_number, value.file_sequence_number))
        append(value.encoded_file)

    return encode


@lru_cache(maxsize=64)
def _head(status: ManifestEntryStatus, *numbers: int | None) -> bytes:
    """What stands before the file. Entries that go together mostly have the same."""
    parts = (_NULL if one is None else _OTHER + number(one) for one in numbers)
    return number(status.value) + b"".join(parts)


def _file_at(block: bytes, entry: int) -> int:
    """Where the file of an entry begins: behind its status, and three numbers that may be null."""
    at = _behind_number(block, entry)
    for _ in range(3):
        at = at + 1 if block[at] == _NULL[0] else _behind_number(block, at + 1)
    return at


def _behind_number(block: bytes, at: int) -> int:
    while block[at] & 0x80:
        at += 1
    return at + 1
