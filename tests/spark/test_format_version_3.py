"""Spark and this library change tables in turn: row ids, delete files, default values and variants of format
version 3.
"""

from __future__ import annotations

import itertools
import json
import urllib.request
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import IntegerType
from pyspark.sql import DataFrame, SparkSession

import trinitylake as tl
from rest.test_duckdb import attached

MERGE_ON_READ = ", ".join(f"'write.{statement}.mode' = 'merge-on-read'" for statement in ("delete", "update", "merge"))
V3 = f"TBLPROPERTIES ('format-version' = '3', {MERGE_ON_READ})"
NEW = pa.table({"id": pa.array([50], pa.int64()), "name": ["p"]})


@pytest.fixture
def things(spark: SparkSession, lake: tl.Lakehouse, catalog: str) -> str:
    """A table of format version 3 with the rows 1 to 6, in two files."""
    lake.create_namespace("v3")
    table = f"{catalog}.v3.things"
    spark.sql(f"CREATE TABLE {table} (id bigint, name string) {V3}")
    for first in (1, 4):
        spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, 'a' FROM range({first}, {first + 3})")
    return table


def row_ids(spark: SparkSession, table: str) -> dict[int, int]:
    """The row id of each row, by its column `id`, as Spark computes them."""
    found = {row.id: row._row_id for row in spark.sql(f"SELECT id, _row_id FROM {table}").collect()}
    assert len(set(found.values())) == len(found), "no row id twice"
    return found


def ids(lake: tl.Lakehouse, table: str = "v3.things") -> list[int]:
    return sorted(lake.table(table).scan().to_arrow()["id"].to_pylist())


def test_rows_keep_their_ids_through_deletes_updates_and_our_own_appends(
    spark: SparkSession, lake: tl.Lakehouse, things: str
) -> None:
    """Spark and this library write one table in turns, and each continues with the row ids after those of the other."""
    first = row_ids(spark, things)
    assert sorted(first.values()) == list(range(6))
    spark.sql(f"DELETE FROM {things} WHERE id = 2")
    spark.sql(f"UPDATE {things} SET name = 'b' WHERE id = 5")
    lake.table("v3.things").append(NEW)
    spark.sql(f"REFRESH TABLE {things}")
    second = row_ids(spark, things)
    assert {id: second[id] for id in (1, 3, 4, 5, 6)} == {id: first[id] for id in (1, 3, 4, 5, 6)}
    assert second[50] not in first.values()
    assert ids(lake) == [1, 3, 4, 5, 6, 50]
    metadata = lake.table("v3.things").iceberg.metadata
    assert metadata.format_version == 3
    assert metadata.next_row_id > max(second.values())
    formats = set(lake.table("v3.things").iceberg.inspect.delete_files()["file_format"].to_pylist())
    assert formats == {"PUFFIN"}


def test_spark_and_pyiceberg_write_one_table_in_an_open_transaction(
    spark: SparkSession, lake: tl.Lakehouse, catalog: str, things: str
) -> None:
    """If Spark and PyIceberg append in one transaction while another client commits, all rows get different ids."""
    before = row_ids(spark, things)
    version = lake.version
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"INSERT INTO {tx}.v3.things VALUES (10, 't'), (11, 't')")
        with lake.transaction() as other:
            other.table("v3.things").append(NEW)
        spark.sql(f"INSERT INTO {tx}.v3.things VALUES (12, 't')")
        assert lake.version == version + 1
    assert lake.version == version + 2
    spark.sql(f"REFRESH TABLE {things}")
    after = row_ids(spark, things)
    assert sorted(after) == [1, 2, 3, 4, 5, 6, 10, 11, 12, 50]
    assert {id: after[id] for id in before} == before
    snapshots = lake.table("v3.things").iceberg.metadata.snapshots
    ends = [(one.first_row_id, one.first_row_id + one.added_rows) for one in snapshots]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert lake.table("v3.things").iceberg.metadata.next_row_id == ends[-1][1]


