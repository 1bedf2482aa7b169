"""The newest root damaged: what is intact is read, the gap is shown, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import trinitylake as tl
from trinitylake import core


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
def test_a_damaged_newest_version_hides_only_itself(tmp_path: Path, how: str) -> None:
    """One flipped bit in the newest root made `open`, `log`, `at(5)` and `rollback(5)` fail."""
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
    assert opened.at(version=1).namespaces() == ["a"]
    entries = opened.log()
    assert [entry.version for entry in entries] == [3, 2, 1, 0]
    assert entries[0].problem
    assert not any(entry.problem for entry in entries[1:])
    for refused in (
        opened.namespaces,
        lambda: opened.create_namespace("d"),
        lambda: opened.rollback(1),
        opened.expire,
        lambda: opened.at(version=3),
    ):
        with pytest.raises(tl.CorruptFile) as caught:
            refused()
        assert caught.value.path == core.root_path(3)
    assert not (tmp_path / "lake" / core.root_path(4)).exists()

    file.write_bytes(good)
    assert tl.open(lake.uri).namespaces() == ["a", "b", "c"]


def test_a_damaged_version_in_between_is_a_gap_in_the_log(tmp_path: Path) -> None:
    lake = tl.create(str(tmp_path / "lake"), durability="none")
    for name in ("a", "b", "c"):
        lake.create_namespace(name)
    (tmp_path / "lake" / core.root_path(1)).write_bytes(b"nonsense")
    opened = tl.open(lake.uri)
    assert opened.namespaces() == ["a", "b", "c"]
    assert [bool(entry.problem) for entry in opened.log()] == [False, False, True, False]
    opened.create_namespace("d")
