"""The change feed of one table as a stream of record batches.

Versions come in order. Within a version deleted rows come first, then updated rows, each preimage directly before its
postimage, then inserted rows. All rows have the columns of the latest schema, which are found by their ids in older
files. If a version only added or only removed files, their rows are streamed. Other rows are compared
(`row_comparison.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from trinitylake import _core
from trinitylake.definitions import MANAGED, MANIFEST_LIST
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.arrow_schema import arrow_schema
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.parquet_batches import BATCH_ROWS
from trinitylake.iceberg_storage.data_files.row_lineage import ROW_ID
from trinitylake.iceberg_storage.data_files.schema_projection import with_wider_types
from trinitylake.iceberg_storage.data_files.streamed_rows import READ_AHEAD, ReadAhead, runs
from trinitylake.iceberg_storage.errors import translated
from trinitylake.iceberg_storage.extended_pyiceberg.scan import read_data_ahead
from trinitylake.iceberg_storage.file_io import LakehouseFileIO
from trinitylake.iceberg_storage.pyiceberg_patches import without_variants
from trinitylake.iceberg_storage.table_file_io import TableFileIO
from trinitylake.tables.change_feed.file_changes import (
    FileChanges,
    TableFiles,
    all_are,
    appended_files,
    file_changes,
    share_row_ids,
    snapshots_between,
)
from trinitylake.tables.change_feed.row_comparison import ChangeType, RowIdentity, SideRows, compare_rows
from trinitylake.tables.change_feed.table_versions import TableState, TableStep

Names: TypeAlias = Literal["trinitylake", "iceberg"]
Batches: TypeAlias = Iterator[pa.RecordBatch]

#: Number of versions whose appended files are looked up together, in the manifests of the last of these versions.
PAGE_VERSIONS = 256

CHANGE_TYPE = "_change_type"
#: The columns that follow those of the table.
COLUMNS: dict[Names, pa.Schema] = {
    "trinitylake": pa.schema(
        [
            pa.field(CHANGE_TYPE, pa.string(), False),
            pa.field("_version", pa.int64(), False),
            pa.field("_committed_at", pa.timestamp("ms", "UTC"), False),
            pa.field("_transaction_id", pa.string()),
        ]
    ),
    "iceberg": pa.schema(
        [
            pa.field(CHANGE_TYPE, pa.string(), False),
            pa.field("_change_ordinal", pa.int32(), False),
            pa.field("_commit_snapshot_id", pa.int64()),
        ]
    ),
}
_ICEBERG_TYPES: dict[ChangeType, str] = {
    "insert": "INSERT",
    "delete": "DELETE",
    "update_preimage": "UPDATE_BEFORE",
    "update_postimage": "UPDATE_AFTER",
}


class ListedSnapshots(NamedTuple):
    """The snapshots that metadata of a table lists, by the paths of their manifest lists."""

    metadata: TableMetadata
    by_path: Mapping[str, Snapshot]

    @classmethod
    def of(cls, metadata: TableMetadata, io: LakehouseFileIO | TableFileIO) -> Self:
        """All snapshots of the metadata."""
        return cls(metadata, {io.path_of(one.manifest_list): one for one in metadata.snapshots})


@dataclass(frozen=True)
class _Step:
    """A version that changed rows, its position among such versions, and the table before and after it."""

    step: TableStep
    ordinal: int
    before: TableFiles | None
    after: TableFiles | None


@dataclass(frozen=True)
class _Streamed:
    """A file whose live rows were all inserted, or all deleted."""

    step: _Step
    kind: Literal["insert", "delete"]
    task: FileScanTask
    files: TableFiles

    @property
    def file(self) -> Any:
        return self.task.file


class _Part(NamedTuple):
    """A file whose rows are compared: all live rows, or the rows at the positions `chosen`."""

    is_added: bool
    files: TableFiles
    task: FileScanTask
    chosen: npt.NDArray[np.int64] | None = None


class ChangeFeed:
    """The changes of rows in some versions of a table.

    Args:
        open_table: opens the table of a version.
        schema: the columns of the result, with the primary key.
        columns: names of the columns of the table to return; None for all.
        names: names of the columns that follow the columns of the table.
        kept: number of a version that references the files. If a file is missing, the error says that this version has
            expired.
        folder: path of the only folder in which files may be read; None for no limit.
        listed: the snapshots in one metadata file of the table, so that no other metadata file is read for them.

    Raises `InvalidArgument` for an unknown column, and if a column of the table has the name of a column of the feed.
    """

    def __init__(
        self,
        storage: _core.Storage,
        open_table: Callable[[TableState], IcebergTable],
        schema: Schema,
        columns: Sequence[str] | None,
        names: Names,
        kept: int,
        subject: Callable[[], str],
        folder: str | None = None,
        listed: ListedSnapshots | None = None,
    ) -> None:
        self._storage = storage
        self._open_table = open_table
        self._io = LakehouseFileIO(storage, check_kept=partial(storage.check_retained, kept))
        if folder is not None:
            self._io = TableFileIO(self._io, folder)
        self._subject = subject
        if names not in tuple(COLUMNS):
            raise InvalidArgument(f"names must be 'trinitylake' or 'iceberg', got {names!r}")
        self._names: Names = names
        own = {field.name: field for field in schema.fields}
        if unknown := [name for name in columns or () if name not in own]:
            raise InvalidArgument(f"{subject()} has no column {', '.join(unknown)}; it has {', '.join(own)}")
        chosen = (
            [one.name for one in without_variants(schema).fields] if columns is None else list(dict.fromkeys(columns))
        )
        if taken := [name for name in chosen if name in COLUMNS[names].names]:
            raise InvalidArgument(
                f"{subject()} has a column {taken[0]}, which the feed has, too: choose other columns, columns=[…]"
            )
        # Rows of older versions may lack a column that is required now.
        optional = {name: field.model_copy(update={"required": False}) for name, field in own.items()}
        self._whole = without_variants(Schema(*optional.values()))
        self._with_row_ids = Schema(*self._whole.fields, ROW_ID)
        self._wanted = Schema(*(optional[name] for name in chosen))
        key = [schema.find_column_name(id) or "" for id in schema.identifier_field_ids]
        self._key = key if all(name in own for name in key) else []
        self.schema = pa.schema([*arrow_schema(self._wanted), *COLUMNS[names]])
        self._listed = listed

    def reader(self, steps: Iterable[TableStep]) -> pa.RecordBatchReader:
        """The changes of versions in order. Files are read as the reader advances."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches(iter(steps)))

    def _batches(self, steps: Iterator[TableStep]) -> Batches:
        with translated(self._subject):
            ordinal = 0
            while page := list(islice(steps, PAGE_VERSIONS)):
                opened = list(self._opened(page, ordinal))
                ordinal += len(opened)
                streamed: list[_Streamed] = []
                for step, changes in self._changes(opened):
                    if changes.redeleted or (changes.removed and changes.added):
                        yield from self._stream(streamed)
                        streamed = []
                        yield from self._compared(step, changes)
                        continue
                    streamed += [_Streamed(step, "delete", task, _there(step.before)) for task in changes.removed]
                    streamed += [_Streamed(step, "insert", task, _there(step.after)) for task in changes.added]
                yield from self._stream(streamed)

    # Changed files

    def _opened(self, page: list[TableStep], ordinal: int) -> Iterator[_Step]:
        """The states of some versions, without versions that have the same snapshot as the previous version."""
        # The last version is opened first, because its metadata lists most snapshots of the other versions.
        for step in reversed(page):
            if step.after is not None:
                self._files(step.after)
                break
        after: TableFiles | None = None
        last: TableState | None = None
        for step in page:
            before = after if step.before is last else self._files(step.before)
            last, after = step.after, self._files(step.after)
            if (None if before is None else before.snapshot_id) != (None if after is None else after.snapshot_id):
                yield _Step(step, ordinal, before, after)
                ordinal += 1

    def _files(self, state: TableState | None) -> TableFiles | None:
        if state is None:
            return None
        path = state.definition.format_properties.get(MANIFEST_LIST, "")
        if state.definition.table_type != MANAGED:
            table = self._open_table(state)
            return TableFiles(table.metadata, table.current_snapshot(), table.io)
        if self._listed is None or path not in self._listed.by_path:
            metadata = self._open_table(state).metadata
            current = metadata.current_snapshot()
            if current is None:
                return TableFiles(metadata, None, self._io)
            self._listed = ListedSnapshots.of(metadata, self._io)
            path = self._io.path_of(current.manifest_list)
        return TableFiles(self._listed.metadata, self._listed.by_path[path], self._io)

    def _changes(self, steps: Sequence[_Step]) -> Iterator[tuple[_Step, FileChanges]]:
        appended: dict[int, list[FileScanTask]] = {}
        for number, step in enumerate(steps):
            chain = None if step.after is None else snapshots_between(step.before, step.after)
            if all_are(chain, Operation.REPLACE) and self._has_all_columns(step.after):  # such as a compaction
                continue
            if chain and all_are(chain, Operation.APPEND):
                if not all(one.snapshot_id in appended for one in chain):
                    appended = self._appended(steps[number:])
                if all(one.snapshot_id in appended for one in chain):
                    yield step, FileChanges(added=[task for one in chain for task in appended[one.snapshot_id]])
                    continue
            yield step, file_changes(step.before, step.after)

    def _has_all_columns(self, files: TableFiles | None) -> bool:
        """Whether the schema of a snapshot has all columns of the result, so that moved rows have all values."""
        # It does not if a column was dropped before the snapshot, and a later rollback restored the column.
        assert files is not None
        assert files.snapshot is not None
        schemas = {one.schema_id: one for one in files.metadata.schemas}
        known = schemas.get(files.snapshot.schema_id) if files.snapshot.schema_id is not None else None
        return known is not None and {field.field_id for field in self._whole.fields} <= known.field_ids

    def _appended(self, steps: Sequence[_Step]) -> dict[int, list[FileScanTask]]:
        """The added files of the first versions up to one that does not only append, by the id of the snapshot."""
        snapshot_ids: set[int] = set()
        last: TableFiles | None = None
        for step in steps:
            chain = None if step.after is None else snapshots_between(step.before, step.after)
            if not chain or not all_are(chain, Operation.APPEND):
                break
            snapshot_ids.update(one.snapshot_id for one in chain)
            last = step.after
        assert last is not None
        return appended_files(last, snapshot_ids) or {}

    # Changed rows

    def _stream(self, files: Sequence[_Streamed]) -> Batches:
        """The rows of files that need no comparison. Several files are read at the same time."""

        def read(run: Sequence[_Streamed]) -> Iterator[pa.RecordBatch]:
            # A file may have different deletes in different versions.
            tasks: dict[TableFiles, list[FileScanTask]] = {}
            for one in run:
                tasks.setdefault(one.files, []).append(one.task)
            live = {files: LiveRows(files.metadata, files.io, some) for files, some in tasks.items()}
            for one in run:
                for batch in _rows_of_file(live[one.files], one.files, one.task, self._wanted):
                    yield self._labelled(batch, one.step, one.kind)

        if files:
            read_data_ahead(files[0].files.io, [one.task for one in files])
            yield from ReadAhead(list(runs(files)), read, READ_AHEAD)  # type: ignore[arg-type]

    def _compared(self, step: _Step, changes: FileChanges) -> Batches:
        """The changed rows of a version that replaced files, or deleted rows of files."""
        then, now = step.before, step.after
        assert then is not None
        assert now is not None
        parts = [
            *(_Part(False, then, task) for task in changes.removed),
            *(_Part(True, now, task) for task in changes.added),
        ]
        if changes.redeleted:
            live = LiveRows(then.metadata, then.io, [before for before, _ in changes.redeleted])
            live_now = LiveRows(now.metadata, now.io, [after for _, after in changes.redeleted])
            for before, after in changes.redeleted:
                gone, gone_now = live.deleted(before), live_now.deleted(after)
                parts.append(_Part(False, then, before, np.setdiff1d(gone_now, gone)))
                parts.append(_Part(True, now, after, np.setdiff1d(gone, gone_now)))
        parts = sorted((one for one in parts if one.chosen is None or len(one.chosen)), key=lambda one: one.is_added)
        read_data_ahead(now.io, [one.task for one in parts])
        kinds: list[Literal["insert", "delete"]] = ["insert" if one.is_added else "delete" for one in parts]
        if not parts:  # delete files changed, but the same rows are deleted
            return
        if len(set(kinds)) < 2:  # nothing to compare with
            for rows in ReadAhead(parts, partial(_rows_of_part, wanted=self._wanted), READ_AHEAD):
                yield self._labelled(rows.batch, step, kinds[0])
            return
        chosen, values = ([field.name for field in some.fields] for some in (self._wanted, self._whole))
        row_id = ROW_ID.name if share_row_ids(then, now) and ROW_ID.name not in values else None
        wanted = self._with_row_ids if row_id else self._whole
        both = ReadAhead(parts, partial(_rows_of_part, wanted=wanted), READ_AHEAD)
        for found in compare_rows(iter(both), arrow_schema(wanted), RowIdentity(values, row_id, self._key)):
            for batch in found.rows.select(chosen).combine_chunks().to_batches(max_chunksize=BATCH_ROWS):  # even
                yield self._labelled(batch, step, found.kind)

    def _labelled(self, batch: pa.RecordBatch, step: _Step, kind: str) -> pa.RecordBatch:
        """Append the columns of the feed to rows. Updated rows are in pairs of preimage and postimage."""
        count = batch.num_rows
        if kind == "update":
            pair = pa.array([self._type("update_preimage"), self._type("update_postimage")])
            types = pair.take(pa.array(np.arange(count) % 2))
        else:
            types = pa.repeat(pa.scalar(self._type(kind)), count)  # type: ignore[arg-type]
        if self._names == "iceberg":
            snapshot_id = None if step.after is None else step.after.snapshot_id
            values: list[Any] = [step.ordinal, snapshot_id]
        else:
            values = [step.step.version, step.step.committed_at, step.step.transaction_id]
        kinds = COLUMNS[self._names].types[1:]
        constants = [pa.repeat(pa.scalar(value, kind), count) for value, kind in zip(values, kinds, strict=True)]
        return pa.RecordBatch.from_arrays([*batch.columns, types, *constants], schema=self.schema)

    def _type(self, kind: ChangeType) -> str:
        return _ICEBERG_TYPES[kind] if self._names == "iceberg" else kind


