"""Equality deletes: rows that are deleted by the values of some columns, as Flink writes them.

A delete file applies to data files with a smaller data sequence number, in its own partition, or in all partitions if
its partition spec has no fields (Iceberg's specification, "Scan Planning"). NULL equals NULL, NaN equals NaN, and 0.0
and -0.0 differ, as in Iceberg for Java. Columns are found by id, so they may be renamed, widened or dropped later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField, StructType

from trinitylake.errors import CorruptFile
from trinitylake.iceberg_storage.data_files.partitioned_rows import comparable, spelled
from trinitylake.iceberg_storage.data_files.row_lineage import EqualityDelete, PlannedFile
from trinitylake.iceberg_storage.data_files.schema_projection import project

#: The spec id and partition that a delete file applies to; None for all partitions.
Scope: TypeAlias = "tuple[int, tuple[Any, ...]] | None"
Numbers: TypeAlias = "npt.NDArray[np.int64]"


class EqualityDeleteIndex:
    """Index of the equality delete files of a snapshot, by the data files to which they apply."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._by_scope: dict[Scope, list[EqualityDelete]] = defaultdict(list)

    def add(self, file: DataFile, sequence_number: int) -> None:
        """Add a delete file. All delete files must be added before the first call of `of`."""
        self._by_scope[_scope(self._metadata, file)].append(EqualityDelete(sequence_number, file))

    def of(self, file: DataFile, sequence_number: int) -> list[EqualityDelete]:
        if not self._by_scope:
            return []
        scopes: tuple[Scope, ...] = None, (file.spec_id, spelled(file.partition))
        return [one for scope in scopes for one in self._by_scope[scope] if one.sequence_number > sequence_number]


class DeletedKeys:
    """The keys of the rows that the equality deletes of a plan delete.

    Args:
        read: returns the rows of a delete file with the columns of a schema.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        tasks: Iterable[FileScanTask],
        read: Callable[[FileScanTask, Schema], Iterable[pa.RecordBatch]],
    ) -> None:
        planned = [task for task in tasks if isinstance(task, PlannedFile)]
        files = {delete.file.file_path: delete for task in planned for delete in task.equality_deletes}
        read_keys: dict[tuple[Scope, tuple[int, ...]], list[tuple[list[pa.Array], int]]] = defaultdict(list)
        columns: dict[tuple[int, ...], KeyColumns] = {}
        for number, file in files.values():
            ids = tuple(sorted(file.equality_ids or ()))
            if ids not in columns:
                columns[ids] = KeyColumns(metadata, file, ids)
            for batch in read(FileScanTask(file), columns[ids].schema):
                read_keys[_scope(metadata, file), ids].append((columns[ids].of(batch), number))
        self._by_scope: dict[Scope, list[_Keys]] = defaultdict(list)
        for (scope, ids), parts in read_keys.items():
            self._by_scope[scope].append(_Keys(columns[ids], parts))

    def of(self, task: FileScanTask) -> KeysOfFile | None:
        """The keys of the deleted rows of a data file; None if no delete file applies to it."""
        if not isinstance(task, PlannedFile) or not task.equality_deletes:
            return None
        scopes: tuple[Scope, ...] = None, (task.file.spec_id, spelled(task.file.partition))
        return KeysOfFile([keys for scope in scopes for keys in self._by_scope[scope]], task.sequence_number or 0)


@dataclass(frozen=True)
class KeysOfFile:
    """The keys of the deleted rows of one data file. Only keys with a greater sequence number count."""

    keys: Sequence[_Keys]
    sequence_number: int

    @property
    def columns(self) -> list[Schema]:
        """The columns that are compared."""
        return [one.columns.schema for one in self.keys]

    def others(self, batch: pa.RecordBatch, present: Schema, constants: Mapping[int, Any]) -> pa.RecordBatch:
        """The rows of `batch` whose key is not deleted. The arguments are as for `project`."""
        deleted = np.zeros(batch.num_rows, bool)
        for one in self.keys:
            values = one.columns.of(project(batch, present, one.columns.schema, constants))
            deleted |= one.deleted(values, self.sequence_number)
        return batch.filter(pa.array(~deleted)) if deleted.any() else batch


class KeyColumns:
    """The columns that delete files compare.

    Attributes:
        schema: the columns, all optional. A struct has only its compared fields.
    """

    def __init__(self, metadata: TableMetadata, file: DataFile, ids: Sequence[int]) -> None:
        newest_first = sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True)
        table = next((schema for schema in newest_first if ids and schema.field_ids >= set(ids)), None)
        if table is None:
            raise CorruptFile(
                f"{file.file_path} deletes rows by the columns with the ids {list(ids)}, which are in no schema of the "
                "table",
                path=file.file_path,
            )
        self.schema = Schema(*map(_optional, prune_columns(table, set(ids), select_full_types=False).fields))
        self._paths = list(_paths(self.schema.fields, ()))

    def of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The keys of rows: one array per compared column or field, in which equal values are equal also for NaN."""
        arrays = []
        for first, *inner in self._paths:
            column = rows.column(first)
            for name in inner:
                column = pc.struct_field(column, [name])
            arrays.append(comparable(column).combine_chunks())
        return arrays


