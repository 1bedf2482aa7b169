"""SQL statements that write have the same result as in DuckDB, and are statements of a transaction."""

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trinitylake as tl


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.sql("CREATE SCHEMA shop")
    lake.sql("CREATE TABLE shop.items (id BIGINT NOT NULL, name VARCHAR, price DOUBLE, day DATE, PRIMARY KEY (id))")
    lake.sql("INSERT INTO shop.items VALUES (1, 'one', 1.5, '2026-01-01'), (2, 'two', NULL, '2026-01-02')")
    return lake


def rows(reader: tl.Lakehouse | tl.Transaction, columns: str = "id, name, price") -> list[tuple[Any, ...]]:
    return reader.sql(f"SELECT {columns} FROM shop.items ORDER BY ALL").fetchall()


def test_a_table_is_created_as_it_is_declared(lake: tl.Lakehouse) -> None:
    lake.sql("CREATE SCHEMA a")
    lake.sql(
        'CREATE TABLE a.t (id BIGINT PRIMARY KEY, "day of" DATE NOT NULL, x STRUCT(p INT, q VARCHAR[])) '
        "PARTITIONED BY (id)"
    )
    table = lake.table("a.t")
    assert table.primary_key == ["id"]
    assert list(table.schema.names) == ["id", "day of", "x"]
    assert [field.name for field in table.partition_spec.fields] == ["id"]
    assert [field.required for field in table.iceberg.schema().fields] == [True, True, False]
    assert lake.sql("CREATE TABLE IF NOT EXISTS a.t (y INT)").fetchone() == (0, 0, 0, None)
    with pytest.raises(tl.ObjectAlreadyExists):
        lake.sql("CREATE TABLE a.t (y INT)")
    for text in ("x INT DEFAULT 3", "x INT CHECK (x > 1)", "x INT UNIQUE", "x NOTYPE", "x INT, x INT"):
        with pytest.raises(tl.InvalidArgument):
            lake.sql(f"CREATE TABLE a.u ({text})")
    assert lake.tables() == ["a.t"]


def test_a_table_is_created_from_a_query(shop: tl.Lakehouse) -> None:
    made = shop.sql("CREATE TABLE shop.dear AS SELECT id, price * 2 AS twice FROM shop.items WHERE price > ?", [1])
    assert made.fetchall() == [(0, 0, 1, shop.version)]
    assert made.columns == ["rows_updated", "rows_deleted", "rows_inserted", "version"]
    assert shop.sql("FROM shop.dear").fetchall() == [(1, 3.0)]
    shop.sql("CREATE OR REPLACE TABLE shop.dear AS SELECT twice + 1 AS more FROM shop.dear")
    assert shop.sql("FROM shop.dear").fetchall() == [(4.0,)]
    shop.sql("DROP TABLE shop.dear")
    shop.sql("DROP TABLE IF EXISTS shop.dear")
    with pytest.raises(tl.ObjectNotFound):
        shop.sql("DROP TABLE shop.dear")


