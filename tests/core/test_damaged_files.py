"""Damaged, foreign or hostile files: a typed error names the file, and operations that do not need the file succeed."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trinitylake as tl
from conformance.node_writer import KEY, PNODE, VALUE, Rows, to_bytes, to_rows
from golden import archive
from trinitylake import _core, core
from trinitylake.definitions import LakehouseDef

GOLDEN = "0.1/order_3"
FILES = archive.unpack(GOLDEN)
LATEST: int = archive.expectation(GOLDEN)["latest"]
ROOT = core.root_path(LATEST)
#: Limit of the peak memory for refusing one file.
MEMORY_LIMIT_BYTES = 64 << 20


def highest_version() -> dict[str, Any]:
    versions: list[dict[str, Any]] = archive.expectation(GOLDEN)["versions"]
    return max(versions, key=lambda version: (version["nodes"][0]["height"], version["version"]))


#: The version with the highest tree, an inner node in it below the root, the parent of this node, and a leaf below it.
HIGHEST = highest_version()
INNER = next(node for node in HIGHEST["nodes"] if node["parent"] and node["height"] == 1)
LEAF = next(
    node for node in HIGHEST["nodes"] if node["parent"] == INNER["path"] and node["height"] == INNER["height"] - 1
)


def lakehouse(**changed: bytes) -> str:
    """The root of a copy of the golden lakehouse in memory."""
    return placed({**FILES, **changed})


def placed(files: dict[str, bytes]) -> str:
    root = f"memory://{uuid.uuid4()}"
    _core.Storage(root).put_many(list(files.items()))
    return root


def read_latest(root: str) -> None:
    """Read the latest version. Opening succeeds even if it is damaged."""
    tl.open(root).namespaces()


def rewritten(path: str, change: Callable[[Rows], Any]) -> bytes:
    rows = to_rows(FILES[path])
    change(rows)
    return to_bytes(rows)


def set_system(name: str, value: str | None) -> Callable[[Rows], None]:
    """Set a system row, or remove it."""

    def change(rows: Rows) -> None:
        kept = [row for row in rows if row[KEY] != name]
        rows[:] = kept if value is None else [[name, value, None, None], *kept]

    return change


def set_children(*paths: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        children = [row for row in rows if row[PNODE] is not None]
        for row, path in zip(children, paths, strict=False):
            row[PNODE] = path

    return change


def walk(root: str, version: int | None = None) -> Any:
    """Every node, every key."""
    at = tl.open(root).at(version)
    at.namespaces()
    return at.nodes().to_pylist()


# Node files


@pytest.mark.parametrize("path", [ROOT, INNER["path"], LEAF["path"]], ids=["root", "inner", "leaf"])
def test_a_node_cut_at_any_offset_is_corrupt(path: str) -> None:
    data = FILES[path]
    for size in range(len(data)):
        with pytest.raises(tl.CorruptFile) as caught:
            core.read_node(data[:size], path)
        assert caught.value.path == path
        assert path in str(caught.value)


@pytest.mark.parametrize("path", [ROOT, LEAF["path"]], ids=["root", "leaf"])
def test_a_flipped_bit_anywhere_is_found_or_harmless(path: str) -> None:
    """The checksum covers everything except the footer."""
    data = FILES[path]
    whole = core.read_node(data, path)
    footer = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    for position in range(0, len(data), 1 if len(data) < 6000 else 3):
        for bit in (0, 3, 7):
            flipped = data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]
            try:
                node = core.read_node(flipped, path)
            except tl.CorruptFile as error:
                found = error.path
                assert found == path
            else:
                assert position >= footer, f"bit {bit} of byte {position} was not noticed"
                assert (node.system, node.table, node.buffer) == (whole.system, whole.table, whole.buffer)


@pytest.mark.parametrize("length", [0, 1, 100, 5000])
def test_arbitrary_bytes_are_corrupt(length: int) -> None:
    for data in (b"\0" * length, b"\xff" * length, b"ARROW1\0\0" + b"\0" * length + b"ARROW1", bytes(range(256)) * 9):
        with pytest.raises(tl.CorruptFile, match="a/b") as caught:
            core.read_node(data, "a/b")
        assert caught.value.path == "a/b"


def arrow_file(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


NAMES = ("key", "value", "pnode", "txn")
TEXTS = pa.table({name: pa.array(["n_keys", None], pa.string()) for name in NAMES})
NUMBERS = pa.table({name: [1, 2] for name in NAMES})

FOREIGN: dict[str, bytes] = {
    "parquet": parquet(TEXTS),
    "an Arrow stream": arrow_stream(TEXTS),
    "other columns": arrow_file(pa.table({"a": ["x"], "b": ["y"]})),
    "columns in another order": arrow_file(TEXTS.select(["value", "key", "pnode", "txn"])),
    "numbers": arrow_file(NUMBERS),
    "large strings": arrow_file(TEXTS.cast(pa.schema([(name, pa.large_string()) for name in NAMES]))),
    "string views": arrow_file(pa.table({name: pa.array(["a"], pa.string_view()) for name in NAMES})),
    "dictionaries": arrow_file(pa.table({name: pa.array(["a"]).dictionary_encode() for name in NAMES})),
    "binary": arrow_file(pa.table({name: pa.array([b"a"]) for name in NAMES})),
    "no batch": arrow_file(TEXTS.slice(0, 0)),
    "no key table": to_bytes([["n_keys", "0", None, None]]),
    "no n_keys": to_bytes([["height", "0", None, None], *[[None] * 4] * 3]),
    "a negative n_keys": to_bytes([["n_keys", "-1", None, None], *[[None] * 4] * 3]),
    "n_keys that is no number": to_bytes([["n_keys", "many", None, None], *[[None] * 4] * 3]),
    "an enormous n_keys": to_bytes([["n_keys", str(2**70), None, None], *[[None] * 4] * 3]),
    "more keys than rows": to_bytes([["n_keys", "3", None, None], *[[None] * 4] * 3]),
    "nothing but nulls": to_bytes([[None] * 4] * 3),
    "two batches": to_bytes([["n_keys", "0", None, None], *[[None] * 4] * 3], batches=2),
    "text that is not UTF-8": arrow_file(pa.table({name: pa.array([b"\xff\xfe"]).view(pa.string()) for name in NAMES})),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_no_node(kind: str) -> None:
    with pytest.raises(tl.CorruptFile) as caught:
        core.read_node(FOREIGN[kind], "x/y.arrow")
    assert caught.value.path == "x/y.arrow"
    root = lakehouse(**{ROOT: FOREIGN[kind]})
    with pytest.raises(tl.CorruptFile, match=ROOT):
        tl.open(root).namespaces()


def test_uncompressed_lz4_and_unverified_files_of_other_writers_are_nodes() -> None:
    """So the damaged files above are refused for their damage."""
    rows = to_rows(FILES[LEAF["path"]])
    whole = core.read_node(FILES[LEAF["path"]])
    for compression in ("zstd", "lz4", None):
        node = core.read_node(to_bytes(rows, compression=compression, ids=False))
        assert (node.system, node.table, node.buffer) == (whole.system, whole.table, whole.buffer)


# Bombs


BOMBS = """
import resource, sys, struct
import pyarrow as pa
import trinitylake as tl
from trinitylake import core

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

