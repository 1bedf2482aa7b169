"""MERGE, UPDATE and DELETE of `trinitylake.spark`. DuckDB computes the expected rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import trinitylake as tl

TARGET = pa.table(
    {
        "id": pa.array([1, 2, 2, 3, 4, None, 6], pa.int64()),
        "day": [dt.date(2024, 1, day) for day in (1, 1, 2, 2, 3, 3, 4)],
        "name": ["a", "b", "b2", "c", "d", "e", None],
        "n": pa.array([10, 20, 21, 30, None, 50, 60], pa.int32()),
    }
)
SOURCE = pa.table(
    {
        "id": pa.array([2, 3, 7, None, 8], pa.int64()),
        "day": [dt.date(2024, 2, 1)] * 5,
        "name": ["B", "C", "G", "N", None],
        "n": pa.array([200, 300, 700, 900, 800], pa.int32()),
        "gone": [False, True, False, False, True],
    }
)
#: The same statements as clauses of `merge` and in SQL.
CLAUSES: dict[str, tuple[list[tuple[str, dict[str, Any]]], str]] = {
    "upsert": (
        [("when_matched_update", {}), ("when_not_matched_insert", {})],
        "WHEN MATCHED THEN UPDATE SET id = source.id, day = source.day, name = source.name, n = source.n "
        "WHEN NOT MATCHED THEN INSERT (id, day, name, n) VALUES (source.id, source.day, source.name, source.n)",
    ),
    "conditions": (
        [
            ("when_matched_delete", {"condition": "source.gone"}),
            ("when_matched_update", {"set": {"n": "target.n + source.n", "name": "source.name"}}),
            (
                "when_not_matched_insert",
                {"values": {"id": "source.id", "n": "source.n * 2"}, "condition": "not source.gone"},
            ),
            ("when_not_matched_insert", {"values": ["id", "day", "name"]}),
        ],
        "WHEN MATCHED AND source.gone THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = target.n + source.n, name = source.name "
        "WHEN NOT MATCHED AND NOT source.gone THEN INSERT (id, n) VALUES (source.id, source.n * 2) "
        "WHEN NOT MATCHED THEN INSERT (id, day, name) VALUES (source.id, source.day, source.name)",
    ),
    "by source": (
        [
            ("when_matched_update", {"set": ["n"]}),
            ("when_not_matched_by_source_update", {"set": {"n": "target.n + 1"}, "condition": "target.id < 4"}),
            ("when_not_matched_by_source_delete", {"condition": "target.id is null or target.name = 'd'"}),
        ],
        "WHEN MATCHED THEN UPDATE SET n = source.n "
        "WHEN NOT MATCHED BY SOURCE AND target.id < 4 THEN UPDATE SET n = target.n + 1 "
        "WHEN NOT MATCHED BY SOURCE AND (target.id IS NULL OR target.name = 'd') THEN DELETE",
    ),
    "insert only": (
        [("when_not_matched_insert", {})],
        "WHEN NOT MATCHED THEN INSERT (id, day, name, n) VALUES (source.id, source.day, source.name, source.n)",
    ),
}
SPECS = [None, "day", "bucket(2, id)", "months(day)"]
#: Partition specs and format versions of tables that are merge-on-read.
IN_PLACE = [("day", "2"), (None, "3")]


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table)


def merged_by_duckdb(target: pa.Table, source: pa.Table, clauses: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as oracle:
        oracle.register("given_target", target)
        oracle.register("source", source)
        oracle.execute("CREATE TABLE target AS SELECT * FROM given_target")
        oracle.execute(f"MERGE INTO target USING source ON target.id = source.id {clauses}")
        return rows_of(oracle.execute("SELECT * FROM target").to_arrow_table())


@pytest.fixture
def table(lake: tl.Lakehouse, request: pytest.FixtureRequest) -> tl.Table:
    """A table with two files, or more with partitions. The parameter is a partition spec, or an element of
    `IN_PLACE`."""
    lake.create_namespace("ns")
    spec, properties = getattr(request, "param", None), {}
    if isinstance(spec, tuple):
        spec, version = spec
        properties = {f"write.{statement}.mode": "merge-on-read" for statement in ("delete", "update", "merge")}
        properties["format-version"] = version
    table = lake.create_table("ns.t", TARGET, partition_spec=spec, properties=properties)
    table.append(TARGET.slice(0, 3))
    table.append(TARGET.slice(3))
    return table


def now(lake: tl.Lakehouse) -> list[tuple[Any, ...]]:
    return rows_of(lake.table("ns.t").scan().to_arrow())


@pytest.mark.sample(12)
@pytest.mark.parametrize("clauses", CLAUSES)
@pytest.mark.parametrize("table", [*SPECS, *IN_PLACE], indirect=True, ids=str)
def test_merge_changes_the_rows_that_duckdb_changes(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, clauses: str
) -> None:
    steps, sql = CLAUSES[clauses]
    version = lake.version
    merge = tl.spark.merge(frame_of(spark, SOURCE), lake.uri, "ns.t", on="id")
    for name, arguments in steps:
        merge = getattr(merge, name)(**arguments)
    done = merge.execute()
    assert now(lake) == merged_by_duckdb(TARGET, SOURCE, sql)
    assert lake.version == version + 1
    expected = {"upsert": (3, 0, 3), "conditions": (2, 1, 3), "by source": (4, 2, 0), "insert only": (0, 0, 3)}
    assert (done, done.version) == (expected[clauses], lake.version)


def files(lake: tl.Lakehouse) -> set[str]:
    return {task.file.file_path for task in lake.table("ns.t").scan().iceberg.plan_files()}


def stored_files(lake: tl.Lakehouse) -> set[str]:
    return {f"file://{path}" for path in Path(lake.uri.removeprefix("file://")).rglob("*.parquet")}


@pytest.mark.parametrize("table", [None, "day", *IN_PLACE], indirect=True, ids=str)
def test_update_and_delete_change_the_rows_of_the_filter_only(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    before = files(lake)
    done = tl.spark.update(spark, lake.uri, "ns.t", {"n": "n * 2", "NAME": "upper(name)"}, filter="id = 2")
    assert done == (2, 0, 0)
    assert before & files(lake), "files without matching rows stay"
    in_place = "write.update.mode" in table.properties
    assert bool(lake.table("ns.t").iceberg.inspect.delete_files().num_rows) == in_place
    done = tl.spark.delete(spark, lake.uri, "ns.t", "year(day) = 2024 and name like 'B_'")
    assert done == (0, 1, 0)
    with duckdb.connect() as oracle:
        oracle.register("given", TARGET)
        oracle.execute("CREATE TABLE t AS SELECT * FROM given")
        oracle.execute("UPDATE t SET n = n * 2, name = upper(name) WHERE id = 2")
        oracle.execute("DELETE FROM t WHERE name LIKE 'B_'")
        assert now(lake) == rows_of(oracle.execute("FROM t").to_arrow_table())
    assert tl.spark.update(spark, lake.uri, "ns.t", {"n": "7"}) == (6, 0, 0)
    assert {row[3] for row in now(lake)} == {7}
    assert tl.spark.delete(spark, lake.uri, "ns.t", "id > 100") == (0, 0, 0)


def test_merge_after_evolution_and_with_an_empty_source(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    """A merge works after the schema has evolved: earlier files lack the column `extra` and have a narrower `n`, and
    `at` has a type that Spark lacks."""
    table.append(
        TARGET.slice(0, 1).append_column("extra", pa.array(["x"])).append_column("at", pa.array([dt.time(1)])),
        evolve_schema=True,
    )
    source = spark.createDataFrame([(2, "new"), (9, "nine")], "ID int, extra string")
    merge = tl.spark.merge(source, lake.uri, "ns.t", on=["id"])
    assert merge.when_matched_update().when_not_matched_insert().execute() == (2, 0, 1)
    found = {row["id"]: (row["n"], row["extra"], row["at"]) for row in lake.table("ns.t").scan().to_arrow().to_pylist()}
    assert found[9] == (None, "nine", None)
    assert found[2][1:] == ("new", None)
    assert found[1] in ((10, "x", dt.time(1)), (10, None, None))
    before = now(lake)
    empty = tl.spark.merge(source.limit(0), lake.uri, "ns.t", on="id").when_matched_delete().when_not_matched_insert()
    assert empty.execute() == (0, 0, 0)
    assert now(lake) == before


def test_row_that_two_rows_of_the_source_would_change_is_an_error(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    version, before = lake.version, stored_files(lake)
    twice = frame_of(spark, pa.concat_tables([SOURCE, SOURCE.slice(0, 1)]))
    merge = tl.spark.merge(twice, lake.uri, "ns.t", on="id")
    with pytest.raises(tl.InvalidArgument, match="a row of the table would be changed more than once") as raised:
        merge.when_matched_update().execute()
    assert "\n" not in str(raised.value)
    assert (lake.version, stored_files(lake)) == (version, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda it: it.when_matched_update({"n": "target.m + 1"}), "UNRESOLVED_COLUMN"),
        (lambda it: it.when_matched_update({"n": "target.n +"}), "PARSE_SYNTAX_ERROR"),
        (lambda it: it.when_matched_update({"m": "1"}), "no column m; it has id, day, name, n"),
        (
            lambda it: it.when_matched_update({"n": "source.name"}),
            "column n of the table is int, and the rows have string",
        ),
        (lambda it: it.when_matched_update({"n": "source.n / 0"}), "DIVIDE_BY_ZERO"),
        (lambda it: it.when_matched_update({"n": "source.n * 3000000000"}), "CAST_OVERFLOW"),
        (lambda it: it, "no clause"),
    ],
)
def test_mistakes_are_errors_of_one_line(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, make: Any, message: str
) -> None:
    before = stored_files(lake)
    with pytest.raises(tl.InvalidArgument, match=message) as raised:
        make(tl.spark.merge(frame_of(spark, SOURCE), lake.uri, "ns.t", on="id")).execute()
    assert "\n" not in str(raised.value)
    assert stored_files(lake) == before


def test_merge_with_an_id_is_done_once_alone_and_in_a_transaction(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    """A merge with an id is done once, also if a driver that died after its merge runs the merge again."""
    source = frame_of(spark, SOURCE)

    def merge(**options: Any) -> tuple[int, ...]:
        run = tl.spark.merge(source, lake.uri, "ns.t", on="id", **options).when_matched_update({"n": "target.n + 1"})
        return run.when_not_matched_insert().execute()

    assert merge(id="load-1") == (3, 0, 3)
    rows, version = now(lake), lake.version
    assert merge(id="load-1") == (0, 0, 0)
    assert (now(lake), lake.version) == (rows, version)

    lake.begin(id="etl").save()
    assert merge(txn="etl", id="first") == (5, 0, 1)  # 7 and 8 are known now
    assert merge(txn="etl", id="first") == (0, 0, 0)
    assert tl.spark.delete(spark, lake.uri, "ns.t", "id is null", txn="etl") == (0, 3, 0)
    assert now(lake) == rows, "nothing is visible before the commit"
    lake.resume("etl").commit()
    assert stored_files(lake) >= files(lake)
    assert sorted(row[3] for row in now(lake) if row[0] in (2, 3, 7)) == [22, 23, 32, 701]
    assert not [row for row in now(lake) if row[0] is None]


def test_statements_are_part_of_a_transaction_that_is_open_here(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table
) -> None:
    with lake.transaction() as txn:
        txn.table("ns.t").append(pa.table({"id": [100], "n": pa.array([1], pa.int32())}))
        assert tl.spark.update(spark, lake.uri, "ns.t", {"n": "5"}, "id = 100", txn=txn) == (1, 0, 0)
        merge = tl.spark.merge(frame_of(spark, SOURCE), lake.uri, "ns.t", on="id", txn=txn)
        assert merge.when_matched_delete().execute() == (0, 3, 0)
        assert lake.table("ns.t").count() == TARGET.num_rows
    assert sorted(row[0] or 0 for row in now(lake)) == [0, 1, 4, 6, 100]
    assert stored_files(lake) >= files(lake)
    with pytest.raises(tl.InvalidArgument, match="SYNTAX"), lake.transaction() as txn:  # noqa: PT012
        tl.spark.delete(spark, lake.uri, "ns.t", "id = 1", txn=txn)
        tl.spark.delete(spark, lake.uri, "ns.t", "n > ", txn=txn)
    assert lake.table("ns.t").count() == 5


def test_merge_conflicts_with_a_commit_that_changed_its_rows_meanwhile(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trinitylake.spark import row_changes

    commit_write = row_changes.commit_write
    meanwhile: list[Any] = []

    def late(*args: Any, **kwargs: Any) -> int | None:
        meanwhile.pop()()
        return commit_write(*args, **kwargs)

    monkeypatch.setattr(row_changes, "commit_write", late)
    other = pa.table({"id": [50], "n": pa.array([1], pa.int32())})
    meanwhile.append(lambda: lake.table("ns.t").append(other))
    tl.spark.update(spark, lake.uri, "ns.t", {"n": "0"}, "id = 1")
    assert {row[0]: row[3] for row in now(lake)}[1] == 0, "an append of other rows is no conflict"
    meanwhile.append(lambda: lake.table("ns.t").append(pa.table({"id": [7], "n": pa.array([1], pa.int32())})))
    merge = tl.spark.merge(frame_of(spark, SOURCE), lake.uri, "ns.t", on="id").when_not_matched_insert()
    with pytest.raises(tl.CommitConflict):
        merge.execute()
    meanwhile.append(lambda: lake.table("ns.t").delete("id = 3"))
    with pytest.raises(tl.CommitConflict):
        tl.spark.update(spark, lake.uri, "ns.t", {"n": "1"}, "n > 0 and id = 3")
    assert len([row for row in now(lake) if row[0] == 7]) == 1


def test_only_files_that_can_have_a_key_are_read(spark: SparkSession, lake: tl.Lakehouse, table: tl.Table) -> None:
    """A statement does not read files whose bounds exclude its keys: it does not notice that such a file is missing."""
    table.append(pa.table({"id": [1000], "name": ["far"]}))
    (far,) = [task for task in lake.table("ns.t").scan("id = 1000").iceberg.plan_files()]
    Path(far.file.file_path.removeprefix("file://")).unlink()
    assert tl.spark.delete(spark, lake.uri, "ns.t", "id = 3") == (0, 1, 0)
    source = frame_of(spark, SOURCE)
    assert tl.spark.merge(source, lake.uri, "ns.t", on="id").when_matched_update().execute().rows_updated == 2
    with pytest.raises(tl.CorruptFile):
        tl.spark.delete(spark, lake.uri, "ns.t", "length(name) = 3")


def test_interrupt_after_the_commit_deletes_no_committed_file(
    spark: SparkSession, lake: tl.Lakehouse, table: tl.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after the commit, such as Ctrl-C, does not delete the files of the statement, which the table has
    already."""
    from trinitylake.spark import row_changes

    commit_write = row_changes.commit_write

    def interrupted(*args: Any, **kwargs: Any) -> None:
        commit_write(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(row_changes, "commit_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tl.spark.update(spark, lake.uri, "ns.t", {"n": "0"}, "id = 2")
    assert sorted(row[3] for row in now(lake) if row[0] == 2) == [0, 0]
