"""Equal rows of two sides: 64-bit signatures of rows, and runs of rows that a writer copied in the same order.

Signatures are the same for rows that `merging/row_operations.py` regards as equal. Different rows may have the same
signature, because only parts of long strings are hashed, so rows with the same signature must be compared.

Most rows of replaced files are copied in order. One pass over one column finds candidates, and the caller compares each
candidate only with its counterpart, which is many times faster than a look-up of each row. The column need not identify
rows, so a candidate may differ from its counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Signatures: TypeAlias = "npt.NDArray[np.uint64]"

_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
_NULL, _NAN = np.uint64(0x5851F42D4C957F2D), np.uint64(0x7FF8000000000000)
#: Number of bytes that are hashed at the beginning, in the middle and at the end of a string.
_WORD_SIZE_BYTES = 8


def signatures(columns: Iterable[pa.Array | pa.ChunkedArray], count: int) -> Signatures:
    """The signature of each row of some columns with `count` rows."""
    result = np.zeros(count, np.uint64)
    for column in columns:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        values = [_of_array(chunk) for chunk in chunks]
        if values:
            result = _mixed(result, np.concatenate(values))
    return result


def _mixed(one: Signatures, other: Signatures) -> Signatures:
    mixed = (one ^ other) * _FACTOR
    mixed ^= mixed >> _SHIFT
    return mixed


def _of_array(array: pa.Array) -> Signatures:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    result = _of_values(array)
    if array.null_count:
        result = np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, result)
    return result


def _of_values(array: pa.Array) -> Signatures:
    """The signature of each value; the signature of a NULL is arbitrary."""
    kind, count = array.type, len(array)
    is_ = pa.types
    if is_.is_struct(kind):
        return signatures(array.flatten(), count)
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_map(kind):
        return _of_lists(array)
    if is_.is_large_string(kind) or is_.is_large_binary(kind) or is_.is_string(kind) or is_.is_binary(kind):
        return _of_texts(array)
    if is_.is_null(kind):
        return np.zeros(count, np.uint64)
    if is_.is_boolean(kind):
        array, kind = array.cast(pa.int32()), pa.int32()
    if is_.is_floating(kind):
        values = array.fill_null(0.0).to_numpy()
        bits = values.view(np.uint64 if kind == pa.float64() else np.uint32).astype(np.uint64)
        return np.where(np.isnan(values), _NAN, bits)
    if is_.is_decimal(kind) or is_.is_fixed_size_binary(kind):
        return _of_bytes(array, kind.byte_width)
    whole = pa.int32() if kind.bit_width == 32 else pa.int64()
    plain = array if is_.is_integer(kind) else array.view(whole)
    numbers: npt.NDArray[np.int64] = plain.fill_null(0).to_numpy().astype(np.int64)
    return numbers.view(np.uint64)


def _of_bytes(array: pa.Array, width: int) -> Signatures:
    count = len(array)
    data = np.zeros((count, -(-width // 8) * 8), np.uint8)
    if (buffer := array.buffers()[1]) is not None:
        start = array.offset * width
        data[:, :width] = np.frombuffer(buffer, np.uint8)[start : start + count * width].reshape(count, width)
    result = np.zeros(count, np.uint64)
    for word in data.view(np.uint64).T:
        result = _mixed(result, word)
    return result


def _of_texts(array: pa.Array) -> Signatures:
    kind, count = array.type, len(array)
    _, offsets, data = array.buffers()
    width = np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
    ends = np.frombuffer(offsets, width)[array.offset : array.offset + count + 1].astype(np.int64)
    starts, lengths = ends[:-1], np.diff(ends)
    result = lengths.astype(np.uint64)
    if data is None or not len(data):
        return result
    content = np.frombuffer(data, np.uint8)
    last = np.maximum(lengths - _WORD_SIZE_BYTES, 0)
    word = _word(content, starts, lengths)
    result = _mixed(result, word)
    for begin in (last // 2, last):
        if last.any():
            word = _word(content, starts + begin, lengths - begin)
        result = _mixed(result, word)  # for short strings the same word again
    return result


def _word(content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Signatures:
    """The first bytes of strings as numbers."""
    word = np.zeros(len(starts), np.uint64)
    for number in range(_WORD_SIZE_BYTES):
        byte = content[np.minimum(starts + number, len(content) - 1)]
        word |= np.where(number < lengths, byte, 0).astype(np.uint64) << np.uint64(8 * number)
    return word


def _of_lists(array: pa.Array) -> Signatures:
    """Lists of the same elements in any order have the same signature."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    children = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    elements = signatures([child.slice(first, count) for child in children], count)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements)])
    ends = offsets - first
    return _mixed(sums[ends[1:]] - sums[ends[:-1]], np.diff(ends).astype(np.uint64))