def _there(files: TableFiles | None) -> TableFiles:
    assert files is not None  # a table with changed files exists
    return files


def _rows_of_part(part: _Part, wanted: Schema) -> Iterator[SideRows]:
    if part.chosen is not None and part.task.file.file_format != FileFormat.PARQUET:
        raise InvalidArgument(f"{part.task.file.file_path} is not a Parquet file, and deletes of its rows are not read")
    live = LiveRows(part.files.metadata, part.files.io, [part.task] if part.chosen is None else [])
    for batch in _rows_of_file(live, part.files, part.task, wanted, part.chosen):
        yield SideRows(part.is_added, batch)


def _rows_of_file(
    live: LiveRows, files: TableFiles, task: FileScanTask, wanted: Schema, chosen: npt.NDArray[np.int64] | None = None
) -> Iterator[pa.RecordBatch]:
    """The live or chosen rows of a file. Raises `InvalidArgument` for a value that does not fit its column.

    A version may have wider types than the result, if a column was widened and the lakehouse was rolled back later.
    """
    readable = with_wider_types(wanted, files.metadata.schema())
    for batch in live.matching(task, readable, chosen=chosen):
        if readable is not wanted:
            try:
                batch = batch.cast(arrow_schema(wanted))
            except pa.ArrowInvalid as error:
                raise InvalidArgument(
                    f"{error}: a rollback made the type of a column narrower again. Read the changes up to the version "
                    "before it, or choose other columns, columns=[…]"
                ) from error
        yield batch