data = open(sys.argv[1], "rb").read()
core.read_node(open(sys.argv[2], "rb").read())
before = peak()
for _ in range(3):
    try:
        core.read_node(data, "bomb.arrow")
    except tl.CorruptFile as error:
        assert error.path == "bomb.arrow", error
        print("refused:", error)
    else:
        raise SystemExit("taken for a node")
print(peak() - before)
"""


def batch_of(columns: list[pa.Array]) -> bytes:
    sink = pa.BufferOutputStream()
    fields = [pa.field(name, pa.string()) for name in NAMES]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write(batch)
    return bytes(sink.getvalue())


def decompression_bomb() -> bytes:
    """Half a gigabyte of zeros, correctly compressed."""
    zeros = pa.array(["\0" * (1 << 29)], pa.string())
    none = pa.array([None], pa.string())
    return batch_of([zeros, none, none, none])


#: Nodes without a checksum, so that other checks must find the damage.
SMALL: Rows = [["n_keys", "0", None, None], *[[None] * 4 for _ in range(3)]]
PLAIN_NODE = to_bytes(SMALL, compression=None, checksum=False)
PACKED_NODE = to_bytes([["long", "x" * 5000, None, None], *SMALL], checksum=False)


def as_bytes(*numbers: int, size: int = 4) -> bytes:
    return b"".join(number.to_bytes(size, "little", signed=True) for number in numbers)


def lying_size() -> bytes:
    """A buffer whose header states a decompressed size of 2^40 bytes."""
    assert PACKED_NODE.count(as_bytes(5001, size=8)) == 1
    return PACKED_NODE.replace(as_bytes(5001, size=8), as_bytes(1 << 40, size=8))


def many_rows() -> bytes:
    """A batch that states a thousand million rows without data."""
    assert PLAIN_NODE.count(as_bytes(4, size=8)) >= 5, "the numbers of rows of the batch and of each column"
    return PLAIN_NODE.replace(as_bytes(4, size=8), as_bytes(10**9, size=8))


def test_nodes_are_valid_before_tampering() -> None:
    for data in (PLAIN_NODE, PACKED_NODE):
        assert (core.read_node(data).n_keys, core.read_node(data).table.num_rows) == (0, 3)


@pytest.mark.parametrize("bomb", [decompression_bomb, lying_size, many_rows])
def test_a_bomb_is_refused_before_it_costs_memory(bomb: Callable[[], bytes], tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(bomb())
    (tmp_path / "node").write_bytes(FILES[ROOT])
    command = [sys.executable, "-c", BOMBS, str(tmp_path / "bomb"), str(tmp_path / "node")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) < MEMORY_LIMIT_BYTES, done.stdout


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 100, 6, 6, 6],
        [0, 6, 6, 6, 2**31 - 1],
        [0, -5, 6, 6, 6],
        [-1, 6, 6, 6, 6],
        [6, 0, 6, 6, 6],
        [0, 6, 6, 6, 5000],
    ],
    ids=["behind-the-end", "largest", "negative", "negative-start", "descending", "last-behind-the-end"],
)
def test_offsets_that_lead_elsewhere_are_corrupt(offsets: list[int]) -> None:
    assert PLAIN_NODE.count(as_bytes(0, 6, 6, 6, 6)) == 1, "the offsets of the strings in the column `key`"
    with pytest.raises(tl.CorruptFile) as caught:
        core.read_node(PLAIN_NODE.replace(as_bytes(0, 6, 6, 6, 6), as_bytes(*offsets)), "offsets")
    assert caught.value.path == "offsets"


# Trees


def test_a_node_that_is_its_own_child_is_corrupt() -> None:
    for child in (INNER["path"], HIGHEST["nodes"][0]["path"]):
        changed = rewritten(INNER["path"], set_children(child))
        with pytest.raises(tl.CorruptFile, match="height") as caught:
            walk(lakehouse(**{INNER["path"]: changed}), HIGHEST["version"])
        assert caught.value.path == child


def test_a_cycle_of_nodes_without_heights_ends_in_an_error() -> None:
    """Another writer need not store heights. Without them, only a limit on the depth ends the search."""
    root = HIGHEST["nodes"][0]["path"]
    nodes = {path: rewritten(path, set_system("height", None)) for path in FILES if path.endswith(".arrow")}
    rows = to_rows(nodes[INNER["path"]])
    set_children(*[INNER["path"]] * 3)(rows)
    nodes[INNER["path"]] = to_bytes(rows)
    rows = to_rows(nodes[root])
    set_children(*[INNER["path"]] * 3)(rows)
    nodes[root] = to_bytes(rows)
    copy = lakehouse(**nodes)
    with pytest.raises(tl.CorruptFile):
        walk(copy, HIGHEST["version"])
    at = tl.open(copy).at(HIGHEST["version"])
    for call in (at.namespaces, at.nodes, lambda: at.exists("0")):
        with pytest.raises(tl.CorruptFile):
            call()


def test_a_child_with_the_wrong_height_is_corrupt() -> None:
    changed = rewritten(INNER["path"], set_system("height", str(INNER["height"] + 1)))
    with pytest.raises(tl.CorruptFile, match="height") as caught:
        walk(lakehouse(**{INNER["path"]: changed}), HIGHEST["version"])
    assert caught.value.path == INNER["path"]
    deepest = rewritten(LEAF["path"], set_system("height", "1"))
    with pytest.raises(tl.CorruptFile) as caught:
        walk(lakehouse(**{LEAF["path"]: deepest}), HIGHEST["version"])
    assert caught.value.path == LEAF["path"]


def test_two_parents_of_one_node_are_found() -> None:
    sibling = next(
        node["path"] for node in HIGHEST["nodes"] if node["parent"] == INNER["path"] and node["path"] != LEAF["path"]
    )
    changed = rewritten(INNER["path"], set_children(sibling, sibling))
    with pytest.raises(tl.CorruptFile):
        tl.open(lakehouse(**{INNER["path"]: changed})).at(HIGHEST["version"]).nodes()


def test_a_key_in_the_wrong_node_is_found() -> None:
    def change(rows: Rows) -> None:
        first = next(i for i, row in enumerate(rows) if row[KEY] is None and row[VALUE] is None)
        rows[first + 1][KEY] = "Z" + (rows[first + 1][KEY] or "")[1:]
        del rows[first + 2 :]
        rows += [[None] * 4]
        set_system("n_keys", "1")(rows)

    with pytest.raises(tl.CorruptFile, match="outside"):
        tl.open(lakehouse(**{LEAF["path"]: rewritten(LEAF["path"], change)})).at(HIGHEST["version"]).nodes()


def test_nodes_of_another_order_are_corrupt() -> None:
    def widen(rows: Rows) -> None:
        first = next(i for i, row in enumerate(rows) if row[KEY] is None and row[VALUE] is None)
        rows[first + 3 : first + 3] = [[None] * 4, [None] * 4]

    with pytest.raises(tl.CorruptFile, match="order") as caught:
        tl.open(lakehouse(**{ROOT: rewritten(ROOT, widen)})).namespaces()
    assert caught.value.path == ROOT
    with pytest.raises(tl.CorruptFile, match="5 rows"):
        tl.open(lakehouse(**{LEAF["path"]: rewritten(LEAF["path"], widen)})).at(HIGHEST["version"]).nodes()


def test_a_node_that_is_missing_is_named() -> None:
    files = {path: data for path, data in FILES.items() if path != LEAF["path"]}
    with pytest.raises(tl.TrinityLakeError, match=LEAF["path"]) as caught:
        walk(placed(files), HIGHEST["version"])
    assert isinstance(caught.value, tl.CorruptFile), "a missing node that the tree references is damage"
    assert caught.value.path == LEAF["path"]


def test_a_root_under_another_name_is_corrupt() -> None:
    copied = lakehouse(**{core.root_path(LATEST + 1): FILES[core.root_path(3)]})
    with pytest.raises(tl.CorruptFile, match="copied or renamed") as caught:
        read_latest(copied)
    assert caught.value.path == core.root_path(LATEST + 1)


def test_a_leaf_in_the_place_of_a_root_is_corrupt() -> None:
    with pytest.raises(tl.CorruptFile, match="lakehouse_def"):
        read_latest(lakehouse(**{ROOT: FILES[LEAF["path"]]}))


def test_invalid_system_rows_are_corrupt() -> None:
    for name, value in (
        ("committed_txns", "[{"),
        ("committed_txns", '{"id": 3}'),
        ("created_at_millis", "yesterday"),
        ("version", "x"),
        ("lakehouse_def", None),
    ):
        with pytest.raises(tl.CorruptFile, match=ROOT):
            read_latest(lakehouse(**{ROOT: rewritten(ROOT, set_system(name, value))}))


def test_unknown_system_rows_are_ignored() -> None:
    changed = rewritten(ROOT, set_system("from_the_future", "x"))
    future, now = tl.open(lakehouse(**{ROOT: changed})), tl.open(lakehouse())
    assert "from_the_future" in core.read_node(changed).system
    assert archive.describe_version(future, LATEST) == archive.describe_version(now, LATEST)


def test_a_definition_location_that_leads_out_of_the_root_is_refused() -> None:
    for location in ("../../etc/passwd", "/etc/passwd", "a/../../x", "file:///etc/passwd"):

        def redirect(rows: Rows, location: str = location) -> None:
            for row in rows:
                if row[KEY] is not None and row[KEY].startswith("B===nyc ") and row[VALUE] is not None:
                    row[VALUE] = location

        changed = {path: rewritten(path, redirect) for path in FILES if path.endswith(".arrow")}
        with pytest.raises((tl.InvalidLocation, tl.CorruptFile)):
            tl.open(lakehouse(**changed)).namespace("nyc")


# A damaged newest version


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: b"", lambda data: data[:900] + bytes([data[900] ^ 1]) + data[901:]],
    ids=["cut", "empty", "flipped"],
)
def test_damaged_newest_root_keeps_older_versions_readable_and_refuses_commits(
    damage: Callable[[bytes], bytes],
) -> None:
    root = f"memory://{uuid.uuid4()}"
    storage = _core.Storage(root)
    storage.put_many([(path, data) for path, data in FILES.items() if path != ROOT])
    storage.delete("_latest_hint.txt")
    lake = tl.open(root)
    assert lake.version == LATEST - 1
    before = lake.namespaces()
    storage.put(ROOT, damage(FILES[ROOT]))
    for call in (lambda: read_latest(root), lambda: lake.version):
        with pytest.raises(tl.CorruptFile) as caught:
            call()
        assert caught.value.path == ROOT
    with pytest.raises((tl.CorruptFile, tl.LakehouseMoved)):  # the copy is not relocated
        lake.create_namespace("new")
    assert lake.at(LATEST - 1).namespaces() == before
    assert not storage.exists(core.root_path(LATEST + 1)), "nothing is committed on an unreadable version"


# Definitions


def lakehouse_definition_path() -> str:
    return next(path for path in FILES if path.startswith("_lakehouse_def_") and path in str(to_rows(FILES[ROOT])))


BAD_DEFINITIONS = {
    "a length of 2^35": b"\x0a\xff\xff\xff\xff\x7f",
    "a length beyond the end": b"\x0a\x7fabc",
    "a varint without end": b"\x10" + b"\xff" * 30,
    "a group": b"\x0b" * 10_000,
    "text that is not UTF-8": b"\x0a\x02\xff\xfe",
    "a field number of 0": b"\x02\x01x",
    "noise": bytes(range(255, 0, -1)),
}


@pytest.mark.parametrize("kind", BAD_DEFINITIONS)
def test_a_bad_lakehouse_definition_is_a_corrupt_file(kind: str) -> None:
    """The root contains a copy of the definition, which the test removes so that the file is read."""
    path = lakehouse_definition_path()
    root = rewritten(ROOT, set_system("lakehouse_def_inline", None))
    assert tl.open(lakehouse(**{ROOT: root})).version == LATEST
    with pytest.raises(tl.CorruptFile, match=path) as caught:
        read_latest(lakehouse(**{ROOT: root, path: BAD_DEFINITIONS[kind]}))
    assert caught.value.path == path
    inline = rewritten(ROOT, set_system("lakehouse_def_inline", BAD_DEFINITIONS[kind].hex()))
    with pytest.raises(tl.CorruptFile):
        read_latest(lakehouse(**{ROOT: inline}))


@pytest.mark.parametrize("kind", BAD_DEFINITIONS)
def test_a_bad_object_definition_is_a_corrupt_file(kind: str) -> None:
    path = tl.open(lakehouse())._core.latest().locate("namespace", "nyc")
    assert path is not None
    lake = tl.open(lakehouse(**{path: BAD_DEFINITIONS[kind]}))
    for call in (
        lambda: lake.namespace("nyc"),
        lambda: lake.alter_namespace("nyc", {"a": "b"}),
        lambda: lake.begin().namespace("nyc"),
    ):
        with pytest.raises(tl.CorruptFile, match=path) as caught:
            call()
        assert caught.value.path == path
    assert lake.exists("nyc")
    assert lake.version == LATEST, "nothing was committed"
    lake.maintenance.relocate(rewrite=False)
    lake.create_namespace("others_go_on")


def test_a_definition_over_the_size_limit_is_refused() -> None:
    path = tl.open(lakehouse())._core.latest().locate("namespace", "nyc")
    assert path is not None
    with pytest.raises(tl.CorruptFile, match="limit"):
        tl.open(lakehouse(**{path: b"\x0a\x80\x80\x80\x09" + b"x" * (18 << 20)})).namespace("nyc")
    root = rewritten(ROOT, set_system("lakehouse_def_inline", None))
    with pytest.raises(tl.CorruptFile, match="too many"):
        read_latest(lakehouse(**{ROOT: root, lakehouse_definition_path(): b"\0" * (17 << 20)}))


def test_a_lakehouse_definition_that_is_missing_is_named() -> None:
    root = rewritten(ROOT, set_system("lakehouse_def_inline", None))
    files = {**FILES, ROOT: root}
    del files[lakehouse_definition_path()]
    with pytest.raises(tl.CorruptFile) as caught:
        read_latest(placed(files))
    assert caught.value.path == lakehouse_definition_path()


@pytest.mark.parametrize("inline", [True, False])
def test_a_newer_major_version_is_refused_and_older_versions_stay_readable(inline: bool) -> None:
    """Another process upgrades the lakehouse while this process has it open."""
    definition = LakehouseDef.FromString(FILES[lakehouse_definition_path()])
    definition.major_version = 7
    data, path = definition.SerializeToString(), f"_lakehouse_def_{uuid.uuid4()}.binpb"

    def upgrade(rows: Rows) -> None:
        set_system("lakehouse_def", path)(rows)
        set_system("lakehouse_def_inline", data.hex() if inline else None)(rows)

    root = placed({name: content for name, content in FILES.items() if name not in (ROOT, "_latest_hint.txt")})
    lake = tl.open(root)
    assert lake.version == LATEST - 1
    _core.Storage(root).put_many([(path, data), (ROOT, rewritten(ROOT, upgrade))])
    calls = (lambda: lake.version, lambda: lake.create_namespace("new"), lake.namespaces, lambda: tl.open(root))
    for call in calls:
        with pytest.raises(tl.UnsupportedVersion, match="7"):
            call()
    assert lake.at(LATEST - 1).namespaces()
    assert not _core.Storage(root).exists(core.root_path(LATEST + 1))


# Deleted and damaged roots


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
def test_a_damaged_newest_version_hides_only_itself(tmp_path: Path, how: str) -> None:
    """With a damaged newest root, `open`, `log`, `at(5)` and `rollback(5)` work for the older versions."""
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for name in ("a", "b", "c"):
        lake.create_namespace(name)
    file = tmp_path / "lake" / core.root_path(3)
    good = bytearray(file.read_bytes())
    flipped = good[:]
    flipped[len(good) // 3] ^= 4
    file.write_bytes({"truncated": good[: len(good) // 2], "flipped": flipped, "emptied": b""}[how])

    assert tl.open(lake.uri, version=2).namespaces() == ["a", "b"]
    opened = tl.open(lake.uri)
    assert opened.at(1).namespaces() == ["a"]
    entries = opened.log()
    assert [entry.version for entry in entries] == [3, 2, 1, 0]
    assert entries[0].problem
    assert not any(entry.problem for entry in entries[1:])
    for refused in (
        opened.namespaces,
        lambda: opened.create_namespace("d"),
        lambda: opened.rollback(1),
        opened.maintenance.expire,
        lambda: opened.at(3),
    ):
        with pytest.raises(tl.CorruptFile) as caught:
            refused()
        assert caught.value.path == core.root_path(3)
    assert not (tmp_path / "lake" / core.root_path(4)).exists()

    file.write_bytes(good)
    assert tl.open(lake.uri).namespaces() == ["a", "b", "c"]


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_after_the_newest_root_was_deleted_the_lakehouse_is_read_and_not_written(
    tmp_path: Path, durability: Literal["fsync", "none"]
) -> None:
    """Without fsync, the hint shows the loss once the writer has paused for a second, or has ended."""
    lake = tl.create(str(tmp_path / "lake"), durability=durability)
    for name in ("a", "b", "c"):
        lake.create_namespace(name)
    if durability == "none":
        _core.finish_background_tasks(5.0)
    file = tmp_path / "lake" / core.root_path(3)
    good = file.read_bytes()
    file.unlink()

    with pytest.warns(RuntimeWarning, match="names version 3, whose root is missing"):
        opened = tl.open(lake.uri)
    assert (opened.version, opened.namespaces()) == (2, ["a", "b"])
    for log in (opened.log(), opened.log(None)):
        assert [(entry.version, bool(entry.problem)) for entry in log] == [
            (3, True),
            (2, False),
            (1, False),
            (0, False),
        ]
        assert len(log) == 4
    with pytest.warns(RuntimeWarning):
        findings = tl.open(lake.uri).maintenance.fsck().findings
    assert core.root_path(3) in [finding.path for finding in findings]
    for refused in (
        lambda: opened.create_namespace("d"),
        lambda: opened.rollback(1),
        opened.maintenance.expire,
        lambda: opened.at(3),
        lambda: opened.alter({"owner": "ops"}),
    ):
        with pytest.raises(tl.CorruptFile) as caught:
            refused()
        assert caught.value.path == core.root_path(3)
    file.write_bytes(good)
    opened.create_namespace("d")
    assert (opened.version, tl.open(lake.uri).namespaces()) == (4, ["a", "b", "c", "d"])
    assert tl.open(lake.uri).maintenance.fsck().findings == ()


def test_deleting_the_hint_makes_a_lakehouse_without_its_newest_root_writable(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    lake.create_namespace("a")
    (tmp_path / "lake" / core.root_path(1)).unlink()
    (tmp_path / "lake" / "_latest_hint.txt").unlink()
    opened = tl.open(lake.uri)
    opened.create_namespace("b")
    assert (opened.version, opened.namespaces()) == (1, ["b"])


def test_a_damaged_version_in_between_is_a_gap_in_the_log(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for name in ("a", "b", "c"):
        lake.create_namespace(name)
    (tmp_path / "lake" / core.root_path(1)).write_bytes(b"nonsense")
    opened = tl.open(lake.uri)
    assert opened.namespaces() == ["a", "b", "c"]
    assert [bool(entry.problem) for entry in opened.log()] == [False, False, True, False]
    opened.create_namespace("d")
