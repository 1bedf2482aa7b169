"""Copies objects to another root: definitions, the metadata of tables, and the files of tables.

An `ObjectCopier` can be pickled for the tasks of an engine. `ExportWorkers` choose the processes that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from trinitylake import _core
from trinitylake.base.pickling import StorageForTasks
from trinitylake.core import KeySizes
from trinitylake.definitions import MANAGED, parse_definition, parse_lakehouse_def, parse_table_def, read_definition
from trinitylake.errors import CorruptFile

if TYPE_CHECKING:
    from trinitylake.lakehouse.reader import Kind

Item = TypeVar("Item")
#: Callback with the number of copied objects and, as far as known, the number of all objects.
OnProgress: TypeAlias = Callable[[int, int], object]

#: Kinds of objects that are copied.
KINDS = ("namespace", "table", "view")
#: Maximum number of tables that are copied at a time.
_PARALLEL_TABLES = 8
#: Maximum number of objects whose definitions are in memory at a time.
_BATCH_OBJECTS = 1000


class Copied(NamedTuple):
    """Numbers of written files and of files that existed (`present`), and the size of the written files."""

    files: int = 0
    size_bytes: int = 0
    present: int = 0

    def plus(self, other: tuple[int, int, int]) -> Copied:
        return Copied(self.files + other[0], self.size_bytes + other[1], self.present + other[2])


class ExportedObject(NamedTuple):
    """An object to copy: the location of its definition, and in `before` the location in the copy's last version."""

    kind: Kind
    location: str
    before: str | None = None


class FileToCopy(NamedTuple):
    """A file to copy unchanged. If `is_new` is False, the target may have it already."""

    path: str
    size_bytes: int | None
    is_new: bool


@dataclass(frozen=True)
class ObjectCopier:
    """Copies from one root to another.

    Attributes:
        source, target: the storages of both roots. A pickled copier contains their options, too.
        keeps_history: whether all snapshots of tables are copied, instead of only the current and named ones.
        is_resumed: whether an earlier, interrupted export may have copied any of the files.
        is_same_store: whether both roots are in one store, so that the store can copy files.
    """

    source: StorageForTasks
    target: StorageForTasks
    keeps_history: bool
    is_resumed: bool
    is_same_store: bool

    def objects(self, objects: Sequence[ExportedObject], take: Callable[[list[FileToCopy]], Copied]) -> Copied:
        """Write definitions and the metadata of tables.

        Several threads call `take`, for each table, with the other files of the table; `take` copies or schedules them.
        """
        copied = Copied()
        with ThreadPoolExecutor(_PARALLEL_TABLES) as pool:
            definitions = list(pool.map(self._read, objects))
            tables = [pair for pair in zip(objects, definitions, strict=True) if pair[0].kind == "table"]
            for done in pool.map(lambda pair: self._table(pair[0], pair[1], take), tables):
                copied = copied.plus(done)
            pairs = zip((one.location for one in objects), definitions, strict=True)
            for done in pool.map(lambda pair: self.put(*pair), pairs):
                copied = copied.plus(done)
        return copied

    def files(self, files: Iterable[FileToCopy]) -> Copied:
        copied = Copied()
        given = list(files)
        for is_new in (True, False):
            some = [(one.path, one.size_bytes) for one in given if one.is_new == is_new]
            may_be_there = self.is_resumed or not is_new
            done = _core.copy_files(self.source.storage, self.target.storage, some, may_be_there, self.is_same_store)
            copied = copied.plus(done)
        return copied

    def put(self, path: str, data: bytes) -> Copied:
        """Write a file unless it exists."""
        from trinitylake.iceberg_storage.table_export import put_same

        return Copied(1, len(data), 0) if put_same(self.target.storage, path, data) else Copied(0, 0, 1)

    def _read(self, one: ExportedObject) -> bytes:
        file = self.source.storage.get(one.location)
        parse_definition(one.kind, _core.decode_definition_file(one.location, file), one.location)
        return file

    def _table(self, one: ExportedObject, file: bytes, take: Callable[[list[FileToCopy]], Copied]) -> Copied:
        """Copy the files of a managed table. Other tables have no files in the lakehouse."""
        from trinitylake.iceberg_storage.file_io import LakehouseFileIO
        from trinitylake.iceberg_storage.table_export import TableExport, present_manifests
        from trinitylake.tables.table_definition import metadata_path

        definition = parse_table_def(_core.decode_definition_file(one.location, file), one.location)
        if definition.table_type != MANAGED:
            return Copied()
        path = metadata_path(definition, one.location)
        target = self.target.storage
        present: dict[str, int] = {}
        if one.before is not None and target.exists(one.before):
            old = parse_table_def(read_definition(target, one.before), one.before)
            if old.table_type == MANAGED:
                old_path = metadata_path(old, one.before)
                if old_path == path:
                    return Copied(0, 0, 1)
                present = present_manifests(LakehouseFileIO(target), old_path)
        io = LakehouseFileIO(self.source.storage)
        table = TableExport(io, target, keeps_history=self.keeps_history, present=present)
        try:
            table.run(path, definition.id)
        except FileNotFoundError as error:
            raise CorruptFile(f"{path}: a file of the table is missing: {error}", path=path) from error
        files = [FileToCopy(*file, True) for file in table.new_files.items()]
        files += [FileToCopy(*file, False) for file in table.old_files.items()]
        return Copied(table.files, table.bytes, 0).plus(take(files))


class ExportWorkers:
    """Runs the work of an export in this process. A subclass runs it in tasks of an engine."""

    def __init__(self, progress: OnProgress | None) -> None:
        self._progress = progress

    def files(self, copier: ObjectCopier, files: Iterable[FileToCopy]) -> Copied:
        return copier.files(files)

    def objects(self, copier: ObjectCopier, objects: Iterable[ExportedObject]) -> Copied:
        """Copy definitions, and the files of tables."""
        copied = Copied()
        done = total = 0
        for some in batches(objects):
            total += len(some)
            copied = copied.plus(copier.objects(some, copier.files))
            done += len(some)
            if self._progress is not None:
                self._progress(done, total)
        return copied

    def version(self, copier: ObjectCopier, state: _core.Version) -> Copied:
        """Copy all objects of a version."""
        found = pa.RecordBatchReader.from_stream(state.scan())
        return self.objects(copier, objects_in(found, KeySizes.of(parse_lakehouse_def(state.definition))))


def objects_in(found: Iterable[pa.RecordBatch], sizes: tuple[int, int, int]) -> Iterator[ExportedObject]:
    """Decode objects from batches of keys and locations."""
    for batch in found:
        kinds = _core.decode_keys(batch.column(0), sizes).column(0).to_pylist()
        for kind, location in zip(kinds, batch.column(1).to_pylist(), strict=True):
            if kind in KINDS:
                yield ExportedObject(kind, location)


def batches(items: Iterable[Item], size: int = _BATCH_OBJECTS) -> Iterator[list[Item]]:
    """Lists of at most `size` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
