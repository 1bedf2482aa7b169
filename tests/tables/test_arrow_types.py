"""Rows have the Arrow types of the table's schema, for files of every writer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

import trinitylake as tl
from local_files import lake_on_disk, local_path, write_parquet_of_size
from trinitylake.definitions.arrow_types import to_arrow

NARROW = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("city", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([pa.field("name", pa.string())])),
        pa.field("notes", pa.map_(pa.string(), pa.string())),
    ]
)
WIDE = {
    "id": pa.int64(),
    "city": pa.large_string(),
    "raw": pa.large_binary(),
    "tags": pa.large_list(pa.field("element", pa.large_string())),
    "place": pa.struct([pa.field("name", pa.large_string())]),
    "notes": pa.map_(pa.large_string(), pa.large_string()),
}


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": list(ids),
            "city": [f"c{id}" for id in ids],
            "raw": [bytes([id]) for id in ids],
            "tags": [["a", str(id)] for id in ids],
            "place": [{"name": f"p{id}"} for id in ids],
            "notes": [[("k", str(id))] for id in ids],
        },
        schema=NARROW,
    )


def by_append(table: tl.Table, folder: Path) -> None:
    table.append(rows(1, 2))


def by_append_of_wide_rows(table: tl.Table, folder: Path) -> None:
    wide = [rows(1, 2).column(name).cast(type) for name, type in WIDE.items()]
    table.append(pa.table(wide, names=list(WIDE)))


def by_stream(table: tl.Table, folder: Path) -> None:
    table.append(rows(1, 2).to_reader())


def by_overwrite(table: tl.Table, folder: Path) -> None:
    table.append(rows(5))
    table.overwrite(rows(1, 2))


def by_upsert(table: tl.Table, folder: Path) -> None:
    table.append(rows(1))
    table.upsert(rows(1, 2).set_column(1, "city", pa.array(["c1", "c2"])), on=["id"])


def by_deletion(table: tl.Table, folder: Path) -> None:
    table.append(rows(1, 2, 3))
    table.delete("id = 3")


def by_compaction(table: tl.Table, folder: Path) -> None:
    table.append(rows(1))
    table.append(rows(2))
    table.maintenance.compact(min_files=2)
    assert len(list(table.iceberg.scan().plan_files())) == 1


def by_duckdb(table: tl.Table, folder: Path) -> None:
    """A file of DuckDB, with neither an Arrow schema nor field ids, in the folder of the table."""
    location = f"{table.location}/data/by-duckdb.parquet"
    given = rows(1, 2)
    duckdb.from_arrow(given).write_parquet(str(local_path(location)))
    table.iceberg.add_files([location])


def by_spark(table: tl.Table, folder: Path) -> None:
    """A file with field ids and without an Arrow schema, as Iceberg's Java library writes it for Spark."""
    table.append(rows(1, 2))
    (task,) = table.iceberg.scan().plan_files()
    path = local_path(task.file.file_path)
    write_parquet_of_size(pq.read_table(path), path, task.file.file_size_in_bytes)
    assert b"ARROW:schema" not in (pq.read_metadata(path).metadata or {})
    assert pq.read_schema(path).field("city").type == pa.string()


WRITERS: dict[str, Callable[[tl.Table, Path], None]] = {
    "append": by_append,
    "append of wide rows": by_append_of_wide_rows,
    "stream": by_stream,
    "overwrite": by_overwrite,
    "upsert": by_upsert,
    "deletion": by_deletion,
    "compaction": by_compaction,
    "DuckDB": by_duckdb,
    "Spark": by_spark,
}


lake = lake_on_disk("a")


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest, lake: tl.Lakehouse, tmp_path: Path) -> tl.Table:
    table = lake.create_table("a.written", NARROW)
    (local_path(table.location) / "data").mkdir(parents=True, exist_ok=True)
    WRITERS[request.param](table, tmp_path)
    return lake.table("a.written")


