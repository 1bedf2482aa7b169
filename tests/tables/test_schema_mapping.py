"""Schemas are preserved by every conversion: declared, stored, Iceberg, Arrow (format §9)."""

from __future__ import annotations

import datetime
import decimal

import duckdb
import numpy
import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pyiceberg import types
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema as IcebergSchema

from trinitylake.definitions import (
    Column,
    Schema,
    Type,
    as_schema,
    list_of,
    map_of,
    parse_type,
    struct_of,
    to_iceberg_schema,
)
from trinitylake.definitions import trinitylake_pb2 as proto
from trinitylake.definitions.sql_type_grammar import ALIASES
from trinitylake.errors import CorruptFile, InvalidArgument

NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name.isprintable())
UNIQUE_NAMES = st.lists(NAMES, min_size=1, max_size=4, unique=True)

SIMPLE = st.sampled_from(["boolean", "smallint", "int", "bigint", "real", "double", "date", "uuid"]).map(parse_type)
WITH_LENGTH = st.builds(Type, st.sampled_from(["char", "varchar", "binary"]), length=st.integers(0, (1 << 31) - 1))
FIXED = st.builds(Type, st.just("fixed"), length=st.integers(1, 1 << 20))
TIMES = st.builds(Type, st.sampled_from(["time", "timetz", "timestamp", "timestamptz"]), precision=st.integers(1, 9))
DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.builds(Type, st.just("decimal"), precision=st.just(precision), scale=st.integers(0, precision))
)


def nested(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Type]:
    structs = UNIQUE_NAMES.flatmap(
        lambda names: st.tuples(*[st.builds(Column, st.just(name), inner, st.booleans()) for name in names]).map(
            lambda fields: struct_of(*fields)
        )
    )
    return st.one_of(st.builds(list_of, inner, st.booleans()), st.builds(map_of, inner, inner, st.booleans()), structs)


TYPES = st.recursive(st.one_of(SIMPLE, WITH_LENGTH, FIXED, TIMES, DECIMALS), nested, max_leaves=8)
COLUMNS = st.builds(
    Column,
    NAMES,
    TYPES,
    st.booleans(),
    st.text(max_size=20),
    id=st.integers(0, (1 << 31) - 1),
    properties=st.dictionaries(NAMES.filter(lambda key: key not in ("doc", "iceberg-type")), st.text(max_size=9)),
)
SCHEMAS = st.lists(COLUMNS, max_size=5, unique_by=lambda column: column.name).map(Schema)


@settings(max_examples=25)
@given(SCHEMAS)
def test_a_declared_schema_is_stored_without_loss(schema: Schema) -> None:
    stored = schema.to_definition()
    assert Schema.from_definition(proto.Schema.FromString(stored.SerializeToString())) == schema


@given(TYPES)
@example(struct_of(Column("A·", Type("boolean"))))  # an identifier to Python, two words to a reader of SQL
@example(struct_of(Column("²", Type("boolean"))))
def test_the_text_of_a_type_is_read_back(type: Type) -> None:
    assert parse_type(str(type)) == type


@settings(max_examples=25)
@given(SCHEMAS)
def test_iceberg_types_do_not_change_again_once_mapped(schema: Schema) -> None:
    assume(schema.columns)  # PyIceberg's empty schemas are not equal to each other
    iceberg = schema.to_iceberg()
    declared = Schema.from_iceberg(iceberg)
    assert declared.to_iceberg() == iceberg
    assert Schema.from_definition(declared.to_definition()) == declared
    assert Schema.from_iceberg(declared.to_iceberg()) == declared
    assert [c.nullable for c in declared.columns] == [c.nullable for c in schema.columns]
    assert [c.doc for c in declared.columns] == [c.doc for c in schema.columns]


PRIMITIVES: list[types.IcebergType] = [
    types.BooleanType(),
    types.IntegerType(),
    types.LongType(),
    types.FloatType(),
    types.DoubleType(),
    types.DecimalType(9, 2),
    types.DateType(),
    types.TimeType(),
    types.TimestampType(),
    types.TimestamptzType(),
    types.TimestampNanoType(),
    types.TimestamptzNanoType(),
    types.StringType(),
    types.UUIDType(),
    types.FixedType(7),
    types.BinaryType(),
    types.UnknownType(),
]


