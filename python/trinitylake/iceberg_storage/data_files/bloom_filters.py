"""Bloom filters of Parquet files: written for the columns that a table names, and asked before a file is read for keys.

Iceberg's properties of tables say which columns have one (`write.parquet.bloom-filter-enabled.column.<name>`), how
often one may be wrong (`write.parquet.bloom-filter-fpp.column.<name>`, 0.01), for how many different values of a row
group it is made (`write.parquet.bloom-filter-ndv.column.<name>`; as many as it has rows), and how large each may be
(`write.parquet.bloom-filter-max-bytes`, 1 MiB).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pyiceberg.table import TableProperties
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    UUIDType,
)

from trinitylake._core import bloom_filter_may_hold
from trinitylake.iceberg_storage.column_ranges import leaf_ids
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io import InputFile
    from pyiceberg.schema import Schema

_ENABLED = f"{TableProperties.PARQUET_BLOOM_FILTER_COLUMN_ENABLED_PREFIX}."
_WRONG = "write.parquet.bloom-filter-fpp.column."
_VALUES = "write.parquet.bloom-filter-ndv.column."
#: All that is a matter of this file.
_PREFIXES = ("write.parquet.bloom-filter-",)
#: How often a filter may be wrong, if the table does not say.
_WRONG_BY_DEFAULT = 0.01
#: Of more keys hardly a filter excludes a file: of a hundred values that are not there it lets one pass.
MAX_KEYS = 256
#: As Parquet stores values of which filters are known; the others differ by unit or form.
_STORED: dict[type[IcebergType], str] = {
    IntegerType: "INT32",
    DateType: "INT32",
    LongType: "INT64",
    StringType: "BYTE_ARRAY",
    BinaryType: "BYTE_ARRAY",
    FixedType: "FIXED_LEN_BYTE_ARRAY",
    UUIDType: "FIXED_LEN_BYTE_ARRAY",
}


@cache
def is_written() -> bool:
    """Whether the Arrow of this machine writes filters."""
    import pyarrow.parquet as pq

    return "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters


def columns_with_filters(properties: Mapping[str, str]) -> set[str]:
    """The columns, as the table calls them, that the properties of a table give a filter."""
    return {
        key.removeprefix(_ENABLED)
        for key, value in properties.items()
        if key.startswith(_ENABLED) and value.lower() == "true"
    }


def writer_options(
    properties: Mapping[str, str], schema: Schema, paths: Mapping[str, int], rows: int
) -> dict[str, Any]:
    """Options of Arrow's writer for the filters of a table; none for a table without filters.

    A number in the properties that cannot be one counts as if it were not there, and so does a column of booleans,
    for which there is no filter.

    Args:
        properties: of the table.
        schema: of the table.
        paths: the columns as they are called in the file, with their ids. Names that Avro does not take differ there.
        rows: of a row group.
    """
    named = columns_with_filters(properties)
    if not named or not is_written():
        return {}
    columns = [
        (name, path)
        for path, id in paths.items()
        if (name := schema.find_column_name(id)) in named and not isinstance(schema.find_type(id), BooleanType)
    ]
    if not columns:
        return {}
    max_size_bytes = _number(properties, TableProperties.PARQUET_BLOOM_FILTER_MAX_BYTES) or (
        TableProperties.PARQUET_BLOOM_FILTER_MAX_BYTES_DEFAULT
    )
    options = {}
    for column, path in columns:
        wrong = _number(properties, _WRONG + column) or _WRONG_BY_DEFAULT
        wrong = wrong if wrong < 1 else _WRONG_BY_DEFAULT
        # Eight bits of each value are looked at. Sizes are powers of two, the next larger one.
        bits = -8 / math.log1p(-(wrong ** (1 / 8)))
        most = max(1, int(max_size_bytes * 4 / bits))
        values = max(1, int(_number(properties, _VALUES + column) or rows))
        options[path] = {"ndv": min(values, most), "fpp": wrong}
    return {"bloom_filter_options": options}


def _number(properties: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(properties.get(name, ""))
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def asked_columns(properties: Mapping[str, str], schema: Schema, keys: pa.Table, columns: Collection[str]) -> list[str]:
    """The columns among `columns` whose filters are worth a look for these keys."""
    if keys.num_rows > MAX_KEYS or not is_written():  # then Arrow does not say either where filters are
        return []
    known = columns_with_filters(properties)
    return [name for name in columns if name in known and type(schema.find_field(name).field_type) in _STORED]


def may_hold(file: InputFile, schema: Schema, keys: pa.Table, columns: Collection[str]) -> bool:
    """Whether a Parquet file may have a row with one of `keys`, as far as its filters say.

    Args:
        file: it.
        schema: of the table.
        keys: rows, of the types that the table has.
        columns: as `asked_columns` gives them.

    Raises what opening and reading the file raises.
    """
    import numpy as np

    with file.open() as stream:
        parquet = open_parquet(stream)
        places = _places(parquet, schema, columns)
        if not places:
            return True
        for number in range(parquet.metadata.num_row_groups):
            group = parquet.metadata.row_group(number)
            possible: np.ndarray = np.ones(keys.num_rows, dtype=bool)
            for name, place in places.items():
                chunk = group.column(place)
                begin, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
                stored = _STORED[type(schema.find_field(name).field_type)]
                if begin is None or length is None or chunk.physical_type != stored:
                    continue
                stream.seek(begin)
                found = bloom_filter_may_hold(stream.read(length), _plain(keys.column(name)))
                if found is not None:
                    possible &= found.to_numpy(zero_copy_only=False)
            if possible.any():
                return True
    return False


def _places(file: pq.ParquetFile, schema: Schema, columns: Collection[str]) -> dict[str, int]:
    """Where a file has columns, by their ids; those that it has not, or more than once, are left out."""
    ids = leaf_ids(file.metadata, file.schema_arrow)
    asked = {name: schema.find_field(name).field_id for name in columns}
    return {name: ids.index(id) for name, id in asked.items() if ids.count(id) == 1}


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """In one piece, as the bytes that are stored."""
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.storage if isinstance(array, pa.ExtensionArray) else array
