"""A reader that is written from the original documents accepts every node of the core; extensions follow the format
page.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import trinitylake as tl
from conformance import history
from conformance.definition import TABLE_TYPES, TYPES
from conformance.extensions import check_extensions, definition_message, records, transactions
from conformance.lakehouse import SeedLakehouse, SeedVersion
from conformance.name import optimized, root_path, root_version
from golden import archive
from trinitylake import core

SEEDS = range(30 if os.environ.get("TRINITYLAKE_DEEP") else 2)
ORDERS = (3, 4, 5, 8, 128)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def lived(order: int, seed: int, folder: Path) -> tuple[history.History, list[SeedVersion]]:
    """A lakehouse with a random history, and its content as the second reader found it while it checked every rule."""
    root = folder / f"order-{order}-seed-{seed}"
    lived = history.live(str(root), order, seed, versions=50 if order < 100 else 25)
    lakehouse = SeedLakehouse(files_of(root))
    versions = lakehouse.versions()
    check_extensions(lakehouse, versions)
    return lived, versions


@pytest.fixture(
    params=[(order, seed) for order in ORDERS for seed in SEEDS], ids=lambda one: f"order-{one[0]}-seed-{one[1]}"
)
def life(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[history.History, list[SeedVersion]]:
    return lived(*request.param, tmp_path_factory.getbasetemp())


def test_every_version_holds_what_its_history_says(life: tuple[history.History, list[SeedVersion]]) -> None:
    lived, versions = life
    assert [version.number for version in versions] == list(range(len(lived.states)))
    known: set[str] = set()
    for version, state in zip(versions, lived.states, strict=True):
        assert set(version.objects) == set(state)
        for name in version.objects:
            definition = version.definition_of(name)
            assert (definition["id"], definition["properties"]) == state[name], name
        rolled_back = version.root.system.get("rollback_from_root")
        assert (rolled_back and root_version(rolled_back)) == lived.rollbacks.get(version.number)
        if rolled_back is None:
            known |= lived.records.get(version.number, set())
            assert records(version).keys() <= known


def test_the_core_reads_every_node_and_every_object_alike(life: tuple[history.History, list[SeedVersion]]) -> None:
    lived, versions = life
    for version in versions:
        at = lived.lake.at(version.number)
        found = [
            (node["path"], node["parent"], node["height"], node["n_keys"], node["n_messages"])
            for node in at.nodes().to_pylist()
        ]
        assert sorted(found) == sorted(
            (node.path, node.parent, node.height, len(node.rows.keys), len(node.rows.buffer)) for node in version.nodes
        )
        assert found[0][0] == version.path == core.root_path(version.number)
        keys = pa.array(sorted(version.locations), pa.string())
        assert at._state().locate_keys(keys).to_pylist() == [version.locations[key] for key in keys.to_pylist()]
        scanned = pa.table(at._state().scan()).to_pydict() if keys else {"key": [], "location": []}
        assert dict(zip(scanned["key"], scanned["location"], strict=True)) == version.locations
        assert scanned["key"] == sorted(scanned["key"], key=str.encode)
        objects = version.objects
        listed = {
            (kind, row["namespace"], row["name"]): row["location"]
            for kind in ("namespace", "table", "view")
            for row in at._state().list(kind).to_pylist()  # type: ignore[arg-type]
        }
        assert listed == objects
        for kind in ("namespace", "table", "view"):
            wanted = [(name.namespace, name.name) for name in objects if name.kind == kind]
            read = at._state().read_many(kind, wanted)  # type: ignore[arg-type]
            paths = [objects[kind, *one] for one in wanted]  # type: ignore[index]
            assert read == [definition_message(path, version.lakehouse.files[path]) for path in paths]


def test_every_node_file_decodes_alike(life: tuple[history.History, list[SeedVersion]]) -> None:
    _, versions = life
    nodes = {node.path: node for version in versions for node in version.nodes}
    for path, visited in nodes.items():
        rows = visited.rows
        node = core.read_node(versions[0].lakehouse.files[path], path)
        assert node.system == rows.system
        assert (node.height, node.n_keys) == (visited.height, len(rows.keys))
        assert list(zip(*node.table.to_pydict().values(), strict=True)) == rows.table
        assert node.table.num_rows == versions[0].order
        expected = [(message.key, message.value, message.txn) for message in rows.buffer]
        assert [tuple(row.values()) for row in node.buffer.to_pylist()] == expected
        for key in [*rows.keys, *rows.last_messages()]:
            last = rows.last_messages()
            answer = ("message", last[key]) if key in last else ("row", rows.values[rows.keys.index(key)])
            assert core.search_node(node, key) == answer


def test_keys_and_paths_are_built_alike(life: tuple[history.History, list[SeedVersion]]) -> None:
    lived, versions = life
    version = versions[-1]
    names = sorted(version.objects)
    keys = {name: key for key in version.locations for name in names if version.locations[key] == version.objects[name]}
    decoded = core.decode_keys([keys[name] for name in names], lived.lake.at().definition).to_pylist()
    assert [tuple(row.values()) for row in decoded] == names
    originals = [path.replace("/", "-") for path in version.lakehouse.files] + ["a/b", "é/ü", ""]
    assert core.optimize_paths(originals).to_pylist() == [optimized(original) for original in originals]
    for number in (0, 1, 100, len(versions), 2**31):
        assert core.root_path(number) == root_path(number)


def test_the_lakehouse_definition_reads_alike(life: tuple[history.History, list[SeedVersion]]) -> None:
    lived, versions = life
    for version in versions:
        definition = tl.definitions.parse_lakehouse_def(lived.lake.at(version.number)._state().definition)
        for field, value in version.definition.items():
            stored = getattr(definition, field)
            assert (dict(stored) if isinstance(value, dict) else stored) == value, field


def test_histories_reach_the_hard_parts_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without nodes below the root, the agreement of two readers would prove nothing."""
    reached: Counter[str] = Counter()
    for order in ORDERS:
        heights: set[int] = set()
        for seed in SEEDS:
            lived_there, versions = lived(order, seed, tmp_path_factory.getbasetemp())
            reached["rollbacks"] += len(lived_there.rollbacks)
            reached["records"] += len(lived_there.records)
            reached["saved transactions rolled back"] += len(lived_there.given_up)
            for version in versions:
                heights.add(version.height)
                for node in version.nodes:
                    if node.height and node.parent is not None:
                        reached["messages below the root"] += len(node.rows.buffer)
                    if node.height:
                        reached["parked deletes"] += sum(
                            node.rows.last_messages().get(key, "") is None for key in node.rows.keys
                        )
            for before, after in pairwise(versions):
                if "rollback_from_root" not in after.root.system:
                    reached["heights lost"] += after.height < before.height
        assert max(heights) >= (1 if order == 128 else 2), (order, heights)
    needed = ("rollbacks", "records", "saved transactions rolled back", "messages below the root", "parked deletes")
    for feature in (*needed, "heights lost"):
        assert reached[feature], reached


