"""Searches every file below the root, referenced or not, for rows that match a filter and for strings of the filter.

The first bytes of a file determine how it is decoded: Arrow buffers, Avro blocks and gzip are decompressed. In Parquet
files the columns of the filter are found by name and compared. In addition every value is searched for the strings,
because some tables have them in other columns: a dead-letter table, for instance, has whole rows as JSON.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, quote_plus

import pyarrow as pa

from trinitylake import _core
from trinitylake.definitions import to_iceberg_schema
from trinitylake.errors import TrinityLakeError
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.manifests.avro_file import blocks_of
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.iceberg_storage.row_search import RowSearch, columns_of

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table.metadata import TableMetadata

#: Part of the names of unfinished files; a process that dies leaves such files (format §3).
_UNFINISHED = "_staged#"
_ARROW, _AVRO, _GZIP, _PARQUET = b"ARRO", b"Obj\x01", b"\x1f\x8b", b"PAR1"


class ListedFile(NamedTuple):
    """A file below the root. `modified_millis` is Unix time by the clock of the store."""

    path: str
    size_bytes: int
    modified_millis: int


class FileFinding(NamedTuple):
    """Result of the search of one file.

    Attributes:
        file: the file.
        rows: number of matching rows in a Parquet file.
        is_of_table: whether the file is in the folder of a searched table.
        has_text: whether a searched string occurs in the file outside of rows, or in the file's path.
        has_text_in_rows: whether a searched string occurs in a value of a Parquet file.
        problem: why the file could not be searched; "" if it was searched.
    """

    file: ListedFile
    rows: int = 0
    is_of_table: bool = False
    has_text: bool = False
    has_text_in_rows: bool = False
    problem: str = ""

    def described(self) -> str:
        """The finding in words. "" if there is no problem, no matching row of the table and no string of the filter."""
        if self.problem:
            return f"it cannot be searched: {self.problem}"
        if self.rows and self.is_of_table:
            return f"it holds {self.rows} matching rows"
        return "it contains a string of the filter" if self.has_text else ""


class SearchedTable(NamedTuple):
    """A table, and its folder as a path that ends in `/`. Files in the folder are searched by the table's field ids."""

    folder: str
    metadata: TableMetadata
    search: RowSearch


def all_files(storage: _core.Storage) -> Iterator[ListedFile]:
    """Every file below the root, including unfinished ones."""
    walk = _core.Walk(storage, [("", None)])
    while (batch := walk.next()) is not None:
        yield from (ListedFile(*row.values()) for row in batch.to_pylist())