def test_the_text_of_a_statement_result_has_its_row_counts_and_version(
    shop: tl.Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text of a statement's result has its row counts and its version, or says that nothing changed. CREATE SCHEMA
    printed a table with zeros."""
    for statement, words in (
        ("CREATE SCHEMA said", "done"),
        ("CREATE TABLE said.t (id BIGINT)", "done"),
        ("CREATE TABLE IF NOT EXISTS said.t (id BIGINT)", "nothing changed"),
        ("INSERT INTO said.t SELECT range FROM range(0)", "0 rows changed"),
        ("INSERT INTO said.t SELECT range FROM range(3000)", "3,000 rows inserted"),
        ("UPDATE said.t SET id = 9000 WHERE id = 5", "1 row updated"),
        ("DELETE FROM said.t WHERE id < 0", "0 rows changed"),
        (
            "MERGE INTO said.t USING (SELECT unnest([1, 2, -1]) AS id) AS s ON s.id = t.id WHEN MATCHED AND s.id = 2 "
            "THEN DELETE WHEN MATCHED THEN UPDATE SET id = 8000 WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
            "1 row updated, 1 deleted, 1 inserted",
        ),
        ("CREATE TABLE IF NOT EXISTS said.t AS SELECT 1 AS id", "0 rows changed"),
        ("CREATE TABLE said.u AS SELECT 1 AS id", "1 row inserted"),
        ("DROP TABLE said.u", "done"),
    ):
        before = shop.version
        done = shop.sql(statement)
        if shop.version != before:
            words += f" in version {shop.version}"
        else:
            assert words in ("nothing changed", "0 rows changed")
        done.show()
        assert capsys.readouterr().out == f"{words}\n", statement
        assert repr(done) == words
        assert words in done._repr_html_()
        assert done.fetchall()[0][3] == (shop.version if shop.version != before else None)


def test_rows_are_inserted_by_position_and_by_name(shop: tl.Lakehouse) -> None:
    assert shop.sql(
        "INSERT INTO shop.items (price, ID) SELECT 2 * i, i + 10 FROM range(?) AS r(i)", [2]
    ).fetchone() == (0, 0, 2, shop.version)
    shop.sql("INSERT INTO shop.items BY NAME SELECT 'named' AS name, 20 AS id")
    shop.sql("WITH x AS (SELECT 30 AS id) INSERT INTO shop.items (id) SELECT id FROM x JOIN x AS y USING (id)")
    shop.sql("INSERT INTO shop.items (id, name) SELECT * FROM new", data={"new": {"a": [40], "b": ["given"]}})
    shop.sql("INSERT INTO shop.items (SELECT id + 100, name, price, day FROM shop.items WHERE id = 1)")
    assert [row for row in rows(shop) if row[0] > 2] == [
        (10, None, 0.0),
        (11, None, 2.0),
        (20, "named", None),
        (30, None, None),
        (40, "given", None),
        (101, "one", 1.5),
    ]


def test_a_partitioned_table_takes_rows_without_the_column_it_is_partitioned_by(lake: tl.Lakehouse) -> None:
    lake.sql("CREATE SCHEMA a")
    lake.sql("CREATE TABLE a.t (id BIGINT, day DATE) PARTITIONED BY (day)")
    lake.sql("INSERT INTO a.t (id) VALUES (1)")
    lake.table("a.t").append({"id": [2]})
    assert lake.sql("SELECT id, day FROM a.t ORDER BY id").fetchall() == [(1, None), (2, None)]


def test_merge_inserts_rows_of_a_source_with_braces(shop: tl.Lakehouse) -> None:
    shop.sql(
        "MERGE INTO shop.items AS t USING (SELECT 71 AS id, '{}' AS name) AS s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)"
    )
    assert shop.sql("SELECT name FROM shop.items WHERE id = 71").fetchall() == [("{}",)]


def test_invalid_statements_are_refused_and_change_nothing(shop: tl.Lakehouse) -> None:
    for sql, words in [
        ("INSERT INTO shop.items VALUES (1)", "1 column, and 4 are expected: id, name, price, day"),
        ("INSERT INTO shop.items (id, nam) VALUES (1, 'x')", "no column 'nam'; did you mean 'name'"),
        ("INSERT INTO shop.items (id, id) VALUES (1, 2)", "twice"),
        ("INSERT INTO shop.items (name) VALUES ('x')", "required columns are missing from the data: id"),
        ("INSERT INTO shop.items (id) VALUES (NULL)", "required"),
        ("INSERT INTO shop.items (id) VALUES ('x')", "x"),
        ("INSERT INTO shop.items (id) VALUES (1) RETURNING id", "RETURNING"),
        ("INSERT INTO shop.items (id) VALUES (1) ON CONFLICT DO NOTHING", "MERGE"),
        ("INSERT OR REPLACE INTO shop.items (id) VALUES (1)", "MERGE"),
        ("INSERT INTO items VALUES (1)", "no namespace"),
        ("UPDATE shop.items SET nope = 1", "no column 'nope'"),
        ("UPDATE shop.items SET id = 1, id = 2", "twice"),
        ("UPDATE shop.items SET id = NULL", "required"),
        ("UPDATE shop.items SET name = n FROM (VALUES ('a'), ('b')) AS s(n)", "more than once"),
        ("UPDATE shop.items SET name = nothing", '"nothing" not found'),
        ("DELETE FROM shop.items WHERE nothing", '"nothing" not found'),
        ("MERGE INTO shop.items AS t USING shop.items AS s ON true WHEN MATCHED THEN DELETE", "more than once"),
        ("INSERT INTO shop.items SELECT 1; DROP TABLE shop.items", "one statement"),
        ("CREATE TEMP TABLE shop.x (a INT)", "tables, views and schemas"),
        ("CREATE MACRO shop.x() AS 1", "tables, views and schemas"),
        ("INSERT INTO shop.items (id) SELECT count(*) FROM read_text('/etc/hostname')", "read_text"),
        ("UPDATE shop.items SET name = (SELECT content FROM read_text('/etc/hostname'))", "read_text"),
        ("DELETE FROM shop.items WHERE EXISTS (FROM read_text('/etc/hostname'))", "read_text"),
        ("CREATE TABLE shop.x AS FROM '/etc/hostname'", "/etc/hostname"),
        ("CREATE TABLE shop.x (a INT DEFAULT (SELECT count(*) FROM read_text('/etc/hostname')))", ""),
        ("CREATE VIEW shop.x AS SELECT * FROM nothing", r"shop\.nothing"),
    ]:
        version = shop.version
        with pytest.raises((tl.InvalidArgument, tl.ObjectNotFound), match=words or "."):
            shop.sql(sql)
        assert shop.version == version, sql


def test_a_merge_inserts_values_in_the_order_of_the_columns(shop: tl.Lakehouse) -> None:
    """`INSERT VALUES (…)` in a MERGE uses the order of the table's columns, as in PostgreSQL and DuckDB."""
    names = shop.table("shop.items").schema.names
    given = ", ".join("70" if name == "id" else "NULL" for name in names)
    merge = "MERGE INTO shop.items AS t USING (SELECT 70 AS id) AS s ON t.id = s.id WHEN NOT MATCHED THEN INSERT "
    assert shop.sql(f"{merge} VALUES ({given})").fetchall() == [(0, 0, 1, shop.version)]
    assert shop.sql("SELECT count(*) FROM shop.items WHERE id = 70").fetchone() == (1,)
    with pytest.raises(tl.InvalidArgument, match=f"1 values, but table shop.items has {len(names)} columns"):
        shop.sql(f"{merge.replace('70', '71')} VALUES (71)")


def test_statements_of_a_transaction_see_each_other(shop: tl.Lakehouse) -> None:
    before = shop.version
    with shop.transaction() as txn:
        txn.sql("UPDATE shop.items SET price = 7 WHERE id = 2")
        txn.sql("CREATE TABLE shop.totals AS SELECT sum(price) AS total FROM shop.items")
        txn.sql("DELETE FROM shop.items WHERE price = (SELECT min(price) FROM shop.items)")
        txn.sql("CREATE VIEW shop.left AS SELECT id FROM items")
        assert txn.sql("FROM shop.totals").fetchall() == [(8.5,)]
        assert txn.sql("FROM shop.left").fetchall() == [(2,)]
        assert len(rows(shop)) == 2
    assert shop.version == before + 1
    assert rows(shop) == [(2, "two", 7.0)]
    with pytest.raises(tl.InvalidArgument, match="read-only"):
        shop.at().sql("DELETE FROM shop.items")


def test_a_rolled_back_transaction_leaves_no_file(shop: tl.Lakehouse) -> None:
    txn = shop.begin()
    txn.sql("DELETE FROM shop.items")
    txn.rollback()
    assert len(rows(shop)) == 2


def test_views_and_schemas(shop: tl.Lakehouse) -> None:
    shop.sql("CREATE VIEW shop.dear AS SELECT id FROM items WHERE price > 1")
    assert shop.view("shop.dear").dialect == "duckdb"
    assert shop.sql("FROM shop.dear").fetchall() == [(1,)]
    shop.sql("CREATE OR REPLACE VIEW shop.dear AS SELECT 2 AS two")
    assert shop.sql("FROM shop.dear").fetchall() == [(2,)]
    shop.sql("CREATE VIEW IF NOT EXISTS shop.dear AS SELECT 3 AS three")
    assert shop.sql("FROM shop.dear").fetchall() == [(2,)]
    with pytest.raises(tl.NamespaceNotEmpty):
        shop.sql("DROP SCHEMA shop")
    shop.sql("DROP VIEW shop.dear")
    shop.sql("DROP SCHEMA shop CASCADE")
    shop.sql("DROP SCHEMA IF EXISTS shop")
    assert shop.namespaces() == []


def test_a_statement_that_loses_a_race_is_run_again(shop: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update depends on the rows that it read: it must not overwrite a later change of another writer."""
    from trinitylake.lakehouse import sql_statements

    run = sql_statements.SqlStatements.run
    races = iter([True])

    def raced(self: Any, statement: Any) -> Any:
        done = run(self, statement)
        if next(races, False):
            shop.table("shop.items").upsert({"id": [1], "price": [100.0]})
        return done

    monkeypatch.setattr(sql_statements.SqlStatements, "run", raced)
    assert shop.sql("UPDATE shop.items SET price = price + 1 WHERE id = 1").fetchone() == (1, 0, 0, shop.version)
    assert rows(shop) == [(1, "one", 101.0), (2, "two", None)]


def test_writes_of_different_rows_do_not_conflict(shop: tl.Lakehouse) -> None:
    """The rows that match a statement's condition are the rows that it reads. So writes with conditions on different
    rows do not conflict."""
    shop.sql("CREATE TABLE shop.days (id BIGINT, day DATE) PARTITIONED BY (day)")
    shop.sql("INSERT INTO shop.days SELECT i, DATE '2026-01-01' + i::INTEGER FROM range(4) AS r(i)")
    one, other = shop.begin(), shop.begin()
    one.sql("UPDATE shop.days SET id = id + 10 WHERE day = DATE '2026-01-01'")
    other.sql("DELETE FROM shop.days WHERE day = DATE '2026-01-03'")
    one.commit()
    other.commit()
    assert shop.sql("SELECT id FROM shop.days ORDER BY 1").fetchall() == [(1,), (3,), (10,)]
    one, other = shop.begin(), shop.begin()
    one.sql("UPDATE shop.days SET id = id + 10 WHERE day = DATE '2026-01-02'")
    other.sql("DELETE FROM shop.days WHERE day <= DATE '2026-01-02'")
    one.commit()
    with pytest.raises(tl.CommitConflict):
        other.commit()


def test_reads_of_a_statement_are_tracked(shop: tl.Lakehouse) -> None:
    shop.sql("CREATE TABLE shop.totals (n BIGINT)")
    for sql in (
        "INSERT INTO shop.totals SELECT count(*) FROM shop.items",
        "UPDATE shop.totals SET n = (SELECT count(*) FROM shop.items)",
        "DELETE FROM shop.totals WHERE n IN (SELECT id FROM shop.items)",
        "MERGE INTO shop.totals AS t USING shop.items AS i ON n = id WHEN NOT MATCHED THEN INSERT (n) VALUES (id)",
        "CREATE OR REPLACE TABLE shop.other AS SELECT count(*) AS n FROM shop.items",
    ):
        txn = shop.begin(isolation="serializable")
        txn.sql(sql)
        txn.table("shop.totals").append({"n": [0]})
        shop.table("shop.items").append({"id": [9], "name": ["nine"]})
        with pytest.raises(tl.CommitConflict, match=r"shop\.items"):
            txn.commit()


MERGE = """
MERGE INTO shop.items AS t USING (SELECT * FROM new) AS n ON t.id = n.id
WHEN MATCHED AND n.price IS NULL THEN DELETE
WHEN MATCHED AND t.price > n.price THEN DO NOTHING
WHEN MATCHED THEN UPDATE SET price = t.price + n.price, name = CASE WHEN n.name = 'end' THEN t.name ELSE n.name END
WHEN NOT MATCHED AND n.name IS NOT NULL THEN INSERT (id, name, price) VALUES (n.id, n.name, n.price)
WHEN NOT MATCHED BY SOURCE AND t.price IS NULL THEN UPDATE SET name = 'left, (WHEN "x")'
"""

number = st.integers(0, 8)
price = st.none() | st.sampled_from([0.0, 1.5, -2.0, 1e300, float("nan")])
item = st.tuples(number, st.none() | st.sampled_from(["a", "it's", "end"]), price)
STATEMENTS = [
    "UPDATE shop.items SET price = price * 2, name = name || '!' WHERE price > 1",
    "UPDATE shop.items SET name = NULL WHERE id IN (SELECT id FROM new WHERE price < 1)",
    "UPDATE shop.items AS i SET price = n.price FROM new AS n WHERE i.id = n.id AND n.price IS DISTINCT FROM i.price",
    "DELETE FROM shop.items WHERE price <> 1.5",
    "DELETE FROM shop.items WHERE name = 'a' OR price IS NULL",
    "DELETE FROM shop.items AS i USING new WHERE new.id = i.id",
    "DELETE FROM shop.items WHERE NOT (price < 1)",
    "INSERT INTO shop.items (id, price) SELECT id + 10, price FROM shop.items WHERE price >= 0",
    "TRUNCATE shop.items",
    MERGE,
]


@settings(max_examples=12)
@pytest.mark.parametrize("partitions", ["", "PARTITIONED BY (id)"])
@given(
    old=st.lists(item, max_size=8, unique_by=lambda row: row[0]),
    new=st.lists(item, max_size=6, unique_by=lambda row: row[0]),
    statements=st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=3),
)
def test_statements_have_the_results_of_duckdb(
    partitions: str, old: list[Any], new: list[Any], statements: list[str]
) -> None:
    given = pa.table(
        {
            "id": pa.array([row[0] for row in new], pa.int64()),
            "name": pa.array([row[1] for row in new], pa.string()),
            "price": pa.array([row[2] for row in new], pa.float64()),
        }
    )
    lake = tl.create(f"memory://{id(given)}-{dt.datetime.now().timestamp()}")
    plain = duckdb.connect()
    plain.register("new", given)
    for run in (lake.sql, plain.execute):
        run("CREATE SCHEMA shop")
        run(f"CREATE TABLE shop.items (id BIGINT, name VARCHAR, price DOUBLE) {partitions if run == lake.sql else ''}")
    for part in (old[::2], old[1::2]):
        for row in part:
            plain.execute("INSERT INTO shop.items VALUES (?, ?, ?)", row)
        if part:
            values = ", ".join("(?, ?, ?)" for _ in part)
            lake.sql(f"INSERT INTO shop.items VALUES {values}", [value for row in part for value in row])
    with lake.transaction() as txn:
        for sql in statements:
            plain.execute(sql)
            txn.sql(sql, data={"new": given})
    found = "SELECT id, name, price FROM shop.items ORDER BY ALL"
    assert repr(lake.sql(found).fetchall()) == repr(plain.execute(found).fetchall())


@pytest.mark.parametrize(
    ("condition", "source", "otherwise", "read"),
    [
        ("t.id = n.id", "new", "", 1),
        ("n.ID = T.id AND n.price > 0", "new", "", 1),
        ("t.id = n.id", "(SELECT id::TINYINT AS id, price, name FROM new)", "", 1),
        ("t.id = n.id", "(SELECT * FROM new WHERE false)", "", 0),
        ("t.id = n.id", "(SELECT id::HUGEINT * 1000000000000000000 AS id, price, name FROM new)", "", 0),
        ("t.id = n.id", "(SELECT id::DOUBLE AS id, price, name FROM new)", "", 4),
        ("t.id = n.id + 0", "new", "", 4),
        ("t.id = n.id OR t.price = n.price", "new", "", 4),
        ("t.id IS NOT DISTINCT FROM n.id", "new", "", 4),
        ("t.id = n.id", "new", "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET name = 'left'", 4),
    ],
)
def test_a_merge_reads_the_files_that_may_hold_a_key(
    lake: tl.Lakehouse, monkeypatch: pytest.MonkeyPatch, condition: str, source: str, otherwise: str, read: int
) -> None:
    from trinitylake.tables.merging import row_changes

    lake.sql("CREATE SCHEMA shop")
    lake.sql("CREATE TABLE shop.items (id BIGINT, name VARCHAR, price DOUBLE)")
    beside = duckdb.connect()
    beside.execute("CREATE SCHEMA shop; CREATE TABLE shop.items (id BIGINT, name VARCHAR, price DOUBLE)")
    for start in range(0, 40, 10):
        values = ", ".join(f"({number}, 'n{number}', {number})" for number in range(start, start + 10))
        for one in (lake, beside):
            one.sql(f"INSERT INTO shop.items VALUES {values}")  # type: ignore[attr-defined]
    counts: list[int] = []
    real = row_changes.PlacedRows.__init__

    def counted(self: Any, metadata: Any, io: Any, tasks: Any) -> None:
        counts.append(len(tasks))
        real(self, metadata, io, tasks)

    monkeypatch.setattr(row_changes.PlacedRows, "__init__", counted)
    given = "WITH new AS (SELECT 13 AS id, 99.0::DOUBLE AS price, 'new' AS name) "
    merge = (
        f"MERGE INTO shop.items AS t USING {source} AS n ON {condition} WHEN MATCHED THEN UPDATE SET name = 'met' "
        f"WHEN NOT MATCHED THEN INSERT (id, name) VALUES (77, n.name) {otherwise}"
    )
    lake.sql(given + merge)
    assert counts == [read]
    beside.execute(given + merge)
    query = "SELECT id, name, price FROM shop.items ORDER BY ALL"
    assert lake.sql(query).fetchall() == beside.execute(query).fetchall()