def test_every_iceberg_type_survives_a_trip_through_a_definition_file() -> None:
    fields = [types.NestedField(i + 1, f"c{i}", type, required=False) for i, type in enumerate(PRIMITIVES)]
    deep = types.StructType(
        types.NestedField(
            101, "list", types.ListType(102, types.UUIDType(), element_required=True), required=True, doc="ids"
        ),
        types.NestedField(
            103, "map", types.MapType(104, types.StringType(), 105, types.DecimalType(38, 10), value_required=False)
        ),
    )
    schema = IcebergSchema(
        *fields,
        types.NestedField(100, "deep", deep, required=True),
        types.NestedField(200, "key", types.LongType(), required=True),
        identifier_field_ids=[200],
    )
    declared = Schema.from_iceberg(schema)
    stored = Schema.from_definition(declared.to_definition(), declared.primary_key)
    assert stored.to_iceberg() == schema
    assert stored.to_iceberg().identifier_field_ids == [200]
    assert stored["deep.list"].doc == "ids"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("boolean", types.BooleanType()),
        ("smallint", types.IntegerType()),
        ("integer", types.IntegerType()),
        ("bigint", types.LongType()),
        ("numeric(10,2)", types.DecimalType(10, 2)),
        ("decimal(5)", types.DecimalType(5, 0)),
        ("decimal", types.DecimalType(38, 0)),
        ("real", types.FloatType()),
        ("double precision", types.DoubleType()),
        ("char(5)", types.StringType()),
        ("varchar(20)", types.StringType()),
        ("text", types.StringType()),
        ("date", types.DateType()),
        ("time", types.TimeType()),
        ("time(6)", types.TimeType()),
        ("time(3)", types.LongType()),
        ("timetz", types.LongType()),
        ("timestamp", types.TimestampType()),
        ("timestamp(9)", types.TimestampNanoType()),
        ("timestamp(3)", types.LongType()),
        ("timestamptz", types.TimestamptzType()),
        ("timestamp with time zone", types.TimestamptzType()),
        ("timestamp(9) with time zone", types.TimestamptzNanoType()),
        ("fixed(16)", types.FixedType(16)),
        ("bytea", types.BinaryType()),
        ("uuid", types.UUIDType()),
    ],
)
def test_the_type_table_of_the_format(sql: str, expected: types.IcebergType) -> None:
    (field,) = Schema([("c", sql)]).to_iceberg().fields
    assert field.field_type == expected


@pytest.mark.parametrize(
    ("iceberg", "kind", "precision"),
    [
        (types.IntegerType(), "int", 0),
        (types.LongType(), "bigint", 0),
        (types.StringType(), "varchar", 0),
        (types.BinaryType(), "binary", 0),
        (types.TimeType(), "time", 6),
        (types.TimestampType(), "timestamp", 6),
        (types.TimestampNanoType(), "timestamp", 9),
    ],
)
def test_the_type_table_backwards(iceberg: types.IcebergType, kind: str, precision: int) -> None:
    (column,) = Schema.from_iceberg(IcebergSchema(types.NestedField(1, "c", iceberg, required=False))).columns
    assert (column.type.kind, column.type.precision) == (kind, precision)


def test_types_are_written_in_sql_or_built() -> None:
    assert parse_type("array<int>") == list_of("int") == parse_type("int[]") == parse_type(" LIST ( integer ) ")
    assert parse_type("map<varchar,int>") == map_of("varchar", "int") == parse_type("map(text, int4)")
    expected = struct_of(Column("a", "int"), Column("b c", "varchar", nullable=False))
    assert parse_type('row(a int, "b c" varchar not null)') == expected
    assert parse_type("struct<a: int, `b c`: string NOT NULL>") == expected
    assert parse_type("array<row(a int, b map<varchar, double precision>)>") == list_of(
        struct_of(a="int", b=map_of("varchar", "double"))
    )
    for alias, kind in ALIASES.items():
        if kind not in ("list", "map", "struct"):
            parsed = parse_type(alias.upper() + ("(7)" if kind == "fixed" else ""))
            assert parsed.kind in (kind.removesuffix("_ns"), "fixed")


