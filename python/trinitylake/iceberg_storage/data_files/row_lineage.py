"""Row lineage of format version 3: the id of a row, and the sequence number of the commit that last changed it.

Readers take both values from two columns of the data file. If the columns are missing or NULL, the values follow from
the first row id and the sequence number of the file in its manifest (Iceberg's specification, "Row Lineage"). A file
with rows from other files has both columns. An unchanged row keeps both values, and a changed row keeps its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

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
#: The position of a row in its data file. The name differs from `_pos`, because a table may have a column `_pos`.
POSITION = NestedField(2147483645, "trinitylake:position", LongType(), required=False)
LINEAGE = ROW_ID, LAST_UPDATED
METADATA_COLUMNS = {field.name: field for field in (*LINEAGE, POSITION)}

#: The positions of the rows of a batch, ascending: a range, or an array if rows between them were not read.
Positions: TypeAlias = "range | np.ndarray"
Placed: TypeAlias = tuple[pa.RecordBatch, Positions]

_carried: IdentityCache[Schema] = IdentityCache()


class EqualityDelete(NamedTuple):
    """An equality delete file with its data sequence number."""

    sequence_number: int
    file: DataFile


class PlannedFile(FileScanTask):
    """A data file of a plan.

    Attributes:
        sequence_number: the data sequence number of the file; None for a file that is not committed.
        equality_deletes: the equality delete files among `delete_files`.
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
    """The columns to read and write when rows move to another file. Format version 3 adds the lineage columns.

    Raises `InvalidArgument` if a column of the table has the name of a lineage column.
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
    batches: Iterable[pa.RecordBatch], file: pq.FileMetaData, row_groups: Sequence[int] | None, as_column: bool
) -> Iterator[Placed]:
    """Pair each batch with the positions of its rows in the file; with `as_column`, also append them as a column.

    The batches must contain all rows of the row groups.
    """
    counts = np.array([file.row_group(number).num_rows for number in range(file.num_row_groups)], np.int64)
    groups = np.arange(len(counts)) if row_groups is None else np.array(row_groups)
    begins = np.cumsum(counts) - counts
    ends_read = np.cumsum(counts[groups])
    skipped = begins[groups] - (ends_read - counts[groups])
    start = 0
    for batch in batches:
        end = start + batch.num_rows
        # Number of rows in skipped row groups before the first row of the batch, and before its last row.
        first, last = skipped[np.searchsorted(ends_read, [start, end - 1], "right")] if batch.num_rows else (0, 0)
        positions: Positions = range(start + first, end + first)
        if first != last:
            numbers = np.arange(start, end)
            positions = numbers + skipped[np.searchsorted(ends_read, numbers, "right")]
        yield (with_position_column(batch, positions) if as_column else batch), positions
        start = end


def with_position_column(batch: pa.RecordBatch, positions: Positions) -> pa.RecordBatch:
    if isinstance(positions, range):
        positions = np.arange(positions.start, positions.stop)
    return batch.append_column(POSITION.name, pa.array(positions))


def row_groups_at(file: pq.FileMetaData, positions: np.ndarray) -> list[int]:
    ends = np.cumsum([file.row_group(number).num_rows for number in range(file.num_row_groups)])
    return [int(number) for number in np.unique(np.searchsorted(ends, positions, side="right"))]


def rows_at(batches: Iterable[Placed], positions: np.ndarray, *, are_kept: bool) -> Iterator[pa.RecordBatch]:
    """The rows at the ascending `positions` if `are_kept`, otherwise all other rows."""
    for batch, own in batches:
        here = positions[slice(*np.searchsorted(positions, [own[0], own[-1] + 1]))] if len(own) else positions[:0]
        if not len(here):
            if not are_kept:
                yield batch
            continue
        if isinstance(own, range):
            mask = np.full(len(own), not are_kept)
            mask[here - own.start] = are_kept
        else:
            mask = np.isin(own, here) == are_kept
        if (rows := batch.filter(pa.array(mask))).num_rows:
            yield rows


def with_lineage(rows: pa.RecordBatch, batch: pa.RecordBatch, task: FileScanTask) -> pa.RecordBatch:
    """Fill NULL in the lineage columns with the values that the rows inherit from their file.

    Args:
        rows: projected from `batch`.
        batch: from `with_positions`.
        task: the file. Its rows have no lineage if its manifest was written before the upgrade to format version 3.
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
