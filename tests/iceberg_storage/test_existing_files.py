"""Files of other programs for `add_files` and `register_table`: they are refused, or read correctly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from local_files import lake_on_disk, local_path
from trinitylake.errors import InvalidArgument
from trinitylake.iceberg import load
from trinitylake.iceberg_storage.data_files.partitioned_rows import spelled

U32, U64 = 2**32 - 1, 2**64 - 1
#: Columns of files with extreme values of their types.
GIVEN = {
    "bool": pa.array([True, None]),
    "int16": pa.array([-(2**15), None], pa.int16()),
    "int32": pa.array([-(2**31), None], pa.int32()),
    "int64": pa.array([-(2**63), None], pa.int64()),
    "uint8": pa.array([255], pa.uint8()),
    "uint16": pa.array([65535], pa.uint16()),
    "uint32": pa.array([U32], pa.uint32()),
    "uint64": pa.array([U64], pa.uint64()),
    "list of uint64": pa.array([[U64]], pa.list_(pa.uint64())),
    "struct of uint32": pa.array([{"a": U32}], pa.struct([("a", pa.uint32())])),
    "map to uint64": pa.array([[("a", U64)]], pa.map_(pa.string(), pa.uint64())),
    "float": pa.array([1.5, float("nan")], pa.float32()),
    "double": pa.array([1e300]),
    "decimal(9,2)": pa.array([Decimal("1234567.89")], pa.decimal128(9, 2)),
    "decimal(9,3)": pa.array([Decimal("1.125")], pa.decimal128(9, 3)),
    "decimal(12,2)": pa.array([Decimal("1234567890.12")], pa.decimal128(12, 2)),
    "date": pa.array([7], pa.int32()).cast(pa.date32()),
    "time in ms": pa.array([7], pa.int32()).cast(pa.time32("ms")),
    "time in ns": pa.array([7], pa.int64()).cast(pa.time64("ns")),
    "ms": pa.array([1001], pa.int64()).cast(pa.timestamp("ms")),
    "ms of the year 100 million": pa.array([2**61], pa.int64()).cast(pa.timestamp("ms")),
    "us": pa.array([-1001], pa.int64()).cast(pa.timestamp("us")),
    "ns": pa.array([1001], pa.int64()).cast(pa.timestamp("ns")),
    "ms in UTC": pa.array([1001], pa.int64()).cast(pa.timestamp("ms", "UTC")),
    "text": pa.array(["é"]),
    "categories": pa.array(["a", "b"]).dictionary_encode(),
    "bytes": pa.array([b"a"]),
    "bytes that are no text": pa.array([b"\xff"]),
    "four bytes": pa.array([b"abcd"], pa.binary(4)),
    "five bytes": pa.array([b"abcde"], pa.binary(5)),
}
COLUMNS = {
    "bool": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal9": pa.decimal128(9, 2),
    "decimal38": pa.decimal128(38, 2),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "text": pa.large_string(),
    "bytes": pa.large_binary(),
    "fixed": pa.binary(4),
    "list": pa.large_list(pa.int64()),
    "struct": pa.struct([("a", pa.int64())]),
    "map": pa.map_(pa.large_string(), pa.int64()),
}
#: For each column of a file, the types of table columns for which `add_files` accepts it.
TAKEN = {
    "bool": {"bool"},
    "int16": {"int", "bigint"},
    "int32": {"int", "bigint"},
    "int64": {"bigint"},
    "uint8": {"int", "bigint"},
    "uint16": {"int", "bigint"},
    "float": {"float", "double"},
    "double": {"double"},
    "decimal(9,2)": {"decimal9", "decimal38"},
    "decimal(12,2)": {"decimal38"},
    "date": {"date"},
    "ms": {"timestamp"},
    "us": {"timestamp"},
    "ns": {"timestamp_ns"},
    "ms in UTC": {"timestamptz"},
    "text": {"text", "bytes"},
    "categories": {"text", "bytes"},
    "bytes": {"text", "bytes"},
    "bytes that are no text": {"bytes"},
    "four bytes": {"fixed"},
}


lake = lake_on_disk("n")


def written(table: tl.Table, columns: dict[str, pa.Array], ids: dict[str, int] | None = None) -> str:
    """The location of a Parquet file with these columns, and with these field ids."""
    metadata = {} if ids is None else {name: {"PARQUET:field_id": str(id)} for name, id in ids.items()}
    fields = [pa.field(name, column.type, metadata=metadata.get(name)) for name, column in columns.items()]
    folder = local_path(table.location) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays([*columns.values()], schema=pa.schema(fields)), folder / "given.parquet")
    return f"{table.location}/data/given.parquet"


@pytest.mark.parametrize("given", GIVEN)
def test_columns_of_an_added_file_are_refused_or_read_as_they_are(lake: tl.Lakehouse, given: str) -> None:
    """`add_files` refuses a file whose values do not fit the columns or that other readers cannot read: unsigned
    integers of 32 or 64 bits, decimals of another scale, strings that are not UTF-8, milliseconds beyond the range of a
    timestamp."""
    lake.create_table("n.t", pa.schema([*COLUMNS.items()]), properties={"format-version": "3"})
    version, values, taken = lake.version, GIVEN[given], set()
    for name, kind in COLUMNS.items():
        location = written(lake.table("n.t"), {name: values})
        try:
            lake.table("n.t").iceberg.add_files([location])
        except InvalidArgument:
            assert lake.version == version
            continue
        taken.add(name)
        found = lake.table("n.t").scan(columns=[name]).to_arrow()[name].combine_chunks()
        expected = values.cast(pa.large_string()) if given == "categories" else values
        assert found.equals(expected.cast(kind)) or given == "float", name
        lake.rollback(version)
        version = lake.version
    assert taken == TAKEN.get(given, set())


@pytest.mark.parametrize("shape", ["plain", "dictionary", "struct", "list", "map"])
def test_an_added_file_whose_texts_are_not_utf_8_is_refused(lake: tl.Lakehouse, shape: str) -> None:
    """Every `SELECT *` and UPDATE of the table would fail, and no error would name the file."""
    stored = pa.array([b"a", b"\xe9t\xe9", None, b"b"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), len(stored), stored.buffers())
    offsets = pa.array(range(len(texts) + 1), pa.int32())
    column = {
        "plain": texts,
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, None], pa.int32()), texts.slice(0, 2)),
        "struct": pa.StructArray.from_arrays([texts], ["a"]),
        "list": pa.ListArray.from_arrays(offsets, texts),
        "map": pa.MapArray.from_arrays(offsets, pa.array([*"abcd"]), texts),
    }[shape]
    kind = pa.string() if shape == "dictionary" else column.type
    table = lake.create_table("n.t", pa.schema([("k", pa.int64()), ("v", kind)]))
    location = written(table, {"k": pa.array(range(len(column))), "v": column})
    with pytest.raises(InvalidArgument, match=rf"column v of {location}: a string is not UTF-8"):
        table.iceberg.add_files([location])
    assert lake.table("n.t").count() == 0


@pytest.mark.parametrize(
    ("ids", "is_taken"),
    [
        (None, True),
        ({"k": 1, "a": 2}, True),
        ({"k": 2, "a": 1}, False),
        ({"k": 7, "a": 8}, False),
        ({"k": 1, "a": 8}, False),
        ({"k": 1, "a": 1}, False),
        ({"k": 1}, False),
    ],
)
def test_columns_of_an_added_file_have_the_ids_of_the_table(
    lake: tl.Lakehouse, ids: dict[str, int] | None, is_taken: bool
) -> None:
    """Rows are found by id and bounds by name, so scans and SQL would return different rows."""
    table = lake.create_table("n.t", pa.schema([("k", pa.int64()), ("a", pa.int64())]))
    location = written(table, {"k": pa.array([1]), "a": pa.array([100])}, ids)
    if not is_taken:
        with pytest.raises(InvalidArgument, match="field id"):
            table.iceberg.add_files([location])
        return
    table.iceberg.add_files([location])
    assert lake.sql("SELECT a FROM n.t WHERE k = 1").fetchall() == [(100,)]


def test_bounds_of_an_added_file_belong_to_its_field_ids(lake: tl.Lakehouse) -> None:
    """The file's `a` is called `b` in the table now, and the table has another `a`."""
    table = lake.create_table("n.t", pa.schema([("k", pa.int64()), ("a", pa.int64())]))
    for change in (lambda update: update.rename_column("a", "b"), lambda update: update.add_column("a", "bigint")):
        with table.update_schema() as update:
            change(update)
    table = lake.table("n.t")
    table.iceberg.add_files([written(table, {"k": pa.array([1]), "a": pa.array([100])}, {"k": 1, "a": 2})])
    row: dict[str, Any] = {"k": 1, "b": 100, "a": None}
    for filter, expected in {"a = 100": [], "b = 100": [row], "a is null": [row], "b is null": []}.items():
        assert lake.table("n.t").scan(filter).to_arrow().to_pylist() == expected, filter