def test_a_scan_has_the_types_of_the_table_for_files_of_every_writer(lake: tl.Lakehouse, written: tl.Table) -> None:
    """Otherwise a compaction would change the types, and a join of two scans would fail."""
    expected = pa.schema(list(WIDE.items()))
    found = {
        "all rows": written.scan().to_arrow(),
        "some rows": written.scan(filter="id = 2").to_arrow(),
        "no rows": written.scan(filter="id = 9").to_arrow(),
        "two rows at most": written.scan(limit=2).to_arrow(),
        "a stream": written.scan().to_arrow_batch_reader().read_all(),
        "a stream of some rows": written.scan(filter="id = 2").to_arrow_batch_reader().read_all(),
        "the interface of Arrow": pa.table(written),
        "PyIceberg's scan": written.iceberg.scan().to_arrow(),
        "PyIceberg's stream": written.iceberg.scan().to_arrow_batch_reader().read_all(),
        "one version": lake.at(lake.version).table("a.written").scan().to_arrow(),
    }
    for name, table in found.items():
        assert table.schema.equals(expected), name
        table.validate(full=True)
    assert found["all rows"].sort_by("id").to_pylist() == rows(1, 2).to_pylist()
    with lake.transaction() as txn:
        assert txn.table("a.written").scan().to_arrow().schema.equals(expected)
    assert written.scan(columns=["city", "id"]).to_arrow().schema.field("city").type == pa.large_string()
    answer = lake.sql("SELECT * FROM a.written ORDER BY id").to_arrow()
    assert [field.type for field in answer.schema.remove(3)] == [type for name, type in WIDE.items() if name != "tags"]
    assert answer.schema.field("tags").type.value_type == pa.large_string()

    other = lake.create_table("a.other", NARROW)
    other.append(rows(2, 3).to_reader())
    lookup = other.scan(columns=["id", "city"]).to_arrow().rename_columns(["other", "city"])
    assert written.scan(columns=["id", "city"]).to_arrow().join(lookup, "city", join_type="inner").num_rows == 1
    named = lake.sql("SELECT city FROM a.written").to_arrow()
    assert named.join(lookup, "city", join_type="inner").num_rows == 1


def test_requested_dictionary_columns_stay(lake: tl.Lakehouse) -> None:
    table = lake.create_table("a.t", pa.schema([("id", pa.int64()), ("city", pa.string())]))
    table.append(pa.table({"id": [1, 2], "city": ["x", "x"]}))
    found = table.iceberg.scan().to_arrow(dictionary_columns=("city",))
    assert pa.types.is_dictionary(found.schema.field("city").type)
    assert found["city"].to_pylist() == ["x", "x"]


def in_dictionaries(plain: pa.Table) -> pa.Table:
    """The same rows with dictionaries for strings and bytes, also for strings in structs."""
    kind = pa.dictionary(pa.int8(), pa.string())
    place = plain["place"].combine_chunks()
    name = place.field("name").cast(kind)
    return (
        plain.set_column(1, "city", plain["city"].cast(kind))
        .set_column(2, "raw", plain["raw"].cast(pa.dictionary(pa.int32(), pa.binary())))
        .set_column(4, "place", pa.StructArray.from_arrays([name], ["name"]))
    )


