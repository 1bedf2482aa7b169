"""Bloom filters of Parquet files: options to write them, and a lookup of keys before a file is read.

Table properties, as in Iceberg:

- `write.parquet.bloom-filter-enabled.column.<name>`: whether a column has filters;
- `write.parquet.bloom-filter-fpp.column.<name>`: the rate of false positives, 0.01 by default;
- `write.parquet.bloom-filter-ndv.column.<name>`: distinct values of a row group, by default its number of rows;
- `write.parquet.bloom-filter-max-bytes`: the maximum size of one filter, 1 MiB by default.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties

from trinitylake._core import bloom_filter_may_hold
from trinitylake.iceberg_storage.data_files.parquet_batches import open_parquet
from trinitylake.iceberg_storage.remote_reads import leaf_ids

_ENABLED = f"{TableProperties.PARQUET_BLOOM_FILTER_COLUMN_ENABLED_PREFIX}."
_RATE = "write.parquet.bloom-filter-fpp.column."
_VALUES = "write.parquet.bloom-filter-ndv.column."
_DEFAULT_FALSE_POSITIVE_RATE = 0.01
#: Maximum number of keys. With more keys, false positives let nearly every file pass.
MAX_KEYS = 256
#: Physical types of columns whose filters are evaluated. Values of other types are stored in another unit or form.
_STORED: dict[type[iceberg.IcebergType], str] = {
    iceberg.IntegerType: "INT32",
    iceberg.DateType: "INT32",
    iceberg.LongType: "INT64",
    iceberg.StringType: "BYTE_ARRAY",
    iceberg.BinaryType: "BYTE_ARRAY",
    iceberg.FixedType: "FIXED_LEN_BYTE_ARRAY",
    iceberg.UUIDType: "FIXED_LEN_BYTE_ARRAY",
}


@cache
def is_written() -> bool:
    return "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters


def columns_with_filters(properties: Mapping[str, str]) -> set[str]:
    """The names of the columns for which the properties of a table enable Bloom filters."""
    return {
        key.removeprefix(_ENABLED)
        for key, value in properties.items()
        if key.startswith(_ENABLED) and value.lower() == "true"
    }


def writer_options(
    properties: Mapping[str, str], schema: Schema, paths: Mapping[str, int], rows: int
) -> dict[str, Any]:
    """Options of Arrow's Parquet writer for the Bloom filters of a table; empty for a table without filters.

    Boolean columns cannot have filters, so they are ignored. Invalid numbers in the properties are ignored as well.

    Args:
        paths: id of each column, by its path in the file, where names that Avro does not allow are replaced.
        rows: the number of rows in a row group.
    """
    named = columns_with_filters(properties)
    if not named or not is_written():
        return {}
    columns = [
        (name, path)
        for path, id in paths.items()
        if (name := schema.find_column_name(id)) in named and not isinstance(schema.find_type(id), iceberg.BooleanType)
    ]
    if not columns:
        return {}
    max_size_bytes = _number(properties, TableProperties.PARQUET_BLOOM_FILTER_MAX_BYTES) or (
        TableProperties.PARQUET_BLOOM_FILTER_MAX_BYTES_DEFAULT
    )
    options = {}
    for column, path in columns:
        rate = _number(properties, _RATE + column) or _DEFAULT_FALSE_POSITIVE_RATE
        rate = rate if rate < 1 else _DEFAULT_FALSE_POSITIVE_RATE
        # Compute the size of the filter. Each value sets eight bits. Arrow rounds the size up to a power of two, so
        # `most` values fill half of the limit.
        bits = -8 / math.log1p(-(rate ** (1 / 8)))
        most = max(1, int(max_size_bytes * 4 / bits))
        values = max(1, int(_number(properties, _VALUES + column) or rows))
        options[path] = {"ndv": min(values, most), "fpp": rate}
    return {"bloom_filter_options": options}


def _number(properties: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(properties.get(name, ""))
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def asked_columns(properties: Mapping[str, str], schema: Schema, keys: pa.Table, columns: Collection[str]) -> list[str]:
    """The columns among `columns` whose filters may exclude files for these keys."""
    if keys.num_rows > MAX_KEYS or not is_written():  # versions of Arrow that cannot write filters cannot read them
        return []
    known = columns_with_filters(properties)
    return [name for name in columns if name in known and type(schema.find_field(name).field_type) in _STORED]


def may_hold(file: InputFile, schema: Schema, keys: pa.Table, columns: Collection[str]) -> bool:
    """Test by its Bloom filters whether a Parquet file may have a row with one of `keys`.

    Args:
        keys: rows with the types of the table.
        columns: from `asked_columns`.
    """
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
    """The positions of columns in a file, by name, without columns whose id the file lacks or has twice."""
    ids = leaf_ids(file.metadata, file.schema_arrow)
    asked = {name: schema.find_field(name).field_id for name in columns}
    return {name: ids.index(id) for name, id in asked.items() if ids.count(id) == 1}


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array of its storage type."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.storage if isinstance(array, pa.ExtensionArray) else array
