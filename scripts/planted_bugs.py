"""Plants known mistakes in a copy of the sources, one at a time, and fails unless the tests find each of them.

The mistakes are in tests/planted_bugs/*.toml: in Rust those whose file ends in .rs, in Python those in .py. A mistake
that no longer fits the source, does not compile, or that no test could be run against counts as not found. Nothing is
changed in the checkout: Rust is built from a copy, Python imports the package from one.

    python scripts/planted_bugs.py                 # all
    python scripts/planted_bugs.py boundary void   # those whose names or kinds contain one of the words
    python scripts/planted_bugs.py .py             # those in Python; `.rs` for Rust
    python scripts/planted_bugs.py --resume        # without those that an earlier run found (planted_outcomes.py)
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
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from planted_outcomes import Outcomes, key_of

ROOT = Path(__file__).parent.parent
#: Where the files of the mistakes are, by the ending of their names.
SOURCES = {".rs": Path("rust"), ".py": Path("python/trinitylake")}
#: All that the crates of the core are built from.
COPIED = ("Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml", "proto", "rust")
CARGO = ("cargo", "test", "--quiet")
#: Which mistakes earlier runs found.
OUTCOMES = Path("target/planted-bugs.jsonl")
#: Of the crates in the copy.
COPY_VERSION = "0.0.0-planted"
#: pytest without what it would write into the checkout.
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=line")
#: A mistake may make a test wait for ever, which is found as well.
PATIENCE_SECONDS = 900
#: Mistakes in Python that are tried at the same time; those in Rust share a build, one after another.
JOBS = int(os.environ.get("PLANTED_BUGS_JOBS", "2"))
CARGO_ENVIRONMENT = {
    **os.environ,
    # The same profile as everywhere, so that only our own crates are compiled: the libraries are there.
    "CARGO_TARGET_DIR": os.environ.get("PLANTED_BUGS_TARGET", str(ROOT / "target")),
    "TRINITYLAKE_SEEDS": "200",
    "RUST_BACKTRACE": "0",
}


class Unusable(Exception):
    """A mistake that says nothing about the tests: it does not apply, compile or load, or its tests are not there."""


@dataclass(frozen=True)
class Bug:
    """One mistake: a text, what to put in its place, and the tests that must notice."""

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
        """Its file, from the root of the checkout."""
        return SOURCES[Path(self.file).suffix] / self.file

    def suites(self) -> dict[str, list[str]]:
        """The arguments of each run of tests that may find it, by the name of the suite: a package and a target of
        cargo with a filter, or a file of tests."""
        if not self.is_python:
            options = [test.replace("-p ", "--package=").replace("--test ", "--test=") for test in self.tests]
            return {test: shlex.split(option) for test, option in zip(self.tests, options, strict=True)}
        suites: dict[str, list[str]] = {}
        for test in self.tests:
            suites.setdefault(test.partition("::")[0], []).append(test)
        return suites

    def key(self) -> str:
        """Another one as soon as the mistake, its file or its tests change; of tests in Rust, any of them."""
        if self.is_python:
            tests = [ROOT / suite for suite in self.suites()]
        else:
            tests = [path for path in (ROOT / SOURCES[".rs"]).rglob("*.rs") if "tests" in (path.stem, *path.parts)]
        return key_of([self.file, self.search, self.replace, *self.tests], [ROOT / self.path, *tests])

    def plant(self, root: Path) -> str:
        """Change the source below `root`; returns what it was. `Unusable` if the text is not there exactly once."""
        path = root / self.path
        if not path.is_file():
            raise Unusable(f"does not apply: there is no {self.path}")
        source = path.read_text()
        if source.count(self.search) != 1:
            raise Unusable(f"does not apply: its text is in {self.file} {source.count(self.search)} times")
        path.write_text(source.replace(self.search, self.replace))
        return source


@dataclass(frozen=True)
class Hunt:
    """What became of one mistake: by suite, how it was found, or `None` where it survived."""

    bug: Bug
    suites: dict[str, str | None] = field(default_factory=dict)
    #: Why nothing could be learned from it.
    unusable: str = ""
    seconds: float = 0.0
    #: It was found by an earlier run.
    is_known: bool = False

    @property
    def is_found(self) -> bool:
        return not self.unusable and any(self.suites.values())

    def __str__(self) -> str:
        if self.unusable:
            return self.unusable
        found = [f"{suite}: {how}" for suite, how in self.suites.items() if how]
        return "; ".join(found) or f"SURVIVES {', '.join(self.suites)}"


def bugs() -> list[Bug]:
    """All mistakes, in the order of their files."""
    lists = sorted((ROOT / "tests/planted_bugs").glob("*.toml"))
    return [Bug(path.stem, **bug) for path in lists for bug in tomllib.loads(path.read_text())["bug"]]


def cargo(work: Path, arguments: list[str]) -> str | None:
    """What failed of these tests of the crate in `work`, or `None` if they pass. Raises `Unusable` without a build."""
    package, target, *names = arguments
    command = [*CARGO, package, target]
    output = {"cwd": work, "env": CARGO_ENVIRONMENT, "capture_output": True, "text": True}
    built = subprocess.run([*command, "--no-run"], **output, check=False)
    if built.returncode:
        raise Unusable(f"does not compile: {built.stderr[-2000:]}")
    try:
        done = subprocess.run([*command, "--", *names], **output, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "never ended"
    if not done.returncode:
        return None
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("---- ")]
    return f"{failed[0]} and {len(failed) - 1} more" if failed else "the process died"


def lane(test: str) -> str:
    """The lane that the file of a test is in (tests/conftest.py), or "" for none."""
    file = ROOT / test.partition("::")[0]
    found = re.search(
        r'^pytestmark = pytest\.mark\.lane\("([\w-]+)"\)', file.read_text() if file.is_file() else "", re.M
    )
    return found[1] if found else ""


def pytest(work: Path, arguments: list[str]) -> str | None:
    """The first of these tests, all of one lane, that fails with the package in `work`, or `None` if they pass.

    Raises `Unusable` if pytest could not run them: a package that cannot be imported would fail any test.
    """
    environment = {**os.environ, "PYTHONPATH": str(work / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*PYTEST, *(f"--lane={name}" for name in {lane(test) for test in arguments} if name), *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "never ended"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return "the process died"
    if done.returncode != 1:
        raise Unusable(f"its tests do not run: {(done.stdout + done.stderr)[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) \S+?::(\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "pytest failed"


def hunt(work: Path, bug: Bug) -> Hunt:
    """Plants one mistake in `work`, asks all of its suites, and takes it out again."""
    run = pytest if bug.is_python else cargo
    started = time.monotonic()
    try:
        source = bug.plant(work)
        try:
            suites = {suite: run(work, arguments) for suite, arguments in bug.suites().items()}
        finally:
            (work / bug.path).write_text(source)
    except Unusable as error:
        return Hunt(bug, unusable=str(error), seconds=time.monotonic() - started)
    return Hunt(bug, suites, seconds=time.monotonic() - started)


def control(work: Path, chosen: list[Bug]) -> bool:
    """Whether all tests pass as long as no mistake is planted; else they would find anything."""
    is_passed = True
    runs = {suite: arguments for bug in chosen if not bug.is_python for suite, arguments in bug.suites().items()}
    for suite, arguments in sorted(runs.items()):
        if (failed := cargo(work, arguments)) is not None:
            print(f"{suite} fails without a planted bug: {failed}")
            is_passed = False
    tests = sorted({test for bug in chosen if bug.is_python for test in bug.tests})
    for name in sorted({lane(test) for test in tests}):
        if (failed := pytest(work, [test for test in tests if lane(test) == name])) is not None:
            print(f"{failed} fails without a planted bug")
            is_passed = False
    return is_passed


def copy_core(work: Path) -> None:
    """All that the core is built from, as new files: cargo goes by their times, and an earlier run's may be newer than
    the originals.

    It has a version of its own. Cargo names what it builds after package and version, not after the checkout: without
    that, the last mistake of a hunt stayed in the target folder under the name of the true crate, looked newer than
    the sources, and was tested as if it were them.
    """
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, work / name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(ROOT / name, work / name)
        if name == "Cargo.toml":
            give_own_version(work / name)


def give_own_version(manifest: Path) -> None:
    """Changes the version of all crates of a workspace."""
    own = rf"\g<1>{COPY_VERSION}"
    text, count = re.subn(r'^(\[workspace\.package\]\nversion = ")[^"]*', own, manifest.read_text(), flags=re.M)
    assert count == 1, "the manifest of the workspace says its version in another way"
    manifest.write_text(text)


def copy_package(work: Path) -> None:
    """The packages, with a link to the compiled extension, and without compiled Python: a mistake of the same length
    in the same second would not be noticed."""
    extensions = sorted((ROOT / "python/trinitylake").glob("_core*.so"))
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "python", work / "python", ignore=ignored)
    for extension in extensions:
        (work / "python/trinitylake" / extension.name).symlink_to(extension)


def hunt_in_python(chosen: list[Bug], folder: Path) -> Iterator[Hunt]:
    """Several at a time, each in a copy of its own."""

    def alone(bug: Bug) -> Hunt:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            copy_package(Path(work))
            return hunt(Path(work), bug)

    with ThreadPoolExecutor(JOBS) as pool:
        yield from pool.map(alone, chosen)


def summary(hunts: list[Hunt]) -> str:
    """How many mistakes of each kind were found, and how many each suite found of those it was asked for."""
    kinds, found_kinds = Counter(hunt.bug.kind for hunt in hunts), Counter(h.bug.kind for h in hunts if h.is_found)
    suites = Counter(suite for hunt in hunts for suite in hunt.suites)
    found_suites = Counter(suite for hunt in hunts for suite, how in hunt.suites.items() if how)
    lines = ["", "of each kind were found"]
    lines += [f"  {found_kinds[kind]:3} of {kinds[kind]:3}  {kind}" for kind in sorted(kinds)]
    lines += ["each suite found, of those it was asked for"]
    lines += [f"  {found_suites[suite]:3} of {suites[suite]:3}  {suite}" for suite in sorted(suites)]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    words = [argument for argument in arguments if argument != "--resume"]
    chosen = [bug for bug in bugs() if not words or any(w in f"{bug.kind}: {bug.name} ({bug.file})" for w in words)]
    outcomes = Outcomes(ROOT / OUTCOMES)
    keys = {bug.name: bug.key() for bug in chosen}  # what changes from here on is tried by the next run
    known = {name: suites for name, key in keys.items() if (suites := outcomes.found(key)) is not None}
    if "--resume" not in arguments:
        known = {}
    hunts = [Hunt(bug, known[bug.name], is_known=True) for bug in chosen if bug.name in known]
    open_bugs = [bug for bug in chosen if bug.name not in known]
    print(f"{len(open_bugs)} of {len(chosen)} planted bugs are tried; earlier runs found the others", flush=True)
    with tempfile.TemporaryDirectory(prefix="trinitylake-planted-") as folder:
        work = Path(folder) / "control"
        work.mkdir()
        copy_core(work)
        copy_package(work)
        if not control(work, open_bugs):
            return 2
        in_python = hunt_in_python([bug for bug in open_bugs if bug.is_python], Path(folder))
        for done in chain(in_python, (hunt(work, bug) for bug in open_bugs if not bug.is_python)):
            hunts.append(done)
            if done.is_found:
                outcomes.keep(keys[done.bug.name], done.bug.name, done.suites)
            state = "found" if done.is_found else "NOT FOUND"
            print(f"{state:9}  {done.bug.kind}: {done.bug.name}  [{done}; {done.seconds:.0f} s]", flush=True)
    print(summary(hunts))
    survivors = sum(not done.is_found for done in hunts)
    earlier = sum(done.is_known for done in hunts)
    told = f", {earlier} of them by earlier runs" if earlier else ""
    print(f"{len(hunts) - survivors} of {len(hunts)} planted bugs were found{told}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