def test_deletion_vectors_of_a_transaction_that_lost_a_race_are_united_with_those_of_the_winner(
    spark: SparkSession, lake: tl.Lakehouse, catalog: str, things: str
) -> None:
    def delete_beside(statement: str) -> None:
        with tl.spark.transaction(spark, catalog=catalog) as tx:
            spark.sql(f"DELETE FROM {tx}.v3.things WHERE id = 1")
            spark.sql(statement.format(things))

    delete_beside("DELETE FROM {} WHERE id = 3")
    assert ids(lake) == [2, 4, 5, 6]
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"DELETE FROM {tx}.v3.things WHERE id = 4")
        lake.table("v3.things").delete("id = 5")
    assert ids(lake) == [2, 6]
    spark.sql(f"REFRESH TABLE {things}")
    assert sorted(row.id for row in spark.sql(f"SELECT id FROM {things}").collect()) == [2, 6]
    with tl.spark.transaction(spark, catalog=catalog) as tx:
        spark.sql(f"UPDATE {tx}.v3.things SET name = 'b' WHERE id = 6")
        lake.table("v3.things").delete("id = 6")
        with pytest.raises(tl.CommitConflict):
            tx.commit()


def test_rows_that_three_engines_rewrite_in_turn_have_one_lineage(
    spark: SparkSession, lake: tl.Lakehouse, things: str
) -> None:
    """Iceberg, a scan, the data source and `tl.spark.table` show the same ids and last updates after each statement.

    Rows that stay keep theirs.
    """

    def duckdb(sql: str) -> None:
        with tl.rest.serve(lake) as url:
            server: Any = SimpleNamespace(url=url)
            with attached(server) as connection:
                connection.execute(sql)

    def lineage() -> dict[int, tuple[int, int]]:
        spark.sql(f"REFRESH TABLE {things}")
        seen = spark.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {things}").collect()
        columns = ["id", "_row_id", "_last_updated_sequence_number"]
        own = lake.table("v3.things").scan(columns=columns).to_arrow()
        found = {id: (row_id, last) for id, row_id, last in seen}
        assert found == {row["id"]: tuple(list(row.values())[1:]) for row in own.to_pylist()}
        for frame in (
            spark.read.format("trinitylake").options(root=lake.uri, columns=",".join(columns)).load("v3.things"),
            tl.spark.table(spark, lake.uri, "v3.things", columns=columns),
        ):
            assert {id: (row_id, last) for id, row_id, last in frame.collect()} == found
        return found

    before = lineage()
    table, new = lake.table("v3.things"), NEW.set_column(0, "id", pa.array([1] * len(NEW), NEW.schema.field(0).type))
    for statement, changed, gone in (
        (lambda: spark.sql(f"DELETE FROM {things} WHERE id = 2"), set(), {2}),
        (lambda: lake.sql("UPDATE v3.things SET id = id WHERE id = 3"), {3}, set()),
        (lambda: spark.sql(f"UPDATE {things} SET id = id WHERE id IN (1, 3)"), {1, 3}, set()),
        (lambda: table.upsert(new, on=["id"]), {1}, set()),
        (lambda: lake.table("v3.things").delete("id = 4"), set(), {4}),
        (lambda: spark.sql(f"UPDATE {things} SET id = id WHERE id = 5"), {5}, set()),
        (lambda: lake.table("v3.things").maintenance.compact(min_files=1), set(), set()),
        (lambda: duckdb("DELETE FROM lake.v3.things WHERE id = 5"), set(), {5}),
        (lambda: spark.sql(f"UPDATE {things} SET id = id WHERE id = 3"), {3}, set()),
        (lambda: duckdb("INSERT INTO lake.v3.things VALUES (7, 'd')"), {7}, set()),
        (lambda: table.upsert(new, on=["id"]), set(), set()),
        (lambda: lake.sql("UPDATE v3.things SET name = 'z' WHERE id = 7"), {7}, set()),
        (lambda: spark.sql(f"DELETE FROM {things} WHERE id = 6"), set(), {6}),
    ):
        statement()
        after = lineage()
        new_rows = {id: (row_id, -1) for id, (row_id, _) in after.items() if id == 7 and id not in before}
        assert not {row_id for row_id, _ in new_rows.values()} & {row_id for row_id, _ in before.values()}
        before |= new_rows
        assert after.keys() == before.keys() - gone
        for id, (row_id, last) in after.items():
            assert row_id == before[id][0]
            assert (last > before[id][1]) if id in changed else (last == before[id][1])
        before = after


