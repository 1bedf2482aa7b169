"""`trinitylake sql`: a single statement, several statements, and the shell."""

from __future__ import annotations

import csv
import getpass
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import trinitylake as tl
from trinitylake.cli import sql_shell
from trinitylake.cli.app import app
from trinitylake.cli.sql_results import ResultPrinter
from trinitylake.cli.sql_shell import SqlShell, split_statements
from trinitylake.tables.queries.query import Query
from waiting import PATIENCE_SECONDS


class Tuples(ResultPrinter):
    """Prints rows as Python tuples."""

    def show(self, query: Query) -> None:
        print(query.fetchall())


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = str(tmp_path / "lake")
    lake = tl.create(root, durability="none")
    lake.sql("CREATE SCHEMA shop")
    lake.sql("CREATE TABLE shop.items AS SELECT 1 AS id, 'a, \"b\"' AS name, 'nan'::DOUBLE AS price")
    lake.sql("INSERT INTO shop.items VALUES (2, NULL, 1.5)")
    return root


def run(*arguments: str, code: int = 0, input: str = "") -> Result:
    result = CliRunner().invoke(app, ["sql", *arguments], input=input)
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def test_rows_are_printed_for_people_and_programs(root: str) -> None:
    statement = "SELECT * FROM shop.items ORDER BY id"
    shown = run("--root", root, statement).stdout.splitlines()
    assert shown[0].split() == ["id", "name", "price"]
    assert shown[-1] == "(2 rows)"
    rows = list(csv.reader(io.StringIO(run("--root", root, "--format", "csv", statement).stdout)))
    assert rows == [["id", "name", "price"], ["1", 'a, "b"', "nan"], ["2", "", "1.5"]]
    document = [{"id": 1, "name": 'a, "b"', "price": "NaN"}, {"id": 2, "name": None, "price": 1.5}]
    assert json.loads(run("--root", root, "--json", statement).stdout) == document
    assert json.loads(run("--root", root, "--format", "json", f"SELECT * FROM ({statement}) LIMIT 0").stdout) == []


def test_values_of_types_that_only_duckdb_has_are_spelled_alike(root: str) -> None:
    """Values of types that only DuckDB has, such as intervals, infinite dates and TIMETZ, are spelled alike in tables,
    CSV and JSON."""
    read: dict[str, Callable[[str], str]] = {
        "table": lambda shown: shown.splitlines()[2],
        "csv": lambda shown: next(iter(csv.DictReader(io.StringIO(shown))))["v"],
        "json": lambda shown: json.loads(shown)[0]["v"],
    }
    for format in read:
        for value, text in [
            ("INTERVAL '-14 months 3 days 04:05:06.5'", "-1 year -2 months 3 days 04:05:06.5"),
            ("'10:00:01+02'::TIMETZ", "10:00:01+02"),
            ("'1011'::BIT", "1011"),
            ("'infinity'::DATE", "infinity"),
            ("'-infinity'::TIMESTAMPTZ", "-infinity"),
            ("TIMESTAMP '100000-01-01 10:00:00.5'", "100000-01-01 10:00:00.500000"),
            ("DATE '200000-01-01'", "200000-01-01"),
        ]:
            shown = run("--root", root, "--format", format, f"SELECT {value} AS v; -- the end").stdout
            assert read[format](shown) == text, value


def test_columns_of_the_same_name_are_distinct_in_json(root: str) -> None:
    shown = run("--root", root, "--json", "SELECT 1 AS id, 2 AS id, 3 AS id_1").stdout
    assert json.loads(shown) == [{"id": 1, "id_2": 2, "id_1": 3}]


def test_an_older_version_is_read(root: str) -> None:
    assert json.loads(run("--root", root, "--at", "2", "--json", "SELECT count(*) AS n FROM shop.items").stdout) == [
        {"n": 1}
    ]
    tl.open(root).tags.create("q3", version=2)
    assert "(1 row)" in run("--root", root, "--at", "tag:q3", "FROM shop.items").stdout
    run("--root", root, "--at", "2", "DELETE FROM shop.items", code=2)
    run("--root", root, "--at", "99", "FROM shop.items", code=4)


def test_errors_have_codes_and_words(root: str) -> None:
    assert "did you mean shop.items" in run("--root", root, "FROM shop.item", code=4).stderr
    error = json.loads(run("--root", root, "--json", "FROM read_text('/etc/hostname')", code=2).stderr)["error"]
    assert error["kind"] == "invalid_argument"
    run("--root", root, "--allow-external", "FROM read_text('/etc/hostname')")