def test_files_with_dictionaries_and_without_are_read_together(lake: tl.Lakehouse) -> None:
    """Such as files of pandas frames with categories."""
    table = lake.create_table("a.mixed", NARROW)
    folder = local_path(table.location) / "data"
    folder.mkdir(parents=True)
    files = [in_dictionaries(rows(1, 2)), rows(3), in_dictionaries(rows(4)).cast(rows(4).schema)]
    for number, given in enumerate(files):
        pq.write_table(given, folder / f"{number}.parquet")
    table.iceberg.add_files([f"{table.location}/data/{number}.parquet" for number in range(len(files))])
    table = lake.table("a.mixed")
    lake.create_table("a.elsewhere", metadata_location=table.iceberg.metadata_location)
    scans = {
        "all rows": table.scan(),
        "some rows": table.scan("city > 'c1'"),
        "three rows at most": table.scan(limit=3),
        "a table elsewhere": lake.table("a.elsewhere").scan(),
    }
    for name, scan in scans.items():
        found = {
            "at once": scan.to_arrow(),
            "a stream": scan.to_arrow_batch_reader().read_all(),
            "PyIceberg": scan.iceberg.to_arrow() if name != "a table elsewhere" else scan.to_arrow(),
        }
        for way, table_of_rows in found.items():
            assert table_of_rows.schema.equals(pa.schema(list(WIDE.items()))), (name, way)
            assert table_of_rows.num_rows >= 3, (name, way)
    assert scans["all rows"].to_arrow().sort_by("id").to_pylist() == rows(1, 2, 3, 4).to_pylist()
    asked = table.iceberg.scan().to_arrow(dictionary_columns=("city",))
    assert pa.types.is_dictionary(asked.schema.field("city").type)
    assert asked.schema.field("raw").type == pa.large_binary()
    assert sorted(asked["city"].to_pylist()) == ["c1", "c2", "c3", "c4"]


@pytest.mark.parametrize("with_ids", [False, True])
def test_arrow_schema_of_a_table_is_that_of_pyiceberg(with_ids: bool) -> None:
    kinds = [
        *(types.BooleanType(), types.IntegerType(), types.LongType(), types.FloatType(), types.DoubleType()),
        *(types.DateType(), types.TimeType(), types.TimestampType(), types.TimestamptzType(), types.StringType()),
        *(types.TimestampNanoType(), types.TimestamptzNanoType(), types.UUIDType(), types.BinaryType()),
        *(types.UnknownType(), types.FixedType(7), types.DecimalType(12, 3), types.GeometryType()),
        types.ListType(101, types.LongType(), element_required=True),
        types.MapType(103, types.StringType(), 104, types.StructType(types.NestedField(105, "a", types.IntegerType()))),
    ]
    fields = [
        types.NestedField(at, f"c{at}", kind, required=at % 2 == 0 and at != 15, doc="text" * (at % 3))
        for at, kind in enumerate(kinds, 1)
    ]
    schema = Schema(*fields)
    assert to_arrow(tl.Schema.from_iceberg(schema).columns, with_ids=with_ids).equals(
        schema_to_pyarrow(schema, include_field_ids=with_ids), check_metadata=True
    )


@pytest.mark.parametrize(
    ("column", "type", "fits"),
    [
        (pa.array([0, 1, None]), "boolean", True),
        (pa.array([1, 98]), "boolean", False),
        (pa.array([1.0, 0.5]), "boolean", False),
        (pa.array([86_400_000_000, None], pa.timestamp("us")), "date", True),
        (pa.array([0, 86_400_000_001], pa.timestamp("us", "UTC")), "date", False),
        (pa.array([0, 86_399_999_999]), "time", True),
        (pa.array([0, 86_400_000_000], pa.time64("us")), "time", False),
        (pa.array([-1]), "time", False),
        (pa.array(["00ff"]), "blob", False),
        (pa.array(["00ff"], pa.large_string()), "blob", False),
        (pa.array(["x"]).dictionary_encode(), "blob", False),
        (pa.array([b"00ff"]), "blob", True),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_value_that_another_type_does_not_have_is_refused(
    lake: tl.Lakehouse, column: pa.Array, type: str, fits: bool, is_nested: bool
) -> None:
    """98 is no boolean; `load` of a file that `cat` had written stored the hexadecimal digits of bytes as text."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": f"row(k int, a array({type}))" if is_nested else type})
    rows = pa.table({"v": column})
    if is_nested:
        lists = pa.ListArray.from_arrays([0, len(column)], column)
        rows = pa.table({"v": pa.StructArray.from_arrays([lists, pa.array([1])], ["a", "k"])})
    if fits:
        table.append(rows)
        assert table.count() == len(rows)
    else:
        with pytest.raises(tl.InvalidArgument, match="column v: "):
            table.append(rows)


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_dates_and_timestamps_of_one_column_keep_their_times(lake: tl.Lakehouse, form: str) -> None:
    """Arrow takes a timestamp after a date for a date, so 10:30 would become midnight."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": "timestamp", "d": "date"})
    moments = [date(2020, 1, 1), None, datetime(2020, 1, 2, 10, 30)]
    table.append({"v": moments} if form == "columns" else [{"v": moment} for moment in moments])
    expected = [datetime(2020, 1, 1), None, datetime(2020, 1, 2, 10, 30)]
    assert table.scan().to_arrow()["v"].to_pylist() == expected
    with pytest.raises(tl.InvalidArgument, match="is not a valid DATE"):
        table.append([{"d": moment} for moment in moments])


