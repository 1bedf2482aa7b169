"""Plants known mistakes in a copy of the core, one at a time, and fails unless the tests find each of them.

The mistakes are in tests/planted_bugs/*.toml. A mistake that no longer fits the source, or that does not compile,
counts as not found. Nothing is changed in the checkout.

    python scripts/planted_bugs.py                 # all
    python scripts/planted_bugs.py boundary void   # those whose names contain one of the words
"""

from __future__ import annotations

import os
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
SOURCES = Path("rust/trinitylake/src")
#: All that the core crate is built from.
COPIED = ("Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml", "proto", "rust")
CARGO = ("cargo", "test", "--quiet", "--package", "trinitylake", "--features", "testing")
#: A mistake may make a test wait for ever, which is found as well.
PATIENCE_SECONDS = 900
ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": os.environ.get("PLANTED_BUGS_TARGET", str(Path(tempfile.gettempdir()) / "trinitylake-planted")),
    # Built more often than run.
    "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "TRINITYLAKE_SEEDS": "200",
    "RUST_BACKTRACE": "0",
}


@dataclass(frozen=True)
class Bug:
    """One mistake: a text, what to put in its place, and the tests that must notice."""

    kind: str
    name: str
    file: str
    search: str
    replace: str
    tests: list[str]

    def plant(self, root: Path) -> str:
        """Change the source below `root`; returns what it was. `ValueError` if the text is not there exactly once."""
        path = root / SOURCES / self.file
        source = path.read_text()
        if source.count(self.search) != 1:
            raise ValueError(f"its text is in {self.file} {source.count(self.search)} times")
        path.write_text(source.replace(self.search, self.replace))
        return source


def bugs() -> list[Bug]:
    """All mistakes, in the order of their files."""
    lists = sorted((ROOT / "tests/planted_bugs").glob("*.toml"))
    return [Bug(path.stem, **bug) for path in lists for bug in tomllib.loads(path.read_text())["bug"]]


def cargo(work: Path, test: str, *, run: bool) -> subprocess.CompletedProcess[str]:
    target, *names = shlex.split(test.replace("--test ", "--test="))
    command = [*CARGO, *target.split("=")]
    command += ["--", *names] if run else ["--no-run"]
    patience = PATIENCE_SECONDS if run else None
    return subprocess.run(
        command, cwd=work, env=ENVIRONMENT, capture_output=True, text=True, timeout=patience, check=False
    )


def hunt(work: Path, bug: Bug) -> tuple[bool, str]:
    """Whether the tests find the mistake, and which did or what went wrong."""
    try:
        source = bug.plant(work)
    except ValueError as error:
        return False, f"does not apply: {error}"
    try:
        for test in bug.tests:
            built = cargo(work, test, run=False)
            if built.returncode:
                return False, f"does not compile: {built.stderr[-2000:]}"
            try:
                done = cargo(work, test, run=True)
            except subprocess.TimeoutExpired:
                return True, f"{test} (never ended)"
            if done.returncode:
                failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("---- ")]
                return True, f"{test}: {failed[0] if failed else 'the process died'} and {len(failed[1:])} more"
        return False, f"SURVIVES {', '.join(bug.tests)}"
    finally:
        (work / SOURCES / bug.file).write_text(source)


def control(work: Path, tests: list[str]) -> bool:
    """Whether the tests pass as long as no mistake is planted; else they would find anything."""
    for test in tests:
        for run in (False, True):
            done = cargo(work, test, run=run)
            if done.returncode:
                print(f"{test} fails without a planted bug:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
                return False
    return True


def main(words: list[str]) -> int:
    chosen = [bug for bug in bugs() if not words or any(word in bug.name for word in words)]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="trinitylake-planted-") as folder:
        work = Path(folder)
        for name in COPIED:
            # As new files: cargo goes by their times, and an earlier run's may be newer than the originals.
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, work / name, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(ROOT / name, work / name)
        if not control(work, sorted({test for bug in chosen for test in bug.tests})):
            return 2
        for bug in chosen:
            started = time.monotonic()
            is_found, how = hunt(work, bug)
            survivors += not is_found
            seconds = time.monotonic() - started
            print(
                f"{'found' if is_found else 'NOT FOUND':9}  {bug.kind}: {bug.name}  [{how}; {seconds:.0f} s]",
                flush=True,
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} planted bugs were found")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
