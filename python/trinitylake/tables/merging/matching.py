"""Finds the files that may have a key of the source, and matches their rows with the source rows by key.

The filter of a statement lists the keys only if they are few; for many keys it has only their range (`key_filter`). So
files are compared with all keys, by partition, column bounds and Bloom filters.

To save memory, only keys and row numbers are joined: all keys of the source with one chunk of the table's keys at a
time. Other columns are taken by row number afterwards. Dense integers are looked up without a join (`join_keys.py`),
unless clauses have conditions or values in SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DateType, DecimalType, IcebergType, IntegerType, LongType, StringType

from trinitylake.errors import InvalidArgument
from trinitylake.iceberg_storage.data_files.bloom_filters import asked_columns, may_hold
from trinitylake.iceberg_storage.data_files.live_rows import LiveRows
from trinitylake.iceberg_storage.data_files.row_lineage import POSITION
from trinitylake.iceberg_storage.data_files.streamed_rows import READ_AHEAD, ReadAhead
from trinitylake.iceberg_storage.extended_pyiceberg.scan import files_of_branch
from trinitylake.iceberg_storage.row_filter import RowFilter
from trinitylake.tables.merging.clauses import Clauses
from trinitylake.tables.merging.join_keys import DenseKeys, join_columns, key_names, shown, whole_numbers
from trinitylake.tables.merging.row_operations import take_rows

#: Keys with more distinct values in a column that is not integer are not compared with bounds.
MAX_VALUES = 1_000_000
#: Reading a file smaller than this takes no longer than reading its Bloom filters.
_SMALL_SIZE_BYTES = 256 << 10


def candidate_files(
    metadata: TableMetadata, io: FileIO, filter: BooleanExpression, keys: pa.Table, columns: Sequence[str]
) -> list[FileScanTask]:
    """The files of the current snapshot that may have a row with one of `keys`, ordered by path.

    Args:
        filter: matches all rows with one of the keys.
        keys: rows with the key `columns`, with the types of the table.
    """
    if metadata.current_snapshot_id is None or keys.num_rows == 0:
        return []
    schema = metadata.schema()
    values = {name: found for name in columns if (found := _ascending(keys.column(name), schema.find_type(name)))}
    tasks = files_of_branch(metadata, io, RowFilter.of(filter, schema).and_also(RowFilter.among(schema, values)))
    return sorted(_by_bloom_filters(metadata, io, tasks, keys, columns), key=lambda task: task.file.file_path)


def _by_bloom_filters(
    metadata: TableMetadata, io: FileIO, tasks: Sequence[FileScanTask], keys: pa.Table, columns: Sequence[str]
) -> Sequence[FileScanTask]:
    """The files whose Bloom filters do not exclude all keys; all files if there are too many keys for a look-up."""
    schema = metadata.schema()
    asked = asked_columns(metadata.properties, schema, keys, columns)
    if not asked:
        return tasks

    def is_candidate(task: FileScanTask) -> bool:
        file = task.file
        if file.file_format != FileFormat.PARQUET or file.file_size_in_bytes < _SMALL_SIZE_BYTES:
            return True
        return may_hold(io.new_input(file.file_path), schema, keys, asked)

    with ThreadPoolExecutor(READ_AHEAD, "trinitylake-filters") as pool:
        return [task for task, is_one in zip(tasks, pool.map(is_candidate, tasks), strict=True) if is_one]


def _ascending(column: pa.ChunkedArray, kind: IcebergType) -> list[Any] | None:
    """The values of a column without NULL, ascending; None for too many values, and for types that are rarely keys."""
    if isinstance(kind, IntegerType | LongType | DateType):
        numbers: list[Any] = np.sort(whole_numbers(column.drop_null())).tolist()
        return numbers
    if not isinstance(kind, StringType | DecimalType):
        return None
    distinct = pc.unique(column).drop_null()
    return None if len(distinct) > MAX_VALUES else sorted(distinct.to_pylist())


#: Minimum number of table rows that are joined at once.
CHUNK_ROWS = 1_000_000
#: Maximum number of table rows that are joined at once.
MAX_CHUNK_ROWS = 8_000_000


@dataclass
class Hits:
    """Rows of one file to which a clause applies, in their order.

    Attributes:
        positions: positions of the rows in the file.
        source: the number of the matching source row, for each row.
        clause: the number of the clause, for each row.
        computed: for each clause, computed values by column.
    """

    positions: np.ndarray
    source: np.ndarray
    clause: np.ndarray
    computed: list[dict[str, pa.Array]]

    def sorted(self) -> Hits:
        return self.take(np.argsort(self.positions, kind="stable"))

    def take(self, numbers: np.ndarray) -> Hits:
        chosen = pa.array(numbers)
        computed = [{name: values.take(chosen) for name, values in one.items()} for one in self.computed]
        return Hits(self.positions[numbers], self.source[numbers], self.clause[numbers], computed)

    def among(self, positions: np.ndarray) -> Hits:
        """The hits at some ascending positions of the file, renumbered to their indexes in `positions`."""
        first, last = np.searchsorted(self.positions, [positions[0], positions[-1] + 1]) if len(positions) else (0, 0)
        part = self.take(np.arange(first, last))
        return replace(part, positions=np.searchsorted(positions, part.positions))


@dataclass
class Matches:
    """Matched rows of the table and of the source.

    Attributes:
        hits: the matched rows of the table, by the number of their file.
        met: mask of the source rows that match any row of the table.
    """

    met: np.ndarray
    hits: dict[int, Hits] = field(default_factory=dict)


def find_matches(
    live: LiveRows, tasks: Sequence[FileScanTask], source: pa.Table, keys: Sequence[str], clauses: Clauses
) -> Matches:
    """Join the rows of some files with `source`, and evaluate the clauses for each pair.

    Raises `InvalidArgument` if more than one row of the source would change the same row of the table.
    """
    dense = None if _reads(clauses) else DenseKeys.of(source, keys, sum(task.file.record_count for task in tasks))
    if dense is not None:
        return _looked_up(live, tasks, source, keys[0], dense, clauses)
    names = key_names(keys)
    build = pa.table(dict(zip(names, join_columns(source, keys), strict=True)))
    build = build.append_column("trinitylake:row", pa.array(np.arange(source.num_rows)))
    matches = Matches(np.zeros(source.num_rows, dtype=bool))
    read = clauses.target_columns()
    columns = list(dict.fromkeys([*keys, *read]))
    found: list[pa.Table] = []
    computed: list[list[dict[str, pa.Array]]] = []
    types = pa.schema([clauses.target.field(name) for name in columns])
    for chunk in _chunks(_rows_of(live, tasks, types), max(CHUNK_ROWS, min(4 * source.num_rows, MAX_CHUNK_ROWS))):
        probe = pa.table(dict(zip(names, join_columns(chunk, keys), strict=True)))
        probe = probe.append_column("trinitylake:at", pa.array(np.arange(chunk.num_rows)))
        joined = probe.join(build, keys=names, join_type="inner").select(["trinitylake:at", "trinitylake:row"])
        if joined.num_rows == 0:
            continue
        at, rows = joined["trinitylake:at"].to_numpy(), joined["trinitylake:row"].to_numpy()
        matches.met[rows] = True
        order = np.lexsort((rows, at))
        at, rows = at[order], rows[order]
        target = chunk.select(read).take(pa.array(at)) if read else None
        outcome = clauses.outcome(
            take_rows(source, rows) if read or _reads(clauses) else _rows_without_columns(len(rows)), target
        )
        speaks = outcome.clause.to_numpy() >= 0
        at, rows = at[speaks], rows[speaks]
        twice = np.flatnonzero(at[1:] == at[:-1])
        if len(twice):
            meeting = pa.array(rows[np.unique(np.concatenate([twice, twice + 1]))])
            raise InvalidArgument(
                f"more than one row of the data would change the same row of the table: {shown(source, keys, meeting)}"
            )
        chosen = chunk.select(["trinitylake:file", POSITION.name]).take(pa.array(at))
        mask = pa.array(speaks)
        found.append(chosen.append_column("row", pa.array(rows)).append_column("clause", outcome.clause.filter(mask)))
        computed.append([{name: values.filter(mask) for name, values in one.items()} for one in outcome.computed])
    _spread(matches, found, computed)
    return matches


def _looked_up(
    live: LiveRows, tasks: Sequence[FileScanTask], source: pa.Table, key: str, dense: DenseKeys, clauses: Clauses
) -> Matches:
    """Like `find_matches`, but looks up target keys in the source. Requires unique source keys and no SQL."""
    # Each row of the table matches at most one source row. Without conditions, the first clause applies to every pair.
    matches = Matches(np.zeros(source.num_rows, dtype=bool))
    types = pa.schema([clauses.target.field(key)])

    def look(number: int) -> tuple[np.ndarray, np.ndarray]:
        positions, met = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in live.batches(tasks[number], [key, POSITION.name]):
            keys = pa.Table.from_batches([batch.select([key])]).cast(types).column(key)
            rows = dense.rows_of(keys)
            here = np.flatnonzero(rows >= 0)
            positions.append(batch.column(POSITION.name).to_numpy()[here])
            met.append(rows[here].astype(np.int64))
        return np.concatenate(positions), np.concatenate(met)

    with ThreadPoolExecutor(READ_AHEAD, "trinitylake-merge") as pool:
        for number, (positions, met) in enumerate(pool.map(look, range(len(tasks)))):
            matches.met[met] = True
            if len(positions) and clauses.clauses:
                which = np.zeros(len(positions), dtype=np.int32)
                matches.hits[number] = Hits(positions, met, which, [{} for _ in clauses.clauses])
    return matches


def _reads(clauses: Clauses) -> bool:
    return any(one.condition is not None or one.computed(clauses.source) for one in clauses.clauses)


def _rows_without_columns(rows: int) -> pa.Table:
    return pa.table({"trinitylake:": pa.nulls(rows)})


def _spread(matches: Matches, found: list[pa.Table], computed: list[list[dict[str, pa.Array]]]) -> None:
    """Distribute the pairs of all chunks to their files."""
    for table, values in zip(found, computed, strict=True):
        numbers = table["trinitylake:file"].to_numpy()
        whole = Hits(table[POSITION.name].to_numpy(), table["row"].to_numpy(), table["clause"].to_numpy(), values)
        for file in np.unique(numbers):
            hits = whole.take(np.flatnonzero(numbers == file))
            known = matches.hits.get(int(file))
            matches.hits[int(file)] = hits if known is None else _joined(known, hits)


def _joined(one: Hits, other: Hits) -> Hits:
    return Hits(
        np.concatenate([one.positions, other.positions]),
        np.concatenate([one.source, other.source]),
        np.concatenate([one.clause, other.clause]),
        [
            {name: pa.concat_arrays([values[name], more[name]]) for name in values}
            for values, more in zip(one.computed, other.computed, strict=True)
        ],
    )


def _rows_of(live: LiveRows, tasks: Sequence[FileScanTask], types: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all files, with the position of the row and the number of the file. Files are read ahead."""
    placed = types.append(pa.field(POSITION.name, pa.int64()))

    def read(number: int) -> Iterator[pa.Table]:
        for batch in live.batches(tasks[number], [*types.names, POSITION.name]):
            table = pa.Table.from_batches([batch]).cast(placed)
            yield table.append_column("trinitylake:file", pa.array(np.full(batch.num_rows, number, dtype=np.int32)))

    return iter(ReadAhead(range(len(tasks)), read, READ_AHEAD))


def _chunks(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    gathered: list[pa.Table] = []
    count = 0
    for table in tables:
        gathered.append(table)
        count += table.num_rows
        if count >= rows:
            yield pa.concat_tables(gathered)
            gathered, count = [], 0
    if gathered:
        yield pa.concat_tables(gathered)