@pytest.mark.parametrize("is_nested", [False, True])
def test_text_that_is_not_utf_8_is_refused(lake: tl.Lakehouse, is_nested: bool) -> None:
    """Otherwise no reader could read the table, and no statement could change it."""

    def by_writer(rows: pa.Table) -> None:
        with table.writer() as writer:
            writer.write(rows)

    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": "array(varchar)" if is_nested else "varchar"})
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    rows = pa.table({"v": pa.ListArray.from_arrays([0, 1], text) if is_nested else text})
    streams: list[Callable[[pa.Table], object]] = [lambda rows: table.append(rows.to_reader()), by_writer]
    for write in (table.append, table.overwrite, *streams, table.iceberg.append, table.iceberg.overwrite):
        with pytest.raises(tl.InvalidArgument, match="a string is not UTF-8"):
            write(rows)
    assert table.count() == 0


def test_second_field_of_a_name_in_a_struct_is_refused(lake: tl.Lakehouse) -> None:
    """A struct with two fields of one name is refused, because Arrow would drop one of the two values."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"v": "row(a int, b int)"})
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(tl.InvalidArgument, match="two fields of one name: a, a"):
        table.append(pa.table({"v": column}))


@pytest.mark.parametrize("form", ["dicts", "columns", "arrow", "nested"])
def test_instant_is_no_time_without_a_zone(form: str) -> None:
    """Without its zone 08:00+02:00 would become 06:00."""
    lake = tl.create("memory://zones", durability="none", exist_ok=True)
    lake.create_namespace("n", exist_ok=True)
    table = lake.create_table(f"n.{form}", {"at": "timestamp", "s": "row(at timestamp)"})
    instant = datetime(2026, 1, 1, 8, tzinfo=timezone(timedelta(hours=2)))
    rows: dict[str, Any] = {
        "dicts": [{"at": instant}],
        "columns": {"at": [instant]},
        "arrow": pa.table({"at": [instant]}),
        "nested": [{"s": {"at": instant}}],
    }
    with pytest.raises(tl.InvalidArgument, match="has no time zone, so convert the instants"):
        table.append(rows[form])
    table.append([{"at": instant.replace(tzinfo=None), "s": {"at": instant.replace(tzinfo=None)}}])
    assert table.to_arrow()["at"].to_pylist() == [datetime(2026, 1, 1, 8)]


@pytest.mark.parametrize("form", ["python", "arrow"])
def test_a_uuid_in_a_column_of_strings_is_its_text(lake: tl.Lakehouse, form: str) -> None:
    """A UUID whose bytes are UTF-8 was stored as these bytes; other UUIDs were refused."""
    lake.create_namespace("n")
    table = lake.create_table("n.t", {"c": "varchar", "l": "varchar[]"})
    ids = [UUID("41424344-4546-4748-494a-4b4c4d4e4f50"), UUID(int=2**128 - 1)]
    rows: Any = [{"c": one, "l": [one]} for one in ids]
    if form == "arrow":
        column = pa.array([one.bytes for one in ids], pa.uuid())
        rows = pa.table({"c": column, "l": pa.ListArray.from_arrays([0, 1, 2], column)})
    table.append(rows)
    assert table.to_arrow().to_pylist() == [{"c": str(one), "l": [str(one)]} for one in ids]
