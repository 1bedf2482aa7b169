"""Functions for frames that Spark's Python data sources lack: modes that create tables, rows by partition, repeatable
writes, counts.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as _sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructType

import trinitylake as tl
from trinitylake.spark import connect, disconnect
from trinitylake.spark.batch_write import BatchWriter
from trinitylake.spark.metadata_tables import MetadataReader
from trinitylake.spark.options import Options
from trinitylake.spark.source import TrinityLakeDataSource

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "carrier": ["AA", "UA", None]})


@pytest.fixture
def table(lake: tl.Lakehouse) -> tl.Table:
    lake.create_namespace("nyc")
    table = lake.create_table("nyc.flights", ROWS, partition_spec="carrier")
    table.append(ROWS)
    return table


def options(lake: tl.Lakehouse, **given: Any) -> dict[str, str]:
    return {"root": lake.uri, "path": "nyc.flights", **{name: str(value) for name, value in given.items()}}


def rows(*ids: int, carrier: str = "AA") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "carrier": [carrier] * len(ids)})


def written(lake: tl.Lakehouse, data: pa.Table, overwrite: bool = False, **given: Any) -> BatchWriter:
    """A write with the calls of Spark: plan, one task, commit."""
    writer = BatchWriter(Options.parse(options(lake, **given)), overwrite, from_arrow_schema(data.schema))
    writer.commit([writer.write(iter(data.to_batches()))])
    return writer


def ids(lake: tl.Lakehouse) -> list[int]:
    return sorted(lake.table("nyc.flights").scan().to_arrow()["id"].to_pylist())


def files(lake: tl.Lakehouse) -> int:
    return len(list(Path(lake.uri.removeprefix("file://")).rglob("*.parquet")))


def test_a_write_with_an_id_is_done_once(lake: tl.Lakehouse, table: tl.Table) -> None:
    """A write with an id is done only once. Otherwise a job that is started again would add its rows twice."""
    late = BatchWriter(Options.parse(options(lake, id="load-7")), False)
    written(lake, rows(10), id="load-7")
    version, before = lake.version, files(lake)
    assert lake.transactions.outcome("load-7").version == version
    written(lake, rows(10), id="load-7")
    late.commit([late.write(iter(rows(10).to_batches()))])  # planned before the first was committed
    assert (lake.version, ids(lake), files(lake)) == (version, [1, 2, 3, 10], before)
    written(lake, rows(11), id="load-8")
    assert ids(lake) == [1, 2, 3, 10, 11]
    lake.rollback(version)
    with pytest.raises(tl.CommitConflict, match="a rollback has undone"):
        written(lake, rows(11), id="load-8")
    with pytest.raises(tl.InvalidArgument):
        written(lake, rows(11), columns="id")


def test_rows_that_an_overwrite_does_not_replace_are_refused(lake: tl.Lakehouse, table: tl.Table) -> None:
    """An overwrite refuses rows that do not match its filter. Otherwise each run of a job would add them again."""
    written(lake, rows(5), overwrite=True, filter="carrier = 'AA'")
    assert ids(lake) == [2, 3, 5]
    version, before = lake.version, files(lake)
    mixed = pa.concat_tables([rows(6), rows(7, carrier="UA")])
    with pytest.raises(tl.InvalidArgument, match="1 rows of the overwrite do not match its filter"):
        written(lake, mixed, overwrite=True, filter="carrier = 'AA'")
    assert (lake.version, files(lake)) == (version, before)


def test_rows_without_a_column_of_the_partitions_are_refused(lake: tl.Lakehouse, table: tl.Table) -> None:
    with pytest.raises(tl.InvalidArgument, match=r"no column 'carrier', by which table nyc\.flights is partitioned"):
        written(lake, rows(5).select(["id"]))


def test_rows_are_counted_from_metadata(lake: tl.Lakehouse, table: tl.Table) -> None:
    """`tl.spark.count` takes the number of rows from metadata. Spark's `count()` reads every column of every row,
    because Spark 4.1 pushes neither columns nor aggregates to a Python source."""
    table.delete("id = 2")
    for given, expected in (({}, 2), ({"filter": "id > 2"}, 1), ({"version": 2}, 0)):
        reader = MetadataReader(
            Options.parse(options(lake, metadata="count", **given)), StructType().add("rows", LongType())
        )
        assert list(reader.read(None)) == [(expected,)]  # type: ignore[arg-type]


def test_columns_are_chosen_by_name(lake: tl.Lakehouse, table: tl.Table) -> None:
    def chosen(columns: str) -> StructType:
        return TrinityLakeDataSource(options(lake, columns=columns)).schema()

    assert chosen("Carrier, id").fieldNames() == ["carrier", "id"]
    with pytest.raises(tl.InvalidArgument, match="no column 'speed'"):
        chosen("id, speed")
    with pytest.raises(tl.InvalidArgument, match="names no column"):
        chosen(" ")


def test_frames_make_tables_and_come_by_partition(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    """`tl.spark.write` creates tables in every mode, and sends the rows of a partition to one task, so that each
    partition gets one file."""
    frame = spark.range(560).selectExpr("id", "concat('C', id % 7) AS carrier").repartition(8)
    with pytest.raises(PySparkException, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE|cannot be written with"):
        frame.write.format("trinitylake").options(**options(lake)).save()
    version = lake.version
    settings: dict[str, Any] = {"partition_spec": "carrier", "durability": "none"}
    assert tl.spark.write(frame, lake.uri, "nyc.routes", message="load", **settings)
    assert (lake.version, lake.log(1)[0].message) == (version + 1, "load")
    made = lake.table("nyc.routes")
    assert made.scan().to_arrow().num_rows == 560
    assert len(list(made.scan().iceberg.plan_files())) == 7
    with pytest.raises(tl.ObjectAlreadyExists, match="exists"):
        tl.spark.write(frame, lake.uri, "nyc.routes", **settings)
    assert not tl.spark.write(frame, lake.uri, "nyc.routes", mode="ignore", **settings)
    assert tl.spark.write(frame, lake.uri, "nyc.routes", mode="append", id="second", durability="none")
    assert not tl.spark.write(frame, lake.uri, "nyc.routes", mode="append", id="second", durability="none")
    made.refresh()
    assert made.scan().to_arrow().num_rows == 1120
    assert len(list(made.scan().iceberg.plan_files())) == 14
    lake.create_table("nyc.hashed", ROWS, partition_spec="bucket(4, id)")
    assert tl.spark.write(frame, lake.uri, "nyc.hashed", mode="append", durability="none")
    assert len(list(lake.table("nyc.hashed").scan().iceberg.plan_files())) == 4
    lake.create_table("nyc.cut", {"id": "bigint"}, partition_spec="truncate(10, id)")
    least = spark.createDataFrame([(-(2**63),)], "id long")  # Spark refused the row: the partition's value overflowed
    assert tl.spark.write(least, lake.uri, "nyc.cut", mode="append", durability="none")
    with pytest.raises(tl.ObjectNotFound):
        tl.spark.write(frame, lake.uri, "nowhere.routes", mode="append", durability="none")
    counted = spark.read.format("trinitylake").option("root", lake.uri).option("metadata", "count").load("nyc.routes")
    assert counted.collect()[0].rows == 1120


def test_every_mode_creates_a_table_that_is_absent_alone_and_in_a_transaction(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    """Every mode creates a missing table, as with `saveAsTable`, alone and in a transaction. A failed write leaves no
    table."""
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id int, carrier string")
    version = lake.version
    for number, mode in enumerate(("append", "overwrite", "ignore", "error", "errorifexists")):
        assert tl.spark.write(frame, lake.uri, f"nyc.t{number}", mode=mode, partition_spec="bucket(id, 2)")
        assert lake.table(f"nyc.t{number}").count() == 2
    assert lake.version == version + 5
    with pytest.raises(tl.InvalidArgument, match="DIVIDE_BY_ZERO") as raised:
        tl.spark.write(frame.selectExpr("id / (id - 1) AS x"), lake.uri, "nyc.bad", mode="append")
    assert "\n" not in str(raised.value)
    lake.begin(id="etl").save()
    for _ in range(2):  # the second run of the step adds nothing
        tl.spark.write(frame, lake.uri, "nyc.made", mode="append", txn="etl", id="make")
    tl.spark.write(frame, lake.uri, "nyc.made", mode="append", txn="etl", id="more")
    assert not lake.exists("nyc.made")
    lake.resume("etl").commit()
    assert lake.table("nyc.made").count() == 4
    with lake.transaction() as txn:
        tl.spark.write(frame, lake.uri, "nyc.here", mode="overwrite", txn=txn)
        tl.spark.write(frame, lake.uri, "nyc.here", mode="append", txn=txn)
        with pytest.raises(tl.InvalidArgument, match="DIVIDE_BY_ZERO"):
            tl.spark.write(frame.selectExpr("id / (id - 1) AS x"), lake.uri, "nyc.bad", txn=txn)
        assert txn.table("nyc.here").count() == 4
        assert not lake.exists("nyc.here")
    assert lake.table("nyc.here").count() == 4
    assert not lake.exists("nyc.bad")


def test_no_module_hides_a_public_name() -> None:
    """`from trinitylake.spark import BatchTransaction, foreach_batch` returns the class and the function, not a module
    with the same name."""
    modules = {module.name for module in pkgutil.iter_modules(tl.spark.__path__)}
    assert modules & {*tl.spark.__all__} == {"functions"}


def test_rows_without_nested_lists_and_tables_of_literals(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """Empty nested lists can be written, although Java omits their offsets, which Arrow reads. A table that is created
    from a frame of literals accepts nulls, as with `saveAsTable`."""
    lake.create_namespace("nyc")
    types = {"id": "int", "s": "struct<a: int>", "l": "array<array<string>>"}
    nothing = "SELECT " + ", ".join(f"cast(NULL AS {kind}) AS {name}" for name, kind in types.items())
    literals = "SELECT 1 AS id, named_struct('a', 1) AS s, array(array('x'), array()) AS l"
    tl.spark.write(spark.sql(literals), lake.uri, "nyc.nested")
    tl.spark.write(spark.sql(nothing), lake.uri, "nyc.nested", mode="append")
    found = lake.table("nyc.nested").scan().to_arrow().sort_by("id").to_pylist()
    assert found == [{"id": 1, "s": {"a": 1}, "l": [["x"], []]}, {"id": None, "s": None, "l": None}]


def test_null_structures_with_required_parts_are_written_as_iceberg_writes_them(
    spark: SparkSession, lake: tl.Lakehouse
) -> None:
    """A null struct with a required field can be written also inside of lists, maps and structs; Spark sends its fields
    as null."""
    lake.create_namespace("nyc")
    struct = "struct<a: bigint not null>"
    kinds = {"s": struct, "l": f"array<{struct}>", "m": f"map<text, {struct}>", "n": f"struct<s: {struct}>"}
    table = lake.create_table("nyc.required", {"id": "bigint", **kinds})
    value = "if(id % 2 = 1, named_struct('a', id), null)"
    values = value, f"array({value})", f"map('k', {value})", f"named_struct('s', {value})"
    frame = spark.range(1, 3).selectExpr("id", *(f"{text} AS {name}" for text, name in zip(values, kinds, strict=True)))
    tl.spark.write(frame, lake.uri, "nyc.required", mode="append")
    connect(lake.uri, "java", spark=spark, durability="none")
    try:
        frame.selectExpr("id + 2 AS id", *kinds).writeTo("java.nyc.required").append()
        read = [row.asDict(recursive=True) for row in spark.table("java.nyc.required").orderBy("id").collect()]
    finally:
        disconnect(spark, "java")
    assert [{**row, "id": row["id"] - 2} for row in read[2:]] == read[:2]
    assert [row["s"] for row in read] == [{"a": 1}, None] * 2
    table.refresh()
    ours = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [{**row, "m": dict(row["m"])} for row in ours] == read


def test_write_into_a_transaction_that_is_not_saved_names_the_next_step(lake: tl.Lakehouse, table: tl.Table) -> None:
    with lake.transaction(id="open") as txn, pytest.raises(tl.ObjectNotFound, match=r"save\(\), or give"):
        written(lake, rows(9), txn=txn.id)


def test_filter_with_a_set_of_values_names_columns_in_any_case(lake: tl.Lakehouse, table: tl.Table) -> None:
    for text in ("ID in (1, 3)", "not id in (2)", "id not in (2, 4)"):
        written(lake, pa.table({"id": [1], "carrier": ["AA"]}), overwrite=True, filter=text)
        assert ids(lake) == [1, 2]


def test_columns_of_the_rows_are_added_with_merge_schema_only(lake: tl.Lakehouse, table: tl.Table) -> None:
    """New columns and wider types are added only with `mergeSchema`, in the same commit as the rows."""
    wide = pa.table({"ID": pa.array([4], pa.int64()), "Carrier": ["AA"], "seats": pa.array([1.5])})
    with pytest.raises(tl.InvalidArgument, match=r"no column seats; it has id, carrier.*mergeSchema"):
        written(lake, wide)
    version = lake.version
    written(lake, wide, mergeSchema="true")
    assert lake.version == version + 1
    assert lake.table("nyc.flights").scan("id = 4").to_arrow().to_pylist() == [{"id": 4, "carrier": "AA", "seats": 1.5}]
    lake.create_table("nyc.narrow", {"n": "int"}).append({"n": [1]})
    wider = {"path": "nyc.narrow", "mergeSchema": "true"}
    written(lake, pa.table({"n": pa.array([1 << 40], pa.int64())}), **wider)
    assert lake.table("nyc.narrow").scan().to_arrow()["n"].to_pylist() == [1 << 40, 1]
    lake.begin(id="etl").save()
    written(lake, pa.table({"n": [2], "m": ["x"]}), **wider, txn="etl")
    written(lake, pa.table({"n": [3], "m": ["y"], "o": [0]}), **wider, txn="etl")
    assert lake.table("nyc.narrow").schema.names == ("n",)
    lake.resume("etl").commit()
    assert lake.table("nyc.narrow").schema.names == ("n", "m", "o")
    assert lake.table("nyc.narrow").count() == 4


def test_columns_that_another_writer_added_meanwhile_are_a_conflict(lake: tl.Lakehouse, table: tl.Table) -> None:
    rows = pa.table({"id": [4], "carrier": ["AA"], "seats": [1]})
    late = BatchWriter(Options.parse(options(lake, mergeSchema="true")), False, from_arrow_schema(rows.schema))
    message = late.write(iter(rows.to_batches()))
    with lake.table("nyc.flights").update_schema() as update:
        update.add_column("gates", IntegerType())
    before = files(lake)
    with pytest.raises(tl.CommitConflict):
        late.commit([message])
    assert files(lake) == before - 1


def test_partition_by_has_to_be_the_one_of_the_table(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    frame = spark.createDataFrame([(7, "DL")], "id long, carrier string")
    writer = frame.write.format("trinitylake").option("root", lake.uri).mode("append")
    writer.partitionBy("carrier").save("nyc.flights")
    frame.write.partitionBy("carrier").format("trinitylake").option("root", lake.uri).mode("append").save("nyc.flights")
    assert ids(lake) == [1, 2, 3, 7, 7]
    with pytest.raises(PySparkException, match=r"partitioned by identity\(carrier\), not by identity\(id\)") as raised:
        writer.partitionBy("id").save("nyc.flights")
    assert "Traceback" not in str(raised.value)
    assert tl.spark.write(frame, lake.uri, "nyc.flights", mode="append", partition_spec="identity(carrier)")
    with pytest.raises(tl.InvalidArgument, match="not by bucket"):
        tl.spark.write(frame, lake.uri, "nyc.flights", mode="append", partition_spec="bucket(4, id)")


def test_a_server_elsewhere_takes_the_place_of_the_drivers_own(spark: SparkSession, shop: tl.Lakehouse) -> None:
    """`connect` can use a running server instead of its own, as many drivers and sessions of Spark Connect need."""
    token = "far-away-0123456789"
    server = tl.rest.serve(shop, token=token).start()
    try:
        with pytest.raises(tl.PermissionDenied):
            tl.spark.connect(catalog="far", uri=server.url, token="guessed-0123456789", spark=spark)
        tl.spark.connect(catalog="far", uri=server.url, token=token, spark=spark)
        version = shop.version
        with tl.spark.transaction(spark, catalog="far", message="remote", id="remote-1") as tx:
            tx.sql("INSERT INTO nyc.flights VALUES (4, 'B6')")
            spark.sql(f"DELETE FROM {tx}.nyc.planes WHERE id = 1")
            assert shop.version == version
            with pytest.raises(tl.InvalidArgument, match="checks cannot be sent to a server over HTTP"):
                tx.add_check("SELECT true")
        assert tx.version == shop.version == version + 1
        assert shop.log(1)[0].message == "remote"
        assert [row.n for row in spark.sql("SELECT count(*) AS n FROM far.nyc.planes").collect()] == [2]
        tl.spark.transaction(spark, catalog="far").rollback()
        then = tl.spark.catalog_at(spark, version=version, catalog="far")
        assert [row.n for row in spark.sql(f"SELECT count(*) AS n FROM {then}.nyc.planes").collect()] == [3]
        with pytest.raises(tl.VersionNotFound):
            tl.spark.catalog_at(spark, version=999, catalog="far")

        def overtaken() -> None:
            with tl.spark.transaction(spark, catalog="far") as tx:
                tx.sql("UPDATE nyc.flights SET carrier = 'DL' WHERE id = 1")
                shop.table("nyc.flights").delete("id = 1")

        with pytest.raises(tl.CommitConflict, match=r"nyc\.flights"):
            overtaken()
        with pytest.raises(tl.InvalidArgument, match="root of a lakehouse"):
            tl.spark.connect(spark=spark)
    finally:
        tl.spark.disconnect(spark, "far")
        server.stop()
    with pytest.raises(tl.StorageError, match=r"does not answer|cannot be reached"):
        tl.spark.connect(catalog="gone", uri=server.url, token=token, spark=spark)


def test_names_in_another_case_are_those_of_the_table_at_any_depth(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """Names in another case are the table's names at any depth: in writes, `mergeSchema`, `.schema(…)`, keys of a merge
    and `partitionBy`."""
    lake.create_namespace("nyc")
    parts = "named_struct('{0}', {1}) {2}, array(named_struct('{0}', {1})) {3}, map('k', named_struct('{0}', {1})) {4}"
    nested = spark.sql(f"SELECT 1L Id, {parts.format('Aa', 1, 'St', 'Li', 'Ma')}")
    tl.spark.write(nested, lake.uri, "nyc.nested", partition_spec="bucket(2, ID)")
    data = {"St": {"Aa": 1}, "Li": [{"Aa": 1}], "Ma": [("k", {"Aa": 1})]}
    expected = [{"Id": 1, **data}]

    def check(*more: dict[str, Any]) -> None:
        expected.extend(more)
        found = lake.table("nyc.nested").scan().to_arrow().to_pylist()
        assert sorted(found, key=lambda row: row["Id"]) == expected

    other = spark.sql(f"SELECT 2L ID, {parts.format('aA', 1, 'ST', 'lI', 'ma')}")
    writer = other.write.format("trinitylake").option("root", lake.uri).mode("append")
    writer.partitionBy("bucket(2, iD)").save("nyc.nested")
    check({"Id": 2, **data})
    tl.spark.write(other.withColumn("ID", _sql.lit(3)), lake.uri, "nyc.nested", mode="append", merge_schema=True)
    check({"Id": 3, **data})
    merge = tl.spark.merge(
        other.withColumn("id", _sql.explode(_sql.array(_sql.lit(3), _sql.lit(4)))), lake.uri, "nyc.nested", on="iD"
    )
    assert merge.when_matched_update().when_not_matched_insert().execute()[:3] == (1, 0, 1)
    check({"Id": 4, **data})
    tl.spark.update(spark, lake.uri, "nyc.nested", {"sT": "named_struct('AA', 5)"}, "ID = 4 AND st.aa = 1")
    expected[-1]["St"] = {"Aa": 5}
    check()
    reader = spark.read.format("trinitylake").option("root", lake.uri)
    frame = reader.schema("st struct<AA: int>, LI array<struct<AA: int>>, iD long").load("nyc.nested")
    assert sorted((row.iD, row.st.AA, row.LI[0].AA) for row in frame.collect()) == [
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 5, 1),
    ]


def test_columns_whose_names_have_dots_or_differ_in_case_are_written(spark: SparkSession, lake: tl.Lakehouse) -> None:
    """`tl.spark.write` accepts columns whose names contain dots or differ only in case. It refused all rows of a table
    that is partitioned by such a column, whose name it took for the path of a nested field."""
    lake.create_namespace("nyc")
    lake.create_table("nyc.dots", {"a.b": "bigint", "A": "bigint", "a": "bigint"}, partition_spec=['"a.b"'])
    tl.spark.write(spark.sql("SELECT 1L `a.b`, 2L a, 3L A"), lake.uri, "nyc.dots", mode="append")
    assert lake.table("nyc.dots").scan().to_arrow().to_pylist() == [{"a.b": 1, "A": 3, "a": 2}]
