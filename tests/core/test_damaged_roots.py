"""A damaged newest root: older versions are readable, the log shows the gap, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

import trinitylake as tl
from trinitylake import _core, core


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
    """After the newest root file was deleted, the lakehouse can be read and not written, so that no commit reuses its
    number. Without fsync, the hint shows the loss once the writer has paused for a second, or has ended."""
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