class TextSearch:
    """Searches bytes for strings in UTF-8, as quoted in URLs or JSON, and in hexadecimal (as roots store them)."""

    def __init__(self, texts: Iterable[str]) -> None:
        spellings: set[bytes] = set()
        for text in texts:
            escaped = (json.dumps(text, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
            for spelling in (text, quote(text), quote(text, safe=""), quote_plus(text), *escaped):
                spellings |= {spelling.encode(), spelling.encode().hex().encode()}
        self._spellings = sorted(spellings)

    def __bool__(self) -> bool:
        return bool(self._spellings)

    def is_in(self, data: bytes | pa.Buffer) -> bool:
        """Whether one of the strings occurs in bytes that are not compressed."""
        content = data if isinstance(data, bytes) else data.to_pybytes()
        return any(spelling in content for spelling in self._spellings)

    def is_in_values(self, values: pa.Array) -> bool:
        """Whether one of the strings occurs in a value or in a part of a nested value."""
        buffers = (buffer for buffer in values.buffers() if buffer is not None)
        # A buffer can match where two values meet, so the values are then searched one by one.
        return any(map(self.is_in, buffers)) and any(self.is_in(text) for text in _texts_in(values.to_pylist()))

    def is_in_file(self, data: bytes) -> bool:
        """Whether one of the strings occurs in the content of a file other than Parquet."""
        return any(map(self.is_in, _decoded(data)))


class FileSearch:
    """Searches single files. Threads may share it.

    Args:
        storage: the storage of the lakehouse.
        filter: the rows to find.
        tables: tables whose files are also searched by field ids, so that renamed and dropped columns are found.
        texts: the search for the strings.
    """

    def __init__(
        self, storage: _core.Storage, filter: BooleanExpression, tables: Sequence[SearchedTable], texts: TextSearch
    ) -> None:
        self._storage = storage.uncached()
        self._io = LakehouseFileIO(self._storage)
        self._filter = filter
        self._tables = tables
        self._texts = texts

    def finding(self, file: ListedFile) -> FileFinding:
        """Search one file. Nothing is found if the file does not exist any more."""
        tables = [one for one in self._tables if file.path.startswith(one.folder)]
        found = FileFinding(file, is_of_table=bool(tables))
        has_text_in_rows = False
        try:
            if _UNFINISHED in file.path:
                # Unfinished files exist on local disks only, and the storage does not read them.
                data = Path(self._io.local_path(file.path) or file.path).read_bytes()
                rows, has_text = 0, self._texts.is_in_file(data)
            elif self._storage.get_range(file.path, 0, min(4, file.size_bytes)) == _PARQUET:
                by_ids = [one.search.count_in_file(one.metadata, file.path, file.size_bytes) for one in tables]
                rows = max([self._rows(file), *by_ids])
                has_text_in_rows = bool(self._texts) and self._has_text_in_rows(file)
                # The statistics in the footer repeat values of rows.
                has_text = not has_text_in_rows and self._texts.is_in(self._footer(file))
            else:
                rows, has_text = 0, bool(self._texts) and self._texts.is_in_file(self._storage.get(file.path))
        except FileNotFoundError:
            return found
        except (TrinityLakeError, pa.ArrowException, OSError, ValueError, EOFError, zlib.error) as error:
            is_gone = isinstance(error, TrinityLakeError) and not self._storage.exists(file.path)
            return found if is_gone else found._replace(problem=str(error))
        has_text = has_text or self._texts.is_in(file.path.encode())
        return found._replace(rows=rows, has_text=has_text, has_text_in_rows=has_text_in_rows)

    def _footer(self, file: ListedFile) -> bytes:
        end, _ = self._storage.get_end(file.path, 8)
        return self._storage.get_end(file.path, 8 + int.from_bytes(end[:4], "little"))[0]

    def _rows(self, file: ListedFile) -> int:
        """The number of rows that match by the names in the file; 0 if the file lacks a column of the filter."""
        with self._io.new_input(self._io.uri_of(file.path)).open() as stream:
            parquet = open_parquet(stream)
            try:
                schema = to_iceberg_schema(parquet.schema_arrow)
                filter = RowFilter.of(self._filter, schema)
            except (TrinityLakeError, ValueError, TypeError):
                return 0
            columns = [field.name for field in columns_of(filter, schema)]
            batches = parquet.iter_batches(columns=columns)
            return sum(batch.filter(filter.matches(batch)).num_rows for batch in batches)

    def _has_text_in_rows(self, file: ListedFile) -> bool:
        with self._io.new_input(self._io.uri_of(file.path)).open() as stream:
            parquet = open_parquet(stream)
            columns = [field.name for field in parquet.schema_arrow if _has_texts(field.type)]
            batches = parquet.iter_batches(columns=columns) if columns else ()
            return any(self._texts.is_in_values(column) for batch in batches for column in batch.columns)


def _has_texts(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType | pa.DictionaryType):
        return _has_texts(kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind.value_type)
    is_ = pa.types
    return (
        is_.is_string(kind)
        or is_.is_large_string(kind)
        or is_.is_binary(kind)
        or is_.is_large_binary(kind)
        or any(_has_texts(kind.field(number).type) for number in range(kind.num_fields))
    )


def _texts_in(value: object) -> Iterator[bytes]:
    if isinstance(value, str | bytes):
        yield value.encode() if isinstance(value, str) else value
    elif isinstance(value, dict):
        yield from _texts_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts_in(part)


def _decoded(data: bytes) -> Iterator[bytes]:
    """The uncompressed buffers of an Arrow file; of another file its bytes, and the decompressed Avro or gzip data."""
    if data[:4] == _ARROW:
        reader = pa.ipc.open_file(pa.BufferReader(data))
        for number in range(reader.num_record_batches):
            for column in reader.get_batch(number).columns:
                yield from (buffer.to_pybytes() for buffer in column.buffers() if buffer is not None)
        return
    yield data
    if data[:4] == _AVRO:
        yield from blocks_of(data)
    elif data[:2] == _GZIP:
        yield gzip.decompress(data)
