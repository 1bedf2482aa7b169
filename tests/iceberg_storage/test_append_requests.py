"""Metadata that an append of few rows writes equals that of PyIceberg."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.manifest import DataFile, data_file_with_partition
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Summary
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform

import trinitylake as tl
from trinitylake.iceberg_storage.identity_cache import IdentityCache
from trinitylake.iceberg_storage.manifests.manifest_file import read_entries
from trinitylake.iceberg_storage.manifests.manifest_list import read_list

COLUMNS = Schema(
    types.NestedField(1, "id", types.LongType(), required=True),
    types.NestedField(2, "small", types.IntegerType()),
    types.NestedField(3, "share", types.FloatType()),
    types.NestedField(4, "price", types.DoubleType()),
    types.NestedField(5, "name", types.StringType()),
    types.NestedField(6, "raw", types.BinaryType()),
    types.NestedField(7, "day", types.DateType()),
    types.NestedField(8, "hour", types.TimeType()),
    types.NestedField(9, "at", types.TimestampType()),
    types.NestedField(10, "at_utc", types.TimestamptzType()),
    types.NestedField(11, "cost", types.DecimalType(9, 2)),
    types.NestedField(12, "digits", types.DecimalType(38, 10)),
    types.NestedField(13, "key", types.UUIDType()),
    types.NestedField(14, "four", types.FixedType(4)),
    types.NestedField(15, "is_new", types.BooleanType()),
    types.NestedField(16, "tags", types.ListType(17, types.StringType(), element_required=False)),
    types.NestedField(
        18,
        "place",
        types.StructType(
            types.NestedField(19, "name", types.StringType()), types.NestedField(20, "at", types.DoubleType())
        ),
    ),
    types.NestedField(21, "notes", types.MapType(22, types.StringType(), 23, types.LongType(), value_required=False)),
    types.NestedField(24, "empty", types.StringType()),
)


def row(id: int) -> dict[str, Any]:
    if id % 3 == 2:  # nulls, and NaN
        return {"id": id, "share": math.nan, "price": math.nan}
    text = "a long text, longer than bounds are, " * id
    return {
        "id": id,
        "small": -id,
        "share": id / 2,
        "price": -id / 4,
        "name": f"é{text}{id}",
        "raw": text.encode() + bytes([255, id]),
        "day": date(1969, 12, 1 + id),
        "hour": time(id, 1, 2),
        "at": datetime(1960, 1, 1, id),
        "at_utc": datetime(2026, 1, 1, id, tzinfo=UTC),
        "cost": Decimal(f"-{id}.25"),
        "digits": Decimal(f"12345678901234567890.{id:010d}"),
        "key": UUID(int=id).bytes,
        "four": bytes([id] * 4),
        "is_new": id % 2 == 0,
        "tags": ["x", None, str(id)] if id else [],
        "place": {"name": "there", "at": math.nan if id == 1 else 0.0},
        "notes": [("k", id), ("l", None)],
    }


def rows() -> pa.Table:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.Table.from_pylist(
        [row(id) for id in range(9)], schema=schema_to_pyarrow(COLUMNS, include_field_ids=False)
    )


SPECS: dict[str, Callable[[], PartitionSpec]] = {
    "no partitions": PartitionSpec,
    "partitions": lambda: PartitionSpec(
        PartitionField(15, 1000, IdentityTransform(), "is_new"),
        PartitionField(5, 1001, TruncateTransform(2), "name_two"),
    ),
    "buckets": lambda: PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket")),
}
PROPERTIES: dict[str, dict[str, str]] = {
    "as they are": {},
    "no metrics": {"write.metadata.metrics.default": "none"},
    "counts": {"write.metadata.metrics.default": "counts", "write.metadata.metrics.column.name": "truncate(5)"},
    "all of each value": {"write.metadata.metrics.default": "full"},
    "version 3": {"format-version": "3"},
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("properties", PROPERTIES)
def test_metadata_of_few_rows_equals_that_of_pyiceberg(lake: tl.Lakehouse, spec: str, properties: str) -> None:
    """Except for names and for sizes of columns with another encoding."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    lake.create_namespace("a", exist_ok=True)
    found = []
    for name in ("ours", "pyiceberg"):
        table = lake.create_table(f"a.{name}", COLUMNS, partition_spec=SPECS[spec](), properties=PROPERTIES[properties])
        if name == "ours":
            table.append(rows())
        else:
            with table._writing() as iceberg, iceberg.transaction() as change:
                change.append_files(_dataframe_to_data_files(change.table_metadata, rows(), iceberg.io))
        iceberg = lake.table(f"a.{name}").iceberg
        snapshot = iceberg.current_snapshot()
        assert snapshot is not None
        files = [entry.data_file for one in read_list(iceberg.io, snapshot) for entry in read_entries(iceberg.io, one)]
        found.append((sorted(map(described, files), key=str), summary_of(snapshot.summary)))
        assert sorted(lake.table(f"a.{name}").scan(columns=["id"]).to_arrow()["id"].to_pylist()) == list(range(9))
    assert len(found[0][0]) == {"no partitions": 1, "partitions": 4, "buckets": 3}[spec]
    assert found[0] == found[1]
    ours, theirs = (lake.table(f"a.{name}").scan().to_arrow().sort_by("id") for name in ("ours", "pyiceberg"))
    assert ours.schema.equals(theirs.schema)
    assert str(ours.to_pylist()) == str(theirs.to_pylist())