@pytest.mark.parametrize("name", archive.names())
def test_golden_lakehouses_keep_every_rule_and_read_alike(name: str) -> None:
    expected = archive.expectation(name)
    lakehouse = SeedLakehouse(archive.unpack(name))
    versions = lakehouse.versions()
    check_extensions(lakehouse, versions)
    assert lakehouse.latest() == expected["latest"]
    for version, described in zip(versions, expected["versions"], strict=True):
        assert version.definition["properties"] == described["properties"]
        assert [transaction["id"] for transaction in transactions(version)] == [
            transaction["id"] for transaction in described["transactions"]
        ]
        found = {name: version.definition_of(name) for name in version.objects}
        full = {(one.kind, f"{one.namespace}.{one.name}" if one.name else one.namespace): one for one in found}
        assert len(full) == len(found) == len(described["objects"])
        for expected in described["objects"]:
            definition = found[full[expected["kind"], expected["name"]]]
            assert definition["id"] == expected["id"]
            if expected["kind"] == "namespace":
                assert definition["properties"] == expected["properties"]
            elif expected["kind"] == "view":
                representations = {one["dialect"]: one["sql"] for one in definition["representations"]}
                assert representations == expected["representations"]
            else:
                assert TABLE_TYPES[definition["table_type"]] == "MANAGED"
                columns = [(column["name"], TYPES[column["type"]]) for column in definition["schema"]["columns"]]
                assert [name for name, _ in columns] == [name for name, _ in expected["columns"]]
                assert {kind for _, kind in columns} <= {"INT4", "INT8", "VARCHAR"}
                metadata = definition["format_properties"]["metadata_location"]
                assert metadata in lakehouse.files
                assert f"-{definition['id'][:8]}/metadata/" in metadata
