"""A SQL query can access only the lakehouse, unless it has `allow_external`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from trinitylake.tables.queries.prepared import PreparedQuery, QueryOptions


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    lake.create_namespace("shop")
    lake.create_table("shop.orders", {"id": "bigint", "item": "text"}).append(
        [{"id": number, "item": f"i{number}"} for number in range(4)]
    )
    return lake


def test_glob_characters_in_a_path_are_literal(tmp_path: Path) -> None:
    """`[ab]` in the path of a file is not a pattern. Otherwise DuckDB could find the file of another lakehouse."""
    lakes = []
    for name in ("[ab]", "a"):
        lake = tl.create(tmp_path / name, durability="none")
        lake.create_namespace("n")
        lake.create_table("n.t", {"x": "text"}).append({"x": [name]})
        lakes.append(lake)
    assert lakes[0].sql("SELECT x FROM n.t").fetchall() == [("[ab]",)]
    assert lakes[1].sql("SELECT x FROM n.t").fetchall() == [("a",)]


def test_a_link_that_leaves_the_lakehouse_is_not_followed(tmp_path: Path) -> None:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    lake.create_table("a.t", {"x": "bigint"}).append({"x": [1]})
    (file,) = (tmp_path / "lake").rglob("*.parquet")
    file.rename(tmp_path / "elsewhere.parquet")
    file.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(tl.InvalidLocation, match="is a symbolic link"):
        lake.sql("SELECT * FROM a.t").fetchall()


SECRET = "kept-outside"


HOSTILE = [
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_csv('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_parquet('{parquet}')",
    "SELECT * FROM parquet_metadata('{parquet}')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM '{parquet}'",
    'SELECT * FROM "{parquet}"',
    "SELECT * FROM 'https://example.invalid/x.parquet'",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT 1 WHERE EXISTS (FROM read_text('{secret}'))",
    "WITH x AS (SELECT * FROM read_text('{secret}')) SELECT * FROM x",
    "SELECT * FROM shop.orders, LATERAL (SELECT * FROM read_text('{secret}'))",
    "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "SELECT * FROM query_table('local_variable')",
    "SELECT * FROM local_variable",
    "SELECT json_serialize_plan('SELECT * FROM read_text(''{secret}'')')",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{secret}'')'))",
    "SELECT getenv('SECRET')",
    "SELECT current_setting('temp_directory')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_settings",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM information_schema.character_sets",
    "SELECT * FROM memory.information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM temp.main.trinitylake_0",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM arrow_scan_dumb(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM python_map_function(1)",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM duckdb_logs()",
    "SHOW DATABASES",
    "COPY (SELECT 1) TO '{folder}/written'",
    "COPY shop.orders TO '{folder}/written'",
    "EXPORT DATABASE '{folder}/written'",
    "ATTACH '{folder}/written.db'",
    "ATTACH '{folder}/written.db' AS shop",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE SECRET s (TYPE s3)",
    "CREATE MACRO m() AS TABLE FROM read_text('{secret}')",
    "CHECKPOINT",
    "VACUUM",
    "USE temp",
    "BEGIN; SELECT 1",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/written'",
    "SELECT 1; COPY (SELECT 1) TO '{folder}/written'",
    "DESCRIBE SELECT * FROM read_text('{secret}')",
    "SUMMARIZE '{parquet}'",
    "PIVOT '{parquet}' ON x",
    "FROM read_text('{secret}') SELECT content",
    "SELECT * FROM (VALUES (1)) AS t(x) WHERE x IN (SELECT 1 FROM read_text('{secret}'))",
    "SELECT list_transform([1], lambda x : (SELECT content FROM read_text('{secret}')))",
]


@pytest.mark.parametrize("way", ["query", "view", "in a transaction"])
def test_a_query_does_not_leave_the_lakehouse(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A query, or a view that it reads, may come from another user: it must reach only the lakehouse."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.csv").write_text(f"x\n{SECRET}\n")
    pq.write_table(pa.table({"x": [SECRET]}), folder / "secret.parquet")
    local_variable = pa.table({"x": [SECRET]})  # noqa: F841
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.chdir(folder)
    before = sorted(os.listdir(folder))
    reader: tl.Lakehouse | tl.Transaction = shop.begin() if way == "in a transaction" else shop
    for number, sql in enumerate(HOSTILE):
        text = sql.format(secret=folder / "secret.csv", parquet=folder / "secret.parquet", folder=folder)
        if way == "view":
            shop.create_view(f"shop.hostile{number}", text)
            text = f"SELECT * FROM shop.hostile{number}"
        with pytest.raises((tl.InvalidArgument, tl.ObjectNotFound)) as caught:
            reader.sql(text).fetchall()
        assert SECRET not in str(caught.value), sql
        assert sorted(os.listdir(folder)) == before, sql


def test_the_connection_itself_reaches_nothing_but_the_planned_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB's connection can access only the planned files, in case the check of the SQL has a gap."""
    from trinitylake.tables.queries import parsed_query

    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("a")
    for name in ("mine", "other"):
        lake.create_table(f"a.{name}", {"x": "text"}).append({"x": [name]})
    (other,) = [path for path in (tmp_path / "lake").rglob("*.parquet") if "other" in str(path)]
    (tmp_path / "secret.csv").write_text(SECRET)
    names = {"read_text", "read_parquet", "glob", "read_csv", "duckdb_settings", "read_blob"}
    monkeypatch.setattr(parsed_query, "TABLE_FUNCTIONS", parsed_query.TABLE_FUNCTIONS | names)
    for function in (f"read_parquet('{other}')", f"read_text('{tmp_path}/secret.csv')", f"glob('{tmp_path}/*')"):
        with pytest.raises(tl.InvalidArgument, match=r"disabled|Permission"):
            lake.sql(f"SELECT * FROM a.mine, {function}").fetchall()
    settings = dict(lake.sql("SELECT name, value FROM duckdb_settings(), a.mine").fetchall())
    assert settings["enable_external_access"] == "false"
    assert settings["lock_configuration"] == "true"
    assert settings["python_enable_replacements"] == "false"
    assert settings["autoload_known_extensions"] == "false"


