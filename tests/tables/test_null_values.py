"""Null values stay null, also lists, maps and structs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, NestedField, StringType, StructType, UUIDType

import trinitylake as tl
from local_files import lake_on_disk

KINDS = {
    "numbers": "list<int>",
    "structures": "list<struct<k: int>>",
    "map": "map<text, struct<k: int>>",
    "inside": "struct<l: list<struct<k: int, m: map<text, struct<k: int>>>>>",
    "lists": "list<list<struct<k: int>>>",
}
#: Rows with every kind of list: null, empty, with null elements, with values.
ROWS: list[dict[str, Any]] = [
    {"id": 0, "numbers": None, "structures": None, "map": None, "inside": None, "lists": None},
    {"id": 1, "numbers": [], "structures": [], "map": [], "inside": {"l": None}, "lists": []},
    {"id": 2, "numbers": [None], "structures": [None], "map": [("a", None)], "inside": {"l": []}, "lists": [None]},
    {
        "id": 3,
        "numbers": [1],
        "structures": [{"k": 1}, {"k": None}],
        "map": [("a", {"k": 1})],
        "inside": {"l": [{"k": 1, "m": None}, {"k": 2, "m": []}, {"k": 3, "m": [("a", {"k": 4})]}]},
        "lists": [[], None, [None, {"k": 1}]],
    },
]


lake = lake_on_disk("a")


def rows(table: tl.Table, *chosen: int) -> pa.Table:
    """The rows with the chosen numbers; without numbers, all rows."""
    schema = table.scan().to_arrow().schema
    return pa.Table.from_pylist([ROWS[number] for number in chosen or range(len(ROWS))], schema)


def by_append(table: tl.Table) -> None:
    table.append(rows(table))


def by_few_columns(table: tl.Table) -> None:
    table.append({"id": [0]})
    table.append(rows(table, 1, 2, 3))


def by_stream(table: tl.Table) -> None:
    table.append(rows(table).to_reader(max_chunksize=2))


def by_overwrite(table: tl.Table) -> None:
    table.append(rows(table, 1))
    table.overwrite(rows(table))


def by_upsert(table: tl.Table) -> None:
    swapped = rows(table).set_column(0, "id", pa.array([3, 2, 1, 0], pa.int64()))
    table.append(swapped)
    assert table.upsert(rows(table), on=["id"]) == (4, 0)


def by_deletion(table: tl.Table) -> None:
    table.append(pa.concat_tables([rows(table), rows(table, 3).set_column(0, "id", pa.array([9], pa.int64()))]))
    table.delete("id = 9")


def by_compaction(table: tl.Table) -> None:
    for number in range(len(ROWS)):
        table.append(rows(table, number))
    table.maintenance.compact(min_files=2)


def by_pyiceberg(table: tl.Table) -> None:
    table.iceberg.append(rows(table))


def by_sql(table: tl.Table) -> None:
    lake = tl.open(table.location.partition("/lake/")[0] + "/lake", durability="none")
    table.append(rows(table))
    lake.sql("update a.t set id = id + 10")
    lake.sql("update a.t set id = id - 10")


WRITERS: dict[str, Callable[[tl.Table], None]] = {
    "append": by_append,
    "append of few columns": by_few_columns,
    "stream": by_stream,
    "overwrite": by_overwrite,
    "upsert": by_upsert,
    "deletion": by_deletion,
    "compaction": by_compaction,
    "PyIceberg": by_pyiceberg,
    "SQL": by_sql,
}


def sorted_rows(found: pa.Table) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ROWS[0]} for row in found.sort_by("id").to_pylist()]


@pytest.mark.sample(9)
@pytest.mark.parametrize("spec", [None, ["bucket(2, id)"]])
@pytest.mark.parametrize("writer", WRITERS)
def test_nulls_stay_null_for_every_writer_and_reader(lake: tl.Lakehouse, writer: str, spec: list[str] | None) -> None:
    """PyIceberg rebuilds lists of structs from offsets, from which a null looks like an empty list."""
    table = lake.create_table("a.t", {"id": "bigint", **KINDS}, partition_spec=spec)
    WRITERS[writer](table)
    table = lake.table("a.t")
    lake.create_table("a.elsewhere", metadata_location=table.iceberg.metadata_location)
    found = {
        "all": table.scan().to_arrow(),
        "matching": table.scan("id >= 0").to_arrow(),
        "limited": table.scan(limit=10).to_arrow(),
        "a stream": table.scan().to_arrow_batch_reader().read_all(),
        "a stream of matching": table.scan("id >= 0").to_arrow_batch_reader().read_all(),
        "PyIceberg": table.iceberg.scan().to_arrow(),
        "a table elsewhere": lake.table("a.elsewhere").scan().to_arrow(),
        "SQL": lake.sql("select * from a.t").to_arrow(),
    }
    for name, given in found.items():
        assert sorted_rows(given) == ROWS, name
    with table.update_schema() as change:
        change.add_column("more", IntegerType())
    assert sorted_rows(lake.table("a.t").scan().to_arrow()) == ROWS


@pytest.mark.parametrize("column", KINDS)
def test_filters_for_null_find_rows(lake: tl.Lakehouse, column: str) -> None:
    table = lake.create_table("a.t", {"id": "bigint", **KINDS})
    table.append(rows(table))
    table.append({"id": [4]})
    without = sorted(row["id"] for row in [*ROWS, {"id": 4, column: None}] if row[column] is None)
    for filter, expected in ((f"{column} is null", without), (f"{column} is not null", [1, 2, 3])):
        for scan in (table.scan(filter), table.scan(filter, columns=["id"])):
            assert sorted(scan.to_arrow()["id"].to_pylist()) == expected
            assert sorted(scan.to_arrow_batch_reader().read_all()["id"].to_pylist()) == expected
            assert scan.count() == len(expected)
    assert sorted_rows(table.scan(f"{column} is not null").to_arrow()) == ROWS[1:]
    table.delete(f"{column} is not null and id > 1")
    table.delete(f"{column} is null and id = 0")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 4]


#: A struct with required fields.
REQUIRED = StructType(
    NestedField(10, "k", IntegerType(), required=True),
    NestedField(11, "id", UUIDType(), required=True),
    NestedField(12, "l", ListType(13, UUIDType()), required=True),
    NestedField(14, "of", StructType(NestedField(15, "t", StringType(), required=True)), required=True),
)
PARTS = {"k": 1, "id": UUID(int=1), "l": [UUID(int=2)], "of": {"t": "a"}}


def test_a_structure_may_be_null_whose_parts_may_not(lake: tl.Lakehouse) -> None:
    schema = Schema(NestedField(1, "n", IntegerType()), NestedField(2, "s", REQUIRED))
    table = lake.create_table("a.t", schema)
    text = f"{{'k': 1, 'id': '{UUID(int=1)}'::uuid, 'l': ['{UUID(int=2)}'::uuid], 'of': {{'t': 'a'}}}}"
    table.append([{"n": 1}])
    table.append([{"n": 2, "s": None}, {"n": 3, "s": PARTS}])
    table.append(pa.Table.from_pylist([{"n": 4}]).to_reader())
    table.iceberg.append(pa.table({"n": pa.array([5], pa.int32())}))
    assert table.upsert([{"n": 3, "s": None}, {"n": 6, "s": PARTS}], on=["n"]) == (1, 1)
    lake.sql("insert into a.t (n) values (7)")
    lake.sql(f"insert into a.t values (8, null), (9, {text})")
    lake.sql("update a.t set s = null where n = 6")
    table = lake.table("a.t")
    table.maintenance.compact(min_files=2)
    found = {row["n"]: row["s"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {**dict.fromkeys(range(1, 9)), 9: PARTS}
    with pytest.raises(tl.InvalidArgument, match="column s"):
        table.append([{"n": 1, "s": {**PARTS, "k": None}}])
    with pytest.raises(tl.InvalidArgument, match="column s"):
        table.append([{"n": 1, "s": {"k": 1}}])


def with_null_parts(**parts: pa.Array) -> pa.Array:
    """Two structs. The second one is null, and so are its fields, as in rows from Spark and Java."""
    return pa.StructArray.from_arrays(list(parts.values()), list(parts), mask=pa.array([False, True]))


STRUCTS = with_null_parts(a=pa.array([1, None], pa.int32()), b=pa.array(["x", None]))
STRUCT = "struct<a: int not null, b: varchar>"
#: Types, each with two values. In the second value, a struct with the required field `a` is null.
NESTED: dict[str, tuple[str, pa.Array]] = {
    "column": (STRUCT, STRUCTS),
    "struct": (f"struct<s: {STRUCT}>", pa.StructArray.from_arrays([STRUCTS], ["s"])),
    "required in struct": (f"struct<s: {STRUCT} not null>", with_null_parts(s=STRUCTS)),
    "list": (f"array<{STRUCT}>", pa.ListArray.from_arrays([0, 1, 2], STRUCTS)),
    "list of lists": (
        f"array<array<{STRUCT}> not null>",
        pa.ListArray.from_arrays([0, 1, 2], pa.ListArray.from_arrays([0, 1, 2], STRUCTS)),
    ),
    "map": (f"map<varchar, {STRUCT}>", pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "l"]), STRUCTS)),
    "list in struct": (
        f"struct<l: array<{STRUCT}> not null>",
        with_null_parts(l=pa.ListArray.from_arrays(pa.array([0, 1, 1]), STRUCTS, mask=pa.array([False, True]))),
    ),
}
WRITES: dict[str, Callable[[tl.Table, pa.Table], object]] = {
    "append": lambda table, rows: table.append(rows),
    "same types": lambda table, rows: table.append(with_types_of(table, rows)),
    "stream": lambda table, rows: table.append(rows.to_reader(max_chunksize=1)),
    "slices": lambda table, rows: [table.append(rows.slice(number, 1)) for number in range(2)],
    "overwrite": lambda table, rows: table.overwrite(rows),
    "upsert": lambda table, rows: table.upsert(rows, on=["id"]),
    "PyIceberg": lambda table, rows: table.iceberg.append(with_types_of(table, rows)),
}


def with_types_of(table: tl.Table, rows: pa.Table) -> pa.Table:
    """The rows with the table's types, as another library exports them: fields of a null struct are null, too."""
    schema = table.scan().to_arrow().schema
    optional = pa.schema([field.with_type(without_required(field.type)) for field in schema])
    (batch,) = rows.cast(optional).to_batches()
    struct = pa.struct(schema).__arrow_c_schema__()
    return pa.Table.from_batches([pa.RecordBatch._import_from_c_capsule(struct, batch.__arrow_c_array__()[1])])