def test_a_column_that_the_name_mapping_lacks_is_refused(lake: tl.Lakehouse) -> None:
    mapping = '[{"field-id": 1, "names": ["k"]}]'
    schema = pa.schema([("k", pa.int64()), ("a", pa.int64())])
    table = lake.create_table("n.t", schema, properties={"schema.name-mapping.default": mapping})
    with pytest.raises(InvalidArgument, match="the name mapping of the table has no column 'a'"):
        table.iceberg.add_files([written(table, {"k": pa.array([1]), "a": pa.array([100])})])


@pytest.mark.parametrize(
    ("values", "filter"),
    [
        ([1.0, math.nan], None),
        ([-0.0, 0.0], None),
        ([math.nan, None], None),
        ([1.0, None], None),
        ([1.5, 1.5], "f = 1.5"),
        ([0.1], "f = 0.1"),
        ([-0.0, -0.0], "f = 0"),
        ([math.nan, math.nan], "f is nan"),
        ([math.inf], "f > 1e300"),
        ([None, None], "f is null"),
        ([], None),
    ],
)
@pytest.mark.parametrize("source", ["f", "s.f"])
def test_an_added_file_has_one_floating_point_partition_value(
    lake: tl.Lakehouse, source: str, values: list[float | None], filter: str | None
) -> None:
    """Bounds omit NaN, so values are read: a file of 1.0 and NaN must not go to the partition 1.0."""
    number = pa.array(values, pa.float64())
    column = {"s": pa.StructArray.from_arrays([number], ["f"])} if source == "s.f" else {"f": number}
    table = lake.create_table("n.t", pa.table(column).schema, partition_spec=[source])
    location = written(table, column)
    if values and filter is None:
        with pytest.raises(InvalidArgument, match="rows of more than one partition"):
            table.iceberg.add_files([location])
        return
    table.iceberg.add_files([location])
    found = lake.table("n.t")
    assert found.count() == len(values)
    if filter is not None:
        filter = filter.replace("f", source, 1)
        assert lake.table("n.t").scan(filter).count() == found.scan(f"not ({filter})").count() + len(values)
        table.append(pa.table(column))
        files = lake.table("n.t").iceberg.scan().plan_files()
        assert len({spelled(task.file.partition) for task in files}) == 1, (
            "an append of the same rows has the same partition"
        )
        table.delete(filter)
        assert lake.table("n.t").count() == 0


