"""Compaction of the tree: its result, concurrent commits, and the command `trinitylake compact`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trinitylake as tl
from conformance.reachable import Reachable, files_below
from local_files import age
from trinitylake.cli.app import app

SMALL_NODES = {"root.buffer-size-bytes": "900", "inner.buffer-size-bytes": "500"}


@pytest.fixture
def lake(root: str) -> tl.Lakehouse:
    return thin(root)


def thin(root: str) -> tl.Lakehouse:
    """A lakehouse in which sixty namespaces were created and forty dropped: leaves with few rows, full buffers."""
    lake = tl.create(root, durability="none", order=4, properties=SMALL_NODES, txn_ttl_millis=1)
    for number in range(60):
        lake.create_namespace(f"n{(number * 37) % 60:02}")
    for number in range(60):
        if number % 3:
            lake.drop_namespace(f"n{number:02}")
    return lake


def test_tree_is_rebuilt_and_the_gain_reported(lake: tl.Lakehouse) -> None:
    before, names = lake.maintenance.stats(), lake.namespaces()
    planned = lake.maintenance.compact(dry_run=True)
    assert planned.version is None
    assert planned.nodes_before == before.tree_nodes
    assert lake.version == before.version, "a dry run commits nothing"

    done = lake.maintenance.compact(message="tidy", author="me")
    after = lake.maintenance.stats()
    assert done.version == lake.version == before.version + 1
    assert (done.nodes_before, done.messages_before) == (before.tree_nodes, before.tree_messages)
    assert (done.nodes_after, done.messages_after) == (after.tree_nodes, after.tree_messages)
    assert done.nodes_after == planned.nodes_after < done.nodes_before
    assert done.messages_after == 0 < done.messages_before
    assert 0 < done.size_bytes_after < done.size_bytes_before

    (entry,) = lake.log(1)
    assert [(one.message, one.author) for one in entry.transactions] == [("tidy", "me")]
    assert not lake.diff(before.version, lake.version)
    assert not any(one.diff for one in lake.changes(since=before.version))
    for reader in (lake, tl.open(lake.uri)):
        assert reader.namespaces() == names


def test_tree_with_little_gain_is_rebuilt_only_if_forced(lake: tl.Lakehouse) -> None:
    lake.maintenance.compact()
    version = lake.version
    assert lake.maintenance.compact().version is None
    assert lake.version == version
    assert lake.maintenance.compact(force=True).version == version + 1
    assert lake.maintenance.compact(force=True, dry_run=True).version is None


def test_compaction_of_the_tree_changes_no_version(lake: tl.Lakehouse) -> None:
    before, names = lake.version, lake.namespaces()
    lake.maintenance.compact()
    lake.create_namespace("after")
    lake.drop_namespace("n00")
    assert lake.at(before).namespaces() == names
    assert lake.at(before + 1).namespaces() == names
    assert lake.namespaces() == sorted({*names, "after"} - {"n00"})
    assert lake.at(30).namespaces() == sorted(f"n{(number * 37) % 60:02}" for number in range(30))
    lake.rollback(before)
    assert lake.namespaces() == names


def test_a_transaction_that_is_open_meanwhile_commits(lake: tl.Lakehouse) -> None:
    names = lake.namespaces()
    txn = lake.begin()
    txn.create_namespace("open")
    assert lake.maintenance.compact().version is not None
    txn.commit()
    assert lake.namespaces() == sorted({*names, "open"})


def test_concurrent_commits_are_kept(lake: tl.Lakehouse) -> None:
    """A compaction of the tree includes versions that other processes commit while it builds the tree."""
    names = lake.namespaces()

    def write(writer: int) -> None:
        own = tl.open(lake.uri)
        for number in range(15):
            own.create_namespace(f"w{writer}{number:02}")
            own.drop_namespace(f"w{writer}{number:02}") if number % 5 == 4 else None

    with ThreadPoolExecutor(3) as threads:
        writing = [threads.submit(write, writer) for writer in range(3)]
        compactions = [lake.maintenance.compact(force=True).version for _ in range(5)]
    assert [one.result() for one in writing] == [None] * 3
    assert len(set(compactions)) == 5
    written = {f"w{writer}{number:02}" for writer in range(3) for number in range(15) if number % 5 != 4}
    assert tl.open(lake.uri).namespaces() == sorted({*names, *written})


def test_vacuum_deletes_the_nodes_of_the_tree_before(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    lake = tl.create(str(root), durability="none", order=4, properties=SMALL_NODES, txn_ttl_millis=1)
    for number in range(40):
        lake.create_namespace(f"n{number:02}")
    lake.maintenance.expire(keep=1)
    names, old_nodes = lake.namespaces(), Reachable(root).files
    done = lake.maintenance.compact(force=True)
    lake.maintenance.expire(keep=1)
    age(root)
    gone = lake.maintenance.vacuum(paths=True)
    assert gone.deleted["tree nodes"].files >= done.nodes_before - 1, "all old nodes except the root, which expired"
    assert old_nodes & set(gone.deleted_paths)
    assert files_below(root) == Reachable(root).files
    assert lake.namespaces() == tl.open(str(root)).namespaces() == names


def test_the_command_compacts_the_tree_and_tables(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = thin(root)
    table = lake.create_table("n00.t", {"id": "bigint"})
    for number in range(6):
        table.append({"id": [number]})

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["compact", "--root", root, *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    version = lake.version
    assert json.loads(run("--dry-run", "--json"))["version"] is None
    assert "tree not rebuilt" in run("--dry-run")
    assert lake.version == version
    assert f"tree rebuilt in version {version + 1}" in run()
    assert "tree not rebuilt" in run()
    assert json.loads(run("--force", "--json"))["version"] == version + 2
    (planned,) = json.loads(run("--dry-run", "n00.t", "--json")).values()
    assert (planned["files_removed"], planned["files_added"]) == (6, 1)
    (answer,) = json.loads(run("n00.t", "--json")).values()
    assert (answer["files_removed"], answer["files_added"]) == (6, 1)
    assert "n00.t" in run("n00.t")
    assert sorted(lake.table("n00.t").scan().to_arrow()["id"].to_pylist()) == list(range(6))
    run("--force", "n00.t", code=2)
    run("--sort-by", "id", code=2)
