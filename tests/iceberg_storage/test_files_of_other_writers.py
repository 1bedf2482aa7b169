"""Parquet and ORC files without field ids, which other writers wrote before their table became an Iceberg table."""

from __future__ import annotations

from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.table.name_mapping import create_mapping_from_schema

import trinitylake as tl
from local_files import local_path
from manifests_by_hand import data_file

FAR = [datetime(1, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), None, datetime(9999, 12, 31)]


def adopted(
    folder: Path, columns: dict[str, str], rows: pa.Table, format: FileFormat = FileFormat.PARQUET, **options: Any
) -> tuple[tl.Lakehouse, tl.Table]:
    """A table with a file without field ids, as after a migration by Spark's procedure."""
    lake = tl.create(folder / "lake", durability="none")
    lake.create_namespace("n")
    properties = {"write.delete.mode": "merge-on-read"}
    lake.create_table("n.t", columns, properties=properties)
    iceberg = tl.iceberg.load(lake.uri).load_table("n.t")
    location = f"{iceberg.location()}/data/given.{format.name.lower()}"
    path = local_path(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    (pq if format == FileFormat.PARQUET else orc).write_table(rows, path, **options)
    with iceberg.transaction() as change:
        change.set_properties(
            {"schema.name-mapping.default": create_mapping_from_schema(iceberg.schema()).model_dump_json()}
        )
        with change.update_snapshot().fast_append() as snapshot:
            snapshot.append_data_file(data_file(location, len(rows), path.stat().st_size, format))
    return lake, lake.table("n.t")


@pytest.mark.parametrize("type", ["timestamp", "timestamptz"])
def test_timestamps_of_96_bits_are_exact_in_all_years(tmp_path: Path, type: str) -> None:
    """As Arrow's nanoseconds, 9999-12-31 in INT96 of Spark and Hive would overflow to a day of 1816."""
    rows = pa.table({"v": pa.array(FAR, pa.timestamp("us"))})
    lake, table = adopted(tmp_path, {"v": type}, rows, use_deprecated_int96_timestamps=True)
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
    """PyIceberg raised `UnsupportedPyArrowTypeException` for files of pandas."""
    given = pa.ListArray.from_arrays([0, 1, 2], column) if is_nested else column
    _, table = adopted(tmp_path, {"v": f"array({type})" if is_nested else type}, pa.table({"v": given}))
    values = table.scan().to_arrow()["v"].to_pylist()
    first, second = (one[0] for one in values) if is_nested else values
    assert (first if type == "time" else first.replace(tzinfo=None)) == expected
    assert second is None


def test_type_that_iceberg_does_not_have_is_an_invalid_argument(tmp_path: Path) -> None:
    _, table = adopted(tmp_path, {"v": "bigint"}, pa.table({"v": pa.array([1], pa.duration("us"))}))
    with pytest.raises(tl.InvalidArgument, match="Column 'v' has an unsupported type: duration"):
        table.scan().to_arrow()


def test_orc_file_has_the_rows_that_were_written(tmp_path: Path) -> None:
    """PyIceberg's reader made an empty list of a NULL list of structs, and an upsert changed the row."""
    values = [[{"a": 1, "b": "x"}, None], None, [], [{"a": None, "b": None}], [{"a": 5, "b": ""}]]
    part = pa.struct([("a", pa.int32()), ("b", pa.string())])
    rows = pa.table({"v": pa.array(values, pa.list_(part)), "k": pa.array(range(5), pa.int32())})
    columns = {"v": "array(row(a int, b varchar))", "k": "bigint"}
    lake, table = adopted(tmp_path, columns, rows, FileFormat.ORC)
    assert table.scan().to_arrow()["v"].to_pylist() == values
    assert lake.sql("SELECT v FROM n.t ORDER BY k").to_arrow()["v"].to_pylist() == values
    assert table.scan("v IS NULL").to_arrow()["k"].to_pylist() == [1]
    for k in (0, 2):
        assert table.delete(f"k = {k}").rows_deleted == 1
    assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [1, 3, 4]
    assert lake.sql("UPDATE n.t SET k = 13 WHERE k = 3").fetchone()[0] == 1
    assert table.upsert([{"k": 1, "v": None}, {"k": 4, "v": []}], on="k") == (1, 0)
    found = {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {1: None, 4: [], 13: values[3]}
