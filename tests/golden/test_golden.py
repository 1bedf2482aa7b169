"""Golden lakehouses have the content with which they were written, and damage in them is found."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import trinitylake as tl
from conformance.extensions import definition_of, inline_definitions
from conformance.lakehouse import SeedLakehouse, SeedVersion
from golden import archive
from trinitylake import _core, core
from trinitylake.definitions import MANIFEST_LIST

NAMES = archive.names()


@cache
def in_memory(name: str) -> tl.Lakehouse:
    """Read-only lakehouse at the root for which the metadata of its tables was written."""
    return archive.put_in_memory(name, archive.expectation(name)["root"])


def copy(name: str, files: dict[str, bytes]) -> str:
    """Root of a new copy with these files."""
    root = f"memory://{uuid.uuid4()}"
    _core.Storage(root).put_many(list(files.items()))
    return root


def newest_nodes(name: str) -> list[str]:
    """Node files of the latest version, the root first."""
    return [node["path"] for node in archive.expectation(name)["versions"][-1]["nodes"]]


def read_everything(root: str) -> dict[str, Any]:
    return archive.describe(tl.open(root))


def without(expected: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in expected.items() if key not in keys}


def test_every_golden_lakehouse_is_there_and_small() -> None:
    assert set(NAMES) == {"0.1/order_3", "0.1/order_128"}
    for folder in archive.FOLDER.glob("0.*"):
        assert sum(file.stat().st_size for file in folder.glob("*.gz")) < 0.9e6, folder.name


@pytest.mark.parametrize("name", NAMES)
def test_every_version_reads_as_it_was_written(name: str) -> None:
    expected = archive.expectation(name)
    found = archive.describe(in_memory(name))
    assert [version["version"] for version in found["versions"]] == list(range(expected["latest"] + 1))
    for version, expected_version in zip(found["versions"], expected["versions"], strict=True):
        assert version == expected_version, version["version"]
    assert found == without(expected, "root", "rows")


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_of_every_table_in_every_version_read_as_they_were_written(name: str) -> None:
    expected = archive.expectation(name)["rows"]
    assert archive.describe_rows(in_memory(name)) == expected
    assert any(rows for tables in expected.values() for rows in tables.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_on_disk_reads_the_same_and_takes_new_commits(name: str, tmp_path: Path) -> None:
    expected = archive.expectation(name)
    lake = tl.open(str(archive.unpack_into(name, tmp_path)), durability="none")
    assert archive.describe(lake) == without(expected, "root", "rows")
    with pytest.raises(tl.LakehouseMoved):
        lake.create_namespace("before it is relocated")
    lake.maintenance.relocate(rewrite=False)
    latest = lake.version
    before = lake.at().namespaces()
    with lake.transaction() as txn:
        txn.create_namespace("written_today")
        txn.drop_namespace("nyc", cascade=True)
    assert lake.version == latest + 1
    assert lake.namespaces() == sorted({*before, "written_today"} - {"nyc", "nyc.inner"})
    assert lake.rollback(latest) == latest + 2
    assert lake.namespaces() == before
    with lake.transaction(id="golden-load-1") as again:
        again.create_namespace("twice")
    (first,) = [
        version["version"]
        for version in expected["versions"]
        if "golden-load-1" in [one["id"] for one in version["transactions"]]
    ]
    assert again.version == first, "the id is known, so the first commit is returned"
    assert lake.version == latest + 2
    assert not lake.exists("twice")


@pytest.mark.parametrize("name", NAMES)
def test_extensions_read_as_they_were_written(name: str) -> None:
    """System rows of roots, the recorded root, names with spaces, and records of transactions are as written."""
    lake, root = in_memory(name), archive.expectation(name)["root"]
    rollback = None
    for entry in reversed(lake.log(None)):
        rollback = entry.version if entry.rollback_from is not None else rollback
        system = core.read_node(lake._storage.get(core.root_path(entry.version))).system
        assert system["last_rollback"] == ("never" if rollback is None else str(rollback))
    assert rollback is not None
    assert tl.definitions.parse_lakehouse_def(lake.at()._state().definition).root_uri == root + "/"
    assert lake.namespace("new york").properties == {"with": "a space"}
    assert lake.view("new york.upper  west side").representations
    assert lake.transactions.outcome("golden-given-up").status == "rolled back"
    with pytest.raises(tl.ObjectNotFound, match="rolled back"):
        lake.resume("golden-given-up")
    assert [one.id for one in lake.transactions.list()] == ["golden-waiting"]
    assert lake.resume("golden-waiting").exists("waiting")


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_of_the_log_has_a_summary(name: str) -> None:
    transactions = [one for entry in in_memory(name).log(None) for one in entry.transactions]
    assert all(one.summary for one in transactions)
    assert "append +1 row nyc.cities" in {one.summary for one in transactions}


@pytest.mark.parametrize("name", NAMES)
def test_definitions_name_the_manifest_list_of_the_current_snapshot(name: str) -> None:
    lake, expected = in_memory(name), archive.expectation(name)
    named, snapshots = [], []
    for version in expected["versions"]:
        at = lake.at(version["version"])
        for table in map(at.table, at.tables()):
            snapshot = table.iceberg.current_snapshot()
            named.append(table._definition.format_properties.get(MANIFEST_LIST))
            snapshots.append(None if snapshot is None else snapshot.manifest_list.removeprefix(f"{expected['root']}/"))
    assert any(snapshots)
    assert named == snapshots


def test_a_root_may_hold_definitions_whose_files_are_missing(tmp_path: Path) -> None:
    """The writer died before it created the definitions in its root. The next commit creates them."""
    name = f"0.1/{archive.HELD_DEFINITIONS}"
    files, expected = archive.unpack(name), archive.expectation(name)
    held = archive.held_definitions(core.read_node(files[core.root_path(expected["latest"])]).system)
    assert len(held) == 3
    assert not held.keys() & files.keys()
    assert read_everything(copy(name, files)) == without(expected, "root")

    version = SeedVersion(SeedLakehouse(files), expected["latest"])
    owners = {found.namespace: definition_of(version, found).get("properties") for found in version.objects}
    assert owners["held"] == {"Größe": "東京"}
    assert inline_definitions(version) == held

    lake = tl.open(str(archive.unpack_into(name, tmp_path)), durability="none")
    assert archive.describe(lake) == without(expected, "root")
    assert not lake.maintenance.fsck().findings
    lake.maintenance.relocate(rewrite=False)
    lake.create_namespace("next")
    assert {path: (tmp_path / path).read_bytes() for path in held} == held


@pytest.mark.parametrize("name", NAMES)
def test_every_node_file_reads_alone_and_was_written_for_a_reason(name: str) -> None:
    files = archive.unpack(name)
    nodes = {path: core.read_node(data, path) for path, data in files.items() if path.endswith(".arrow")}
    order = int(name.rpartition("_")[2])
    reached = {node["path"] for version in archive.expectation(name)["versions"] for node in version["nodes"]}
    # Each save wrote a root with the tree that the transaction saw.
    saves = 3
    assert reached <= set(nodes)
    assert len(set(nodes) - reached) == saves
    parked = 0
    for node in nodes.values():
        assert node.table.num_rows == order
        keys = set(node.table.column("key").to_pylist()[1 : node.n_keys + 1])
        if node.height:
            parked += sum(row["value"] is None and row["key"] in keys for row in node.buffer.to_pylist())
    assert {node.height for node in nodes.values()} >= {0, 1}
    assert parked, "deletes of inner keys wait in the buffers of inner nodes"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_cut_short_or_emptied_is_a_corrupt_file(name: str) -> None:
    files = archive.unpack(name)
    for path in newest_nodes(name)[:3]:
        data = files[path]
        for size in (0, 1, 8, 10, len(data) // 2, len(data) - 10, len(data) - 1):
            root = copy(name, {**files, path: data[:size]})
            with pytest.raises(tl.CorruptFile, match=path) as caught:
                read_everything(root)
            assert caught.value.path == path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["namespace", "table", "view"])
def test_a_definition_that_is_missing_or_no_definition_is_a_corrupt_file(name: str, kind: str) -> None:
    files = archive.unpack(name)
    path = (
        in_memory(name)
        ._core.latest()
        .locate(kind, *{"namespace": ("nyc",), "table": ("nyc.inner", "places"), "view": ("nyc", "large")}[kind])
    )
    assert path is not None
    read: Callable[[tl.Lakehouse], object] = {
        "namespace": lambda lake: lake.namespace("nyc"),
        "table": lambda lake: lake.table("nyc.inner.places"),
        "view": lambda lake: lake.view("nyc.large"),
    }[kind]
    assert read(tl.open(copy(name, files)))
    flipped = files[path][:-3] + bytes([files[path][-3] ^ 1]) + files[path][-2:]
    for damaged in (b"", b"\xff" * 20, files[path][:-1], flipped, b"PAR1" + files[path]):
        with pytest.raises(tl.CorruptFile) as caught:
            read(tl.open(copy(name, {**files, path: damaged})))
        assert caught.value.path == path
    del files[path]
    with pytest.raises(tl.CorruptFile) as caught:
        read(tl.open(copy(name, files)))
    assert caught.value.path == path


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_leaf_leaves_the_versions_that_do_not_reach_it_readable(name: str) -> None:
    files = archive.unpack(name)
    expected = archive.expectation(name)
    path = newest_nodes(name)[-1]
    position = len(files[path]) // 2
    flipped = files[path][:position] + bytes([files[path][position] ^ 0x10]) + files[path][position + 1 :]
    lake = tl.open(copy(name, {**files, path: flipped}))
    readable = [
        version["version"]
        for version in expected["versions"]
        if path not in {node["path"] for node in version["nodes"]}
    ]
    assert 0 < len(readable) < len(expected["versions"])
    for version in expected["versions"]:
        number = version["version"]
        if number in readable:
            assert archive.describe_version(lake, number) == version
        else:
            with pytest.raises(tl.CorruptFile) as caught:
                archive.describe_version(lake, number)
            assert caught.value.path == path


def test_equal_files_make_equal_archives() -> None:
    name = "0.1/order_3"
    assert archive.pack(archive.unpack(name)) == (archive.FOLDER / f"{name}.tar.gz").read_bytes()
