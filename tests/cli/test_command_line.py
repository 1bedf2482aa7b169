"""Rules for every command: imports, errors, output, and width."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.cells import cell_len
from rich.console import Group
from rich.syntax import Syntax
from rich.text import Text
from rich.tree import Tree
from typer.main import get_command
from typer.testing import CliRunner, Result

import trinitylake as tl
from trinitylake.cli import output
from trinitylake.cli.app import COMMANDS, app, loaded
from trinitylake.cli.command import object_names
from trinitylake.printable import printable, printable_json

ROWS = pa.table({"id": [1, 2, 3], "city": ["Zürich", "New York", "東京"]})
#: Markup, a terminal escape of one byte, a mark of writing direction, and a character without width.
HOSTILE = "[red]b\u009b31m\u202egnp\u200b"
DANGEROUS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]")
MESSAGE = "\x1b[31mall is well\x1b[0m [bold]really[/bold] \u202eno\r\nversion 99"


def run(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, env=env or {})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = str(tmp_path / "lake")
    lake = tl.create(root, name="demo", durability="none")
    with lake.transaction(message="load", author="etl") as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.orders", ROWS).append(ROWS)
        txn.create_view("shop.v", "SELECT 1")
    return root


# What is loaded


def modules_after(*arguments: str) -> set[str]:
    """The modules that a new process has imported after a command."""
    script = (
        "import sys\nfrom trinitylake.cli import main\nsys.argv = ['trinitylake', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


HEAVY = {
    "numpy",
    "pandas",
    "pyarrow",
    "pyiceberg",
    "duckdb",
    "google.protobuf",
    "asyncio",
    "pygments",
    "trinitylake.rest",
}


def test_help_imports_neither_commands_nor_libraries() -> None:
    modules = modules_after("--help")
    assert not modules & (HEAVY | {"rich", "trinitylake._core", "pydantic"})
    ours = {name for name in modules if name.startswith("trinitylake")}
    assert ours == {
        "trinitylake",
        "trinitylake.base",
        "trinitylake.base.import_hook",
        "trinitylake.cli",
        "trinitylake.cli.app",
        "trinitylake.cli.plain_values",
        "trinitylake.errors",
        "trinitylake.printable",
    }
    assert len(modules) < 220


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "-r"], ["log"], ["log", "--json"]], ids=lambda one: "-".join(one))
def test_listing_and_log_do_not_import_arrow(root: str, arguments: list[str]) -> None:
    """`ls` and `log` import neither Arrow nor pydantic: the core returns names and log entries, and options are
    converted without pydantic."""
    modules = modules_after(*arguments, "--root", root)
    assert not modules & (HEAVY | {"pydantic"})
    assert len(modules) < 330


@pytest.mark.parametrize("arguments", [["count", "shop.orders"], ["head", "shop.orders", "--where", "id > 0"]])
def test_reading_rows_does_not_import_pandas_or_parsers(root: str, arguments: list[str]) -> None:
    """Reading rows does not import pandas, which Arrow would import to convert a list, nor parsers of PyIceberg."""
    modules = modules_after(*arguments, "--root", root)
    assert not modules & {"pandas", "pyiceberg.io.pyarrow", "rich", "strictyaml.parser"}


def test_reading_rows_of_an_evolved_table_does_not_import_the_converter_of_schemas(root: str) -> None:
    table = tl.open(root).table("shop.orders")
    with table.update_schema() as update:
        update.add_column("note", "varchar")
    table.append([{"id": 7, "note": "new"}])
    modules = modules_after("head", "shop.orders", "--root", root)
    assert not modules & {"pandas", "pyiceberg.io.pyarrow"}


def test_counting_rows_does_not_execute_modules_that_it_imports() -> None:
    """`count` does not execute modules that it only imports, such as `pyarrow.compute`. A second import does not
    execute a delayed module either, and two threads that use it at once see the whole module."""
    script = (
        "import sys, threading\nfrom trinitylake.base.import_hook import ImportHook\n"
        "sys.meta_path.insert(0, ImportHook())\n"
        "import pyarrow.compute as pc\nfrom pyarrow import compute\nimport pyarrow.compute\n"
        "assert 'pyarrow._compute' not in sys.modules\n"
        "barrier, found = threading.Barrier(8), []\n"
        "def use():\n    barrier.wait()\n    found.append(pc.sum([1, 2]).as_py())\n"
        "threads = [threading.Thread(target=use) for _ in range(8)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
        "try:\n    pc.nothing\nexcept AttributeError as error:\n    print(found, pc is compute, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    expected = "[3, 3, 3, 3, 3, 3, 3, 3] True module 'pyarrow.compute' has no attribute 'nothing'\n"
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


@pytest.mark.parametrize("module", ["trinitylake.cli.app", "trinitylake.cli.rows", "pyiceberg.table"])
def test_an_interrupt_during_imports_ends_a_command_without_a_traceback(root: str, module: str) -> None:
    """Ctrl-C during imports ends a command without a traceback, and with the exit code 130."""
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"sys.argv[1:] = ['head', 'shop.orders', '--root', {root!r}]\n"
        "from trinitylake.cli import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (130, False), done.stderr


def test_first_rows_of_a_table_need_no_garbage_collection(root: str) -> None:
    """`head` runs no garbage collection among the 100,000 objects of imported libraries, and does not search for
    plugins of pydantic."""
    script = (
        "import gc, os, sys\nfrom trinitylake.cli import main\nsys.argv = ['trinitylake', *sys.argv[1:]]\n"
        "def n_collections(): return sum(one['collections'] for one in gc.get_stats())\n"
        "before, end = n_collections(), os._exit\n"
        "os._exit = lambda code: (print(n_collections() - before, os.environ['PYDANTIC_DISABLE_PLUGINS'], flush=True), "
        "end(code))\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "count", "shop.orders", "--root", root], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr, done.returncode) == ("3\n0 1\n", "", 0)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_runs_without_standard_output(root: str, closed: str) -> None:
    name = f"n{len(closed)}"
    statement = f"{sys.executable} -m trinitylake sql --root {root} 'CREATE SCHEMA {name}' {closed}"
    done = subprocess.run(["sh", "-c", statement], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert name in tl.open(root).namespaces()


def test_a_command_ends_while_a_thread_needs_the_interpreter(root: str) -> None:
    """A command ends normally while a thread of Arrow releases a Python file, which would abort the finalization of the
    interpreter. The exit code, exit handlers and printed output are kept."""
    script = (
        "import atexit, sys, threading, time\nimport trinitylake.cli.app\nfrom trinitylake.cli import main\n"
        "class Slow:\n    def __del__(self):\n        time.sleep(3600)\n"
        "sys.slow = Slow()\n"
        "def load(**_):\n    atexit.register(print, 'handler')\n    print('printed')\n    sys.exit(4)\n"
        "trinitylake.cli.app.app = load\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("printed\nhandler\n", "", 4)


def test_first_rows_of_a_damaged_file_are_an_error(root: str) -> None:
    files = [path for path, *_ in tl.open(root)._storage.list("") if path.endswith(".parquet")]
    (file,) = (Path(root) / path for path in files)
    file.write_bytes(file.read_bytes()[:-8])
    result = run("head", "shop.orders", "--root", root, code=5)
    assert "is damaged, or is no Parquet file" in result.output


def test_query_without_tables_does_not_import_pyiceberg(root: str) -> None:
    """`sql "select 1"` imports neither PyIceberg nor pydantic."""
    assert not modules_after("sql", "select 1", "--root", root) & {"pyiceberg", "pydantic", "pyarrow.dataset"}


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("log > /dev/full", 1, "file_error: No space left on device"),
        ("cat shop.orders > /dev/full", 1, "file_error: No space left on device"),
        ("cat shop.orders -o /none/x.csv", 1, "file_error: No such file or directory: /none/x.csv"),
        ("diff -2 -1", 2, "write -- before a negative version, as in 'trinitylake diff -- -1'"),
        ("diff -- -1 | grep 'table shop.orders'", 0, ""),
        ("sql 'delete from shop.orders where idd = 1'", 2, 'Candidate bindings: "id"'),
        ("sql 'update shop.orders set id = idd'", 2, 'Candidate bindings: "id"'),
        ("sql -f /none/x.sql", 2, "cannot read /none/x.sql: No such file or directory"),
        ("count shop.order", 4, "did you mean shop.orders?"),
        ("--root x ls", 2, "write options after it"),
        ("log --author nobody", 0, ""),
    ],
)
def test_mistakes_of_users_are_one_line_without_a_traceback(root: str, command: str, code: int, words: str) -> None:
    """Mistakes of users, such as a misspelled table, and a full disk are errors of one line without a traceback."""
    environment = {**os.environ, "TRINITYLAKE_ROOT": root}
    text = f"{sys.executable} -m trinitylake {command}"
    done = subprocess.run(text, shell=True, env=environment, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert words in done.stderr


def test_commands_that_take_an_author_take_a_message() -> None:
    takes = {name: {option for one in loaded(name).params for option in one.opts} for name in COMMANDS}
    lacking = [name for name, options in takes.items() if "--author" in options and "--message" not in options]
    assert lacking == ["log", "erase"], "the author of `log` is a filter, and --reason of `erase` is the message"


def test_plain_values_are_converted_as_by_typer(root: str) -> None:
    """Simple option values are converted as by typer, without pydantic; all other values are passed to typer, for its
    error messages."""
    for arguments, words in [
        (["log", "-n", "0"], ""),
        (["log", "-n", "-1"], "'--limit' / '-n'"),
        (["log", "-n", "two"], "a whole number"),
        (["log", "-n", "1.5"], "a whole number"),
        (["log", "-n", "99999999999999999999"], "at most"),
        (["ls", "shop", "--option", "a=1", "--option", "b=2"], "`a` is not a known storage option"),
        (["tag", "ls", "--no-such"], "no-such"),
    ]:
        done = CliRunner().invoke(app, [*arguments, "--root", root])
        assert done.exit_code == (2 if words else 0), done.output
        assert words in done.output


def test_importing_the_package_loads_the_errors_alone() -> None:
    script = "import sys, trinitylake\nprint(*(name for name in sys.modules if name.startswith('trinitylake')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == ["trinitylake", "trinitylake.errors", "trinitylake.printable"]


@pytest.mark.parametrize("group", [[], ["txn"], ["tag"]])
def test_summary_of_each_command_fits_into_its_line_of_the_help(group: list[str]) -> None:
    """The summary of each command fits into its line of the help. Of twelve commands only the beginning was shown."""
    shown = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "80"}).stdout
    assert [line for line in shown.splitlines() if line.endswith("...") and not line.startswith("Usage")] == []


def test_list_of_commands_has_the_summary_of_each_command() -> None:
    for name in COMMANDS:
        said = " ".join(loaded(name).help.split())
        assert said.startswith(COMMANDS[name].help.rstrip(".")[:20]), name


# How it fails


def test_every_error_has_an_exit_code_and_one_shape_under_json(root: str) -> None:
    for arguments, code, kind in [
        (["log", "--limit", "many"], 2, "usage"),
        (["lgo"], 2, "usage"),
        (["ls", "--no-such-option"], 2, "usage"),
        (["head"], 2, "usage"),
        (["head", "shop.none"], 4, "object_not_found"),
        (["load", "none.csv", "shop.orders"], 2, "invalid_argument"),
        (["ls", "--at", "99"], 4, "version_not_found"),
        (["ls", "missing"], 4, "object_not_found"),
        (["show", "shop.none"], 4, "object_not_found"),
        (["show", "with space "], 2, "invalid_name"),
        (["create"], 1, "object_already_exists"),
    ]:
        result = run(*arguments, "--json", code=code, env={"TRINITYLAKE_ROOT": root})
        assert result.stdout == ""
        error = json.loads(result.stderr)["error"]
        assert (error["kind"], bool(error["message"])) == (kind, True)
        plain = run(*arguments, code=code, env={"TRINITYLAKE_ROOT": root})
        assert plain.stderr.startswith(f"{kind}: ")


def test_unexpected_exception_is_printed_as_an_error(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"broken {HOSTILE}")

    monkeypatch.setattr(tl.Lakehouse, "log", fail)
    error = json.loads(run("log", "--root", root, "--json", code=1).stderr)["error"]
    assert (error["kind"], error["message"]) == ("unexpected", f"RuntimeError: broken {HOSTILE}")
    people = run("log", "--root", root, code=1).stderr
    assert "Traceback" in people
    assert not DANGEROUS.search(people)


# Names and messages of other users


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A lakehouse whose names, messages and values contain hostile characters."""
    root = str(tmp_path / "hostile")
    lake = tl.create(root, name=MESSAGE.replace("\r\n", " "), durability="none", properties={HOSTILE: MESSAGE})
    rows = pa.table({HOSTILE: [MESSAGE, HOSTILE], "n": [1, 2]})
    with lake.transaction(message=MESSAGE, author=HOSTILE) as txn:
        txn.create_namespace(HOSTILE, {HOSTILE: MESSAGE})
        txn.create_table((HOSTILE, HOSTILE), rows, properties={HOSTILE: MESSAGE}).append(rows)
        txn.create_view((HOSTILE, "v"), f"SELECT '{MESSAGE}'")
    lake.tags.create("q3", message=MESSAGE)
    waiting = lake.begin(id="waiting", message=MESSAGE, author=HOSTILE)
    waiting.create_namespace("waiting")
    waiting.save()
    lake.drop_view((HOSTILE, "v"), message=MESSAGE)
    lake.rollback(1, message=MESSAGE)
    return root