def without_required(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, without_required(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(without_required(kind.value_type))
    return pa.struct([(one.name, without_required(one.type)) for one in kind]) if pa.types.is_struct(kind) else kind


@pytest.mark.sample(20)
@pytest.mark.parametrize("writer", WRITES)
@pytest.mark.parametrize("kind", NESTED)
def test_parts_of_a_null_structure_may_be_null(lake: tl.Lakehouse, kind: str, writer: str) -> None:
    """Also required parts, as in rows from Spark; Iceberg's own writers accept this."""
    text, values = NESTED[kind]
    table = lake.create_table("a.t", {"id": "int", "c": text})
    table.append({"id": [1], "c": [None]})
    WRITES[writer](table, pa.table({"id": pa.array([1, 2], pa.int32()), "c": values}))
    table.delete("c is null and id = 1")
    table.maintenance.compact(min_files=2)
    lake.sql("update a.t set id = id + 1")
    assert [row["c"] for row in lake.sql("from a.t order by id").to_arrow().to_pylist()] == values.to_pylist()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("array<int not null>", [1, None]),
        ("array<array<int> not null>", [[1], None]),
        ("map<varchar, array<int> not null>", [("k", None)]),
        (f"array<{STRUCT} not null>", [None]),
        (f"struct<s: {STRUCT} not null>", {"s": None}),
        (f"array<{STRUCT}>", [{"a": None}]),
    ],
)
def test_a_null_of_a_required_part_is_refused(lake: tl.Lakehouse, text: str, value: object) -> None:
    """A null in a list of lists whose elements are required is refused, instead of being stored as an empty list."""
    table = lake.create_table("a.t", {"c": text})
    with pytest.raises(tl.InvalidArgument, match=r"column c: .* is required, and 1 of its values are null"):
        table.append([{"c": value}])


def test_a_table_with_an_added_struct_can_be_rewritten(lake: tl.Lakehouse) -> None:
    """In older files, the struct with a required field is null."""
    table = lake.create_table("a.t", {"n": "int"})
    for number in range(5):
        table.append([{"n": number}, {"n": number + 10}])
    with table.update_schema() as change:
        change.add_column("s", REQUIRED)
    table = lake.table("a.t")
    assert table.upsert([{"n": 0, "s": PARTS}], on=["n"]) == (1, 0)
    table.delete("n = 1")
    table.overwrite([{"n": 2, "s": None}], "n = 2")
    assert table.maintenance.compact(min_files=2).files_added == 1
    found = {row["n"]: row["s"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {0: PARTS, **dict.fromkeys([2, 3, 4, *range(10, 15)])}
