"""The second reader finds mistakes: each test breaks one rule of the format in otherwise correct files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.extensions import check_extensions
from conformance.lakehouse import SeedLakehouse, SeedVersion
from conformance.name import check_optimized, optimized
from conformance.node_writer import KEY, PNODE, TXN, VALUE, Rows, to_bytes, to_rows
from conformance.rule import BrokenRule
from golden import archive

ORDER = 3


class Patient:
    """The golden lakehouse of order 3 as files to damage, with the paths of an inner node and a leaf."""

    def __init__(self) -> None:
        self.files = archive.unpack("0.1/order_3")
        lakehouse = SeedLakehouse(dict(self.files))
        versions = lakehouse.versions()
        self.version = max(versions, key=lambda version: (version.height, version.number))
        self.root = self.version.path
        self.inner = self._find(lambda node: node.parent is not None and node.height > 0)
        self.leaf = self._find(lambda node: node.height == 0 and len(node.rows.keys) > 1)

    def _find(self, wanted: Callable[[Any], bool]) -> str:
        return next(node.path for node in self.version.nodes if wanted(node))

    def edit(self, path: str, change: Callable[[Rows], Any], **options: Any) -> None:
        rows = to_rows(self.files[path])
        change(rows)
        self.files[path] = to_bytes(rows, **options)

    def rename(self, old: str, new: str) -> None:
        """Rename a definition, and change all references to it."""
        self.files[new] = self.files[old]
        for node in [node for node in self.files if node.endswith(".arrow")]:
            if any(row[VALUE] == old for row in to_rows(self.files[node])):
                self.edit(node, lambda rows: [set_value(row, new) for row in rows if row[VALUE] == old])

    def rename_leaf(self, path: str) -> None:
        """Rename the leaf, and change all references to it."""
        old, self.leaf = self.leaf, path
        self.files[path] = self.files[old]
        for node in [node for node in self.files if node.endswith(".arrow")]:
            if any(row[PNODE] == old for row in to_rows(self.files[node])):
                self.edit(node, lambda rows: [set_pnode(row, path) for row in rows if row[PNODE] == old])

    def check(self) -> None:
        lakehouse = SeedLakehouse(self.files)
        check_extensions(lakehouse, lakehouse.versions())


def table_start(rows: Rows) -> int:
    return next(i for i, row in enumerate(rows) if row[KEY] is None and row[VALUE] is None)


def set_system(name: str, value: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        for row in rows[: table_start(rows)]:
            if row[KEY] == name:
                row[VALUE] = value
                return
        rows.insert(0, [name, value, None, None])

    return change


def set_cell(row: int, column: int, value: str | None) -> Callable[[Rows], None]:
    """Set a cell of the key table; its first row has number 0."""

    def change(rows: Rows) -> None:
        rows[table_start(rows) + row][column] = value

    return change


def swap_keys(rows: Rows) -> None:
    first = table_start(rows)
    rows[first + 1], rows[first + 2] = rows[first + 2], rows[first + 1]


def append(key: str, value: str | None, pnode: str | None, txn: str | None) -> Callable[[Rows], None]:
    return lambda rows: rows.append([key, value, pnode, txn])


def insert_padding(rows: Rows) -> None:
    rows.insert(table_start(rows) + ORDER, [None] * 4)


def first_becomes_newest(rows: Rows) -> None:
    """Move the newest message to the start of the buffer."""
    rows.insert(table_start(rows) + ORDER, rows.pop())


def forget_newest(rows: Rows) -> None:
    rows.pop()


def swap_children(rows: Rows) -> None:
    first = table_start(rows)
    rows[first][PNODE], rows[first + 1][PNODE] = rows[first + 1][PNODE], rows[first][PNODE]


def same_child_twice(rows: Rows) -> None:
    first = table_start(rows)
    rows[first + 1][PNODE] = rows[first][PNODE]


def nothing(rows: Rows) -> None:
    pass


FAR = "Z" * 104
MISTAKES: dict[str, tuple[str, Callable[[Rows], Any], dict[str, Any], str]] = {
    "keys out of order": ("leaf", swap_keys, {}, "keys ascend"),
    "too few keys counted": ("leaf", set_system("n_keys", "1"), {}, "all null"),
    "as many keys as rows": ("leaf", set_system("n_keys", "3"), {}, "at most N - 1"),
    "a key without value": ("leaf", set_cell(1, VALUE, None), {}, "key and value"),
    "a first row with a value": ("leaf", set_cell(0, VALUE, "x"), {}, "exactly 3 rows|neither|system rows"),
    "a row too many": ("leaf", insert_padding, {}, "a message has key and txn"),
    "a row too few": ("leaf", lambda rows: rows.pop(), {}, "exactly 3 rows"),
    "a leaf with a child": ("leaf", set_cell(0, PNODE, "x"), {}, "next to every key"),
    "a leaf that claims a height": ("leaf", set_system("height", "1"), {}, "knows its height"),
    "a key outside of the node": ("leaf", set_cell(2, KEY, FAR), {}, "lies between"),
    "a message outside of the node": ("inner", append(FAR, "x", None, "t"), {}, "lies between"),
    "a message with a child": ("inner", append("B===x", "x", "y", "t"), {}, "no pnode"),
    "a message without transaction": ("inner", append("B===x", "x", None, None), {}, "key and txn"),
    "a missing child": ("inner", set_cell(0, PNODE, None), {}, "no child at all"),
    "children that changed places": ("inner", swap_children, {}, "lies between|walking down"),
    "the same child twice": ("inner", same_child_twice, {}, "no child twice"),
    "an inner node of the wrong height": ("inner", set_system("height", "7"), {}, "knows its height"),
    "a transaction in the key table": ("leaf", set_cell(1, TXN, "t"), {}, "no txn"),
    "not compressed": ("leaf", nothing, {"compression": None}, "ZSTD"),
    "compressed otherwise": ("leaf", nothing, {"compression": "lz4"}, "ZSTD"),
    "columns without ids": ("leaf", nothing, {"ids": False}, "field id"),
    "two record batches": ("leaf", nothing, {"batches": 2}, "one record batch|key and txn"),
    "another version in the root": ("root", set_system("version", "3"), {}, "knows its version"),
    "another root before": ("root", set_system("previous_root", "_0.arrow"), {}, "contiguous"),
    "another last rollback": ("root", set_system("last_rollback", "1"), {}, "the last rollback"),
    "a rollback from elsewhere": ("root", set_system("rollback_from_root", "_0.arrow"), {}, "a rollback starts"),
    "time that runs backwards": ("root", set_system("created_at_millis", "1"), {}, "time does not"),
    "a commit without id": ("root", set_system("commit_id", "0" * 8 + "-0000-0000-0000-" + "0" * 12), {}, "commit id"),
    "newest rows that are not the tail": ("root", first_becomes_newest, {}, "tail"),
    "a change left out of the buffer": (
        "root",
        forget_newest,
        {},
        "has everything|every change|namespace of|has a record",
    ),
}


def test_lakehouse_is_valid_before_and_after_a_rewrite() -> None:
    patient = Patient()
    patient.check()
    for path in (patient.root, patient.inner, patient.leaf):
        patient.edit(path, nothing)
    patient.check()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    where, change, options, rule = MISTAKES[mistake]
    patient = Patient()
    patient.edit(getattr(patient, where), change, **options)
    with pytest.raises(BrokenRule, match=rule):
        patient.check()


def test_a_wrong_checksum_is_found() -> None:
    patient = Patient()
    data = patient.files[patient.leaf]
    position = data.index(b"xxh3-64:") + 8
    digit = b"0" if data[position : position + 1] != b"0" else b"1"
    patient.files[patient.leaf] = data[:position] + digit + data[position + 1 :]
    with pytest.raises(BrokenRule, match="checksum"):
        patient.check()


def test_a_path_whose_prefix_is_not_its_hash_is_found() -> None:
    patient = Patient()
    old = patient.leaf
    last = len("0000/0000/0000/0000000")
    new = old[:last] + ("1" if old[last] == "0" else "0") + old[last + 1 :]
    patient.rename_leaf(new)
    with pytest.raises(BrokenRule, match="is its hash"):
        patient.check()


def test_a_folder_that_is_not_of_the_hash_is_found() -> None:
    patient = Patient()
    digit = "1" if patient.leaf[0] == "0" else "0"
    patient.rename_leaf(digit + patient.leaf[1:])
    with pytest.raises(BrokenRule, match="is its hash"):
        patient.check()


def test_the_hash_of_a_name_without_its_slashes_is_found() -> None:
    """The hash was computed from the path with dashes instead of the original path with slashes."""
    original = "table-a/b-n-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.binpb"
    check_optimized(optimized(original), original)
    with pytest.raises(BrokenRule, match="is its hash"):
        check_optimized(optimized(original.replace("/", "-")), original)


@pytest.mark.parametrize("kind", ["namespace", "lakehouse"])
def test_a_uuid_of_another_version_is_found(kind: str) -> None:
    patient = Patient()
    location = next(one for name, one in patient.version.objects.items() if name.kind == "namespace")
    old = location if kind == "namespace" else patient.version.definition_path
    uuid = old[-len(".binpb") - 36 : -len(".binpb")]
    new = old.replace(uuid, f"{uuid[:14]}8{uuid[15:]}")
    if kind == "namespace":
        new = optimized(new.split("/", 3)[3].partition("-")[2])
    patient.rename(old, new)
    with pytest.raises(BrokenRule, match=r"is the path of a definition|the path of the lakehouse definition"):
        patient.check()


@pytest.mark.parametrize("position", [0, 5, 20, -1])
def test_a_flipped_bit_in_a_definition_is_found(position: int) -> None:
    patient = Patient()
    location = next(iter(patient.version.objects.values()))
    data = bytearray(patient.files[location])
    data[position] ^= 0x10
    patient.files[location] = bytes(data)
    with pytest.raises((BrokenRule, ValueError), match=r"checksum|wire type|varint|utf-8"):
        patient.check()


def test_the_definition_of_another_object_is_found() -> None:
    patient = Patient()
    first, second, *_ = patient.version.objects.values()
    patient.files[first] = patient.files[second]
    with pytest.raises(BrokenRule, match="names itself"):
        patient.check()


def set_value(row: list[str | None], path: str) -> None:
    row[VALUE] = path


def set_pnode(row: list[str | None], path: str) -> None:
    row[PNODE] = path


def test_a_missing_definition_is_found() -> None:
    patient = Patient()
    del patient.files[next(iter(patient.version.locations.values()))]
    with pytest.raises(BrokenRule, match="exists"):
        patient.check()


def test_a_hole_in_the_versions_is_found() -> None:
    patient = Patient()
    del patient.files[SeedVersion(SeedLakehouse({}), 5).path]
    with pytest.raises(BrokenRule, match="contiguous"):
        patient.check()


def test_the_latest_version_is_found_from_an_older_hint_and_from_none() -> None:
    patient = Patient()
    latest = archive.expectation("0.1/order_3")["latest"]
    for hint in (b"0", b"7", b"29"):
        patient.files["_latest_hint.txt"] = hint
        assert SeedLakehouse(patient.files).latest() == latest, hint
    del patient.files["_latest_hint.txt"]
    assert SeedLakehouse(patient.files).latest() == latest


def test_the_hash_is_the_one_that_iceberg_uses() -> None:
    """Iceberg's object storage layout uses the same 20 bits of the same hash."""
    from pyiceberg.table.locations import ObjectStoreLocationProvider

    for name in ("a.parquet", "node-x.arrow", "é"):
        groups = ObjectStoreLocationProvider._compute_hash(name)
        assert optimized(name) == f"{groups}-{name}"