def commands(name: str, folder: Path) -> list[list[str]]:
    """The arguments of every command that ends by itself, on objects with this name."""
    table = f"{name}.{name}"
    (folder / "rows.csv").write_text("id\n1\n")
    return [
        [],
        ["show"],
        ["show", table],
        ["show", name],
        ["show", f"{name}.v"],
        ["show", f"{name}.none"],
        ["ls"],
        ["ls", name],
        ["ls", "-r"],
        ["head", table],
        ["count", table],
        ["cat", table, "--format", "json"],
        ["load", str(folder / "rows.csv"), table, "--dry-run"],
        ["load", str(folder / "rows.csv"), table],
        ["log"],
        ["diff", "0"],
        ["diff", "1", "3"],
        ["diff", "1", "--rows", table],
        ["changes", "0"],
        ["changes", "0", "--rows"],
        ["log", "--table", table],
        ["ls", "--at", "1"],
        ["show", table, "--at", "1"],
        ["ls", "--at", name],
        ["tag", "ls"],
        ["tag", "create", name],
        ["txn", "ls"],
        ["txn", "show", "waiting"],
        ["txn", "show", name],
        ["stats"],
        ["tree"],
        ["fsck"],
        ["fsck", "--files"],
        ["expire", "--dry-run"],
        ["vacuum", "--dry-run"],
        ["maintain", "--dry-run"],
        ["compact", "--dry-run"],
        ["compact", table, "--dry-run"],
        ["undrop", f"{name}.v", "--at", "1", "--to", f"{name}.w", "-m", MESSAGE],
        ["rollback", "1", "-m", MESSAGE],
        ["export", str(folder / "copy")],
        [name],
        ["log", f"--{name}"],
    ]


