"""What processes of queries wrote to disk stayed for ever when the server was killed: nobody was left to remove it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trinitylake.rest.state.query_folders import QueryFolder

#: Makes a folder with something in it, says so, and waits for its end. `keeps` is a process that outlives it.
_PROGRAM = """
import subprocess, sys, tempfile
from pathlib import Path
from trinitylake.rest.state.query_folders import QueryFolder
tempfile.tempdir = sys.argv[1]
folder = QueryFolder()
Path(folder.path, "spilled").write_bytes(b"rows")
if sys.argv[2] == "with-a-query":
    subprocess.Popen(["sleep", "600"], pass_fds=[folder.descriptor], stdout=subprocess.DEVNULL)
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def server(temporary: Path, kind: str = "alone") -> tuple[subprocess.Popen[str], Path]:
    """A server that has such a folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(temporary), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_server_that_was_killed_goes_when_the_next_query_begins(temporary: Path) -> None:
    process, folder = server(temporary)
    other = QueryFolder()
    assert (folder / "spilled").exists(), "its server lives"
    process.kill()
    process.communicate()
    third = QueryFolder()
    assert not folder.exists()
    assert Path(other.path).exists(), "this process has it"
    for mine in (other, third):
        mine.remove()
    assert list(temporary.iterdir()) == []


def test_a_query_that_outlives_its_server_keeps_its_folder(temporary: Path) -> None:
    process, folder = server(temporary, "with-a-query")
    process.kill()
    process.communicate()
    QueryFolder().remove()
    assert (folder / "spilled").exists()
    subprocess.run(["pkill", "-s", str(process.pid)], check=True)
    while folder.exists():
        QueryFolder().remove()


def test_a_folder_that_has_no_lock_yet_is_somebody_elses(temporary: Path) -> None:
    folder = temporary / "trinitylake-query-new"
    folder.mkdir()
    QueryFolder().remove()
    assert folder.exists()


def test_a_link_is_not_followed(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "precious").write_text("kept")
    (temporary / "trinitylake-query-link").symlink_to(elsewhere)
    QueryFolder().remove()
    assert (elsewhere / "precious").exists()