def test_a_file_of_several_values_is_added_after_its_partition_field_was_removed(lake: tl.Lakehouse) -> None:
    """A file can have several values of a removed partition field, which format version 1 keeps as `void`."""
    properties = {"format-version": "1"}
    table = lake.create_table("n.t", {"k": "bigint"}, partition_spec=["k"], properties=properties)
    with table.update_spec() as update:
        update.remove_field("k")
    table.refresh()
    table.iceberg.add_files([written(table, {"k": pa.array([1, 2])})])
    assert lake.sql("SELECT k FROM n.t ORDER BY k").fetchall() == [(1,), (2,)]


def test_a_type_that_arrow_does_not_read_is_no_damage(lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a compression that Arrow does not support is not reported as damaged."""
    table = lake.create_table("n.t", pa.schema([("k", pa.int64())]))
    table.append([{"k": 1}])

    def refuse(*arguments: object, **options: object) -> None:
        raise pa.ArrowNotImplementedError("Support for codec 'lzo' not built")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse)
    with pytest.raises(InvalidArgument, match=r"compression that is not read here.*lzo"):
        lake.table("n.t").scan().to_arrow()


def second_schema(metadata: dict[str, Any]) -> None:
    metadata["schemas"].append(metadata["schemas"][0])


def second_column(metadata: dict[str, Any]) -> None:
    metadata["schemas"][0]["fields"].append({"id": 1, "name": "b", "type": "long", "required": False})


def field_of_no_column(metadata: dict[str, Any]) -> None:
    field = {"source-id": 9, "field-id": 1000, "name": "p", "transform": "identity"}
    metadata["partition-specs"] = [{"spec-id": 0, "fields": [field]}]


def bucket_of_a_double(metadata: dict[str, Any]) -> None:
    field = {"source-id": 2, "field-id": 1000, "name": "p", "transform": "bucket[4]"}
    metadata["partition-specs"] = [{"spec-id": 0, "fields": [field]}]


def id_of_a_dropped_column(metadata: dict[str, Any]) -> None:
    """Changes metadata so that an added column would get the id of a dropped column, and show its values."""
    metadata["last-column-id"] = 1


def id_of_a_former_partition(metadata: dict[str, Any]) -> None:
    field = {"source-id": 1, "field-id": 1001, "name": "p", "transform": "bucket[4]"}
    metadata["partition-specs"].append({"spec-id": 1, "fields": [field]})
    metadata["last-partition-id"] = 1000


CHANGES = (
    *(second_schema, second_column, field_of_no_column, bucket_of_a_double),
    *(id_of_a_dropped_column, id_of_a_former_partition),
)


@pytest.mark.parametrize("change", CHANGES)
def test_registration_checks_what_a_commit_checks(lake: tl.Lakehouse, change: Callable[[dict[str, Any]], None]) -> None:
    table = lake.create_table("n.t", pa.schema([("k", pa.int64()), ("x", pa.float64())]))
    location = table.iceberg.metadata_location
    metadata = json.loads(local_path(location).read_text())
    change(metadata)
    local_path(location.replace("metadata.json", "x.metadata.json")).write_text(json.dumps(metadata))
    with pytest.raises(InvalidArgument, match="cannot be registered"):
        load(lake).register_table("n.u", location.replace("metadata.json", "x.metadata.json"))
    load(lake).register_table("n.u", location)
