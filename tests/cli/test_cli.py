"""The command line: output for people and programs, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner, Result

import trinitylake as tl
from trinitylake.base.secret_values import is_secret_name
from trinitylake.cli.app import app

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A lakehouse with two more versions: version 1 has the table `nyc.t` and the view `nyc.v`, version 2 drops the
    view."""
    root = str(tmp_path / "lake")
    lake = tl.create(root, name="demo", durability="none")
    with lake.transaction(message="load", author="etl") as txn:
        txn.create_namespace("nyc", {"owner": "ops"})
        txn.create_namespace("nyc.inner")
        txn.create_table("nyc.t", ROWS, partition_spec=["name"]).append(ROWS)
        txn.create_view("nyc.v", "SELECT 1")
    lake.drop_view("nyc.v")
    return root


def run(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, env=env or {})
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_create_makes_a_lakehouse_once(tmp_path: Path) -> None:
    root = str(tmp_path / "new")
    created = run_json("create", "--root", root, "--name", "n", "--order", "64", "--property", "a=b")
    assert created == {"uri": f"file://{root}/", "name": "n", "version": 0}
    assert run_json("show", "--root", root)["order"] == 64
    run("create", "--root", root, code=1)
    run("create", "--root", root, "--exist-ok")
    run("create", "--root", str(tmp_path / "x"), "--property", "nothing", code=2)


def test_the_root_comes_from_the_environment_too(root: str) -> None:
    assert "nyc" in run("ls", env={"TRINITYLAKE_ROOT": root}).stdout
    run("ls", code=2)


def test_ls_lists_namespaces_their_content_or_everything(root: str) -> None:
    assert run_json("ls", "--root", root) == {"namespaces": ["nyc", "nyc.inner"], "tables": [], "views": []}
    assert run_json("ls", "nyc", "--root", root) == {"namespaces": ["nyc.inner"], "tables": ["nyc.t"], "views": []}
    assert run_json("ls", "-r", "--root", root)["tables"] == ["nyc.t"]
    assert "nyc.t" in run("ls", "nyc", "--root", root).stdout


def test_show_describes_each_kind_of_object(root: str) -> None:
    table = run_json("show", "nyc.t", "--root", root)
    assert (table["kind"], table["rows"], table["partitions"]) == ("table", 3, ["identity(name)"])
    assert [column["name"] for column in table["columns"]] == ["id", "name"]
    assert run_json("show", "nyc", "--root", root)["properties"] == {"owner": "ops"}
    assert run_json("show", "nyc.v", "--at", "1", "--root", root)["representations"] == {"spark": "SELECT 1"}
    for name in ("nyc.t", "nyc"):
        assert name in run("show", name, "--root", root).stdout
    assert "SELECT 1" in run("show", "nyc.v", "--at", "1", "--root", root).stdout


def test_show_lists_no_removed_partition_field(root: str) -> None:
    """`show` does not list a removed partition field, which format version 1 keeps as `void`."""
    table = tl.open(root).create_table("nyc.v1", ROWS, partition_spec=["name"], properties={"format-version": "1"})
    with table.update_spec() as change:
        change.remove_field("name")
    assert run_json("show", "nyc.v1", "--root", root)["partitions"] == []


def test_show_of_a_table_whose_summary_has_no_numbers(root: str, tmp_path: Path) -> None:
    other = tl.create(tmp_path / "other")
    other.create_namespace("n")
    other.create_table("n.t", {"id": "int"}).append({"id": [1]})
    metadata = json.loads(Path(other.table("n.t").iceberg.metadata_location.removeprefix("file://")).read_bytes())
    odd = {"total-data-files": "many", "total-records": "²", "added-records": "", "deleted-records": "9" * 30}
    metadata["snapshots"][0]["summary"] |= odd
    (tmp_path / "odd.metadata.json").write_text(json.dumps(metadata))
    lake = tl.open(root)
    lake.create_table("nyc.odd", metadata_location=f"file://{tmp_path}/odd.metadata.json")
    shown = run_json("show", "nyc.odd", "--root", root)
    assert (shown["rows"], shown["data_files"]) == (None, None)
    assert shown["size_bytes"] > 0
    assert "many" not in lake.table("nyc.odd").snapshots()._repr_html_()