def test_statements_come_from_standard_input(root: str) -> None:
    """Statements can come from standard input. Semicolons in strings, names and comments do not end a statement."""
    script = """
    .begin two rows; a message
    INSERT INTO shop.items VALUES (3, 'x;y', 0); -- a comment; with one
    INSERT INTO shop.items
      VALUES (4, $$;$$, 0);
    .commit
    SELECT count(*) AS n FROM shop.items
    """
    assert "version 4" in run("--root", root, input=script).stdout
    lake = tl.open(root)
    assert lake.log(1)[0].message == "two rows; a message"
    assert lake.sql("SELECT name FROM shop.items WHERE id > 2 ORDER BY id").fetchall() == [("x;y",), (";",)]
    run("--root", root, input=".begin\nDELETE FROM shop.items;\nFROM nothing.here;\n.commit\n", code=4)
    assert tl.open(root).version == 4


def test_sql_shell_prints_state_and_errors(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tl.open(root)
    shell = SqlShell(lake, Tuples())

    def says(text: str) -> str:
        shell.run_all([text])
        return capsys.readouterr().out

    assert says(".tables") == "shop.items\n"
    assert says(".tables shop") == "shop.items\n"
    assert says(".schema shop.items").split() == ["id", "INTEGER", "name", "VARCHAR", "price", "DOUBLE"]
    assert says(".version") == "3\n"
    assert says(".at 2\n.version\nSELECT count(*) FROM shop.items;\n.at\n.version") == "2\n[(1,)]\n3\n"
    assert ".begin" in says(".help")
    assert says("\\d") == says(".tables")
    assert says("-- only a comment\n;") == ""
    for wrong in (".nothing", ".schema", ".commit", ".rollback", ".begin\n.begin", ".at 2\n.begin", ".begin\n.at 2"):
        with pytest.raises(tl.InvalidArgument):
            shell.run_all([wrong])
        shell.run_all([".at"])
    says(".begin\nDELETE FROM shop.items;\n.rollback")
    assert lake.version == 3
    with pytest.raises(SystemExit):
        shell.run_all([".begin\nDELETE FROM shop.items;\n.quit"])
    assert "rolled back" in capsys.readouterr().err
    assert lake.version == 3


def test_a_script_that_ends_in_a_transaction_fails(root: str) -> None:
    """A script that ends in an open transaction exits with an error, because its rows are rolled back."""
    said = run("--root", root, input=".begin\nDELETE FROM shop.items;", code=2)
    assert "open transaction" in said.stderr
    assert tl.open(root).version == 3


def test_names_are_completed(root: str) -> None:
    shell = SqlShell(tl.open(root), ResultPrinter())
    assert shell.candidates("SELECT * FROM sho", "sho") == ["shop.items", "shop."]
    assert shell.candidates("SELECT pr", "pr") == []
    assert shell.candidates("SELECT * FROM shop.items WHERE pr", "pr") == ["price"]
    assert shell.candidates("SEL", "SEL") == ["SELECT"]
    assert shell.candidates("sel", "sel") == ["select"]
    assert shell.candidates(".co", ".co") == [".commit"]


def test_completed_names_are_names_and_nothing_else(root: str) -> None:
    """Completion quotes names, so that a table called `t; DROP SCHEMA raw; --` does not become a statement."""
    lake = tl.open(root)
    hostile = {
        "t; DROP SCHEMA raw; --": '"t; DROP SCHEMA raw; --"',
        'a"b': '"a""b"',
        "order": '"order"',
        "my table": '"my table"',
        "Ünïcode": '"Ünïcode"',
    }
    with lake.transaction() as txn:
        txn.create_namespace("raw")
        txn.create_namespace("shop.a.b")
        for name in [*hostile, "\u202eevil", "x\u200by"]:
            txn.create_table(("shop", name), {"id": "bigint", "group": "text", "a b": "text"})
        txn.create_table("shop.a.b.deep", {"id": "bigint"})
    shell = SqlShell(lake, ResultPrinter())
    offered = shell.candidates("SELECT * FROM ", "")
    assert sorted(offered) == sorted(
        ["shop.items", "shop.", "raw.", '"shop.a.b".deep', '"shop.a.b".', *(f"shop.{one}" for one in hostile.values())]
    )
    for name in offered:
        if not name.endswith("."):
            shell.run(f"SELECT count(*) FROM {name}")
    assert lake.exists("raw")
    assert shell.candidates('FROM shop."order" SELECT gr', "gr") == ['"group"', "group"]
    assert '"a b"' in shell.candidates('FROM shop."order" SELECT a', "a")
    assert shell.candidates('FROM shop."or', 'shop."or') == ['shop."order"']


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", " SELECT 2", ""]),
        ("SELECT 'é;", ["SELECT 'é;"]),
        ("SELECT 'é;'; x", ["SELECT 'é;'", " x"]),
        (";;", [""]),
        ("-- a; b", ["-- a; b"]),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1", ""]),
    ],
)
def test_statements_end_at_semicolons(text: str, parts: list[str]) -> None:
    assert split_statements(text) == parts