def test_types_have_the_spelling_of_duckdb() -> None:
    """Types of table columns are spelled like types of query columns: `BIGINT` and `STRUCT(…)`."""
    names = ("boolean", "smallint", "int", "bigint", "real", "double", "decimal(10,2)", "date", "time", "timestamp")
    names += ("timestamptz", "timestamp_ns", "timetz", "varchar", "binary", "uuid", "int[]", "map<varchar,real[]>")
    names += ("row(a int, b array<row(c timestamptz)>)",)
    for name in names:
        assert str(parse_type(name)) == str(duckdb.sql(f"SELECT NULL::{parse_type(name)} AS v").types[0]), name
    lengths = ("varchar(20)", "char(3)", "fixed(16)", "binary(9)", "time(3)", "timestamp(3)", "timestamptz(9)")
    for name in (*names, *lengths, "array<int not null>", 'row("a b" map<int, date not null> not null)'):
        assert parse_type(str(parse_type(name))) == parse_type(name), name


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("intt", "'intt'"),
        ("array<strin>", "'strin'"),
        ("decimal(50,2)", "decimal(50,2)"),
        ("decimal(5,6)", "scale"),
        ("varchar(", "incomplete"),
        ("varchar(0)", "varchar(0)"),
        ("varchar(x)", "'x'"),
        ("int(5)", "takes no argument"),
        ("row(a)", "expected a type"),
        ("int)", "unexpected ')'"),
        ("map<int>", "','"),
        ("fixed", "fixed(16)"),
        ("timestamp(10)", "timestamp(10)"),
        ("timestamp(0)", "timestamp(0)"),
        ("row(a int, a int)", "'a'"),
        ("", "incomplete"),
        ("int; drop", "';'"),
        ("array<" * 40 + "int" + ">" * 40, "deeper"),
        ("x" * 70000, "over the limit"),
        ("varchar(4294967296)", "4294967296"),
    ],
)
def test_a_type_that_is_not_one_is_named(text: str, word: str) -> None:
    with pytest.raises(InvalidArgument, match="type") as caught:
        parse_type(text)
    assert word in str(caught.value)


#: Words of types, so that many random texts are valid types.
WORDS = ("int", "varchar", "decimal", "array", "map", "row", "timestamp", "a", "b", "<", ">", "(", ")", ",", "3", "2")


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join))
@example("row(a int, b map<varchar, double precision>)")
@example("decimal(3, 2)")
def test_any_text_is_a_type_that_can_be_written_again_or_refused(text: str) -> None:
    """Random words, because random letters are hardly ever a type."""
    try:
        type = parse_type(text)
    except InvalidArgument:
        return
    assert parse_type(str(type)) == type


def test_a_bad_column_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"'price'.*'mony'"):
        Schema({"id": "bigint", "price": "mony"})
    with pytest.raises(InvalidArgument, match="'id'"):
        Schema([("id", "int"), ("id", "int")])
    with pytest.raises(InvalidArgument, match="'nope' is not a column"):
        Schema({"id": "int"}, "nope")
    with pytest.raises(InvalidArgument, match="nullable"):
        Schema({"id": "int"}, "id")
    with pytest.raises(InvalidArgument, match="name"):
        Column("", "int")


def test_a_schema_has_a_readable_text() -> None:
    schema = Schema([Column("id", "bigint", nullable=False), ("tags", list_of("text")), ("at", "row(x real, y real)")])
    assert str(schema) == "(id BIGINT NOT NULL, tags VARCHAR[], at STRUCT(x FLOAT, y FLOAT))"
    assert schema["at.y"].type == Type("real")
    assert schema.names == ("id", "tags", "at")
    with pytest.raises(KeyError):
        schema["at.z"]


def test_a_stored_column_that_contradicts_itself_is_corrupt() -> None:
    for column in (
        proto.Column(name="x", type="LIST"),
        proto.Column(name="x", type="MAP", map_key=proto.Column(name="key")),
        proto.Column(name="x", type="DECIMAL"),
        proto.Column(name="", type="INT4"),
        proto.Column(name="x", type="INT4", scale=2),
    ):
        with pytest.raises(CorruptFile):
            Schema.from_definition(proto.Schema(columns=[column]))