def test_show_is_written_for_people(root: str) -> None:
    """`show` prints ages, sizes and properties for people, not in milliseconds, bytes and JSON."""
    shown = dict(line.split(None, 1) for line in run("show", "--root", root).stdout.splitlines())
    words = {name: value.strip() for name, value in shown.items()}
    assert (words["maximum_version_age"], words["txn_ttl"]) == ("1 week", "1 day")
    assert (words["node_file_max_size"], words["properties"]) == ("1.0 MB", "none")
    assert "owner = ops" in run("show", "nyc", "--root", root).stdout
    table = run("show", "nyc.t", "--root", root).stdout
    assert "identity(name)" in table
    assert "[" not in table
    assert run_json("show", "--root", root)["txn_ttl_millis"] == 86_400_000


def test_log_and_diff_list_the_changes(root: str) -> None:
    log = run_json("log", "--root", root)
    assert [entry["version"] for entry in log] == [2, 1, 0]
    assert log[1]["transactions"][0]["message"] == "load"
    assert len(run_json("log", "-n", "1", "--root", root)) == 1
    difference = run_json("diff", "1", "2", "--root", root)
    [transaction] = difference.pop("transactions")
    assert (transaction["version"], transaction["summary"]) == (2, "drop view nyc.v")
    assert difference == {
        "before": 1,
        "after": 2,
        "added": [],
        "removed": [{"kind": "view", "name": "nyc.v"}],
        "changed": [],
    }
    for command in (["diff", "1"], ["log"], ["changes", "1"], ["log", "--table", "nyc.v"]):
        assert "drop view nyc.v" in run(*command, "--root", root).stdout, command
    assert "- view nyc.v" in run("diff", "1", "--root", root).stdout
    assert "load" in run("log", "--root", root).stdout


def test_ls_lists_a_version_or_a_time(root: str) -> None:
    assert run_json("ls", "-r", "--at", "1", "--root", root)["views"] == ["nyc.v"]
    created = run_json("log", "--root", root)[1]["created_at"]
    assert run_json("ls", "-r", "--at", created, "--root", root)["views"] == ["nyc.v"]
    assert run_json("ls", "-r", "--at", "2", "--root", root)["views"] == []
    run("ls", "--at", "yesterday", "--root", root, code=2)


def test_rollback_makes_a_version(root: str) -> None:
    expected = {
        "rolled_back_to": 1,
        "undone_versions": 1,
        "undone_authors": [],
        "changes": [{"sign": "+", "kind": "view", "name": "nyc.v"}],
    }
    assert run_json("rollback", "1", "--dry-run", "--root", root) == {"version": None, **expected}
    assert run_json("rollback", "1", "-m", "bad", "--root", root) == {"version": 3, **expected}
    assert run_json("ls", "nyc", "--root", root)["views"] == ["nyc.v"]
    assert "rollback" in run("log", "--root", root).stdout


def test_stats_and_tree_show_the_tree(root: str) -> None:
    stats = run_json("stats", "--root", root)
    assert (stats["namespaces"], stats["tables"], stats["views"]) == (2, 1, 0)
    nodes = run_json("tree", "--root", root)
    assert len(nodes) == stats["tree_nodes"]
    assert nodes[0]["parent"] is None
    assert "root" in run("tree", "--root", root).stdout


def test_a_missing_lakehouse_is_not_found_and_a_corrupt_one_is_corrupt(root: str, tmp_path: Path) -> None:
    run("ls", "--root", str(tmp_path / "none"), code=4)
    newest = Path(root) / tl.core.root_path(2)
    os.chmod(newest, 0o644)
    newest.write_bytes(b"not an arrow file")
    result = run("ls", "--root", root, "--json", code=5)
    assert json.loads(result.stderr)["error"]["path"] == newest.name


def test_a_secret_on_the_command_line_is_warned_of(root: str) -> None:
    """A secret on the command line, where all users of the machine can see it, gives a warning. The warning does not
    repeat the secret, and standard output does not change."""
    result = run("ls", "--root", root, "--json", "--option", "secret_access_key=CANARY", "--option", "region=r")
    assert "secret_access_key=@FILE" in result.stderr
    assert "region" not in result.stderr
    assert "CANARY" not in result.output
    assert json.loads(result.stdout)["namespaces"] == ["nyc", "nyc.inner"]
    created = run("create", "--root", root, "--exist-ok", "--option", "azure_storage_account_key=CANARY")
    assert "azure_storage_account_key" in created.stderr