#: Maximum number of rows that are searched for the next common row.
_WINDOW_ROWS = 1024
#: Number of rows from which the compared column is chosen.
_SAMPLE_ROWS = 1024
#: The pass ends after this number of mismatches per row, because then a look-up of each row is faster.
_MAX_BREAKS_PER_ROW = 1 / 64


class CopiedRun(NamedTuple):
    """Consecutive rows that are probably equal: number of the first row on each side, and number of rows."""

    removed: int
    added: int
    length: int


def copied_runs(removed: pa.Table, added: pa.Table, columns: list[str]) -> list[CopiedRun]:
    """Runs of rows that are probably equal, in ascending order on both sides.

    Args:
        removed, added: rows with the same columns.
        columns: candidates for the compared column, beginning with the column that most likely identifies rows.
    """
    name = _most_distinct(removed, columns)
    if name is None:
        return []
    then, now = (_numbers(side.column(name)) for side in (removed, added))
    runs: list[CopiedRun] = []
    at, to = 0, 0
    breaks_left = 1000 + int(len(then) * _MAX_BREAKS_PER_ROW)
    while at < len(then) and to < len(now) and breaks_left:
        if count := _equal_count(then[at:], now[to:]):
            runs.append(CopiedRun(at, to, count))
            at, to = at + count, to + count
            continue
        breaks_left -= 1
        skipped_then = np.flatnonzero(then[at : at + _WINDOW_ROWS] == now[to])
        skipped_now = np.flatnonzero(now[to : to + _WINDOW_ROWS] == then[at])
        if len(skipped_then) and (not len(skipped_now) or skipped_then[0] <= skipped_now[0]):
            at += int(skipped_then[0])
        elif len(skipped_now):
            to += int(skipped_now[0])
        else:
            at, to = at + 1, to + 1
    return runs


def _most_distinct(rows: pa.Table, columns: list[str]) -> str | None:
    """The column of numbers with the most different values among the first rows."""
    best, most = None, 0
    for name in columns:
        if _is_number(rows.schema.field(name).type):
            distinct = len(np.unique(_numbers(rows.column(name).slice(0, _SAMPLE_ROWS))))
            if distinct > most:
                best, most = name, distinct
    return best


def _is_number(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_integer(kind) or is_.is_floating(kind) or is_.is_temporal(kind)) and kind.bit_width in (32, 64)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """The values as integers with the same bits. The integer of NULL is arbitrary."""
    width = pa.int32() if column.type.bit_width == 32 else pa.int64()
    parts = [
        np.frombuffer(chunk.buffers()[1], width.to_pandas_dtype())[chunk.offset : chunk.offset + len(chunk)]
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(parts) if parts else np.empty(0, width.to_pandas_dtype())


def _equal_count(then: np.ndarray, now: np.ndarray) -> int:
    """Number of equal rows at the beginning."""
    limit, begin, width = min(len(then), len(now)), 0, 64
    while begin < limit:
        differs = then[begin : min(begin + width, limit)] != now[begin : min(begin + width, limit)]
        first = int(differs.argmax())
        if differs[first]:
            return begin + first
        begin, width = begin + width, min(width * 4, 1 << 18)
    return limit