def test_spark_and_our_writers_delete_rows_of_a_version_2_file_in_turn(
    spark: SparkSession, lake: tl.Lakehouse, catalog: str
) -> None:
    """Spark and this library each replace the other's file of position deletes by a file that contains its
    positions."""
    lake.create_namespace("v2")
    table = f"{catalog}.v2.things"
    spark.sql(f"CREATE TABLE {table} (id bigint, name string) TBLPROPERTIES ('format-version' = '2', {MERGE_ON_READ})")
    spark.sql(f"INSERT INTO {table} SELECT /*+ COALESCE(1) */ id, 'a' FROM range(0, 20)")
    expected = dict.fromkeys(range(20), "a")
    for step in range(2):
        lake.table("v2.things").delete(f"id = {step}")
        lake.table("v2.things").upsert({"id": [4 + step], "name": ["ours"]}, on=["id"])
        spark.sql(f"REFRESH TABLE {table}")
        expected = {id: name for id, name in expected.items() if id != step} | {4 + step: "ours"}
        assert {row.id: row.name for row in spark.sql(f"SELECT id, name FROM {table}").collect()} == expected
        spark.sql(f"DELETE FROM {table} WHERE id = {8 + step}")
        spark.sql(f"UPDATE {table} SET name = 'spark' WHERE id = {12 + step}")
        expected = {id: name for id, name in expected.items() if id != 8 + step} | {12 + step: "spark"}
        found = lake.table("v2.things").scan().to_arrow()
        assert dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True)) == expected
    assert lake.table("v2.things").iceberg.inspect.delete_files().num_rows <= 2
    assert lake.maintenance.fsck("all").is_sound


def test_a_plan_of_the_server_gives_each_file_its_deletion_vector(
    spark: SparkSession, lake: tl.Lakehouse, things: str
) -> None:
    """A plan names the position of each deletion vector in its Puffin file, which has vectors of many data files."""
    spark.sql(f"DELETE FROM {things} WHERE id IN (1, 4)")
    with tl.rest.serve(lake) as url:
        path = f"{url}/v1/latest/namespaces/v3/tables/things/plan"
        request = urllib.request.Request(path, b"{}", {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request) as response:
            plan = json.load(response)
        planning = RestCatalog("planned", uri=url, **{"scan-planning-mode": "server"})
        assert sorted(planning.load_table("v3.things").scan().to_arrow()["id"].to_pylist()) == [2, 3, 5, 6]
    assert len(plan["delete-files"]) == 2
    for task in plan["file-scan-tasks"]:
        (number,) = task["delete-file-references"]
        vector = plan["delete-files"][number]
        assert vector["referenced-data-file"] == task["data-file"]["file-path"]
        assert vector["content-size-in-bytes"] > 0
    assert len({(one["file-path"], one["content-offset"]) for one in plan["delete-files"]}) == 2
    assert sorted(one["data-file"]["first-row-id"] for one in plan["file-scan-tasks"]) == [0, 3]


def test_default_values_are_read_and_written_by_both(
    spark: SparkSession, lake: tl.Lakehouse, catalog: str, things: str
) -> None:
    """Rows that are written without a column get its default for new rows, not the default for older rows."""
    with lake.table("v3.things").update_schema() as change:
        change.add_column("size", IntegerType(), default_value=7)
    with lake.table("v3.things").update_schema() as change:
        change.set_default_value("size", 8)
    lake.table("v3.things").append(NEW)
    spark.sql(f"REFRESH TABLE {things}")
    sizes = {row.id: row.size for row in spark.sql(f"SELECT id, size FROM {things}").collect()}
    assert sizes == {**dict.fromkeys(range(1, 7), 7), 50: 8}
    assert {row["id"]: row["size"] for row in lake.table("v3.things").scan().to_arrow().to_pylist()} == sizes


def test_a_variant_is_kept_for_engines_that_know_it(spark: SparkSession, lake: tl.Lakehouse, catalog: str) -> None:
    """A table with a column of a type that PyIceberg does not know can be loaded, and the column is kept."""
    lake.create_namespace("v3")
    table = f"{catalog}.v3.events"
    spark.sql(f"CREATE TABLE {table} (id bigint, what variant) TBLPROPERTIES ('format-version' = '3')")
    spark.sql(f"""INSERT INTO {table} SELECT 1, parse_json('{{"a": 5}}')""")
    (row,) = spark.sql(f"SELECT variant_get(what, '$.a', 'int') AS a FROM {table}").collect()
    assert row.a == 5
    assert lake.table("v3.events").scan().count() == 1
    assert lake.table("v3.events").scan(columns=["id"]).to_arrow().to_pylist() == [{"id": 1}]
    assert lake.table("v3.events").scan(filter="id = 1", columns=["id"]).to_arrow().num_rows == 1
    with pytest.raises(tl.InvalidArgument, match="what is a variant"):
        lake.table("v3.events").scan().to_arrow()
    with pytest.raises(tl.InvalidArgument, match="variant"):
        lake.table("v3.events").append({"id": [2]})


def test_a_table_is_upgraded_by_spark(spark: SparkSession, lake: tl.Lakehouse, catalog: str) -> None:
    lake.create_namespace("v3")
    table = f"{catalog}.v3.old"
    spark.sql(f"CREATE TABLE {table} (id bigint, name string)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'a')")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')")
    assert lake.table("v3.old").iceberg.metadata.next_row_id == 0
    lake.table("v3.old").append(NEW)
    spark.sql(f"REFRESH TABLE {table}")
    assert sorted(row_ids(spark, table).values()) == [0, 1, 2]
    with pytest.raises(Py4JJavaError, match="Cannot downgrade"):
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '2')")


