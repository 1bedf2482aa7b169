"""`log` with filters, and the versions that `rollback` undoes."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from trinitylake.cli.app import app

AUTHORS = ("ann", "Annette", "cron", "")
MESSAGES = ("nightly load", "fix of the LOAD", "")


def run(lake: tl.Lakehouse, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--root", lake.uri])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def shop(tmp_path: Any) -> tl.Lakehouse:
    lake = tl.create(tmp_path / "lake", durability="none")
    lake.create_namespace("shop", author="root")
    for name in ("shop.a", "shop.b"):
        lake.create_table(name, {"id": "bigint"}, author="root")
    for number, (author, message) in enumerate(product(AUTHORS, MESSAGES)):
        lake.table(f"shop.{'ab'[number % 2]}").append({"id": [number]}, author=author, message=message)
    return lake


def test_filters_choose_what_a_loop_over_the_log_chooses(shop: tl.Lakehouse) -> None:
    authors, words = ["", "ann", "CRON", "nobody"], ["", "load", "shop.b", "nothing"]
    versions = [(None, None), (5, None), (None, 9), (5, 9)]
    for author, grep, (since, until), table in product(authors, words, versions, [None, "shop.a"]):
        expected = [
            entry.version
            for entry in shop.log(None)
            if author.lower() in entry.author.lower()
            and grep.lower() in f"{entry.message} {entry.summary}".lower()
            and (since is None or entry.version > since)
            and (until is None or entry.version <= until)
            and (table is None or table in entry.summary)
        ]
        given: dict[str, Any] = {"author": author, "grep": grep, "since": since, "until": until}
        log: Any = shop.log
        assert [entry.version for entry in log(None, of=table, **given)] == expected, (table, given)
        assert [entry.version for entry in log(2, of=table, **given)] == expected[:2], (table, given)
        options = [f"--{name}={value}" for name, value in {**given, "table": table}.items() if value not in (None, "")]
        printed = json.loads(run(shop, "log", "-n", "0", "--json", *options))
        assert [entry["version"] for entry in printed] == expected, options


def test_since_a_time_before_the_first_version_chooses_all(shop: tl.Lakehouse) -> None:
    assert len(shop.log(None, since="2 days ago")) == shop.version + 1
    assert shop.log(since=shop.log(1)[0].created_at) == []
    with pytest.raises(tl.VersionNotFound):
        shop.log(since=99)
    shop.maintenance.expire(before=8)
    assert [entry.version for entry in shop.log(since=2)] == [entry.version for entry in shop.log()]


@pytest.mark.parametrize(("objects", "versions"), [((), 6), (("shop.a",), 3), (("shop.a", "shop.b"), 6)])
def test_rollback_prints_what_it_undoes_before_and_after(
    shop: tl.Lakehouse, objects: tuple[str, ...], versions: int
) -> None:
    before, target = shop.version, shop.version - 6
    undoes = f"undoes {versions} versions by cron"
    assert undoes in run(shop, "rollback", str(target), *objects, "--dry-run")
    assert shop.version == before
    assert undoes in run(shop, "rollback", str(target), *objects)
    assert shop.version == before + 1
    assert not shop.diff(target) if len(objects) != 1 else shop.diff(target).changed
