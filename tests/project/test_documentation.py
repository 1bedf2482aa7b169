"""The documentation is correct: its examples run, and its links, commands and rule numbers exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import trinitylake as tl
from documentation import blocks, run_examples
from trinitylake import _core
from trinitylake.cli.app import app

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "compatibility"))

from run_integrations import ENVIRONMENTS  # noqa: E402

README = ROOT / "README.md"
FORMAT = ROOT / "docs" / "format.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
COMMAND_LINE = ROOT / "docs" / "reference" / "command-line.md"
#: Pages whose Python blocks need other data or programs. They run here, in tests/lakehouse/test_tracing.py or in
#: tests/spark.
PREPARED = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "guide/migration",
        "guide/pyiceberg",
        "guide/rest",
        "integrations/opentelemetry",
        "operate/bulk-on-spark",
        "spark",
    )
]
#: Pages about tools with many dependencies: `make integrations` runs them in separate environments.
ELSEWHERE = [ROOT / "docs" / "integrations" / f"{name}.md" for names in ENVIRONMENTS.values() for name in names]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benches").rglob("*.md")])
#: All other pages: their Python blocks run from top to bottom with only the package.
RUNNABLE = [page for page in PAGES if blocks(page, "python") and page not in PREPARED + ELSEWHERE]
RECORD_PARTS = ["Status", "Context", "Decision", "Alternatives", "Consequences"]
ROWS = pa.table({"id": [1, 2, 3]})
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_blocks(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, by the rules of GitHub and MkDocs."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(group: Any, name: str = "") -> Iterator[str]:
    """The commands and groups of commands below a group, such as "log" and "txn ls"."""
    if not hasattr(group, "list_commands"):
        return
    for command_name in group.list_commands(None):
        full_name = f"{name} {command_name}".strip()
        yield full_name
        yield from commands(group.get_command(None, command_name), full_name)


COMMANDS = set(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(page)


@pytest.fixture
def shop(tmp_path: Path) -> tl.Lakehouse:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("mill")
    lake.create_table("mill.items", ROWS)
    return lake


def test_the_examples_for_pyiceberg_run(shop: tl.Lakehouse) -> None:
    names = {"lake": shop, "schema": ROWS.schema, "rows": ROWS, "orders": ROWS, "items": ROWS}
    run_examples(ROOT / "docs" / "guide" / "pyiceberg.md", names, {"s3://bucket/lake": shop.uri})
    assert shop.table("shop.orders").scan().to_arrow().num_rows == 2 * ROWS.num_rows


def test_the_examples_for_the_server_run(shop: tl.Lakehouse) -> None:
    with tl.rest.serve(shop) as url:
        places = {"s3://bucket/lake": shop.uri, "http://127.0.0.1:8181": url}
        after = run_examples(ROOT / "docs" / "guide" / "rest.md", {}, places)
        assert after["catalog"].list_tables("mill") == [("mill", "items")]


def test_the_examples_of_a_migration_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test ran the examples of the migration from Delta and DuckLake."""
    from deltalake import write_deltalake

    monkeypatch.chdir(tmp_path)
    rows = pa.table({"id": [1, 2], "item": ["pen", None], "price": [Decimal("1.50"), Decimal("2.25")]})
    write_deltalake("delta/orders", rows)
    extension = importlib.util.find_spec("duckdb_extension_ducklake")
    assert extension is not None
    assert extension.origin is not None
    load = f"LOAD '{next(Path(extension.origin).parent.rglob('ducklake.duckdb_extension'))}'"
    with duckdb.connect() as connection:
        connection.execute(load)
        connection.execute("ATTACH 'ducklake:metadata.ducklake' AS old; CREATE SCHEMA old.shop")
        connection.execute("CREATE TABLE old.shop.orders AS FROM rows")
    run_examples(ROOT / "docs" / "guide" / "migration.md", places={"INSTALL ducklake; LOAD ducklake": load})
    lake = tl.open("moved")
    for table in ("shop.delta_orders", "shop.ducklake_orders"):
        assert lake.table(table).to_arrow().sort_by("id").to_pylist() == rows.to_pylist()


def test_listed_commands_run_on_the_readme_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(README)
    monkeypatch.setenv("TRINITYLAKE_ROOT", "lake")
    _, listed = blocks(COMMAND_LINE, "console")[0]
    lines = listed.splitlines()
    run = [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("$ trinitylake ")]
    run.remove(["serve"])  # runs until it is interrupted, and is tested in tests/rest
    assert len(run) > 10
    for arguments in run:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"trinitylake {' '.join(arguments)}: {result.output}"
    rolled_back = tl.open("lake").log(1)[0]
    assert (rolled_back.message, rolled_back.rollback_from) == ("bad load", rolled_back.version - 1)