@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
def test_names_and_messages_are_escaped_for_the_terminal(hostile: str, tmp_path: Path, as_json: bool) -> None:
    """Names and messages are escaped for the terminal: escape sequences, brackets and marks of writing direction have
    no effect."""
    seen = ""
    for arguments in commands(HOSTILE, tmp_path):
        given = [*arguments, "--json"] if as_json and arguments else arguments
        result = CliRunner().invoke(app, given, env={"TRINITYLAKE_ROOT": hostile, "COLUMNS": "80"})
        assert result.exit_code in (0, 2, 4, 5, 1), (given, result.output)
        assert not isinstance(result.exception, UnicodeError), given
        for text in (result.stdout, result.stderr):
            assert not DANGEROUS.search(text), (given, text)
            seen += text
    assert "[red]b" in seen, "text in brackets is shown"
    assert ("\\u009b" if as_json else "\\u{9b}") in seen


@pytest.mark.parametrize("name", ["shop", "x" * 90, HOSTILE], ids=["short", "long", "hostile"])
def test_no_line_is_longer_than_a_terminal_of_80_columns(tmp_path: Path, name: str) -> None:
    root = str(tmp_path / "lake")
    lake = tl.create(root, name=name, durability="none")
    with lake.transaction(message="a message " * 20, author="somebody@example.com") as txn:
        txn.create_namespace(name)
        txn.create_table((name, name), pa.table({f"column_{i}": [1, 2] for i in range(12)}))
        txn.create_view((name, "v"), "SELECT 1")
    for number in range(3):
        lake.create_namespace(f"n{number}", message="another")
    lake.rollback(2)
    for arguments in commands(name, tmp_path):
        result = CliRunner().invoke(app, arguments, env={"TRINITYLAKE_ROOT": root, "COLUMNS": "80"})
        if arguments[:1] in (["cat"], []) or result.exit_code:
            continue  # output for programs, and errors, which have one line
        too_long = [line for line in result.stdout.splitlines() if cell_len(line) > 80]
        assert not too_long, (arguments, too_long)


