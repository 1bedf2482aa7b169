"""The memory of a process that a server starts is limited: also that of the core, which has an allocator of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress

import pytest

import trinitylake as tl
from trinitylake.rest.state.limited_memory import limited_environment
from trinitylake.rest.state.query_processes import _Process as QueryProcess
from trinitylake.rest.state.reading_processes import _Process as ReadingProcess
from trinitylake.rest.state.upkeep_process import UpkeepProcess

#: Takes pieces of fifty kilobytes of the core's memory, and keeps them, within 64 MiB.
PROGRAM = """
import sys
import pyarrow as pa
from trinitylake import _core
from trinitylake.rest.state.limited_memory import limit_memory

paths = pa.array(["x" * 1000] * 50)
limit_memory(64 << 20)
kept = [_core.optimize_paths(paths) for _ in range(int(sys.argv[1]))]
"""


def test_memory_of_the_core_counts_towards_the_limit() -> None:
    """Its allocator reserves a gigabyte when the core is loaded. That was taken for what the process had, so the core
    could use all of it beyond the limit."""

    def ends_with(pieces: int) -> int:
        program = [sys.executable, "-c", PROGRAM, str(pieces)]
        return subprocess.run(program, env=limited_environment(), timeout=60, check=False).returncode

    assert (ends_with(100), ends_with(5000)) == (0, -signal.SIGABRT)


def test_each_process_that_is_limited_begins_without_reserves(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule for the environment stood in three places, which knew of Arrow's reserves and not of the core's. And who
    looked for a fault in the server with `RUST_BACKTRACE=1` had processes that did not end at the end of their memory:
    there was none for the backtrace, and for that Rust waited for itself."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    lake = tl.create(tmp_path_factory.mktemp("lake"))
    begun: list[dict[str, str]] = []

    def refused(*_: object, env: dict[str, str], **__: object) -> None:
        begun.append(env)
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", refused)
    for begin in (QueryProcess, ReadingProcess, lambda: UpkeepProcess(lake.storage)._attempt(lambda: None)):
        with suppress(OSError):
            begin()
    wanted = limited_environment()
    assert len(begun) == 3
    for environment in begun:
        assert wanted.items() - environment.items() <= {("TMPDIR", wanted.get("TMPDIR"))}
        assert environment["RUST_BACKTRACE"] == "0"
