"""Turns on one machine: processes wait for each other, but never for one that is asleep or dead."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trinitylake import _core
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

#: Takes the turn of a table and gives it back, each time it is told to.
LEND = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from trinitylake.tables import table_turns
turns, ours = table_turns.ProcessTurns(), []
for _ in sys.stdin:
    if ours:
        turns.give_back(ours)
        ours.clear()
    else:
        turns.take([sys.argv[2]], ours)
        assert ours
    print("done", flush=True)
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
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "True"
            yield process
        finally:  # it may have stopped, and would be waited for
            process.kill()


@contextmanager
def lender(folder: Path, table_id: str) -> Iterator[Callable[[], None]]:
    """Another process, which has the turn and has it not, in turns."""
    command = [sys.executable, "-c", LEND, str(folder), table_id]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def take_or_give_back() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        try:
            yield take_or_give_back
        finally:
            process.kill()


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that are tried here, where nobody is waited for longer than a moment."""
    found: list[int] = []
    try_lock = table_turns._try_lock

    def noted(file: _core.ByteLocks, start: int, ours: list[int]) -> bool:
        found.append(start)
        return try_lock(file, start, ours)

    monkeypatch.setattr(table_turns, "PROCESS_TURN_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(table_turns, "_try_lock", noted)
    return found


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


def test_a_process_that_has_stopped_is_waited_for_once(folder: Path, tries: list[int]) -> None:
    """Somebody had a debugger in a process that had the turn of a table: six commits of others took 22 seconds, since
    each of them waited for two seconds, and once more after each race that it lost.
    """
    turns = ProcessTurns()
    with holder(folder, "a") as process:
        process.send_signal(signal.SIGSTOP)
        with turns.taken(["a"]):
            assert len(tries) > 2, "the first one waits"
        for _ in range(2):
            tries.clear()
            with turns.taken(["a", "b"]):
                assert len(tries) == 2, "none of those that follow"
        assert not is_free(folder, "a")
    with turns.taken(["a"]):
        assert not is_free(folder, "a"), "the turn is ours as soon as it is free"


def test_who_has_the_turn_next_is_waited_for(folder: Path, tries: list[int]) -> None:
    turns = ProcessTurns()
    with holder(folder, "a"), turns.taken(["a"]):
        pass
    with holder(folder, "a"):
        tries.clear()
        with turns.taken(["a"]):
            assert len(tries) > 2


def test_a_process_that_gave_the_turn_back_is_waited_for_again(folder: Path, tries: list[int]) -> None:
    turns = ProcessTurns()
    with lender(folder, "a") as take_or_give_back:
        take_or_give_back()
        with turns.taken(["a"]):
            assert len(tries) > 2
        take_or_give_back()
        with turns.taken(["a"]):
            pass
        take_or_give_back()
        tries.clear()
        with turns.taken(["a"]):
            assert len(tries) > 2


def test_nobody_counts_as_waited_for_whose_turn_was_only_looked_at(folder: Path, tries: list[int]) -> None:
    """All tables of a transaction have the same two seconds: where they went into the first one, the second was not
    waited for.
    """
    turns = ProcessTurns()
    with holder(folder, "a"), holder(folder, "b"):
        with turns.taken(["a", "b"]):
            pass
        assert set(turns._in_vain) == {table_turns._place("a")}


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


def test_a_turn_is_kept_for_as_long_as_it_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are forgotten when nobody refers to them. One that was held by its lock alone was made anew for the next
    who came, so that two had it.
    """
    monkeypatch.setattr(table_turns, "THREAD_TURN_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(table_turns, "PROCESS_TURN_TIMEOUT_SECONDS", 0)
    turns = table_turns.Turns()
    with turns.taken(["a"]):
        gc.collect()
        assert not is_free_at_once(turns, "a")
    assert is_free_at_once(turns, "a")


def test_the_turn_of_several_is_kept_though_they_can_be_named_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was given as a generator was used up when the turns were taken: none of them counted as kept."""
    monkeypatch.setattr(table_turns, "THREAD_TURN_TIMEOUT_SECONDS", 0.05)
    turns = table_turns.Turns()
    with turns.kept(id for id in "ab"):
        began = time.monotonic()
        with turns.taken(["a", "b"]):
            assert time.monotonic() - began < 0.05
    assert is_free_at_once(turns, "a")
    assert is_free_at_once(turns, "b")


def is_free_at_once(turns: table_turns.Turns, table_id: str) -> bool:
    """Whether another thread gets the turn without waiting for its whole timeout."""
    waited = []

    def take() -> None:
        began = time.monotonic()
        with turns.taken([table_id]):
            waited.append(time.monotonic() - began)

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return waited[0] < table_turns.THREAD_TURN_TIMEOUT_SECONDS