def test_query_with_allow_external_reads_files(shop: tl.Lakehouse, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id,note\n1,hello\n")
    sql = f"SELECT note, item FROM '{tmp_path}/new.csv' JOIN shop.orders USING (id)"
    assert shop.sql(sql, allow_external=True).fetchall() == [("hello", "i1")]
    shop.create_view("shop.hostile", f"SELECT * FROM read_text('{tmp_path}/new.csv')")
    with pytest.raises(tl.InvalidArgument, match="read_text"):  # the view belongs to another user
        shop.sql("SELECT * FROM shop.hostile", allow_external=True)


def test_a_query_leaves_nothing_behind(shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    stream = shop.sql("SELECT * FROM shop.orders").to_arrow_batch_reader()
    stream.read_next_batch()
    del stream
    assert shop.sql("SELECT * FROM shop.orders").to_arrow().num_rows == 4
    with pytest.raises(tl.InvalidArgument):
        shop.sql("SELECT error(item) FROM shop.orders").to_arrow()
    assert os.listdir(folder) == []


def test_a_view_stays_inside_though_its_reader_may_leave(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `allow_external`, the SQL of a view still cannot read files: not through a name that only seems to be
    defined by `WITH`, in the first half of a recursive query, or by case rules that differ from DuckDB's."""
    path = tmp_path / "k.csv"
    path.write_text(f"x\n{SECRET}\n")
    kelvin = str(path).replace("k", "\u212a")
    for view in (
        f"WITH RECURSIVE \"{path}\" AS (FROM '{path}' UNION ALL SELECT 'x' FROM '{path}' WHERE false) FROM '{path}'",
        f"WITH \"{kelvin}\" AS (SELECT 1) FROM '{path}'",
    ):
        name = f"shop.v{len(shop.views('shop'))}"
        shop.create_view(name, view)
        for allow_external in (False, True):
            with pytest.raises(tl.ObjectNotFound, match="there is no table or view"):
                shop.sql(f"FROM {name}", allow_external=allow_external)
    # If the check of the text misses the file, DuckDB's permissions refuse the view.
    shop.create_view("shop.hidden", f"FROM '{path}'")
    monkeypatch.setattr("trinitylake.tables.queries.parsed_query.folded", lambda name: "")
    monkeypatch.setattr("trinitylake.tables.queries.parsed_query._nodes", _all_hidden)
    with pytest.raises(tl.InvalidArgument, match=r"Permission|Catalog"):
        shop.sql("FROM shop.hidden", allow_external=True).fetchall()


def test_variables_of_the_program_are_never_seen(shop: tl.Lakehouse) -> None:
    """`allow_external` does not let queries read local variables of this library or of the program."""
    for name in ("parameters", "connection"):
        with pytest.raises(tl.InvalidArgument, match="does not exist"):
            shop.sql(f"FROM {name}", [], allow_external=True)


def _all_hidden(tree: dict[str, Any], _: frozenset[str]) -> Any:
    (statement,) = tree["statements"]
    table = statement["node"]["from_table"]
    yield table, frozenset({""})


def test_only_callers_with_allow_external_see_it_in_errors(lake: tl.Lakehouse) -> None:
    """Errors recommend `allow_external=True` only where the caller can pass it: not on the page, and not for views."""
    inside = "is not allowed in queries, which are confined to the lakehouse"
    with pytest.raises(tl.InvalidArgument, match=inside) as caught:
        lake.sql("FROM read_text('/etc/hostname')")
    assert caught.value.message.endswith("allow_external allows it")
    with pytest.raises(tl.ObjectNotFound, match=r"there is no table or view new/orders\.csv") as absent:
        lake.sql("FROM 'new/orders.csv'")
    assert absent.value.message.endswith("; allow_external lets queries read files")
    with pytest.raises(tl.ObjectNotFound) as absent:
        lake.sql("FROM orders")
    assert "allow_external" not in absent.value.message
    lake.create_namespace("spies")
    lake.create_view("spies.spy", "FROM read_text('/etc/hostname')", dialect="duckdb")
    for allow_external in (False, True):
        with pytest.raises(tl.InvalidArgument, match=inside) as caught:
            lake.sql("FROM spies.spy", allow_external=allow_external)
        assert "allow_external" not in caught.value.message
    lake.create_view("spies.file", "FROM 'orders.csv'", dialect="duckdb")
    with pytest.raises(tl.ObjectNotFound) as absent:
        lake.sql("FROM spies.file")
    assert "allow_external" not in absent.value.message
    with pytest.raises(tl.InvalidArgument, match=inside) as caught:
        PreparedQuery("FROM read_text('/etc/hostname')", lake, QueryOptions())
    assert "allow_external" not in caught.value.message