def test_console_escapes_every_kind_of_output(capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(f"a {HOSTILE}")
    tree.add(Text(HOSTILE, "red"))
    table = output.grid("x", HOSTILE)
    table.add_row(HOSTILE, Text.assemble((HOSTILE, "bold"), " and ", (MESSAGE, "red")))
    output.emit(None, Group(tree, table, output.pairs({HOSTILE: MESSAGE}), Syntax(MESSAGE, "sql"), HOSTILE), False)
    output.emit_warning(HOSTILE)
    output.emit({HOSTILE: [MESSAGE]}, Text(), True)
    shown = capsys.readouterr()
    assert not DANGEROUS.search(shown.out + shown.err)
    assert shown.out.count("[red]") == 8
    [document] = [line for line in shown.out.splitlines() if "all is well" in line and line.startswith('    "')]
    assert json.loads(document) == MESSAGE


def test_columns_are_as_wide_as_what_is_printed_in_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "evil\x1b\u202e\x1b\u202e"
    grid = output.grid("name")
    grid.add_row(Text(name))
    for picture in (grid, output.pairs({"name": name})):
        output.emit(None, picture, as_json=False)
        assert r"evil\u{1b}\u{202e}\u{1b}\u{202e}" in capsys.readouterr().out


def test_only_what_cannot_be_seen_is_written_as_a_code() -> None:
    assert printable("größe 東京 😀 a\u00a0b\u3000c") == "größe 東京 😀 a\u00a0b\u3000c"
    assert printable("a\x1b\n\u202e\ud800") == "a\\u{1b}\\u{a}\\u{202e}\\u{d800}"
    assert printable("a\nb", keep="\n") == "a\nb"
    assert json.loads(printable_json(json.dumps("\u009b\U000e0001x", ensure_ascii=False))) == "\u009b\U000e0001x"
    assert printable_json('"\U000e0001"').isascii()


# Rows


def test_the_first_rows_and_their_number(root: str) -> None:
    env = {"TRINITYLAKE_ROOT": root}
    assert json.loads(run("head", "shop.orders", "-n", "2", "--json", env=env).stdout) == ROWS.slice(0, 2).to_pylist()
    assert "Zürich" in run("head", "shop.orders", "-c", "city", env=env).stdout
    assert run("count", "shop.orders", env=env).stdout == "3\n"
    assert json.loads(run("count", "shop.orders", "--where", "id > 1", "--json", env=env).stdout)["rows"] == 2
    run("head", "shop.orders", "--at", "0", env=env, code=4)
    run("head", "shop.orders", "--where", "nothing = = 1", env=env, code=2)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_rows_that_are_written_can_be_loaded_again(root: str, tmp_path: Path, format: str) -> None:
    file = tmp_path / f"rows.{format}"
    run("cat", "shop.orders", "--root", root, "-f", format, "-o", str(file))
    run("load", str(file), str(file), "shop.twice", "--root", root, "--create", "-m", "again", "--author", "ann")
    lake = tl.open(root)
    assert lake.table("shop.twice").scan().count() == 6
    cities = lake.table("shop.twice").scan().to_arrow()["city"].to_pylist()
    assert sorted(cities) == sorted(ROWS["city"].to_pylist() * 2)
    entry = lake.log(1)[0]
    assert (entry.message, entry.author, entry.summary) == ("again", "ann", "create table shop.twice +6 rows")


def test_loading_appends_overwrites_or_updates_in_one_version(root: str, tmp_path: Path) -> None:
    """`load` appends, overwrites or upserts in one version. The error for a missing table names the option that creates
    it."""
    file = tmp_path / "more.jsonl"
    file.write_text('{"id": 3, "city": "Kyoto"}\n{"id": 4, "city": "Nairobi"}\n')
    refused = run("load", str(file), "shop.other", "--root", root, code=4)
    assert "table shop.other does not exist: use --create to create it" in refused.stderr
    lake = tl.open(root)
    before = lake.version
    shown = json.loads(run("load", str(file), "shop.orders", "--root", root, "--dry-run", "--json").stdout)
    assert [(one["name"], one["type"]) for one in shown["columns"]] == [("id", "BIGINT"), ("city", "VARCHAR")]
    assert lake.version == before
    run("load", str(file), "shop.orders", "--root", root, "--mode", "upsert", "--on", "id")
    assert (lake.version, lake.table("shop.orders").scan().count()) == (before + 1, 4)
    run("load", str(file), "shop.orders", "--root", root)
    assert (lake.version, lake.table("shop.orders").scan().count()) == (before + 2, 6)
    run("load", str(file), "shop.orders", "--root", root, "--mode", "overwrite")
    assert (lake.version, lake.table("shop.orders").scan().count()) == (before + 3, 2)
    run("load", str(file), "shop.none", "--root", root, code=4)
    run("load", str(file), str(tmp_path / "b.csv"), "shop.orders", "--root", root, code=2)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"not parquet")
    run("load", str(broken), "shop.orders", "--root", root, code=2)
    assert lake.version == before + 3


