"""Managed tables: creating them from any schema, writing any Arrow data, reading it, and changing tables."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars
import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

import trinitylake as tl

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "carrier": ["AA", "UA", "AA", "DL"],
        "ts": pa.array([datetime(2013, month, 1, tzinfo=UTC) for month in (1, 1, 2, 3)], pa.timestamp("us", tz="UTC")),
    }
)


@pytest.fixture
def nyc(lake: tl.Lakehouse) -> tl.Lakehouse:
    """A lakehouse with the namespace `nyc`."""
    lake.create_namespace("nyc")
    return lake


@pytest.fixture
def flights(nyc: tl.Lakehouse) -> tl.Table:
    """`nyc.flights` with `ROWS` in it."""
    table = nyc.create_table("nyc.flights", ROWS)
    table.append(ROWS)
    return table


def ids(table: tl.Table, **scan: Any) -> list[int]:
    return sorted(table.scan(**scan).to_arrow()["id"].to_pylist())


def test_a_table_is_created_from_any_kind_of_schema(nyc: tl.Lakehouse) -> None:
    iceberg = IcebergSchema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))
    arrow = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
    declared = tl.Schema([tl.Column("id", "bigint", nullable=False), tl.Column("name", "text")])
    for number, schema in enumerate([iceberg, arrow, declared, arrow.empty_table()]):
        table = nyc.create_table(f"nyc.t{number}", schema)
        columns = [(column.name, str(column.type), column.nullable) for column in table.schema.columns]
        assert columns == [("id", "BIGINT", False), ("name", "VARCHAR", True)]
        assert table.scan().count() == 0
    assert nyc.tables() == ["nyc.t0", "nyc.t1", "nyc.t2", "nyc.t3"]


def test_the_definition_keeps_types_that_iceberg_does_not_have(nyc: tl.Lakehouse) -> None:
    nyc.create_table("nyc.t", {"small": "smallint", "code": "varchar(3)", "price": "decimal(10,2)"})
    assert str(nyc.table("nyc.t").schema) == "(small SMALLINT, code VARCHAR(3), price DECIMAL(10,2))"


def test_files_lie_below_the_namespace_in_a_directory_with_the_id(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    assert flights.location == f"{nyc.uri}nyc/flights-{flights.id.replace('-', '')[:8]}"
    assert flights.iceberg.metadata_location.startswith(flights.location + "/metadata/")
    (task,) = flights.scan().iceberg.plan_files()
    assert task.file.file_path.startswith(flights.location + "/data/")


def test_rows_come_back_as_they_went_in(flights: tl.Table) -> None:
    result = flights.scan().to_arrow()
    assert result.sort_by("id").cast(ROWS.schema).equals(ROWS)


def test_a_scan_filters_selects_and_limits(flights: tl.Table) -> None:
    assert ids(flights, filter="carrier = 'AA'") == [1, 3]
    assert ids(flights, filter=GreaterThan("id", 2)) == [3, 4]
    assert flights.scan(columns=["carrier"]).to_arrow().column_names == ["carrier"]
    assert flights.scan(limit=3).to_arrow().num_rows == 3
    assert flights.scan(filter="id > 1", limit=2).count() == 2
    assert flights.scan(filter="id > 1").count() == 3
    for scan in ({"columns": ["nope"]}, {"filter": "nope = 1"}, {"filter": "carrier ="}, {"limit": -1}):
        with pytest.raises(tl.InvalidArgument):
            flights.scan(**scan).to_arrow()


def test_a_scan_feeds_every_arrow_library(flights: tl.Table) -> None:
    scan = flights.scan(filter="id < 3")
    assert scan.to_arrow_batch_reader().read_all().num_rows == 2
    assert sorted(scan.to_pandas()["id"]) == [1, 2]
    assert scan.to_polars().sort("id")["carrier"].to_list() == ["AA", "UA"]
    assert polars.DataFrame(scan)["id"].sort().to_list() == [1, 2]
    assert sorted(pa.table(flights)["id"].to_pylist()) == [1, 2, 3, 4]


def test_duckdb_queries_a_scan(flights: tl.Table) -> None:
    connection = flights.scan().to_duckdb("f")
    assert connection.sql("SELECT count(*) FROM f WHERE carrier = 'AA'").fetchall() == [(2,)]
    flights.append(duckdb.sql("SELECT 9 AS id, 'B6' AS carrier, NULL::TIMESTAMPTZ AS ts"))
    assert ids(flights, filter="carrier = 'B6'") == [9]


def test_data_of_every_kind_is_appended(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", {"id": "int", "name": "text"})
    for number, data in enumerate(
        [
            {"id": [0], "name": ["n"]},
            [{"id": 1, "name": "n"}],
            pa.record_batch({"name": ["n"], "id": [2]}),
            pa.table({"id": pa.array([3], pa.int8()), "name": pa.array(["n"], pa.large_string())}),
            polars.DataFrame({"id": [4], "name": ["n"]}),
            polars.DataFrame({"id": [5], "name": ["n"]}).to_pandas(),
            pa.table({"id": [6], "name": pa.array(["n"]).dictionary_encode()}),
            pa.table({"id": [7], "name": ["n"]}).to_reader(),
        ]
    ):
        table.append(data)
        assert ids(table) == list(range(number + 1))
    assert set(table.scan().to_arrow()["name"].to_pylist()) == {"n"}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"id": [1], "extra": [2]}, "no column extra"),
        ({"name": ["no id"]}, "missing.*id"),
        ({"id": [None]}, "id is required"),
        ({"id": ["one"]}, "column id"),
        ({"id": [1.5]}, "column id"),
        ({"id": [2**40]}, "column id"),
        (42, "expected Arrow data"),
        ([1, 2], "expected Arrow data"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_column(nyc: tl.Lakehouse, data: Any, complaint: str) -> None:
    schema = tl.Schema([tl.Column("id", "int", nullable=False), tl.Column("name", "text")])
    table = nyc.create_table("nyc.t", schema)
    with pytest.raises(tl.InvalidArgument, match=complaint):
        table.append(data)
    assert nyc.table("nyc.t").scan().count() == 0
    assert nyc.version == 2


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"of": {"k": 1, "q": 5}}, "column of of the table has no field q; it has k, x"),
        ({"of": {"K": 1}}, "column of of the table has no field K"),
        ({"many": [{"k": 1, "q": 5}]}, "column many.element of the table has no field q"),
        ({"deep": {"of": [[{"k": 1, "q": 5}]]}}, "column deep.of.element.element of the table has no field q"),
    ],
)
def test_parts_that_a_structure_lacks_are_refused(nyc: tl.Lakehouse, row: dict[str, Any], complaint: str) -> None:
    """A part of a struct that the table does not have was dropped without an error: a part whose name was misspelled
    became NULL. Unknown columns were refused already.
    """
    parts = "struct<k: int, x: text>"
    schema = {"id": "int", "of": parts, "many": f"list<{parts}>", "deep": f"struct<of: list<list<{parts}>>>"}
    table = nyc.create_table("nyc.parts", schema)
    rows = pa.Table.from_pylist([{"id": 1, **row}])
    writes: list[Callable[[], object]] = [
        lambda: table.append([{"id": 1, **row}]),
        lambda: table.append(rows.to_reader()),
        lambda: table.overwrite(rows),
        lambda: table.upsert(rows, on=["id"]),
    ]
    for write in writes:
        with pytest.raises(tl.InvalidArgument) as refused:
            write()
        assert complaint in str(refused.value)
    assert table.scan().count() == 0
    table.append([{"id": 1, "of": {"x": "a", "k": 1}}, {"id": 2, "of": {"k": 2}}])
    found = table.scan().to_arrow().sort_by("id")
    assert found["of"].to_pylist() == [{"k": 1, "x": "a"}, {"k": 2, "x": None}]
    table.append(rows, evolve_schema=True)
    (name,) = row
    assert table.scan("id = 1").to_arrow()[name].to_pylist() != [None] * 2


def test_missing_columns_become_null(flights: tl.Table) -> None:
    flights.append({"id": [9]})
    assert flights.scan(filter="id = 9").to_arrow().to_pylist() == [{"id": 9, "carrier": None, "ts": None}]


def test_overwrite_replaces_all_rows_or_those_that_match(flights: tl.Table) -> None:
    flights.overwrite({"id": [30]}, filter="id = 3")
    assert ids(flights) == [1, 2, 4, 30]
    flights.overwrite({"id": [5]})
    assert ids(flights) == [5]


def test_overwriting_an_empty_table_appends(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", ROWS)
    table.overwrite(ROWS, filter="id = 1")
    assert ids(table) == [1, 2, 3, 4]


def test_delete_removes_the_rows_that_match(flights: tl.Table) -> None:
    flights.delete("carrier = 'AA' and id > 1")
    assert ids(flights) == [1, 2, 4]
    flights.delete(EqualTo("id", 1))
    assert ids(flights) == [2, 4]
    flights.delete(AlwaysTrue())
    assert ids(flights) == []
    with pytest.raises(tl.InvalidArgument):
        flights.delete("nope = 1")


def test_upsert_updates_matches_and_inserts_the_rest(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", {"id": "bigint", "name": "text"}, primary_key="id")
    assert table.primary_key == ["id"]
    assert not table.schema["id"].nullable
    table.append({"id": [1, 2], "name": ["a", "b"]})
    result = table.upsert({"id": [2, 3], "name": ["B", "C"]})
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    rows = table.scan().to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "name": "a"}, {"id": 2, "name": "B"}, {"id": 3, "name": "C"}]
    assert table.upsert({"id": [9], "name": ["a"]}, on=["name"]) == (1, 0)
    with pytest.raises(tl.InvalidArgument):
        table.upsert({"id": [7, 7], "name": ["x", "y"]})


def test_upsert_without_a_key_is_refused(flights: tl.Table) -> None:
    with pytest.raises(tl.InvalidArgument):
        flights.upsert(ROWS)


def test_a_partition_spec_in_words_prunes_files(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", ROWS, partition_spec=["month(ts)", "bucket(4, id)", "carrier"])
    assert [(field.name, str(field.transform)) for field in table.partition_spec.fields] == [
        ("ts_month", "month"),
        ("id_bucket", "bucket[4]"),
        ("carrier", "identity"),
    ]
    table.append(ROWS)
    january = table.scan(filter="ts < '2013-02-01T00:00:00+00:00'")
    assert len(list(january.iceberg.plan_files())) == 2 < len(list(table.scan().iceberg.plan_files()))
    assert ids(table, filter="ts < '2013-02-01T00:00:00+00:00'") == [1, 2]


def test_a_stream_into_a_partitioned_table_arrives_whole(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", ROWS, partition_spec="carrier")
    table.append(ROWS.to_reader(max_chunksize=1))
    assert ids(table) == [1, 2, 3, 4]


def test_pyiceberg_specs_are_taken_as_they_are(nyc: tl.Lakehouse) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(8), "shard"))
    table = nyc.create_table("nyc.t", ROWS, partition_spec=spec)
    assert [field.name for field in table.partition_spec.fields] == ["shard"]


def test_a_sort_order_in_words_is_recorded(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", ROWS, sort_order=["ts desc", "bucket(4, id)", "carrier asc nulls last"])
    assert [(str(f.transform), f.direction.value, f.null_order.value) for f in table.sort_order.fields] == [
        ("identity", "desc", "nulls-last"),
        ("bucket[4]", "asc", "nulls-first"),
        ("identity", "asc", "nulls-last"),
    ]


@pytest.mark.parametrize(
    ("expression", "column"),
    [('"q""q"', 'q"q'), ('bucket(3, "q""q")', 'q"q'), ("`q`", "q"), ('"q"', "q"), ("`q``q`", "q`q"), ("qq", "qq")],
)
def test_doubled_quote_in_a_partition_expression_is_one_quote(nyc: tl.Lakehouse, expression: str, column: str) -> None:
    """A doubled quote in a partition expression ended the name: `"q""q"` partitioned by the column `qq`."""
    columns = ["q", "qq", 'q"q', "q`q"]
    table = nyc.create_table(
        "nyc.t", dict.fromkeys(columns, "bigint"), partition_spec=expression, sort_order=expression
    )
    (field,), (sort,) = table.partition_spec.fields, table.sort_order.fields
    assert [columns[one.source_id - 1] for one in (field, sort)] == [column, column]


@pytest.mark.parametrize(
    "expression", ["nope", "month(nope)", "month(carrier)", "bucket(id)", "weekly(ts)", "day(3, ts)"]
)
def test_a_partition_that_makes_no_sense_is_refused(nyc: tl.Lakehouse, expression: str) -> None:
    with pytest.raises(tl.InvalidArgument):
        nyc.create_table("nyc.t", ROWS, partition_spec=[expression])
    assert nyc.tables() == []


def test_the_schema_evolves_and_old_rows_read_as_null(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    with flights.update_schema() as update:
        update.add_column("delay", LongType())
        update.rename_column("carrier", "airline")
    assert flights.schema.names == ("id", "airline", "ts", "delay")
    assert nyc.at().table("nyc.flights").schema.names == ("id", "airline", "ts", "delay")
    flights.append({"id": [5], "airline": ["B6"], "delay": [7]})
    rows = flights.scan(columns=["id", "airline", "delay"], filter="id > 3").to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 4, "airline": "DL", "delay": None}, {"id": 5, "airline": "B6", "delay": 7}]
    assert nyc.at(3).table("nyc.flights").schema.names == ("id", "carrier", "ts")


def test_a_schema_update_that_fails_changes_nothing(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    def fail() -> None:
        with flights.update_schema() as update:
            update.add_column("delay", LongType())
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fail()
    assert nyc.table("nyc.flights").schema.names == ("id", "carrier", "ts")


def test_a_table_returns_its_rows_as_a_scan_does(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    """Users looked for `table.to_pandas()`, and found only `table.scan().to_pandas()`."""
    rows = flights.scan().to_arrow()
    with nyc.transaction() as txn:
        for table in (flights, nyc.at().table(flights.name), txn.table(flights.name)):
            assert table.to_arrow().equals(rows)
            assert table.to_pandas(types_mapper=pd.ArrowDtype).equals(rows.to_pandas(types_mapper=pd.ArrowDtype))
            assert table.to_polars().equals(polars.from_arrow(rows))
            assert table.to_polars(lazy=True).collect().equals(polars.from_arrow(rows))
            assert list(table.scan()) == rows.to_pylist()
            assert list(table.scan(columns=["id"], limit=1)) == rows.select(["id"]).slice(0, 1).to_pylist()


def test_properties_are_set_and_removed(nyc: tl.Lakehouse) -> None:
    table = nyc.create_table("nyc.t", ROWS, properties={"owner": "ops", "tier": "1"})
    nyc.alter_table("nyc.t", {"tier": "2"}, remove_properties=["owner"])
    nyc.alter_table("nyc.t", {"site": "x"}, remove_properties=["never-set"])
    table.refresh()
    wanted = {"owner": None, "tier": "2", "site": "x"}
    assert {name: table.properties.get(name) for name in wanted} == wanted


def test_a_property_that_is_not_there_is_removed_without_a_version(nyc: tl.Lakehouse) -> None:
    """An empty version looked like a change of the table, so other transactions were rebased for no reason."""
    table = nyc.create_table("nyc.t", ROWS, properties={"owner": "ops"})
    before = nyc.version
    nyc.alter_table(table.name, remove_properties=["never-set", "nor-this"])
    assert nyc.version == before
    nyc.alter_table(table.name, remove_properties=["never-set", "owner", "owner"])
    assert nyc.version == before + 1
    assert "owner" not in nyc.table("nyc.t").properties


def test_a_renamed_table_keeps_its_id_its_files_and_its_rows(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    nyc.create_namespace("other")
    nyc.rename_table("nyc.flights", "other.trips")
    renamed = nyc.table("other.trips")
    assert nyc.tables() == ["other.trips"]
    assert (renamed.id, renamed.location) == (flights.id, flights.location)
    renamed.append({"id": [5]})
    assert ids(renamed) == [1, 2, 3, 4, 5]
    with pytest.raises(tl.ObjectNotFound):
        flights.append(ROWS)


def test_a_table_changed_and_renamed_in_one_transaction_keeps_both(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    with nyc.transaction() as txn:
        table = txn.table("nyc.flights")
        table.append({"id": [5]})
        txn.rename_table("nyc.flights", "nyc.trips")
        assert table.name == "nyc.trips"
        table.append({"id": [6]})
        assert not txn.exists("nyc.flights")
    assert ids(nyc.table("nyc.trips")) == [1, 2, 3, 4, 5, 6]


def test_a_dropped_table_is_gone_now_and_readable_before(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    before = nyc.version
    with nyc.transaction() as txn:
        handle = txn.table("nyc.flights")
        txn.drop_table("nyc.flights")
        with pytest.raises(tl.ObjectNotFound):
            handle.append(ROWS)
    assert nyc.tables("nyc") == []
    assert nyc.at(before).table("nyc.flights").scan().count() == 4


def test_a_table_created_and_dropped_in_one_transaction_never_was(nyc: tl.Lakehouse) -> None:
    with nyc.transaction() as txn:
        txn.create_table("nyc.t", ROWS).append(ROWS)
        txn.drop_table("nyc.t")
        txn.create_table("nyc.t", {"other": "text"})
    assert nyc.table("nyc.t").schema.names == ("other",)


def test_creating_a_table_twice_fails_unless_it_may_exist(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    with pytest.raises(tl.ObjectAlreadyExists):
        nyc.create_table("nyc.flights", ROWS)
    assert nyc.create_table("nyc.flights", {"other": "text"}, exist_ok=True).id == flights.id
    with pytest.raises(tl.ObjectNotFound, match="missing"):
        nyc.create_table("missing.t", ROWS)


def test_a_handle_reads_one_state_until_it_is_refreshed(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    nyc.table("nyc.flights").append({"id": [5]})
    assert ids(flights) == [1, 2, 3, 4]
    flights.refresh()
    assert ids(flights) == [1, 2, 3, 4, 5]


def test_the_iceberg_table_of_a_transaction_writes_into_it(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    with nyc.transaction() as txn:
        iceberg = txn.table("nyc.flights").iceberg
        with iceberg.transaction() as change:
            change.delete("id = 1")
            change.append(ROWS.slice(0, 1).set_column(0, "id", [[7]]))
        assert ids(txn.table("nyc.flights")) == [2, 3, 4, 7]
        assert ids(nyc.table("nyc.flights")) == [1, 2, 3, 4]
    assert ids(nyc.table("nyc.flights")) == [2, 3, 4, 7]


def test_snapshots_and_history_grow_with_each_write(flights: tl.Table) -> None:
    flights.append({"id": [5]})
    flights.delete("id = 5")
    assert [snapshot.summary.operation.value for snapshot in flights.snapshots()] == ["append", "append", "delete"]
    assert [entry.snapshot_id for entry in flights.iceberg.history()] == [s.snapshot_id for s in flights.snapshots()]
    first = flights.snapshots()[0].snapshot_id
    assert flights.scan(snapshot_id=first).count() == 4


def test_nested_and_exact_types_survive(nyc: tl.Lakehouse) -> None:
    rows = pa.table(
        {
            "tags": [["a", "b"], None],
            "price": pa.array([Decimal("1.50"), Decimal("99.99")], pa.decimal128(10, 2)),
            "day": [date(2013, 1, 1), None],
            "place": [{"lat": 1.5, "name": "x"}, None],
            "raw": [b"\x00\xff", b""],
        }
    )
    nyc.create_table("nyc.t", rows).append(rows)
    assert nyc.table("nyc.t").scan().to_arrow().to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row_filter": "id = 1"}, "no argument 'row_filter'; did you mean 'filter'"),
        ({"selected_fields": ["id"]}, "no argument 'selected_fields'; did you mean 'columns'"),
        ({"filter": "nme = 'a'"}, "no column 'nme'; did you mean 'name'"),
        ({"filter": "other = 'a'"}, "no column 'other'; it has id, name"),
    ],
)
def test_unknown_names_in_a_scan_get_a_suggestion(lake: tl.Lakehouse, arguments: dict[str, Any], message: str) -> None:
    """Users of PyIceberg passed `row_filter`, and a misspelled column in a filter raised an error of PyIceberg."""
    with lake.transaction() as txn:
        txn.create_namespace("n")
        txn.create_table("n.t", {"id": "bigint", "name": "varchar"})
    with pytest.raises(tl.InvalidArgument, match=message):
        lake.table("n.t").scan(**arguments).to_arrow()


def test_storage_options_accept_truths_and_numbers(tmp_path: Path) -> None:
    """`allow_http=True` was refused, because stores accept only strings."""
    uri = str(tmp_path / "lake")
    tl.create(uri, storage_options={"allow_http": True, "max_retries": 3})
    assert tl.open(uri, storage_options={"allow_http": False}).version == 0


def test_update_schema_accepts_the_type_names_of_create_table(nyc: tl.Lakehouse) -> None:
    """`add_column("delay", "double")` failed with "Cannot visit non-type: double"."""
    types = ("double", "decimal(10, 2)", "timestamptz", "int[]", "struct(a int, b text)", tl.map_of("text", "bigint"))
    declared = {"id": "int", **{f"c{number}": type for number, type in enumerate(types)}}
    expected = nyc.create_table("nyc.declared", declared).schema
    table = nyc.create_table("nyc.updated", {"id": "int"})
    with table.update_schema() as update:
        for name, type in list(declared.items())[1:]:
            update.add_column(name, type)  # type: ignore[arg-type]
    assert [(one.name, str(one.type)) for one in table.schema.columns] == [
        (one.name, str(one.type)) for one in expected.columns
    ]
    with nyc.transaction() as txn, txn.table("nyc.updated").update_schema() as update:
        update.update_column("id", "bigint")  # type: ignore[arg-type]
    assert str(nyc.table("nyc.updated").schema.columns[0].type) == "BIGINT"
    with pytest.raises(tl.InvalidArgument, match="dubble"), table.update_schema() as update:
        update.add_column("more", "dubble")  # type: ignore[arg-type]


def test_a_table_is_created_from_a_schema_of_polars(nyc: tl.Lakehouse) -> None:
    """A Polars schema was read as a mapping to SQL types, and lazy frames were refused."""
    frame = polars.DataFrame({"id": [1], "amount": [Decimal("1.5")], "at": [datetime(2020, 1, 1)], "parts": [[1.5]]})
    expected = tl.Schema.of(frame)
    for number, schema in enumerate([frame.schema, dict(frame.schema), frame.lazy(), {"id": polars.Int64}]):
        table = nyc.create_table(f"nyc.t{number}", schema)  # type: ignore[arg-type]
        columns = expected.columns if number < 3 else expected.columns[:1]
        assert [(one.name, str(one.type)) for one in table.schema.columns] == [
            (one.name, str(one.type)) for one in columns
        ]
        table.append(frame.select(table.schema.names))


def test_a_write_outside_of_the_open_transaction_warns_once(nyc: tl.Lakehouse, flights: tl.Table) -> None:
    """Users wrote to `lake.table(…)` inside `with lake.transaction()`: the rows stayed after the rollback."""
    others = nyc.begin()
    with nyc.transaction() as txn, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        txn.table(flights.name).append({"id": [5]})
        assert caught == []
        flights.append({"id": [6]})
        nyc.sql("DELETE FROM nyc.flights WHERE id = 6")
        nyc.create_namespace("other")
        [warning] = caught
        assert "not part of that transaction" in str(warning.message)
        assert "txn.table" in str(warning.message)
        assert warning.filename == __file__
        thread = threading.Thread(target=lambda: nyc.table(flights.name).append({"id": [7]}))
        thread.start()
        thread.join()
        tl.create(f"memory://{txn.id}").create_namespace("a")
        assert len(caught) == 1
    with (
        nyc.transaction(),
        pytest.warns(UserWarning, match="commits alone"),
        nyc.table(flights.name).update_schema() as update,  # this method did not warn
    ):
        update.add_column("note", "text")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flights.append({"id": [8]})
        others.rollback()