class _Keys:
    """Deleted keys, each with the greatest sequence number of the delete files that contain it.

    Keys are numbered column by column: each pair of (number of the key so far, value of the column) gets a new number.
    """

    def __init__(self, columns: KeyColumns, parts: Sequence[tuple[list[pa.Array], int]]) -> None:
        self.columns = columns
        arrays = [pa.concat_arrays(column) for column in zip(*(keys for keys, _ in parts), strict=True)]
        self._values = [column.unique() for column in arrays]
        self._pairs: list[Numbers] = []
        keys: Numbers = np.zeros(len(arrays[0]), np.int64)
        for column, values in zip(arrays, self._values, strict=True):
            pairs, keys = np.unique(keys * len(values) + _places(column, values), return_inverse=True)
            self._pairs.append(pairs)
        self._numbers = np.zeros(len(self._pairs[-1]), np.int64)
        numbers = np.concatenate([np.full(len(keys[0]), number) for keys, number in parts])
        np.maximum.at(self._numbers, keys, numbers)

    def deleted(self, rows: list[pa.Array], sequence_number: int) -> npt.NDArray[np.bool_]:
        """Mask of the deleted rows of a file. `rows` are the values of its rows from `KeyColumns.of`."""
        keys: Numbers = np.zeros(len(rows[0]), np.int64)
        is_key = np.ones(len(keys), bool)
        for column, values, pairs in zip(rows, self._values, self._pairs, strict=True):
            places = _places(column, values)
            wanted = keys * len(values) + places
            keys = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            is_key &= (places >= 0) & (pairs[keys] == wanted)
        result: npt.NDArray[np.bool_] = is_key & (self._numbers[keys] > sequence_number)
        return result


def _scope(metadata: TableMetadata, delete: DataFile) -> Scope:
    spec = metadata.specs()[delete.spec_id]
    return None if spec.is_unpartitioned() else (delete.spec_id, spelled(delete.partition))


def _places(column: pa.Array, values: pa.Array) -> Numbers:
    """The index in `values` of each value of a column, also of NULL; -1 for an absent value."""
    found = pc.index_in(column, value_set=values)
    places: Numbers = found.fill_null(-1).to_numpy().astype(np.int64)
    return places


def _optional(field: NestedField) -> NestedField:
    kind = field.field_type
    if isinstance(kind, StructType):
        kind = StructType(*map(_optional, kind.fields))
    return field.model_copy(update={"required": False, "field_type": kind})


def _paths(fields: Iterable[NestedField], above: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    for field in fields:
        path = (*above, field.name)
        if isinstance(field.field_type, StructType):
            yield from _paths(field.field_type.fields, path)
        else:
            yield path