def test_a_large_file_is_loaded_without_holding_it(root: str, tmp_path: Path) -> None:
    file = tmp_path / "large.parquet"
    parquet.write_table(pa.table({"id": pa.array(range(300_000)), "city": ["x" * 20] * 300_000}), file)
    run("load", str(file), "shop.large", "--root", root, "--create")
    assert json.loads(run("count", "shop.large", "--root", root, "--json").stdout)["rows"] == 300_000


#: Rows with values that JSON and CSV lack, and the expected JSON.
EXACT = {
    "f": pa.array([math.nan, math.inf]),
    "ts": pa.array([1_577_836_800_123_456, 316_516_204_800_000_000], pa.timestamp("us")),
    "tz": pa.array([1_577_836_800_123_456, -100_000_000_000_000_000], pa.timestamp("us", "UTC")),
    "b": pa.array([b"\xff\0", b""]),
    "d": pa.array([Decimal("1.10"), None]),
    "n": pa.array([[{"x": math.nan, "y": b"\1"}], None]),
}
EXACT_JSON = [
    {
        "f": "NaN",
        "ts": "2020-01-01 00:00:00.123456",
        "tz": "2020-01-01 00:00:00.123456+00:00",
        "b": "ff00",
        "d": "1.10",
        "n": [{"x": "NaN", "y": "01"}],
    },
    {"f": "Infinity", "ts": "12000-01-01 00:00:00", "tz": "-1199-02-15 14:13:20+00:00", "b": "", "d": None, "n": None},
]


