"""The compiled core: its module and its shared library."""

from __future__ import annotations

import struct
from pathlib import Path

import mmh3
import numpy as np
import polars
import pyarrow as pa
import pytest

import trinitylake as tl
from trinitylake import _core, core


def test_a_root_path_is_the_reversed_binary_version_and_can_be_read_back() -> None:
    assert core.root_path(100) == "_00100110000000000000000000000000.arrow"
    for version in (0, 1, 100, 2**32 - 1, 2**32, 2**62):
        assert core.root_version(core.root_path(version)) == version
    assert core.root_version("_00100110000000000000000000000000.ipc") == 100
    assert core.root_version("node-x.arrow") is None


def test_paths_are_spread_by_twenty_bits_of_their_hash() -> None:
    paths = ["node-1.arrow", "table-t1-ns1-é.binpb", "a/b/c"]
    expected = []
    for path in paths:
        bits = format(mmh3.hash(path, signed=False) & 0xFFFFF, "020b")
        expected.append(f"{bits[:4]}/{bits[4:8]}/{bits[8:12]}/{bits[12:]}-{path.replace('/', '-')}")
    for data in (paths, pa.array(paths), pa.chunked_array([paths]), np.array(paths), polars.Series(paths)):
        assert core.optimize_paths(data).to_pylist() == expected
    assert core.optimize_paths(pa.array(paths, pa.large_string())).to_pylist() == expected
    assert core.optimize_paths([]).to_pylist() == []


def test_keys_are_padded_names_that_sort_like_them_and_can_be_read_back() -> None:
    sizes = core.KeySizes(8, 6, 6)
    keys = core.encode_table_keys(["b", "a", "é"], ["t", "u", "v"], sizes)
    assert keys.to_pylist() == ["C===b       t     ", "C===a       u     ", "C===é      v     "]
    assert core.encode_view_keys("a", ["v"], sizes).to_pylist() == ["D===a       v     "]
    assert core.encode_namespace_keys(["a"], sizes).to_pylist() == ["B===a       "]
    mixed = [*core.encode_namespace_keys(["a"], sizes).to_pylist(), *keys.to_pylist()]
    assert core.decode_keys(mixed, sizes).to_pylist() == [
        {"kind": "namespace", "namespace": "a", "name": ""},
        {"kind": "table", "namespace": "b", "name": "t"},
        {"kind": "table", "namespace": "a", "name": "u"},
        {"kind": "table", "namespace": "é", "name": "v"},
    ]
    with pytest.raises(tl.InvalidName):
        core.encode_namespace_keys(["ok", "much too long"], sizes)


def test_a_lakehouse_definition_configures_the_encoders(root: str) -> None:
    lake = tl.create(root, namespace_name_max_size_bytes=10, table_name_max_size_bytes=20)
    assert len(core.encode_table_keys("a", ["t"], lake._definition)[0].as_py()) == 4 + 10 + 20


def test_the_root_of_a_real_lakehouse_reads_as_a_node(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), order=5, durability="none")
    lake.create_namespace("a")
    lake.create_namespace("b")
    lake.drop_namespace("a")
    path = core.root_path(3)
    node = core.read_node((tmp_path / "lake" / path).read_bytes(), path)
    assert (node.path, node.system["version"], node.table.num_rows) == (path, "3", 5)
    assert {"lakehouse_def", "previous_root", "created_at_millis", "n_keys", "commit_id"} <= node.system.keys()
    key_a, key_b, key_c = core.encode_namespace_keys(["a", "b", "c"]).to_pylist()
    assert core.search_node(node, key_a) == ("message", None), "a delete"
    answer, location = node.search(key_b)
    assert answer in ("message", "row")
    assert location is not None
    assert location.split("-", 1)[1].startswith("namespace-b-")
    assert node.search(key_c) == ("absent", None)
    with pytest.raises(tl.CorruptFile) as caught:
        core.read_node(b"nonsense", "some/path")
    assert caught.value.path == "some/path"


def test_merging_buffers_keeps_the_newest_message_of_each_key() -> None:
    old = pa.table({"key": ["b", "a"], "value": ["1", "1"], "txn": ["x", "x"]})
    new = pa.table({"key": ["b", "c"], "value": [None, "2"], "txn": ["y", "y"]})
    batches = [table.cast(pa.schema([(name, pa.string()) for name in table.column_names])) for table in (old, new)]
    merged = core.merge_messages([batch.to_batches()[0] for batch in batches])
    assert merged.to_pylist() == [
        {"key": "a", "value": "1", "txn": "x"},
        {"key": "b", "value": None, "txn": "y"},
        {"key": "c", "value": "2", "txn": "y"},
    ]


# The shared library


PT_DYNAMIC, DT_FLAGS, DF_STATIC_TLS = 2, 30, 0x10


def dynamic_entries(library: bytes) -> dict[int, int]:
    """The dynamic section of an ELF library, by tag; empty for other kinds of libraries."""
    if library[:6] != b"\x7fELF\x02\x01":
        return {}
    (start,) = struct.unpack_from("<Q", library, 0x20)
    size, count = struct.unpack_from("<HH", library, 0x36)
    found: dict[int, int] = {}
    for header in range(start, start + size * count, size):
        (kind,) = struct.unpack_from("<I", library, header)
        if kind == PT_DYNAMIC:
            (offset,) = struct.unpack_from("<Q", library, header + 0x08)
            (length,) = struct.unpack_from("<Q", library, header + 0x20)
            found.update(struct.iter_unpack("<QQ", library[offset : offset + length]))
    return found


def test_core_library_needs_no_static_tls() -> None:
    assert _core.__file__ is not None
    library = Path(_core.__file__).read_bytes()
    entries = dynamic_entries(library)
    assert entries or library[:4] != b"\x7fELF"
    assert not entries.get(DT_FLAGS, 0) & DF_STATIC_TLS
