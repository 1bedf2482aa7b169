"""Turns on one machine: processes wait for each other, but never for one that is asleep or dead."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trinitylake.tables import table_turns
from trinitylake.tables.table_turns import ProcessTurns

#: Tells whether the turn of a table is free.
ASK = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from trinitylake.tables import table_turns
table_turns.PROCESS_TURN_TIMEOUT_SECONDS = 0
asked = []
lock = table_turns._try_lock
table_turns._try_lock = lambda *place: asked.append(lock(*place)) or asked[-1]
with table_turns.ProcessTurns().taken([sys.argv[2]]):
    print(asked[-1], flush=True)
    if sys.argv[3:]:
        sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table_turns.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def is_free(folder: Path, table_id: str) -> bool:
    command = [sys.executable, "-c", ASK, str(folder), table_id]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "True"


@contextmanager
def holder(folder: Path, table_id: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the turn."""
    command = [sys.executable, "-c", ASK, str(folder), table_id, "stay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "True"
        yield process
        process.kill()


def test_a_process_has_the_turn_of_its_tables_and_of_no_others(folder: Path) -> None:
    with ProcessTurns().taken(["a", "b"]):
        assert [is_free(folder, id) for id in "abc"] == [False, False, True]
    assert is_free(folder, "a")


def test_the_turn_of_a_process_that_was_killed_is_free(folder: Path) -> None:
    with holder(folder, "a") as process:
        assert not is_free(folder, "a")
        process.kill()
        process.wait()
        assert is_free(folder, "a")


def test_who_waited_too_long_goes_on_without_the_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_turns, "PROCESS_TURN_TIMEOUT_SECONDS", 0.05)
    with holder(folder, "a") as process:
        with ProcessTurns().taken(["a"]):
            assert process.poll() is None
        assert not is_free(folder, "a"), "the turn of another is not given back by who did not have it"


def test_without_a_place_for_the_file_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_turns.tempfile, "tempdir", str(tmp_path / "missing"))
    turns = ProcessTurns()
    with turns.taken(["a"]):
        assert turns._open() is None


def test_a_file_that_is_a_link_is_not_followed(folder: Path) -> None:
    with ProcessTurns().taken(["a"]):
        (file,) = folder.iterdir()
    file.unlink()
    file.symlink_to(folder / "elsewhere")
    with ProcessTurns().taken(["a"]):
        assert not (folder / "elsewhere").exists()


def test_a_turn_is_kept_for_as_long_as_it_is_taken(folder: Path) -> None:
    """Turns are forgotten when nobody refers to them. One that was held by its lock alone was made anew for the next
    who came, so that two had it.
    """
    turns = table_turns.Turns()
    with turns.taken(["a"]) as is_taken:
        assert is_taken
        gc.collect()
        found = []
        other = threading.Thread(target=lambda: found.append(turns.lock(["a"], waits=False)))
        other.start()
        other.join()
        assert found == [None]
    with turns.taken(["a"], waits=False) as is_taken:
        assert is_taken


def test_the_turn_of_several_is_kept_though_they_can_be_named_once(folder: Path) -> None:
    """What was given as a generator was used up when the turns were taken: none of them counted as kept."""
    turns = table_turns.Turns()
    with turns.kept(id for id in "ab"), turns.taken(["a", "b"], waits=False) as is_taken:
        assert is_taken
