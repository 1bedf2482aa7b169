"""Plants known mistakes in a copy of the sources, one at a time; fails if the tests miss one.

    python scripts/planted_bugs.py                # all
    python scripts/planted_bugs.py boundary gc    # those whose kind, name or file contains one of the words

The mistakes are in `tests/planted_bugs/*.toml`. Each is a text of a source file, which occurs there once, its
replacement, and the tests of which at least one must then fail. A mistake that does not apply, does not compile or
whose tests cannot run counts as missed. The checkout is not changed: Rust is built from a copy, and Python imports the
package from one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Folder of the files that a bug names, by their extension.
SOURCES = {".rs": Path("rust"), ".py": Path("python/trinitylake")}
#: Files and folders that a build of the crates needs.
COPIED = ("Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml", "proto", "rust", "page/core")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line")
#: A mistake may cause an endless loop.
TIMEOUT_SECONDS = 900
CARGO_ENVIRONMENT = {
    **os.environ,
    # Reuse the compiled libraries of the checkout.
    "CARGO_TARGET_DIR": os.environ.get("PLANTED_BUGS_TARGET", str(ROOT / "target")),
    "TRINITYLAKE_SEEDS": "200",
    "RUST_BACKTRACE": "0",
}


class Unusable(Exception):
    """The bug cannot be applied or compiled, or its tests cannot run."""


@dataclass(frozen=True)
class Bug:
    """A planted bug, and the tests of which at least one must find it.

    Attributes:
        tests: for Python files or node ids of pytest, for Rust arguments of `cargo test`.
    """

    kind: str
    name: str
    file: str
    search: str
    replace: str
    tests: list[str]

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @property
    def path(self) -> Path:
        """Path of the source file in the checkout."""
        return SOURCES[Path(self.file).suffix] / self.file

    def plant(self, root: Path) -> str:
        """Apply the bug to the source below `root`. Returns the previous text."""
        path = root / self.path
        if not path.is_file():
            raise Unusable(f"does not apply: {self.path} does not exist")
        source = path.read_text()
        if (count := source.count(self.search)) != 1:
            raise Unusable(f"does not apply: its text occurs {count} times in {self.path}")
        path.write_text(source.replace(self.search, self.replace))
        return source

    def failure(self, work: Path) -> str | None:
        """The first failure of the tests on the sources below `work`, or `None` if all pass."""
        return pytest(work, self.tests) if self.is_python else cargo(work, self.tests)


def bugs() -> list[Bug]:
    """All mistakes, ordered by file."""
    lists = sorted((ROOT / "tests/planted_bugs").glob("*.toml"))
    return [Bug(path.stem, **bug) for path in lists for bug in tomllib.loads(path.read_text())["bug"]]


def cargo(work: Path, runs: list[str]) -> str | None:
    """The first failure of these runs of `cargo test`."""
    for run in runs:
        package, target, *names = shlex.split(run.replace("-p ", "--package=").replace("--test ", "--test="))
        command = ["cargo", "test", "--quiet", package, target]
        options = {"cwd": work, "env": CARGO_ENVIRONMENT, "capture_output": True, "text": True, "check": False}
        built = subprocess.run([*command, "--no-run"], **options)  # type: ignore[call-overload]
        if built.returncode:
            raise Unusable(f"does not compile: {built.stderr[-2000:]}")
        try:
            done = subprocess.run([*command, "--", *names], **options, timeout=TIMEOUT_SECONDS)  # type: ignore[call-overload]
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode:
            failed = re.search(r"^---- (\S+)", done.stdout, re.M)
            return failed[1] if failed else "the process died"
    return None


def pytest(work: Path, tests: list[str]) -> str | None:
    """The first of these tests that fails. Raises `Unusable` if the package cannot be imported or a test does not
    exist."""
    environment = {**os.environ, "PYTHONPATH": str(work / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False}
    try:
        done = subprocess.run([*PYTEST, *tests], **options, timeout=TIMEOUT_SECONDS)  # type: ignore[call-overload]
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return None
    if done.returncode > 1:
        raise Unusable(f"its tests do not run: {(done.stdout + done.stderr)[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) \S+?::(\S+)", done.stdout, re.M)
    return failed[1] if failed else "the process died"


def copy_sources(work: Path) -> None:
    """Copy the crates and the packages to `work`.

    Files get the current time, because cargo compares times. The crates get another version; otherwise a crate with a
    bug would stay in the target folder as the newest build of the original crate. Compiled Python is not copied,
    because Python would not notice a change of the same length within a second.
    """
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, work / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(ROOT / name, work / name)
    manifest = work / "Cargo.toml"
    version = r'^(\[workspace\.package\]\nversion = ")[^"]*'
    text, count = re.subn(version, r"\g<1>0.0.0-planted", manifest.read_text(), flags=re.M)
    assert count == 1, "Cargo.toml has no version of the workspace"
    manifest.write_text(text)
    shutil.copytree(ROOT / "python", work / "python", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for extension in (ROOT / "python/trinitylake").glob("_core*.so"):
        (work / "python/trinitylake" / extension.name).symlink_to(extension)


def hunt(work: Path, bug: Bug) -> tuple[bool, str]:
    """Apply one bug below `work`, run its tests and undo it. Returns whether a test failed, and which one."""
    try:
        source = bug.plant(work)
        try:
            failure = bug.failure(work)
        finally:
            (work / bug.path).write_text(source)
    except Unusable as error:
        return False, str(error)
    return failure is not None, failure or f"SURVIVES {', '.join(bug.tests)}"


def control(work: Path, chosen: list[Bug]) -> list[str]:
    """Failures of the tests without a bug."""
    rust = sorted({test for bug in chosen if not bug.is_python for test in bug.tests})
    python = sorted({test for bug in chosen if bug.is_python for test in bug.tests})
    failures = [cargo(work, rust), pytest(work, python) if python else None]
    return [failure for failure in failures if failure]


def main(words: list[str]) -> int:
    chosen = [bug for bug in bugs() if not words or any(w in f"{bug.kind}: {bug.name} ({bug.file})" for w in words)]
    with tempfile.TemporaryDirectory(prefix="trinitylake-planted-") as folder:
        work = Path(folder)
        copy_sources(work)
        if failures := control(work, chosen):
            print(f"tests fail without a planted mistake: {', '.join(failures)}")
            return 2
        missed = 0
        for number, bug in enumerate(chosen, 1):
            started = time.monotonic()
            is_found, how = hunt(work, bug)
            missed += not is_found
            state = "found " if is_found else "MISSED"
            elapsed = time.monotonic() - started
            print(f"{number}/{len(chosen)} {state} {bug.kind}: {bug.name} [{how}; {elapsed:.0f} s]", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted mistakes were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