NANOSECONDS = [1_700_000_000_123_456_789, None, -1]
#: Types of format version 3 that an engine lacks: rows of a column, and the errors of Spark SQL and DuckDB.
LACKED: dict[str, tuple[pa.Array, str | None, str | None]] = {
    "timestamp_ns": (pa.array(NANOSECONDS, pa.timestamp("ns")), "unsupported type to Spark: timestamp_ns", None),
    "timestamptz_ns": (
        pa.array(NANOSECONDS, pa.timestamp("ns", "UTC")),
        "unsupported type to Spark: timestamptz_ns",
        "Unrecognized primitive type: timestamptz_ns",
    ),
    "unknown": (pa.nulls(3), None, "Unrecognized primitive type: unknown"),
}


@pytest.mark.parametrize("kind", LACKED)
def test_types_that_an_engine_lacks_are_refused_and_other_columns_are_not(
    spark: SparkSession, lake: tl.Lakehouse, catalog: str, kind: str
) -> None:
    values, spark_error, duckdb_error = LACKED[kind]
    lake.create_namespace("v3")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": values})
    table = lake.create_table("v3.t", rows.schema, properties={"format-version": "3"})
    table.append(rows)
    assert str(table.iceberg.schema().find_type("v")) == kind
    expected = dict(zip(range(1, 4), values.to_pylist(), strict=True))

    def check() -> None:
        found = lake.table("v3.t").scan().to_arrow()
        assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected

    def source(**options: str) -> DataFrame:
        return spark.read.format("trinitylake").options(root=lake.uri, **options).load("v3.t")

    name = f"{catalog}.v3.t"
    if spark_error is None:
        spark.sql(f"INSERT INTO {name} VALUES (4, NULL)")
        spark.sql(f"DELETE FROM {name} WHERE id = 1")
        expected = {key: value for key, value in expected.items() if key != 1} | {4: None}
        for frame in (spark.table(name), source(), tl.spark.table(spark, lake.uri, "v3.t")):
            assert {row.id: row.v for row in frame.collect()} == expected
    else:
        with pytest.raises(Exception, match=spark_error):
            spark.sql(f"SELECT id FROM {name}").collect()
        for read in (
            source,
            lambda: tl.spark.table(spark, lake.uri, "v3.t"),
            lambda: source(changes="true", since="0"),
        ):
            with pytest.raises(Exception, match=f"Spark has no type for {kind} columns: name the others"):
                read().collect()
    check()
    with tl.rest.serve(lake) as url, attached(SimpleNamespace(url=url)) as duckdb:  # type: ignore[arg-type]
        if duckdb_error is None:
            later = "2024-01-01 00:00:00.123456789"
            duckdb.execute(f"INSERT INTO lake.v3.t VALUES (5, TIMESTAMP_NS '{later}')")
            expected[5] = pa.scalar(later).cast(pa.timestamp("ns")).as_py()
            found = duckdb.execute("SELECT id, epoch_ns(v) FROM lake.v3.t").fetchall()
            assert dict(found) == {key: value and value.value for key, value in expected.items()}
        else:
            with pytest.raises(Exception, match=duckdb_error):
                duckdb.execute("SELECT id FROM lake.v3.t")
    check()
    # Other columns can be read, changed and appended without the jar.
    for frame in (source(columns="id"), tl.spark.table(spark, lake.uri, "v3.t", columns=["id"])):
        assert {row.id for row in frame.collect()} == expected.keys()
    added = spark.createDataFrame([(10,)], "id long")
    added.write.format("trinitylake").option("root", lake.uri).mode("append").save("v3.t")
    tl.spark.update(spark, lake.uri, "v3.t", {"id": "id + 100"}, "id = 3")
    tl.spark.delete(spark, lake.uri, "v3.t", "id = 2")
    expected = {key + 100 * (key == 3): value for key, value in expected.items() if key != 2} | {10: None}
    check()
