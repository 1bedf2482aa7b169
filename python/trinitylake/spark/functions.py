"""The format's own functions for Spark: paths, keys and buckets, computed by the core on whole Arrow columns.

    from trinitylake.spark import functions as tlf

    frame.select(tlf.optimize_path("path"), tlf.table_key("namespace", "name"))

`register_functions(spark)` registers the same functions for SQL. Arguments and results are columns; the result for a
null is null. The functions need no handle and no connection, so they run in any Python worker. Section numbers (§) are
of `docs/format.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import functions

from trinitylake import core
from trinitylake.core import HasKeySizes, KeySizes
from trinitylake.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

#: Typed as Any, because the type stubs of `pyspark.sql.functions` lack `arrow_udf`.
_sql: Any = functions

ColumnOrName: TypeAlias = "Column | str"

#: Type of the result of `decode_key`.
DECODED_KEY = "struct<kind: string, namespace: string, name: string>"


def optimize_path(path: ColumnOrName) -> Column:
    """Spread a file path over the prefixes of an object store (§3): string to string."""
    return _udf("optimize_path")(path)


def root_path(version: ColumnOrName) -> Column:
    """The file name of the root node of a version (§3): bigint to string."""
    return _udf("root_path")(version)


def root_version(path: ColumnOrName) -> Column:
    """The version in the name of a root node, as bigint; null for any other string. The inverse of `root_path`."""
    return _udf("root_version")(path)


def namespace_key(namespace: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The key of a namespace (§4). `config` is a `KeySizes` or the definition of a lakehouse."""
    return _udf("namespace_key", config)(namespace)


def table_key(namespace: ColumnOrName, table: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The key of a table (§4). The query fails with `InvalidName` for a name that is invalid or too long for a key."""
    return _udf("table_key", config)(namespace, table)


def view_key(namespace: ColumnOrName, view: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The key of a view (§4), as `table_key`."""
    return _udf("view_key", config)(namespace, view)


def decode_key(key: ColumnOrName, config: HasKeySizes | None = None) -> Column:
    """The inverse of the key functions: a struct of kind, namespace and name (empty for a namespace)."""
    return _udf("decode_key", config)(key)


def bucket_of(value: ColumnOrName, buckets: int | Column) -> Column:
    """The bucket (from 0) of a value in Iceberg's partition transform `bucket[n]`.

    `buckets` is the number of buckets, or a column with this number in every row. The value can have every type for
    which Iceberg has buckets: integers, decimals, dates, timestamps, strings and binary.
    """
    return _udf("bucket_of")(value, _sql.lit(buckets) if isinstance(buckets, int) else buckets)


def register_functions(spark: SparkSession, config: HasKeySizes | None = None, prefix: str = "") -> list[str]:
    """Register the functions of this module for SQL in one session; returns their names.

    Args:
        spark: the session.
        config: the sizes of names in keys: a `KeySizes` or `lake.at().definition`; by default the format's defaults.
        prefix: a prefix for the names, for a session that has other functions with these names.
    """
    names = list(_functions(config))
    for name in names:
        spark.udf.register(prefix + name, _udf(name, config))
    return [prefix + name for name in names]


def _functions(config: HasKeySizes | None) -> dict[str, tuple[Callable[..., pa.Array], str]]:
    """The functions on Arrow columns and the types of their results, by name."""
    sizes = KeySizes.of(config)
    return {
        "optimize_path": (core.optimize_paths, "string"),
        "root_path": (_root_path, "string"),
        "root_version": (_root_version, "bigint"),
        "namespace_key": (partial(core.encode_namespace_keys, config=sizes), "string"),
        "table_key": (partial(core.encode_table_keys, config=sizes), "string"),
        "view_key": (partial(core.encode_view_keys, config=sizes), "string"),
        "decode_key": (partial(_decode_key, sizes), DECODED_KEY),
        "bucket_of": (_bucket_of, "int"),
    }


def _udf(name: str, config: HasKeySizes | None = None) -> Callable[..., Column]:
    """A function as an Arrow UDF. Spark derives the kind of a UDF from type hints, so it cannot be a `partial`."""
    function, return_type = _functions(config)[name]

    def on_columns(*columns: pa.Array) -> pa.Array:
        return function(*columns)

    if not hasattr(_sql, "arrow_udf"):
        raise InvalidArgument(f"these functions need PySpark 4.1, and PySpark {pyspark.__version__} is installed")
    udf: Callable[..., Column] = _sql.arrow_udf(on_columns, return_type)
    return udf


def _root_path(versions: pa.Array) -> pa.Array:
    return pa.array([None if one is None else core.root_path(one) for one in versions.to_pylist()], pa.string())


def _root_version(paths: pa.Array) -> pa.Array:
    return pa.array([None if path is None else core.root_version(path) for path in paths.to_pylist()], pa.int64())


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
