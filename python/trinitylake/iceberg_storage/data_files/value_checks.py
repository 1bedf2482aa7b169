"""Refuses values that an Arrow type can hold, but a column of an Iceberg table cannot."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from trinitylake.errors import InvalidArgument


def leaf_arrays(values: pa.Array) -> Iterator[pa.Array]:
    """The arrays of primitive values in a nested array."""
    kind = values.type
    if pa.types.is_struct(kind):
        for part in values.flatten():
            yield from leaf_arrays(part)
    elif isinstance(values, pa.ListArray | pa.LargeListArray):  # a map is a list; Arrow cannot flatten lists of UUIDs
        start, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        for part in (values.keys, values.items) if pa.types.is_map(kind) else (values.values,):
            yield from leaf_arrays(part.slice(start, end - start))
    elif pa.types.is_fixed_size_list(kind):
        yield from leaf_arrays(values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size))
    else:
        yield values


def check_values(column: pa.ChunkedArray | pa.Array, name: str) -> None:
    """Raise `InvalidArgument` for values that a column cannot hold.

    Such values are the date and timestamp `infinity`, which DuckDB stores as the largest number, times of day outside
    of 24 hours, and strings that are not UTF-8.
    """
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
        for leaf in leaf_arrays(chunk):
            leaf = leaf.dictionary if isinstance(leaf, pa.DictionaryArray) else leaf
            if pa.types.is_timestamp(leaf.type) or pa.types.is_date32(leaf.type):
                bits = leaf.type.bit_width
                bounds = pc.min_max(leaf.view(pa.int32() if bits == 32 else pa.int64())).as_py()
                largest = (1 << (bits - 1)) - 1
                if bounds["max"] == largest or bounds["min"] == -largest:
                    raise InvalidArgument(
                        f"column {name}: the value infinity does not exist in Iceberg: use NULL, or a last day such as "
                        "9999-12-31"
                    )
            elif pa.types.is_time64(leaf.type):  # in microseconds
                bounds = pc.min_max(leaf.view(pa.int64())).as_py()
                if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < 86_400_000_000:
                    raise InvalidArgument(f"column {name}: a time of day is at least 00:00 and before 24:00")
            elif leaf.type in (pa.string(), pa.large_string(), pa.string_view()):
                try:
                    leaf.validate(full=True)
                except pa.ArrowInvalid as error:
                    raise InvalidArgument(f"column {name}: a string is not UTF-8: {error}") from None