def test_the_shell_talks_on_a_terminal(root: str, tmp_path: Path) -> None:
    """The shell works on a terminal: history, a statement of two lines, an error that does not end the shell, and
    Ctrl-C."""
    main, side = pty.openpty()
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-m", "trinitylake", "sql", "--root", root],
        stdin=side, stdout=side, stderr=side, env=env, start_new_session=True,
    )  # fmt: skip
    os.close(side)
    heard = ""

    def hears(text: str, seconds: float) -> bool:
        nonlocal heard
        end = time.monotonic() + seconds
        while text not in heard:
            ready, _, _ = select.select([main], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return False
            heard += os.read(main, 4096).decode(errors="replace")
        heard = heard.split(text, 1)[1]
        return True

    def until(text: str) -> None:
        assert hears(text, PATIENCE_SECONDS), heard

    def say(text: str) -> None:
        os.write(main, text.encode())

    until("lake> ")
    say("SELECT id + 40\n")
    until("...> ")
    say("FROM shop.items WHERE id = 2;\n")
    until("42")
    until("lake> ")
    say("\x10\n")  # the previous statement as a whole
    until("42")
    until("lake> ")
    say("FROM nothing.here;\n")
    until("object_not_found")
    until("lake> ")
    say("\\x\n")
    until("mode line")
    until("lake> ")
    say("SELECT 1 AS one; \n")
    until("row 1")
    until("lake> ")
    say(".read /no/such/file\n")
    until("cannot read")
    until("lake> ")
    say(".begin\n")
    until("lake*> ")
    say("DELETE FROM shop.items;\n")
    until("lake*> ")
    # Ctrl-C ends a long query, and keeps the shell and its transaction. The shell had to be killed, and its transaction
    # was lost.
    say("SELECT count(*) FROM range(100000000000) a, range(100000) b WHERE a.range * b.range = 7;\n")
    until("= 7;")
    time.sleep(1)
    for _ in range(9):  # on a busy machine, the first Ctrl-C may come before the query has begun
        process.send_signal(signal.SIGINT)
        say("SELECT 'rows: ' || count(*) FROM shop.items;\n")
        if hears("rows: 0", PATIENCE_SECONDS / 10):
            break
    else:
        pytest.fail(heard)
    say("exit\n")
    until("rolled back")
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    os.close(main)
    history = tmp_path / "state" / "trinitylake" / "sql_history"
    assert "SELECT id + 40\x01FROM shop.items WHERE id = 2;\n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    assert tl.open(root).version == 3


def test_statement_records_message_and_author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root)
    lake.create_namespace("a")
    lake.create_table("a.t", {"id": "bigint"})
    run = CliRunner()

    def last(*arguments: str, input: str | None = None) -> tuple[str, str]:
        result = run.invoke(app, ["sql", "--root", root, *arguments], input=input)
        assert result.exit_code == 0, result.output
        entry = lake.log(1)[0]
        return entry.message, entry.author

    assert last("INSERT INTO a.t VALUES (1)", "-m", "first", "--author", "ann") == ("first", "ann")
    monkeypatch.setenv("TRINITYLAKE_AUTHOR", "cron")
    assert last("DELETE FROM a.t") == ("", "cron")
    assert last(input=".begin both\nINSERT INTO a.t VALUES (2);\n.commit\n") == ("both", "cron")
    monkeypatch.delenv("TRINITYLAKE_AUTHOR")
    assert last("DELETE FROM a.t WHERE id = 2") == ("", getpass.getuser())