def test_output_is_exact_and_alike_in_all_commands(root: str) -> None:
    """Output is exact and equal in all commands. `head` truncated timestamps, `cat` printed bytes as Python does, and
    both printed NaN, which is not JSON."""
    lake = tl.open(root)
    properties = {"write.metadata.metrics.default": "none"}
    lake.create_table("shop.exact", pa.table(EXACT), properties=properties).append(pa.table(EXACT))

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    def read(text: str) -> Any:
        return json.loads(text, parse_constant=no_constant)

    assert read(run("head", "shop.exact", "--json", "--root", root).stdout) == EXACT_JSON
    assert [*map(read, run("cat", "shop.exact", "-f", "json", "--root", root).stdout.splitlines())] == EXACT_JSON
    assert read(run("sql", "FROM shop.exact", "--json", "--root", root).stdout) == EXACT_JSON
    written = run("cat", "shop.exact", "--root", root).stdout
    assert run("sql", "FROM shop.exact", "--format", "csv", "--root", root).stdout == written
    for text in (written, run("head", "shop.exact", "--root", root, env={"COLUMNS": "200"}).stdout):
        for time in (EXACT_JSON[0]["ts"], EXACT_JSON[0]["tz"], EXACT_JSON[1]["ts"], EXACT_JSON[1]["tz"]):
            assert time in text
    rows = list(csv.DictReader(io.StringIO(written)))
    assert [row["b"] for row in rows] == ["ff00", ""]
    assert [row["n"] for row in rows] == ['[{"x": "NaN", "y": "01"}]', ""]
    assert "12000-01-01" in run("head", "shop.exact", "--root", root).stdout
    assert "12000-01-01" in run("sql", "FROM shop.exact", "--root", root).stdout


