"""Parquet files without field ids whose columns have other physical types than those that Iceberg's writers use."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from local_files import local_path
from manifests_by_hand import data_file

FAR = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), None, datetime(9999, 12, 31)]
MAPPING = [{"field-id": 1, "names": ["v"], "fields": [{"field-id": 2, "names": ["element"]}]}]


def adopted(folder: Path, type: str, column: pa.Array, **options: Any) -> tuple[tl.Lakehouse, tl.Table]:
    """A table with the file, as a procedure of Spark that migrates tables makes it."""
    lake = tl.create(folder / "lake", durability="none")
    lake.create_namespace("n")
    lake.create_table("n.t", {"v": type})
    iceberg = tl.iceberg.load(lake.uri).load_table("n.t")
    location = f"{iceberg.location()}/data/given.parquet"
    path = local_path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"v": column}), path, **options)
    with iceberg.transaction() as change:
        change.set_properties({"schema.name-mapping.default": json.dumps(MAPPING)})
        with change.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(data_file(location, len(column), path.stat().st_size))
    return lake, lake.table("n.t")


@pytest.mark.parametrize("type", ["timestamp", "timestamptz"])
def test_timestamps_of_96_bits_are_exact_in_all_years(tmp_path: Path, type: str) -> None:
    """Spark and Hive write INT96. Arrow reads it as nanoseconds, which overflow: 9999-12-31 became a day of 1816, in
    scans, SQL and compacted files. As `timestamptz`, which is Spark's type for it, it was not read at all.
    """
    lake, table = adopted(tmp_path, type, pa.array(FAR, pa.timestamp("us")), use_deprecated_int96_timestamps=True)
    expected = FAR if type == "timestamp" else [one and one.replace(tzinfo=UTC) for one in FAR]
    assert table.scan().to_arrow()["v"].to_pylist() == expected
    assert lake.sql("SELECT v FROM n.t").to_arrow()["v"].to_pylist() == expected
    suffix = "" if type == "timestamp" else "+00:00"
    assert table.scan(f"v > '2000-01-01T00:00:00{suffix}'").to_arrow()["v"].to_pylist() == expected[-1:]
    assert table.scan(f"v < '0001-01-02T00:00:00{suffix}'").count() == 1
    table.delete("v IS NULL")
    table.maintenance.compact(min_files=1)
    assert set(table.scan().to_arrow()["v"].to_pylist()) == {one for one in expected if one is not None}


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(
    ("type", "column", "expected"),
    [
        ("time", pa.array([1, None], pa.time32("ms")), time(0, 0, 0, 1000)),
        ("time", pa.array([1000, None], pa.time64("ns")), time(0, 0, 0, 1)),
        ("timestamptz", pa.array([-1, None], pa.timestamp("us", "Europe/Berlin")), FAR[1]),
        ("timestamptz", pa.array([0, None], pa.timestamp("ms", "+02:00")), datetime(1970, 1, 1)),
    ],
)
def test_other_units_and_time_zones_are_read(
    tmp_path: Path, type: str, column: pa.Array, expected: Any, is_nested: bool
) -> None:
    """`UnsupportedPyArrowTypeException` of PyIceberg reached the user, also for files of pandas with a time zone."""
    given = pa.ListArray.from_arrays([0, 1, 2], column) if is_nested else column
    _, table = adopted(tmp_path, f"array({type})" if is_nested else type, given)
    values = table.scan().to_arrow()["v"].to_pylist()
    first, second = (one[0] for one in values) if is_nested else values
    assert (first if type == "time" else first.replace(tzinfo=None)) == expected
    assert second is None


def test_type_that_iceberg_does_not_have_is_an_invalid_argument(tmp_path: Path) -> None:
    _, table = adopted(tmp_path, "bigint", pa.array([1], pa.duration("us")))
    with pytest.raises(tl.InvalidArgument, match="Column 'v' has an unsupported type: duration"):
        table.scan().to_arrow()
