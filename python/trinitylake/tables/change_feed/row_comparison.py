"""Compares the rows of removed files with the rows of added files.

Rows on both sides did not change. Rows on one side were deleted or inserted. A deleted and an inserted row with the
same row id, or else with the same primary key, are one updated row. Equal rows are interchangeable, except for their
row ids.

Rows are compared in memory. Above `MEMORY_MAX_SIZE_BYTES` they are partitioned into temporary files: first by row id,
and then, for rows whose id is only on one side, by key or values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import BinaryIO, Literal, NamedTuple, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trinitylake.tables.change_feed.equal_rows import CopiedRun, Signatures, copied_runs, signatures
from trinitylake.tables.merging.row_operations import differing, take_rows

ChangeType: TypeAlias = Literal["insert", "delete", "update_preimage", "update_postimage"]
_Numbers: TypeAlias = "npt.NDArray[np.int64]"

#: Maximum Arrow size of the rows of both sides that are compared in memory.
MEMORY_MAX_SIZE_BYTES = 256 << 20
#: Number of partitions of rows that exceed the memory. Each partition has two temporary files.
_PARTS = 64


@dataclass(frozen=True)
class RowIdentity:
    """Columns that identify a row.

    Attributes:
        values: the columns of the table.
        row_id: the column of row ids, which is not a column of the table; None before format version 3.
        key: the primary key; empty if the table has none.
    """

    values: Sequence[str]
    row_id: str | None
    key: Sequence[str]


class SideRows(NamedTuple):
    """Rows of one side of a comparison."""

    is_added: bool
    batch: pa.RecordBatch

    @property
    def nbytes(self) -> int:
        return int(self.batch.nbytes)


@dataclass(frozen=True)
class ChangedRows:
    """Rows of one kind of change. Updated rows are in pairs, the preimage first."""

    kind: Literal["insert", "delete", "update"]
    rows: pa.Table


def compare_rows(rows: Iterator[SideRows], schema: pa.Schema, identity: RowIdentity) -> Iterator[ChangedRows]:
    """The changes that turn the removed rows into the added rows: deletes, then updates, then inserts.

    All batches have the given schema.
    """
    held: list[SideRows] = []
    size_bytes = 0
    for one in rows:
        held.append(one)
        size_bytes += one.nbytes
        if size_bytes > MEMORY_MAX_SIZE_BYTES:
            yield from _compare_in_parts(chain(held, rows), schema, identity)
            return
    removed, added = (
        pa.Table.from_batches([one.batch for one in held if one.is_added == is_added], schema)
        for is_added in (False, True)
    )
    by_id, removed, added = _pair_by_id(removed, added, identity)
    deleted, updated, inserted = _compare(removed, added, identity)
    found = [ChangedRows("delete", deleted), ChangedRows("update", by_id), ChangedRows("update", updated)]
    yield from (one for one in (*found, ChangedRows("insert", inserted)) if one.rows.num_rows)


def _compare_in_parts(rows: Iterable[SideRows], schema: pa.Schema, identity: RowIdentity) -> Iterator[ChangedRows]:
    """Like `compare_rows`, but partitioned: by row id, and the remaining rows by key or values."""
    with ExitStack() as stack:
        updated, inserted = (stack.enter_context(_RowFile(schema)) for _ in range(2))
        parts = _Parts(stack, schema, identity.key or identity.values)
        if identity.row_id:
            parts_by_id = _Parts(stack, schema, [identity.row_id])
            parts_by_id.add(rows)
            for removed, added in parts_by_id.read():
                changed, *left = _pair_by_id(removed, added, identity)
                updated.write(changed)
                parts.add(SideRows(bool(side), batch) for side in (0, 1) for batch in left[side].to_batches())
        else:
            parts.add(rows)
        for removed, added in parts.read():
            deleted, changed, added = _compare(removed, added, identity)
            if deleted.num_rows:
                yield ChangedRows("delete", deleted)
            updated.write(changed)
            inserted.write(added)
        yield from (ChangedRows("update", pa.Table.from_batches([batch])) for batch in updated.read())
        yield from (ChangedRows("insert", pa.Table.from_batches([batch])) for batch in inserted.read())


class _RowFile:
    """Rows in a temporary file, which are written once and read once. Reading deletes the file."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="trinitylake-rows-"))  # noqa: SIM115
        self._writer = pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        self._writer.write(rows)

    def read(self) -> Iterator[pa.RecordBatch]:
        self._writer.close()
        self._file.seek(0)
        with self._file, pa.ipc.open_stream(self._file) as reader:
            yield from reader