def test_null_differs_from_texts_and_booleans_are_those_of_sql(root: str) -> None:
    """NULL is printed alike in all commands, and differently from the string 'NULL' and the empty string; booleans are
    printed as in SQL."""
    texts, flags = ["pen", None, "NULL", "", "'x'"], [True, None, False, None, True]
    rows = pa.table({"item": texts, "ok": flags})
    tl.open(root).create_table("shop.texts", rows).append(rows)
    shown = [["pen", "true"], ["NULL", "NULL"], ["'NULL'", "false"], ["''", "NULL"], ["''x''", "true"]]
    for command in (["head", "shop.texts"], ["sql", "FROM shop.texts"]):
        lines = run(*command, "--root", root).stdout.splitlines()
        assert [line.split() for line in lines[2:-1]] == shown
    for command in (["cat", "shop.texts"], ["sql", "FROM shop.texts", "--format", "csv"]):
        lines = run(*command, "--root", root).stdout.splitlines()
        assert lines[1:] == ['"pen",true', ",", '"NULL",false', '"",', "\"'x'\",true"]


def test_rows_fit_the_width_of_the_terminal(root: str) -> None:
    wide = pa.table({f"column_{at}": ["x" * 30, "\u6f22" * 30] for at in range(4)})
    tl.open(root).create_table("shop.wide", wide).append(wide)
    for width in (200, 100, 60, 20):
        for command in (["head", "shop.wide"], ["sql", "FROM shop.wide"]):
            out = run(*command, "--root", root, env={"COLUMNS": str(width)}).stdout
            is_grid = width >= 60  # four columns of ten characters, with gaps
            assert out.startswith("column_0" if is_grid else "── row 1")
            assert not is_grid or max(map(cell_len, out.splitlines())) <= width


# Completion


class Context:
    """The part of the command line that a completion can see."""

    def __init__(self, **params: Any) -> None:
        self.params = params


def test_names_are_completed_and_errors_are_silent(root: str, capfd: pytest.CaptureFixture[str]) -> None:
    lake = tl.open(root)
    lake.create_namespace("shop.inner")
    for name in ("$(rm -rf)", "two words", "a;b", "`x`"):
        lake.create_table(("shop", name), ROWS.schema)
    complete = object_names("table", "view", "namespace")
    there: Any = Context(root=root)
    assert complete(there, "sh") == ["shop", "shop.inner"]
    assert complete(there, "shop.") == ["shop.inner", "shop.orders", "shop.v"]
    assert object_names("table")(there, "shop.o") == ["shop.orders"]
    nowhere: Any = Context(root="/no/such/place")
    assert complete(nowhere, "") == complete(Context(), "") == []  # type: ignore[arg-type]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_names_of_objects(root: str, shell: str) -> None:
    environment = {
        **os.environ,
        "_TRINITYLAKE_COMPLETE": f"complete_{shell}",
        "TRINITYLAKE_ROOT": root,
        "COMP_WORDS": "trinitylake show shop.o",
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "trinitylake show shop.o",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command = [sys.executable, "-m", "trinitylake"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "shop.orders" in done.stdout, done
    assert done.stderr == ""


def test_the_application_is_what_typer_runs() -> None:
    assert list(get_command(app).list_commands(None)) == list(COMMANDS)  # type: ignore[attr-defined, arg-type]