def test_commands_for_messy_files_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command after `!` must fail. `$[0]` of a command became `0` in bash, so its query found nothing."""

    def bash(text: str) -> str:
        return subprocess.run(["bash", "-ec", text], check=True, capture_output=True, text=True).stdout

    monkeypatch.chdir(tmp_path)
    output = ""
    for line in re.findall(r"^\$ (.*)$", (ROOT / "docs" / "guide" / "messy-files.md").read_text(), re.M):
        if line.startswith("export "):
            monkeypatch.setenv(*line.removeprefix("export ").split("="))
        elif command := re.fullmatch(r"(! )?trinitylake (.*)", line):
            result = CliRunner().invoke(app, bash(f"printf '%s\\0' {command[2]}").split("\0")[:-1])
            assert bool(result.exit_code) == bool(command[1]), f"{line}: {result.output}"
            output += result.output
        else:
            output += bash(line)
    assert "'seven' in column id is not a valid BIGINT" in output
    assert "already committed as version" in output
    assert re.search(r"^ 2 +NULL +a$", output, re.M)


def test_every_command_that_is_named_exists() -> None:
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    for page in PAGES:
        named = re.findall(r"(?:`|\$ |^)trinitylake ([a-z]+(?: [a-z]+)?)", page.read_text(), re.M)
        unknown = [words for words in named if not {words, words.split()[0]} & COMMANDS]
        unknown += [words for words in named if words.split()[0] in groups and " " in words and words not in COMMANDS]
        assert unknown == [], page


def test_command_line_page_names_every_command() -> None:
    text = COMMAND_LINE.read_text()
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    unnamed = [name for name in COMMANDS - groups if not re.search(rf"(trinitylake|also:.*|,) {name}\b", text)]
    assert unnamed == []


def test_every_link_leads_somewhere() -> None:
    broken = []
    headings = cache(anchors)
    for page in PAGES:
        for target in LINK.findall(without_blocks(page)):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            is_outside = re.match(r"[a-z]+:", target)
            if not is_outside and (not file.exists() or (anchor and anchor not in headings(file))):
                broken.append(f"{name_of(page)}: {target}")
    assert broken == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)`", page.read_text())}
    assert named <= targets


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    pending = [README]
    while pending:
        page = pending.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        targets = [target.partition("#")[0] for target in LINK.findall(page.read_text())]
        pending += [(page.parent / target).resolve() for target in targets if target and ":" not in target]
    assert [name_of(page) for page in PAGES if page not in seen] == []


def test_every_decision_is_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    records = sorted(folder.glob("[0-9]*.md"))
    assert len({record.name[:4] for record in records}) == len(records) > 17
    listed = re.findall(r"^- \[\d{4}\]\(([^)]+)\)", (folder / "README.md").read_text(), re.M)
    assert listed == [record.name for record in records]
    for record in records:
        text = record.read_text()
        assert text.startswith(f"# {record.name[:4]}: ")
        assert re.findall(rf"^(?:\*\*)?({'|'.join(RECORD_PARTS)})[.:]", text, re.M) == RECORD_PARTS, record.name


def sources() -> Iterator[Path]:
    for folder, pattern in (("rust", "*.rs"), ("python/trinitylake", "*.py"), ("tests", "*.py"), ("proto", "*.proto")):
        yield from (ROOT / folder).rglob(pattern)


def test_the_sections_of_the_format_that_the_code_names_exist() -> None:
    sections = {int(number) for number in re.findall(r"^## (\d+)\. ", FORMAT.read_text(), re.M)}
    assert sections == set(range(1, 12))
    named = {int(number) for file in sources() for number in re.findall(r"format §+(\d+)", file.read_text())}
    assert named <= sections
    assert {2, 3, 4, 5, 6, 7, 8, 9} <= named


def test_the_rules_of_the_tree_that_the_code_names_exist() -> None:
    section = ARCHITECTURE.read_text().split("## Rules of the tree\n")[1].split("\n## ")[0]
    rules = {int(number) for number in re.findall(r"^(\d+)\. \*\*", section, re.M)}
    assert rules == set(range(1, 16))
    text = "\n".join(file.read_text() for file in (ROOT / "rust").rglob("*.rs"))
    named = {int(number) for pair in re.findall(r"[Rr]ules? (\d+)(?: and (\d+))?", text) for number in pair if number}
    assert named <= rules
    assert len(named) > 8


def test_the_system_rows_of_the_format_are_those_that_are_written(tmp_path: Path) -> None:
    documented = set(re.findall(r"^\| `(\w+)`(?: \*\*\[ext\]\*\*)? \| (?:every node|roots)", FORMAT.read_text(), re.M))
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    lake.rollback(0)
    node = tl.core.read_node(lake._storage.get(tl.core.root_path(2)))
    # Nothing was collected, and on a disk the files of definitions exist before the root (test_requests.py).
    assert set(node.system) == documented - {"gc_before_millis", "definitions_inline", "definitions_copied"}


def requests_of(storage: _core.Storage, since: dict[str, int]) -> dict[str, int]:
    now = storage.counters()
    return {verb: count - since.get(verb, 0) for verb, count in now.items() if "bytes" not in verb}


def test_a_read_and_a_commit_cost_the_requests_that_the_architecture_counts(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    tl.create(root, durability="none").create_namespace("a")

    lake = tl.open(root, durability="none")
    spent = {verb: count for verb, count in requests_of(lake._storage, {}).items() if count}
    assert spent == {"get": 2, "head": 1, "list": 1}

    before = lake._storage.counters()
    assert lake.exists("a")
    spent = {verb: count for verb, count in requests_of(lake._storage, before).items() if count}
    assert spent == {"get": 2, "head": 1, "list": 1}

    before = lake._storage.counters()
    lake.create_namespace("b")
    spent = {verb: count for verb, count in requests_of(lake._storage, before).items() if count}
    quick = {"put_if_absent": 2, "put_hint": 1, "list": 1}
    assert {verb: spent[verb] for verb in ("put_if_absent", "put_hint")} == {"put_if_absent": 2, "put_hint": 1}
    extra = {verb: count - quick.get(verb, 0) for verb, count in spent.items()}
    assert all(0 <= count <= 3 for count in extra.values()), f"more requests than a busy machine may add: {spent}"
    assert set(spent) <= {*quick, "head", "get"}
