"""Rows of a table without PyIceberg, whose import takes longer than a small command takes to run.

This is possible for a managed table without deletes, whose Parquet files have exactly the columns of the table: what
our writers produce, until a schema changes. For any other table, and if anything is wrong, the functions return None,
and the caller reads the table as always. That also gives the error.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from trinitylake import _core
from trinitylake.definitions import MANAGED, MANIFEST_LIST, Schema, parse_table_def
from trinitylake.errors import TrinityLakeError

if TYPE_CHECKING:
    import pyarrow as pa

    from trinitylake.definitions import TableDef

#: Bytes of manifests that are fetched at once.
_MANIFESTS_SIZE_BYTES = 32 << 20
#: So many rows are decoded alone, however large a batch could be.
_FEW_ROWS = 100
#: A larger file of a remote store is read in parts, by the usual scan.
_WHOLE_FILE_SIZE_BYTES = 8 << 20


class _PlainFile(NamedTuple):
    path: str
    n_rows: int
    size_bytes: int


def count(storage: _core.Storage, definition: bytes) -> int | None:
    """The number of rows of a table."""
    files = _files(storage, parse_table_def(definition))
    return None if files is None else sum(file.n_rows for file in files)


def first_rows(storage: _core.Storage, definition: bytes, limit: int) -> pa.Table | None:
    """The first rows of a table, in the order of its files."""
    parsed = parse_table_def(definition)
    files = _files(storage, parsed)
    if files is None:
        return None

    import pyarrow as pa

    from trinitylake.definitions.arrow_types import to_arrow
    from trinitylake.iceberg_storage.data_files.arrow_rows import no_rows, typed
    from trinitylake.iceberg_storage.data_files.parquet_batches import batches_of, open_parquet

    batches: list[pa.RecordBatch] = []
    with suppress(TrinityLakeError, OSError, pa.ArrowException):
        columns = Schema.from_definition(parsed.schema).columns
        in_files, target = to_arrow(columns, with_ids=True), to_arrow(columns, with_ids=False)
        for file in files:
            if (stream := _stream(storage, file)) is None:
                return None
            opened = open_parquet(stream)
            if opened.metadata.num_rows != file.n_rows:
                return None
            if not pa.schema(list(opened.schema_arrow)).equals(in_files, check_metadata=True):
                return None
            few = opened.iter_batches(limit, use_threads=False) if limit <= _FEW_ROWS else None
            for batch in few or batches_of(stream, opened, target.names):
                batches.append(typed(batch.slice(0, limit), target))
                if (limit := limit - batch.num_rows) <= 0:
                    return pa.Table.from_batches(batches)
        return pa.Table.from_batches(batches) if batches else no_rows(target)
    return None


def _stream(storage: _core.Storage, file: _PlainFile) -> pa.NativeFile | None:
    """A file, or None for a large one of a remote store.

    Not a Python object: threads of Arrow that still call one at the end of the process abort it.
    """
    import pyarrow as pa

    if storage.root.startswith("file:///") and sys.platform != "win32":
        return pa.OSFile(storage.root[len("file://") :] + file.path)
    return pa.BufferReader(storage.get(file.path)) if file.size_bytes <= _WHOLE_FILE_SIZE_BYTES else None


def _files(storage: _core.Storage, definition: TableDef) -> list[_PlainFile] | None:
    path = definition.format_properties.get(MANIFEST_LIST, "")
    if definition.table_type != MANAGED or not path or storage.other_roots:
        return None
    files: list[_PlainFile] = []
    with suppress(TrinityLakeError, OSError):
        root = storage.root
        locations = _core.data_manifests(storage.get(path), path)
        if locations is None or not all(location.startswith(root) for location in locations):
            return None
        paths = [location[len(root) :] for location in locations]
        storage.read_ahead(paths, _MANIFESTS_SIZE_BYTES)
        for path in paths:
            for location, format, n_rows, size_bytes in _core.data_files(storage.get(path), path):
                if format != "PARQUET" or not location.startswith(root):
                    return None
                files.append(_PlainFile(location[len(root) :], n_rows, size_bytes))
        return files
    return None
