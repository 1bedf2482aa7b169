"""Row lineage of format version 3: the id of a row, and the sequence number of the commit that last changed it.

Readers compute both (Iceberg's specification, "Row Lineage"): from the columns of a data file if it has them and they
are not NULL, otherwise from the first row id and the sequence number that the file has in its manifest. A file of rows
that come from other files has both columns. An unchanged row keeps its two values, and a changed row keeps its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import LongType, NestedField

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.identity_cache import IdentityCache
from trinitylake.iceberg_storage.row_ids import ROW_IDS_SINCE, first_row_id_of_file

#: Columns with ids that Iceberg reserves.
ROW_ID = NestedField(2147483540, "_row_id", LongType(), required=False)
LAST_UPDATED = NestedField(2147483539, "_last_updated_sequence_number", LongType(), required=False)
#: The position of a row in its data file. The column has an own name, because a table may have a column `_pos`.
POSITION = NestedField(2147483645, "trinitylake:position", LongType(), required=False)
LINEAGE = ROW_ID, LAST_UPDATED
METADATA_COLUMNS = {field.name: field for field in (*LINEAGE, POSITION)}

_carried: IdentityCache[Schema] = IdentityCache()


class EqualityDelete(NamedTuple):
    """An equality delete file with its data sequence number."""

    sequence_number: int
    file: DataFile


class PlannedFile(FileScanTask):
    """A data file of a plan.

    Attributes:
        sequence_number: the data sequence number of the file; None for a file that is not committed.
        equality_deletes: those of `delete_files` that delete rows by values.
    """

    def __init__(
        self,
        data_file: DataFile,
        delete_files: set[DataFile] | None = None,
        residual: BooleanExpression = ALWAYS_TRUE,
        sequence_number: int | None = None,
        equality_deletes: Sequence[EqualityDelete] = (),
    ) -> None:
        super().__init__(data_file, delete_files, residual)
        self.sequence_number = sequence_number
        self.equality_deletes = equality_deletes


def carried_schema(metadata: TableMetadata) -> Schema:
    """The columns of rows that move to another file: with their lineage in format version 3.

    Raises `InvalidArgument` for a table that has columns with the names of the lineage.
    """
    schema = metadata.schema()
    if metadata.format_version < ROW_IDS_SINCE:
        return schema

    def made() -> Schema:
        if taken := [field.name for field in LINEAGE if field.name in schema.column_names]:
            raise InvalidArgument(
                f"column {taken[0]} has a name that Iceberg reserves, so rows of the table cannot be moved to other "
                "files: rename the column"
            )
        return Schema(*schema.fields, *LINEAGE, identifier_field_ids=schema.identifier_field_ids)

    return _carried.of(schema, make=made)


def selected(schema: Schema, names: Sequence[str], case_sensitive: bool = True) -> Schema:
    """The columns of a schema with these names, in its order, then the named metadata columns.

    Raises `ValueError` for an unknown column.
    """
    there = {field.name for field in schema.fields}
    computed = [METADATA_COLUMNS[name] for name in names if name in METADATA_COLUMNS and name not in there]
    own = [name for name in names if name not in METADATA_COLUMNS or name in there]
    columns = schema.select(*own, case_sensitive=case_sensitive) if own else Schema()
    return Schema(*columns.fields, *computed) if computed else columns


def has_computed(columns: Schema) -> bool:
    """Whether a schema has columns that are computed from the positions of rows and the manifest."""
    return any(field.field_id in columns.field_ids for field in METADATA_COLUMNS.values())


def with_positions(
    batches: Iterable[pa.RecordBatch], file: pq.FileMetaData, row_groups: Sequence[int] | None
) -> Iterator[pa.RecordBatch]:
    """The batches of some row groups of a file with one more column: the positions of the rows in the file."""
    counts = np.array([file.row_group(number).num_rows for number in range(file.num_row_groups)], np.int64)
    groups = np.arange(len(counts)) if row_groups is None else np.array(row_groups)
    begins = np.cumsum(counts) - counts
    ends_read = np.cumsum(counts[groups])
    skipped = begins[groups] - (ends_read - counts[groups])
    start = 0
    for batch in batches:
        end = start + batch.num_rows
        # The row groups of the first and the last row.
        first, last = np.searchsorted(ends_read, [start, end - 1], side="right") if batch.num_rows else (0, 0)
        numbers = np.arange(start, end)
        of_rows = first if first == last else np.searchsorted(ends_read, numbers, side="right")
        yield batch.append_column(POSITION.name, pa.array(numbers + skipped[of_rows]))
        start = end


def row_groups_at(file: pq.FileMetaData, positions: np.ndarray) -> list[int]:
    ends = np.cumsum([file.row_group(number).num_rows for number in range(file.num_row_groups)])
    return [int(number) for number in np.unique(np.searchsorted(ends, positions, side="right"))]


def at_positions(batches: Iterable[pa.RecordBatch], positions: np.ndarray) -> Iterator[pa.RecordBatch]:
    """The rows at some positions, which are ascending. `batches` are from `with_positions`."""
    for batch in batches:
        listed = _listed(batch, positions)
        if listed is not None:
            yield batch.filter(pa.array(listed))


def without_positions(
    batches: Iterable[pa.RecordBatch], positions: np.ndarray, columns: Schema
) -> Iterator[pa.RecordBatch]:
    """Some columns of the rows of `batches`, without the rows at `positions`, which ascend."""
    names = [field.name for field in columns.fields]
    for batch in batches:
        listed = _listed(batch, positions)
        if listed is None:
            yield batch
        elif not listed.all():
            yield batch.select(names).filter(pa.array(~listed))


def _listed(batch: pa.RecordBatch, positions: np.ndarray) -> np.ndarray | None:
    """Mask of the rows of a batch at some positions; None for none."""
    own = batch.column(POSITION.name).to_numpy()
    here = positions[slice(*np.searchsorted(positions, [own[0], own[-1] + 1]))] if len(own) else own
    if not len(here):
        return None
    if own[-1] - own[0] >= len(own):  # row groups between them were not read
        return np.isin(own, here)
    listed = np.zeros(len(own), dtype=bool)
    listed[here - own[0]] = True
    return listed


def with_lineage(rows: pa.RecordBatch, batch: pa.RecordBatch, task: FileScanTask) -> pa.RecordBatch:
    """The rows with the lineage that they inherit, where a column of lineage is NULL.

    Args:
        rows: projected from `batch`.
        batch: from `with_positions`.
        task: the file; its rows have no lineage if its manifest is older than the upgrade to version 3.
    """
    if (first := first_row_id_of_file(task.file)) is None:
        return rows
    number = task.sequence_number if isinstance(task, PlannedFile) else None
    inherited = {
        ROW_ID.name: lambda: pc.add(batch.column(POSITION.name), first),
        LAST_UPDATED.name: lambda: pa.scalar(number, pa.int64()),
    }
    columns = [
        pc.coalesce(column, inherited[field.name]()) if field.name in inherited and column.null_count else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