def test_a_timestamp_of_a_writer_that_knows_no_precision_is_in_microseconds() -> None:
    (column,) = Schema.from_definition(proto.Schema(columns=[proto.Column(name="x", type="TIMESTAMP")])).columns
    assert column.type.precision == 6


DATA = pa.table(
    {
        "u8": pa.array([1], pa.uint8()),
        "u16": pa.array([1], pa.uint16()),
        "u32": pa.array([1], pa.uint32()),
        "u64": pa.array([1], pa.uint64()),
        "half": pa.array([numpy.float16(1.5)], pa.float16()),
        "text": pa.array(["x"]).dictionary_encode(),
        "view": pa.array(["x"], pa.string_view()),
        "day": pa.array([datetime.date(2020, 1, 1)], pa.date64()),
        "ns": pa.array([1000], pa.timestamp("ns")),
        "zoned": pa.array([1], pa.timestamp("us", "America/New_York")),
        "clock": pa.array([datetime.time(1)], pa.time32("s")),
        "money": pa.array([decimal.Decimal("1.5")], pa.decimal128(10, 2)),
        "pair": pa.array([[1, 2]], pa.list_(pa.int16(), 2)),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "row": pa.array([{"a": 1}], pa.struct([pa.field("a", pa.int32(), nullable=False)])),
    }
)


def test_schemas_are_read_from_arrow_data() -> None:
    assert {column.name: str(column.type) for column in as_schema(DATA).columns} == {
        "u8": "SMALLINT",
        "u16": "INTEGER",
        "u32": "BIGINT",
        "u64": "DECIMAL(20,0)",
        "half": "FLOAT",
        "text": "VARCHAR",
        "view": "VARCHAR",
        "day": "DATE",
        "ns": "TIMESTAMP",
        "zoned": "TIMESTAMP WITH TIME ZONE",
        "clock": "TIME",
        "money": "DECIMAL(10,2)",
        "pair": "SMALLINT[]",
        "map": "MAP(VARCHAR, BIGINT)",
        "row": "STRUCT(a INTEGER NOT NULL)",
    }
    target = schema_to_pyarrow(to_iceberg_schema(DATA), include_field_ids=False)
    assert DATA.cast(target).num_rows == 1, "the data can be cast to the types of the table"


@pytest.mark.parametrize("type", [pa.duration("s"), pa.null(), pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_an_arrow_type_without_a_counterpart_is_named_by_its_column(type: pa.DataType) -> None:
    schema = pa.schema([("fine", pa.int32()), ("outer", pa.struct([("bad", type)]))])
    with pytest.raises(InvalidArgument, match=r"'outer\.bad'"):
        as_schema(schema)


def test_every_kind_of_source_gives_the_same_schema() -> None:
    table = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array(["x"])})
    expected = to_iceberg_schema({"id": "bigint", "name": "varchar"})
    sources = [
        table,
        table.schema,
        table.to_batches()[0],
        table.to_reader(),
        expected,
        Schema.from_iceberg(expected),
        Schema.from_iceberg(expected).to_definition(),
        [Column("id", "bigint"), ("name", "text")],
        pandas.DataFrame({"id": [1], "name": ["x"]}),
        polars.from_arrow(table),
        duckdb.sql("SELECT 1::BIGINT AS id, 'x' AS name"),
    ]
    for source in sources:
        assert to_iceberg_schema(source) == expected, type(source)


def test_data_without_a_schema_is_refused() -> None:
    for source in (5, "bigint", object(), [1, 2]):
        with pytest.raises(InvalidArgument):
            to_iceberg_schema(source)  # type: ignore[arg-type]


def test_a_reader_is_not_consumed() -> None:
    reader = pa.table({"id": [1, 2]}).to_reader()
    as_schema(reader)
    assert reader.read_all().num_rows == 2


def test_documentation_and_nullability_come_from_arrow() -> None:
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False, metadata={"doc": "the number"})])
    (column,) = as_schema(schema).columns
    assert (column.nullable, column.doc) == (False, "the number")
    assert Schema([column]).to_arrow().field("id").nullable is False