def described(file: DataFile) -> list[Any]:
    """The comparable values of a manifest entry. Of column sizes it has only the columns. Counts of NaN are left out,
    because PyIceberg does not count NaN.
    """
    values = list(file._data)
    fields = [field.name for field in data_file_with_partition(types.StructType(), 3).fields]
    for name in ("file_path", "file_size_in_bytes", "split_offsets", "nan_value_counts"):
        values[fields.index(name)] = None
    sizes = fields.index("column_sizes")
    values[sizes] = sorted(values[sizes])
    return values


def summary_of(summary: Summary | None) -> dict[str, str]:
    assert summary is not None
    described = summary.additional_properties.items()
    return {name: value for name, value in described if "size" not in name and "partitions." not in name}


def test_dictionaries_are_written_for_repeated_values_only(lake: tl.Lakehouse) -> None:
    """Dictionaries for all columns of ten rows would take a third of the time."""
    import pyarrow.parquet as pq

    lake.create_namespace("a", exist_ok=True)
    used = []
    for count in (10, 500):
        table = lake.create_table(f"a.t{count}", {"city": "varchar"})
        table.append(pa.table({"city": ["Zürich"] * count}))
        (task,) = lake.table(table.name).iceberg.scan().plan_files()
        with lake.table(table.name).iceberg.io.new_input(task.file.file_path).open() as stream:
            used.append(pq.ParquetFile(stream).metadata.row_group(0).column(0).has_dictionary_page)
    assert used == [False, True]


def test_two_transactions_on_one_state_of_a_table_do_not_hide_each_other(lake: tl.Lakehouse) -> None:
    """Metadata that a transaction has shown is reused for its commit only if the table has not changed."""
    lake.create_namespace("a", exist_ok=True)
    lake.create_table("a.t", {"id": "int8"})
    with lake.transaction() as txn, txn.table("a.t")._writing() as iceberg:
        first, second = iceberg.transaction(), iceberg.transaction()
        for number, change in enumerate((first, second)):
            change.set_properties({f"p{number}": "set"})
        first.commit_transaction()
        second.commit_transaction()
    assert {"p0", "p1"} <= set(lake.table("a.t").properties)


def test_caches_of_a_schema_end_with_it() -> None:
    """Values that are computed from a schema are freed with the schema, which can have megabytes in a server."""
    known: IdentityCache[list[int]] = IdentityCache()
    schema, spec, made = Schema(*COLUMNS.fields), PartitionSpec(), []

    def make() -> list[int]:
        made.append(1)
        return made

    properties = {"a": "b"}
    assert known.of(schema, spec, properties, make=make) is known.of(schema, spec, properties, make=make)
    assert len(made) == 1
    known.of(schema, spec, {"a": "b"}, make=make)
    assert len(made) == 2
    gone = weakref.ref(schema)
    del schema
    gc.collect()
    assert gone() is None
    assert not known._known
    for _ in range(300):
        known.of({}, make=make)
    assert len(known._known) <= 128