def test_statements_of_arguments_and_files_may_be_one_transaction(root: str, tmp_path: Path) -> None:
    file = tmp_path / "more.sql"
    file.write_text(
        "-- a comment\nINSERT INTO shop.items VALUES (4, ';', 0);\nSELECT max(id) FROM shop.items -- the end\n"
    )
    command = "DELETE FROM shop.items WHERE id = 1; INSERT INTO shop.items VALUES (3, 'x', 0)"
    said = run("--root", root, "-c", command, "-c", "SELECT count(*) AS n FROM shop.items", "-f", str(file)).stdout
    assert "1 row deleted" in said
    assert said.rstrip().endswith("4\n(1 row)")
    lake = tl.open(root)
    assert lake.version == 6  # one version for each writing statement
    said = run("--root", root, "-1", "-m", "both", "--json", "-c", "DELETE FROM shop.items", "-f", str(file)).output
    assert "version 7" in said
    assert lake.version == 7
    assert lake.log(1)[0].message == "both"
    run("--root", root, "-1", "-c", "DELETE FROM shop.items; FROM nothing.here", code=4)
    run("--root", root, "-1", "BEGIN", code=2)
    run("--root", root, input="BEGIN TRANSACTION; DELETE FROM shop.items; ROLLBACK TO SAVEPOINT x;", code=2)
    assert "cannot read" in run("--root", root, "-f", str(tmp_path / "none.sql"), code=2).stderr
    assert lake.version == 7
    run("--root", root, input="BEGIN; DELETE FROM shop.items; ROLLBACK; BEGIN;\nDELETE FROM shop.items;COMMIT;")
    assert lake.version == 8


def test_a_second_ctrl_c_does_not_end_the_shell(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that repeats sent Ctrl-C again while the shell handled the first one. The shell ended, and its transaction
    was neither committed nor rolled back."""
    lines = iter([".begin", "^C", "SELECT 42 AS answer;"])
    interrupts = [KeyboardInterrupt()]

    def read(prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        if line == "^C":
            raise KeyboardInterrupt
        return line

    def interrupted_print(*values: object, **options: object) -> None:
        if not values and interrupts:
            raise interrupts.pop()
        print(*values, **options)

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(sql_shell, "print", interrupted_print, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", root)
    SqlShell(tl.open(root), ResultPrinter()).run_interactively()
    shown = capsys.readouterr()
    assert not interrupts
    assert "42" in shown.out
    assert "the open transaction was rolled back" in shown.err


def test_shell_survives_every_error_with_its_transaction(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    class Broken(ResultPrinter):
        def show(self, query: Query) -> None:
            if query.columns == ["broken"]:
                raise ZeroDivisionError("division by zero")
            super().show(query)

    lines = iter([".begin", "DELETE FROM shop.items;", "SELECT 1 AS broken;", "SELECT 2 AS fine;", ".commit", "quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    monkeypatch.setenv("XDG_STATE_HOME", root)
    SqlShell(tl.open(root), Broken()).run_interactively()
    said = capsys.readouterr()
    assert "unexpected: ZeroDivisionError: division by zero" in said.err
    assert "fine" in said.out
    assert tl.open(root).table("shop.items").count() == 0


def test_results_have_modes_and_may_go_to_a_file(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = SqlShell(tl.open(root), ResultPrinter())
    query, path = "SELECT true AS b, NULL AS n, {'x': 1} AS s;", tmp_path / "out"
    shell.run_all([f".output {path}\n.mode csv\n{query}\n.mode json\n{query}\n.mode line\n{query}\n.output\n{query}"])
    assert path.read_text() == (
        '"b","n","s"\ntrue,,"{""x"": 1}"\n[\n  {"b": true, "n": null, "s": {"x": 1}}\n]\n'
        '── row 1\nb  true\nn  NULL\ns  {"x": 1}\n(1 row)\n'
    )
    shell.run_all([".mode table\n.timing on", query])
    said = capsys.readouterr()
    assert said.out.endswith('b     n     s\n────  ────  ────────\ntrue  NULL  {"x": 1}\n(1 row)\n')
    assert said.err.startswith("Time: ")
    with pytest.raises(tl.InvalidArgument, match=r"\.mode takes table, line, csv, json"):
        shell.run_all([".mode nothing"])
    with pytest.raises(tl.InvalidArgument, match="cannot write"):
        shell.run_all([f".output {tmp_path}"])


def test_a_long_table_is_shown_in_a_pager(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("pydoc.pager", shown.append)
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shell = SqlShell(tl.open(root), ResultPrinter(has_pager=True))
    shell.run_all(["FROM range(5); FROM range(50)"])
    assert [text.splitlines()[-1] for text in shown] == ["(50 rows)"]