def test_a_secret_comes_from_a_file_or_a_variable(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret can come from a file or an environment variable, so that users can avoid the warning."""
    file = tmp_path / "key"
    file.write_text("from a file\n")
    seen: list[dict[str, str]] = []
    opened = tl.open
    monkeypatch.setattr(tl, "open", lambda root, storage_options: seen.append(storage_options) or opened(root))
    options = ["--option", f"secret_access_key=@{file}", "--option", "session_token=env:TRINITYLAKE_TEST_TOKEN"]
    result = run("ls", "--root", root, *options, env={"TRINITYLAKE_TEST_TOKEN": "from a variable"})
    assert seen == [{"secret_access_key": "from a file", "session_token": "from a variable"}]
    assert "warning" not in result.stderr
    for wrong in ("env:TRINITYLAKE_NO_SUCH", f"@{tmp_path}/none", f"@{tmp_path}"):
        refused = run("ls", "--root", root, "--option", f"secret_access_key={wrong}", code=2)
        assert "secret_access_key" in refused.stderr


def test_names_of_secrets_are_recognized_in_every_spelling() -> None:
    """Names of secrets are recognised in every spelling, also the key of an Azure account, which Spark does not
    recognise."""
    for name, secret in [
        ("adls.auth.shared-key.account.key", True),
        ("adls.sas-token.account.dfs.core.windows.net", True),
        ("adls.connection-string.account", True),
        ("azure_storage_sas_key", True),
        ("bearer_token", True),
        ("gcs.decryption-key", True),
        ("s3.sse.key", True),
        ("google_service_account_key", True),
        ("region", False),
        ("s3.endpoint", False),
        ("adls.auth.shared-key.account.name", True),
        ("token-refresh-enabled", False),
        ("signing_region", False),
    ]:
        assert is_secret_name(name) is secret, name


def test_unknown_commands_and_options_are_usage_errors(root: str) -> None:
    run("nonsense", code=2)
    run("ls", "--nonsense", "--root", root, code=2)
    run("ls", "--option", "novalue", "--root", root, code=2)


def test_the_module_runs_as_a_program(root: str) -> None:
    command = [sys.executable, "-m", "trinitylake", "ls", "nyc", "--root", root, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout)["tables"] == ["nyc.t"]
    version = subprocess.run([sys.executable, "-m", "trinitylake", "--version"], capture_output=True, text=True)
    assert version.stdout.strip() == tl.__version__


def test_the_demo_holds_what_it_claims(tmp_path: Path) -> None:
    root = str(tmp_path / "demo")
    document = run_json("demo", "--root", root)
    assert document["checks"] >= 25
    assert [entry["rollback_from"] is not None for entry in document["log"]].count(True) == 1
    assert tl.open(root).table("nyc.flights").scan().count() == 336_776


def test_the_demo_makes_nothing_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the package with the data is missing, the demo reports this before it creates a lakehouse."""
    monkeypatch.setattr("trinitylake.cli.demo.find_spec", lambda name: None)
    done = run("demo", "--root", str(tmp_path / "lake"), code=2)
    assert "pip install 'trinitylake[demo]'" in done.output
    assert list(tmp_path.iterdir()) == []


def test_the_demo_fails_if_a_claim_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trinitylake.cli import demo

    monkeypatch.setitem(demo.ROWS, "planes", 1)
    result = run("demo", "--root", str(tmp_path / "demo"), code=1)
    assert "every published row exists" in result.stderr


def test_a_tree_is_drawn_within_eighty_columns_and_as_svg(tmp_path: Path) -> None:
    """A tree is drawn within 80 columns, with short names of node files, and as SVG."""
    root = str(tmp_path / "lake")
    lake = tl.create(root, order=3, durability="none", properties={"root.buffer-size-bytes": "600"})
    for number in range(12):
        lake.create_namespace(f"{'long name ' * 8}{number:02} ü")
    done = CliRunner().invoke(app, ["tree", "--root", root, "--max-children", "3"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) > 10
    assert max(cell_len(line.rstrip()) for line in lines) <= 80
    assert sum("leaf" in line for line in lines) > 3
    assert "namespace long" in done.stdout
    picture = tmp_path / "tree.svg"
    assert CliRunner().invoke(app, ["tree", "--root", root, "--svg", str(picture)]).exit_code == 0
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