class _Parts:
    """Rows of both sides, divided by the values of some columns."""

    def __init__(self, stack: ExitStack, schema: pa.Schema, columns: Sequence[str]) -> None:
        self._schema, self._columns = schema, columns
        self._files = [[stack.enter_context(_RowFile(schema)) for _ in range(_PARTS)] for _ in range(2)]

    def add(self, rows: Iterable[SideRows]) -> None:
        for one in rows:
            marks = signatures([one.batch.column(name) for name in self._columns], one.batch.num_rows)
            part_of = (marks >> np.uint64(32)) % np.uint64(_PARTS)
            for number in np.unique(part_of):
                self._files[one.is_added][int(number)].write(one.batch.filter(pa.array(part_of == number)))

    def read(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The removed and the added rows of each part."""
        for both in zip(*self._files, strict=True):
            removed, added = (pa.Table.from_batches(file.read(), self._schema) for file in both)
            yield removed, added


def _pair_by_id(removed: pa.Table, added: pa.Table, identity: RowIdentity) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The pairs of updated rows, which have the same row id and different values, and the other rows of both sides."""
    if not identity.row_id:
        return removed.slice(0, 0), removed, added
    then, now = _common_ids(removed.column(identity.row_id), added.column(identity.row_id))
    before, after = take_rows(removed, then), take_rows(added, now)
    changed = pa.array(_differ(before, after, identity))
    updated = _interleaved(before.filter(changed), after.filter(changed))
    return updated, _without(removed, then), _without(added, now)


def _compare(removed: pa.Table, added: pa.Table, identity: RowIdentity) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The deleted, updated and inserted rows. No row id may be on both sides."""
    removed, added = _without_equal(removed, added, identity)
    if not identity.key or not removed.num_rows or not added.num_rows:
        return removed, removed.slice(0, 0), added
    then, now = _pairs_by_key(removed, added, identity.key)
    updated = _interleaved(take_rows(removed, then), take_rows(added, now))
    return _without(removed, then), updated, _without(added, now)


def _differ(before: pa.Table, after: pa.Table, identity: RowIdentity) -> npt.NDArray[np.bool_]:
    """Mask of the rows that differ. To avoid copies, each compared part is within one batch of each side."""
    before, after = before.select(identity.values), after.select(identity.values)
    ends = np.unique([end for side in (before, after) for end in np.cumsum([len(one) for one in side.to_batches()])])
    parts = [
        differing(before.slice(begin, end - begin), after.slice(begin, end - begin))
        for begin, end in pairwise([0, *map(int, ends)])
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=bool)


def _common_ids(removed: pa.ChunkedArray, added: pa.ChunkedArray) -> tuple[_Numbers, _Numbers]:
    """The rows that have the same row id, as their numbers on both sides."""
    places = [np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False)) for ids in (removed, added)]
    ids = [ids.drop_null().to_numpy() for ids in (removed, added)]
    _, then, now = np.intersect1d(*ids, return_indices=True)
    return places[0][then], places[1][now]


def _pairs_by_key(removed: pa.Table, added: pa.Table, key: Sequence[str]) -> tuple[_Numbers, _Numbers]:
    """Row numbers on both sides of the rows whose key occurs exactly once on each side."""
    both = pa.concat_tables([removed, added]).select(key).combine_chunks()
    codes = _classes(both, signatures(both.columns, both.num_rows))
    sides = codes[: removed.num_rows], codes[removed.num_rows :]
    counts = [np.bincount(side, minlength=len(codes) + 1) for side in sides]
    is_unique = (counts[0] == 1) & (counts[1] == 1)
    then, now = (np.flatnonzero(is_unique[side]) for side in sides)
    return then[np.argsort(sides[0][then])], now[np.argsort(sides[1][now])]


def _without_equal(removed: pa.Table, added: pa.Table, identity: RowIdentity) -> tuple[pa.Table, pa.Table]:
    """The rows of each side that have no equal row on the other side."""
    if runs := copied_runs(removed, added, [*identity.key, *identity.values]):
        then, now = (_covered(runs, side, table.num_rows) for side, table in enumerate((removed, added)))
        before, after = _filtered(removed, then), _filtered(added, now)
        differs = _differ(before, after, identity)
        for covered in (then, now):
            covered[covered] = ~differs
        removed, added = _filtered(removed, ~then), _filtered(added, ~now)
    if not removed.num_rows or not added.num_rows:
        return removed, added
    both = pa.concat_tables([removed, added]).select(identity.values).combine_chunks()
    codes = _classes(both, signatures(both.columns, both.num_rows))
    matched = _matched(codes[: removed.num_rows], codes[removed.num_rows :])
    return _without(removed, matched[0]), _without(added, matched[1])


def _covered(runs: Sequence[CopiedRun], side: int, count: int) -> npt.NDArray[np.bool_]:
    """Whether each row of one side is in a run."""
    steps = np.zeros(count + 1, np.int8)
    begins = np.array([run[side] for run in runs])
    np.add.at(steps, begins, 1)
    np.subtract.at(steps, begins + [run.length for run in runs], 1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(bool)


def _filtered(rows: pa.Table, stays: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows that `stays` selects, without a copy if they are consecutive."""
    count = int(stays.sum())
    first = int(stays.argmax()) if count else 0
    return rows.slice(first, count) if stays[first : first + count].all() else rows.filter(pa.array(stays))


def _classes(rows: pa.Table, marks: Signatures) -> _Numbers:
    """A number for each row. Two rows have the same number if and only if they are equal."""
    _, first, codes = np.unique(marks, return_index=True, return_inverse=True)
    pending = np.flatnonzero(first[codes] != np.arange(len(codes)))
    representatives = list(first)
    while len(pending):
        chosen = np.array(representatives)[codes[pending]]
        pending = pending[differing(take_rows(rows, pending), take_rows(rows, chosen))]
        if len(pending):  # different rows with equal signatures: the first of them represents a new class
            _, first, again = np.unique(codes[pending], return_index=True, return_inverse=True)
            codes[pending] = len(representatives) + again
            representatives += list(pending[first])
            pending = np.delete(pending, first)
    return codes.astype(np.int64)


def _matched(removed: _Numbers, added: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Pair removed with added rows of the same class, each row at most once. Returns the positions of both."""
    orders = [np.argsort(side, kind="stable") for side in (removed, added)]
    then, now = removed[orders[0]], added[orders[1]]
    rank = np.arange(len(then)) - np.searchsorted(then, then)
    place = np.searchsorted(now, then) + rank
    is_matched = place < np.searchsorted(now, then, side="right")
    return orders[0][is_matched], orders[1][place[is_matched]]


def _without(rows: pa.Table, numbers: _Numbers) -> pa.Table:
    stays = np.ones(rows.num_rows, dtype=bool)
    stays[numbers] = False
    return rows.filter(pa.array(stays))


def _interleaved(before: pa.Table, after: pa.Table) -> pa.Table:
    count = before.num_rows
    order = np.arange(2 * count).reshape(2, count).T.ravel()
    return take_rows(pa.concat_tables([before, after]).combine_chunks(), order)
