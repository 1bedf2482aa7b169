"""The format's own functions for Spark: paths, keys and buckets, computed by the core on whole Arrow columns.

    from trinitylake.spark import functions as tlf

    frame.select(tlf.optimize_path("path"), tlf.table_key("namespace", "name"))

`register_functions(spark)` makes the same functions known to SQL. Each takes and returns columns; a null gives a
null. They hold no handle and open no connection, so they run in any Python worker. Section numbers are those of
`docs/format.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import functions

from trinitylake import core
from trinitylake.core import HasKeySizes, KeySizes
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

#: The stub of this module does not know `arrow_udf`.
_sql: Any = functions

ColumnOrName: TypeAlias = "Column | str"

#: Type of the result of `decode_key`.
DECODED_KEY = "struct<kind: string, namespace: string, name: string>"


def optimize_path(path: ColumnOrName) -> Column:
    """Spread a file path over the prefixes of an object store (§3): string to string."""
    return _udf(_optimize_path, "string")(path)


def root_path(version: ColumnOrName) -> Column:
    """The file name of the root node of a version (§3): bigint to string."""
    return _udf(_root_path, "string")(version)


def root_version(path: ColumnOrName) -> Column:
    """Version in the name of a root node, as bigint; null for any other text. The inverse of `root_path`."""
    return _udf(_root_version, "bigint")(path)


def namespace_key(namespace: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The key of a namespace (§4). `config` is a `KeySizes` or the definition of a lakehouse."""
    return _udf(partial(_key, "namespace", KeySizes.of(config)), "string")(namespace)


def table_key(namespace: ColumnOrName, table: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The key of a table (§4). A name that no key can hold fails the query with `InvalidName`."""
    return _udf(partial(_key, "table", KeySizes.of(config)), "string")(namespace, table)


def view_key(namespace: ColumnOrName, view: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The key of a view (§4); see `table_key`."""
    return _udf(partial(_key, "view", KeySizes.of(config)), "string")(namespace, view)


def decode_key(key: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The inverse of the key functions: a struct of kind, namespace and name (empty for a namespace)."""
    return _udf(partial(_decode_key, KeySizes.of(config)), DECODED_KEY)(key)


def bucket_of(value: ColumnOrName, buckets: int | Column) -> Column:
    """The bucket, from 0, that Iceberg's partition transform `bucket[n]` puts a value in.

    `buckets` is a number, or a column that holds the same number in every row. Takes every type that Iceberg can
    put into buckets: integers, decimals, dates, timestamps, strings and binary.
    """
    return _udf(_bucket_of, "int")(value, _sql.lit(buckets) if isinstance(buckets, int) else buckets)


def register_functions(spark: SparkSession, config: HasKeySizes | None = None, prefix: str = "") -> list[str]:
    """Make the functions of this module known to SQL in one session; returns their names.

    Args:
        spark: the session.
        config: what decides the width of keys: a `KeySizes` or `lake.at().definition`; by default those of the format.
        prefix: goes before each name, for a session where one of them is taken.
    """
    sizes = KeySizes.of(config)
    by_name: dict[str, tuple[Callable[..., pa.Array], str]] = {
        "optimize_path": (_optimize_path, "string"),
        "root_path": (_root_path, "string"),
        "root_version": (_root_version, "bigint"),
        "namespace_key": (partial(_key, "namespace", sizes), "string"),
        "table_key": (partial(_key, "table", sizes), "string"),
        "view_key": (partial(_key, "view", sizes), "string"),
        "decode_key": (partial(_decode_key, sizes), DECODED_KEY),
        "bucket_of": (_bucket_of, "int"),
    }
    for name, (function, return_type) in by_name.items():
        spark.udf.register(prefix + name, _udf(function, return_type))
    return [prefix + name for name in by_name]


def _udf(function: Callable[..., pa.Array], return_type: str) -> Callable[..., Column]:
    """An Arrow UDF of a function that may be partial. Spark derives the kind of a UDF from its type hints."""

    def on_columns(*columns: pa.Array) -> pa.Array:
        return function(*columns)

    if not hasattr(_sql, "arrow_udf"):
        raise InvalidArgument(f"these functions need PySpark 4.1, and PySpark {pyspark.__version__} is installed")
    udf: Callable[..., Column] = _sql.arrow_udf(on_columns, return_type)
    return udf


def _optimize_path(paths: pa.Array) -> pa.Array:
    return core.optimize_paths(paths)


def _root_path(versions: pa.Array) -> pa.Array:
    return pa.array(
        [None if version is None else core.root_path(version) for version in versions.to_pylist()], pa.string()
    )


def _root_version(paths: pa.Array) -> pa.Array:
    return pa.array([None if path is None else core.root_version(path) for path in paths.to_pylist()], pa.int64())


def _key(kind: Literal["namespace", "table", "view"], sizes: KeySizes, *names: pa.Array) -> pa.Array:
    encoders: dict[str, Callable[..., pa.StringArray]] = {
        "namespace": core.encode_namespace_keys,
        "table": core.encode_table_keys,
        "view": core.encode_view_keys,
    }
    return encoders[kind](*names, sizes)


def _decode_key(sizes: KeySizes, keys: pa.Array) -> pa.Array:
    decoded = core.decode_keys(keys, sizes)
    columns = [column.cast(pa.string()) for column in decoded.columns]
    return pa.StructArray.from_arrays(columns, decoded.schema.names, mask=pc.is_null(keys))


def _bucket_of(values: pa.Array, buckets: pa.Array) -> pa.Array:
    from pyiceberg_core import transform

    if len(values) == 0:
        return pa.array([], pa.int32())
    counts = pc.unique(buckets)
    if len(counts) != 1 or not counts[0].is_valid or counts[0].as_py() < 1:
        raise ValueError(f"bucket_of needs one number of buckets, at least 1, got {counts.to_pylist()[:5]}")
    return transform.bucket(_bucketable(values), counts[0].as_py()).cast(pa.int32())


def _bucketable(values: pa.Array) -> pa.Array:
    """The value types of Iceberg's bucket transform, which hashes all integers as 64 bits."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.int64())
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        return values.cast(pa.timestamp("us", tz="+00:00"))
    if pa.types.is_decimal(values.type):
        from trinitylake.iceberg_storage.data_files.partitioned_rows import aligned

        return aligned(values).chunk(0)
    return values
