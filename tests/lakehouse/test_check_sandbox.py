"""A check can read only its transaction, because its author may be another user than the committer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake.cli.app import app

SECRET = "do-not-tell"
calls: list[str] = []


def counted(txn: tl.Transaction) -> bool:
    """A check that records its calls."""
    calls.append(txn.id)
    return True


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    calls.clear()
    yield
    calls.clear()


@pytest.fixture
def shop(lake: tl.Lakehouse) -> tl.Lakehouse:
    with lake.transaction() as txn:
        txn.create_namespace("shop")
        txn.create_table("shop.words", {"word": "varchar", "number": "bigint"}).append(
            [{"word": SECRET, "number": 1}, {"word": SECRET, "number": 2}]
        )
    return lake


def test_a_check_in_sql_reaches_no_file_and_no_network(
    shop: tl.Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check in SQL cannot access files or the network of the process that commits the saved transaction, such as a
    server."""
    folder = tmp_path / "elsewhere"
    (folder / ".tmp").mkdir(parents=True)
    (folder / ".tmp" / "x").write_text("known")
    (folder / "file.csv").write_text("known\n1\n")
    monkeypatch.chdir(folder)
    before = sorted(os.listdir(folder))
    for sql in [
        "SELECT count(*) > 0 FROM read_text('{file}')",
        "SELECT count(*) > 0 FROM read_csv('{file}')",
        "SELECT count(*) > 0 FROM glob('{folder}/*')",
        "SELECT count(*) > 0 FROM '{file}'",
        "SELECT count(*) > 0 FROM query('SELECT * FROM read_text(''{file}'')')",
        "SELECT count(*) > 0 FROM read_text('https://example.invalid/x')",
        "SELECT (SELECT count(*) FROM shop.words) > 0 AND (SELECT count(*) FROM read_text('.tmp/x')) > 0",
        "COPY (SELECT 1) TO '{folder}/written'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "ATTACH '{folder}/other.db'",
        "SELECT true; SELECT true",
    ]:
        txn = shop.begin()
        txn.add_check(sql.format(file=folder / "file.csv", folder=folder))
        with pytest.raises((tl.InvalidArgument, tl.ObjectNotFound, tl.InvalidName)):
            txn.commit()
        assert sorted(os.listdir(folder)) == before, sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT sum(CAST(word AS BIGINT)) > 0 FROM shop.words",
        "SELECT error(word) FROM shop.words",
        "SELECT bool_and(strptime(word, '%d') IS NULL) FROM shop.words",
        "SELECT (SELECT word::DATE FROM shop.words LIMIT 1) IS NULL",
    ],
)
def test_the_error_of_a_check_does_not_quote_what_it_read(shop: tl.Lakehouse, sql: str) -> None:
    """The error of a check does not quote rows, because the client that commits may have no right to read them."""
    txn = shop.begin()
    txn.add_check(sql)
    with pytest.raises(tl.InvalidArgument, match="Exception") as caught:
        txn.commit()
    shown: BaseException | None = caught.value
    while shown is not None:
        assert SECRET not in str(shown)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


def test_a_syntax_error_in_a_check_raises_invalid_argument(shop: tl.Lakehouse) -> None:
    txn = shop.begin()
    txn.add_check("SELECT count(*) = 0 FROM shop.words WHERE nummer = 1")
    with pytest.raises(tl.InvalidArgument, match=r'(?s)"nummer" not found.*\^'):
        txn.commit()


def test_a_check_does_not_see_the_variables_of_the_program(shop: tl.Lakehouse) -> None:
    txn = shop.begin()
    txn.add_check("WITH one AS (SELECT 1) SELECT count(*) > 0 FROM one, query_table('calls')")
    with pytest.raises(tl.InvalidArgument, match="calls"):
        txn.commit()


def saved_with_a_function(shop: tl.Lakehouse, check: object = counted) -> tl.Transaction:
    txn = shop.begin(id="job")
    txn.create_namespace("made")
    txn.add_check(check)  # type: ignore[arg-type]
    txn.save()
    return txn


@pytest.mark.parametrize(
    "allowed", [(), "other", __name__[:-1], ["trinitylake"], [f"{__name__}:other"], [f"{__name__}.below"]]
)
def test_a_function_of_a_saved_transaction_runs_only_if_its_module_is_allowed(
    shop: tl.Lakehouse, allowed: str | list[str]
) -> None:
    """A Python function of a saved transaction runs only if the resuming process allows its module. Otherwise everyone
    who can write to `_txn/` could choose which function the process calls."""
    saved_with_a_function(shop)
    version = shop.version
    resumed = shop.resume("job", allow_checks=allowed)
    with pytest.raises(tl.InvalidArgument, match=f"allow_checks=.*{__name__}"):
        resumed.commit()
    assert calls == []
    assert shop.version == version
    assert resumed.is_open
    assert shop.resume("job", allow_checks=__name__).commit() == version + 1


@pytest.mark.parametrize("allowed", [__name__, [__name__], f"{__name__}:counted", ["other", __name__]])
def test_an_allowed_function_runs(shop: tl.Lakehouse, allowed: str | list[str]) -> None:
    saved_with_a_function(shop)
    shop.resume("job", allow_checks=allowed).commit()
    assert calls == ["job"]


def test_a_package_allows_the_modules_below_it(shop: tl.Lakehouse) -> None:
    saved_with_a_function(shop, "os.path:exists")
    with pytest.raises(TypeError):  # the function runs, and requires a path
        shop.resume("job", allow_checks="os").commit()


def test_a_function_added_in_this_process_needs_no_permission(shop: tl.Lakehouse) -> None:
    saved_with_a_function(shop).commit()
    assert calls == ["job"]


def test_refused_checks_survive_another_save(shop: tl.Lakehouse) -> None:
    saved_with_a_function(shop)
    shop.resume("job").save()
    with pytest.raises(tl.InvalidArgument, match="allow_checks"):
        shop.resume("job").commit()
    shop.resume("job").rollback()
    assert calls == []


def test_the_command_line_allows_modules_by_name(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"))
    saved_with_a_function(lake)
    run = CliRunner().invoke
    command = ["txn", "commit", "job", "--root", lake.uri]
    refused = run(app, command)
    assert refused.exit_code == 2
    assert "allow_checks" in refused.output
    assert calls == []
    assert run(app, [*command, "--allow-checks", __name__]).exit_code == 0
    assert calls == ["job"]
