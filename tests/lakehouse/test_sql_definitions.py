"""ALTER, COMMENT, SHOW, information_schema and EXPLAIN in SQL. The oracle is DuckDB where it has the same statement."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

import trinitylake as tl

COLUMNS = {"id": "bigint", "name": "varchar", "n": "int", "price": "float", "d": "decimal(10,2)", "ts": "timestamp"}
ROWS = [{"id": 1, "name": "pen", "n": 3, "price": 1.5, "d": 2, "ts": None}, {"id": 2, "name": None}]


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_namespace("archive")
        txn.create_table("shop.orders", COLUMNS).append(ROWS)
        txn.create_view("shop.names", "SELECT name FROM orders", dialect="duckdb")
    return lake


def described(source: Any, table: str) -> list[tuple[Any, ...]]:
    """Names and types of the columns, followed by the rows."""
    execute = source.sql if isinstance(source, tl.Lakehouse) else source.execute
    columns = [row[:2] for row in execute(f"DESCRIBE {table}").fetchall()]
    return [*columns, *execute(f"FROM {table} ORDER BY ALL").fetchall()]


@pytest.mark.parametrize("seed", range(4))
def test_tables_change_as_those_of_duckdb(shop: tl.Lakehouse, seed: int) -> None:
    """Random changes of columns have the same result as in DuckDB: both accept or refuse a change, and have the same
    columns and rows afterwards."""
    other = duckdb.connect()
    other.execute("CREATE SCHEMA shop")
    other.execute(
        "CREATE TABLE shop.orders (id BIGINT, name VARCHAR, n INTEGER, price FLOAT, d DECIMAL(10,2), ts TIMESTAMP)"
    )
    other.execute("INSERT INTO shop.orders VALUES (1, 'pen', 3, 1.5, 2, NULL), (2, NULL, NULL, NULL, NULL, NULL)")
    numbers = random.Random(seed)
    table, accepted = "shop.orders", 0
    for step in range(14):
        column = numbers.choice([row[0] for row in other.execute(f"DESCRIBE {table}").fetchall()] + ["nope"])
        shown = numbers.choice([column, column.upper(), f'"{column}"'])
        change = numbers.choice(
            [
                f"ADD COLUMN c{step} {numbers.choice(['INTEGER', 'DECIMAL(12, 3)', 'TEXT', 'DATE', 'INTEGER[]'])}",
                f"ADD c{step} STRUCT(a INTEGER, b VARCHAR)",
                f"ADD COLUMN IF NOT EXISTS {shown} INTEGER",
                f"ADD COLUMN {shown} INTEGER",
                f"DROP COLUMN {shown}",
                f"DROP COLUMN IF EXISTS {shown}",
                f"RENAME COLUMN {shown} TO r{step}",
                f"RENAME {shown} TO name",
                f"RENAME TO orders{step}",
                "ALTER COLUMN n SET DATA TYPE BIGINT",
                "ALTER price TYPE DOUBLE",
                "ALTER d TYPE DECIMAL(14,2)",
            ]
        )
        results = []
        for source in (other, shop):
            execute = source.sql if source is shop else source.execute
            try:
                execute(f"ALTER TABLE {table} {change}")
                results.append(True)
            except (duckdb.Error, tl.TrinityLakeError):
                results.append(False)
        assert results[0] == results[1], change
        if results[0]:
            accepted += 1
            table = f"shop.orders{step}" if "RENAME TO" in change else table
        assert described(shop, table) == described(other, table), change
    assert accepted


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ("SET PARTITIONED BY (day(ts), bucket(16, id))", ["day(ts)", "bucket[16](id)"]),
        ("ADD PARTITION FIELD truncate(4, name) AS short", ["identity(n)", "truncate[4](name)"]),
        ("ADD PARTITION FIELD months(ts)", ["identity(n)", "month(ts)"]),
        ("DROP PARTITION FIELD n", []),
        ("REPLACE PARTITION FIELD n WITH hour(ts) AS h", ["hour(ts)"]),
        ("RESET PARTITIONED BY", []),
    ],
)
def test_partition_fields_change_as_in_ducklake_and_spark(shop: tl.Lakehouse, change: str, fields: list[str]) -> None:
    with shop.transaction() as txn:
        txn.sql("ALTER TABLE shop.orders SET PARTITIONED BY (n)")
        txn.sql(f"ALTER TABLE shop.orders {change}")
        txn.sql("INSERT INTO shop.orders BY NAME SELECT 3 AS id, TIMESTAMP '2026-01-02 03:00:00' AS ts, 4 AS n")
    table = shop.table("shop.orders")
    schema, spec = table.iceberg.schema(), table.iceberg.spec()
    assert [f"{one.transform}({schema.find_column_name(one.source_id)})" for one in spec.fields] == fields
    assert table.count() == 3


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_another_width_of_a_transform_replaces_the_partition_field(shop: tl.Lakehouse, version: str) -> None:
    """`bucket(2, id)` can follow `bucket(4, id)`: the new field gets another name than id_bucket."""
    shop.create_table("shop.wide", {"id": "bigint", "s": "varchar"}, properties={"format-version": version})
    table = shop.table("shop.wide")
    for number, fields in enumerate(
        (
            "bucket(4, id)",
            "bucket(2, id)",
            "truncate(3, s)",
            "truncate(2, s), bucket(8, id)",
            "bucket(4, id)",
            "id",
            "id, s",
        )
    ):
        shop.sql(f"ALTER TABLE shop.wide SET PARTITIONED BY ({fields})")
        shop.sql("INSERT INTO shop.wide VALUES ($1, 'text')", [number])
        if fields == "bucket(2, id)":
            shop.sql("ALTER TABLE shop.wide REPLACE PARTITION FIELD bucket(2, id) WITH bucket(16, id)")
    table = shop.table("shop.wide")
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(7))
    assert table.scan("id = 1").count() == 1
    names = [(one.name, str(one.transform)) for spec in table.iceberg.specs().values() for one in spec.fields]
    live = {(name, transform) for name, transform in names if transform != "void"}
    assert len({name for name, _ in live}) == len(live)
    assert ("id_bucket_2", "bucket[2]") in live


def test_a_quoted_name_partitions_and_sorts_by_its_own_column(shop: tl.Lakehouse) -> None:
    """In SET PARTITIONED BY, a double quote in a quoted name became a backtick, so that the table was partitioned by
    another column, whose name has a backtick there."""
    shop.create_table("shop.quoted", {'q"q': "int", "q`q": "int", "a b": "int"})
    shop.sql("""ALTER TABLE shop.quoted SET PARTITIONED BY (bucket(2, "q""q"), "a b")""")
    shop.sql("""ALTER TABLE shop.quoted SET SORTED BY ("q`q", "q""q" DESC)""")
    iceberg = shop.table("shop.quoted").iceberg
    quote, backtick, blank = (iceberg.schema().find_field(name).field_id for name in ('q"q', "q`q", "a b"))
    assert [field.source_id for field in iceberg.spec().fields] == [quote, blank]
    assert [field.source_id for field in iceberg.sort_order().fields] == [backtick, quote]


def test_sort_order_changes_as_in_ducklake(shop: tl.Lakehouse) -> None:
    shop.sql('ALTER TABLE shop.orders SET SORTED BY ("n" DESC, day(ts), id ASC NULLS LAST)')
    table = shop.table("shop.orders")
    schema = table.iceberg.schema()
    assert [(schema.find_column_name(one.source_id), str(one)) for one in table.sort_order.fields] == [
        ("n", "3 DESC NULLS LAST"),
        ("ts", "day(6) ASC NULLS FIRST"),
        ("id", "1 ASC NULLS LAST"),
    ]
    shop.sql("ALTER TABLE shop.orders SET SORTED BY (n)")
    shop.sql("INSERT INTO shop.orders BY NAME SELECT unnest([9, 7, 8]) AS n")
    assert [row["n"] for row in shop.table("shop.orders").scan("n > 6").to_arrow().to_pylist()] == [7, 8, 9]
    shop.sql("ALTER TABLE shop.orders RESET SORTED BY")
    assert shop.table("shop.orders").sort_order.is_unsorted


def test_properties_comments_and_places_of_columns(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        for statement in (
            "ALTER TABLE shop.orders SET ('write.delete.mode' = 'merge-on-read', owner = 'ann', a.b = 3)",
            "ALTER TABLE shop.orders SET TBLPROPERTIES ('gone' = 'x', 'kept' = 'it''s')",
            "ALTER TABLE shop.orders UNSET TBLPROPERTIES ('gone')",
            "ALTER TABLE shop.orders -- a comment\n /* another */ RESET (a.b)",
            "COMMENT ON TABLE shop.orders IS 'all orders'",
            "COMMENT ON COLUMN shop.orders.n IS 'how many'",
            "COMMENT ON VIEW shop.names IS /* a comment was stored with the text */ 'names' -- of people",
            "COMMENT ON SCHEMA shop IS 'the shop'",
            "ALTER TABLE shop.orders ADD COLUMNS (x INT COMMENT 'why', y TEXT FIRST)",
            "ALTER TABLE shop.orders ALTER COLUMN ts AFTER id",
            "ALTER VIEW shop.names RENAME TO all_names",
            "ALTER TABLE shop.orders SET SCHEMA archive",
        ):
            txn.sql(statement)
    table = shop.table("archive.orders")
    given = {"write.delete.mode": "merge-on-read", "owner": "ann", "kept": "it's", "comment": "all orders"}
    assert table.properties.items() >= given.items()
    assert not {"gone", "a.b"} & table.properties.keys()
    assert list(table.schema.names) == ["y", "id", "ts", "name", "n", "price", "d", "x"]
    assert {one.name: one.doc for one in table.schema.columns if one.doc} == {"n": "how many", "x": "why"}
    assert shop.view("shop.all_names").properties["comment"] == "names"
    assert shop.namespace("shop").properties["comment"] == "the shop"
    shop.sql("COMMENT ON TABLE archive.orders IS NULL")
    assert "comment" not in shop.table("archive.orders").properties
    assert shop.sql("SELECT column_comment FROM information_schema.columns WHERE column_name = 'n'").fetchone() == (
        "how many",
    )


def test_unsupported_statements_name_the_alternative(shop: tl.Lakehouse) -> None:
    shop.create_table("shop.keyed", {"id": "bigint", "n": "int"}, primary_key="id", partition_spec="n")
    before = shop.version
    for sql, words in [
        ("ALTER TABLE shop.orders DROP COLUMN nmae", "has no column 'nmae'; did you mean 'name'"),
        ("ALTER TABLE shop.orders ADD COLUMN q INT NOT NULL", "cannot be NOT NULL"),
        ("ALTER TABLE shop.orders ADD COLUMN q INT DEFAULT 3", "cannot have default values: q"),
        ("ALTER TABLE shop.orders ALTER id TYPE INTEGER", "only INTEGER to BIGINT"),
        ("ALTER TABLE shop.orders ALTER n SET NOT NULL", "existing rows may have no value"),
        ("ALTER TABLE shop.orders DROP PARTITION FIELD day(ts)", "is not partitioned by day"),
        ("ALTER TABLE shop.orders ADD PARTITION FIELD", "expected a partition field"),
        ("ALTER TABLE shop.keyed ADD PARTITION FIELD n", "already partitioned by n"),
        ("ALTER TABLE shop.keyed DROP COLUMN n", "DROP PARTITION FIELD n first"),
        ("ALTER TABLE shop.keyed DROP COLUMN id", "in the primary key"),
        ("ALTER TABLE shop.keyed ALTER id DROP NOT NULL", "in the primary key"),
        ("ALTER TABLE shop.orders ADD COLUMN q INT PRIMARY KEY", "only be given in CREATE TABLE"),
        ("ALTER TABLE shop.orders RENAME COLUMN n TO a.b", "the name of one column"),
        ("ALTER TABLE shop.orders FROBNICATE", "such as ADD COLUMN"),
        ("ALTER TABLE shop.orders SET (a b)", "expected key = 'value'"),
        ("ALTER TABLE shop.orders ADD COLUMN a INT; DROP TABLE shop.orders", "expected one statement"),
        ("ALTER TABLE shop.orders DROP COLUMN n, DROP COLUMN d", "expected the end"),
        ("ALTER INDEX x RENAME TO y", "tables, views and schemas"),
        ("COPY shop.orders TO 'x.csv'", "trinitylake cat"),
        ("SET threads = 1", "fixed settings"),
        ("ALTER TABLE shop.orders SET SORTED BY (nmae)", "no column 'nmae'"),
        ("CREATE VIEW shop.wide AS PIVOT shop.orders ON name USING sum(n)", "cannot be used in views"),
        ("CREATE TABLE shop.wide AS PIVOT shop.orders ON name USING sum(n)", r"ON c IN \('a', 'b'\)"),
        ("FROM (PIVOT shop.orders ON name USING sum(n))", r"ON c IN \('a', 'b'\)"),
        ("PIVOT (FROM shop.orders WHERE false) ON name USING sum(n)", "name has no values"),
        ("BEGIN", r"lake\.transaction"),
        ("USE shop", "default_namespace"),
        ("SHOW DATABASES", "SCHEMAS"),
        ("FROM information_schema.nope", "it has schemata, tables"),
        ("EXPLAIN DELETE FROM shop.orders", "that reads"),
    ]:
        with pytest.raises(tl.InvalidArgument, match=words):
            shop.sql(sql)
        assert shop.version == before


def test_changes_of_one_transaction_are_seen_in_it_and_undone_with_it(shop: tl.Lakehouse) -> None:
    with shop.transaction() as txn:
        txn.sql("ALTER TABLE shop.orders ADD COLUMN late BOOLEAN")
        txn.sql("UPDATE shop.orders SET late = id > 1")
        txn.sql("ALTER TABLE shop.orders RENAME TO bought")
        assert ("shop.bought",) in txn.sql("SHOW TABLES").fetchall()
    assert shop.sql("SELECT late FROM shop.bought ORDER BY id").fetchall() == [(False,), (True,)]
    txn = shop.begin()
    txn.sql("ALTER TABLE shop.bought DROP COLUMN late")
    txn.rollback()
    assert "late" in shop.table("shop.bought").schema.names


def test_objects_are_listed_as_in_duckdb(shop: tl.Lakehouse) -> None:
    other = duckdb.connect()
    other.execute("CREATE SCHEMA shop; CREATE SCHEMA archive; CREATE TABLE shop.orders (id BIGINT, name VARCHAR)")
    other.execute("CREATE VIEW shop.names AS SELECT name FROM shop.orders")
    shop.sql("CREATE OR REPLACE TABLE shop.orders (id BIGINT, name VARCHAR)")
    for sql in (
        "SHOW TABLES FROM shop",
        "SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY ALL",
        "SELECT column_name, ordinal_position, is_nullable, data_type FROM information_schema.columns "
        "WHERE table_name = 'orders' ORDER BY ALL",
        "SELECT information_schema.schemata.schema_name FROM information_schema.schemata "
        "WHERE schema_name IN ('shop', 'archive') ORDER BY ALL",
        "SELECT count(*) FROM information_schema.tables AS t JOIN information_schema.schemata AS s "
        "ON t.table_schema = s.schema_name",
        "DESCRIBE shop.orders",
    ):
        assert shop.sql(sql).fetchall() == other.execute(sql).fetchall(), sql
    assert shop.sql("SHOW TABLES").fetchall() == [("shop.names",), ("shop.orders",)]
    assert shop.sql("SHOW TABLES", default_namespace="shop").fetchall() == [("names",), ("orders",)]
    assert shop.sql("SHOW VIEWS").fetchall() == [("shop.names",)]
    assert shop.sql("show views from archive").fetchall() == []
    assert shop.sql("SHOW VIEWS", default_namespace="shop").fetchall() == [("names",)]
    assert shop.sql("SHOW ALL TABLES").fetchall() == [("shop", "orders", ["id", "name"], ["BIGINT", "VARCHAR"])]
    assert shop.sql("SELECT count(*) FROM information_schema.tables AT (VERSION => 0)").fetchone() == (0,)


def test_pivot_and_unpivot_as_in_duckdb(shop: tl.Lakehouse) -> None:
    other = duckdb.connect()
    other.execute("CREATE SCHEMA shop")
    other.register("given", shop.table("shop.orders").to_arrow())
    other.execute("CREATE TABLE shop.orders AS FROM given")
    for sql in (
        "PIVOT shop.orders ON name IN ('pen', 'ink') USING sum(n) GROUP BY id ORDER BY id",
        "FROM shop.orders PIVOT (sum(n) FOR name IN ('pen') GROUP BY id) ORDER BY id",
        "PIVOT shop.orders ON name USING sum(n)",
        "PIVOT shop.orders ON name, id % 2 USING sum(n), count(*) AS c GROUP BY d ORDER BY d LIMIT 3;",
        "WITH few AS (FROM shop.orders WHERE id < 3) PIVOT few ON coalesce(name, 'it''s, 0') USING max(n) ORDER BY 1",
        "PIVOT (FROM shop.orders) ON id, name IN ('pen') USING sum(n)",
        "UNPIVOT shop.orders ON n, id INTO NAME k VALUE v ORDER BY ALL",
    ):
        expected = other.execute(sql).to_arrow_table()
        assert shop.sql(sql).to_arrow().column_names == expected.column_names, sql
        assert sorted(map(repr, shop.sql(sql).fetchall())) == sorted(map(repr, other.execute(sql).fetchall())), sql


def test_explain_shows_the_plan(shop: tl.Lakehouse) -> None:
    plan = shop.sql("EXPLAIN SELECT name FROM shop.orders WHERE id > 1")
    assert "id" in str(plan)
    assert plan.columns == ["explain_key", "explain_value"]
    assert "Time" in str(shop.sql("EXPLAIN ANALYZE SELECT count(*) FROM shop.orders"))
    assert str(shop.sql("EXPLAIN (FORMAT json) SELECT 1")).startswith("[")
