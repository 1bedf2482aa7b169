"""What is set up and handed out: lock files, the version, the steps that `make` shows."""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import trinitylake as tl

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from check_dist import OLDEST_PYTHON, pythons_of_pyenv, version_of  # noqa: E402
from check_release import faults  # noqa: E402
from lock import APART, SETS  # noqa: E402

LOCKS = ROOT / "locks"
PACKAGES = ("trinitylake", "pyspark_trinitylake")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked(name: str) -> dict[str, list[Requirement]]:
    """The packages of a lock file, each as often as its version differs between systems; without their hashes."""
    lines = re.sub(r"\\\n", " ", (LOCKS / f"{name}.txt").read_text()).splitlines()
    packages: dict[str, list[Requirement]] = {}
    for line in lines:
        requirement, *hashes = line.split("--hash=")
        if requirement and not requirement.startswith("#"):
            assert hashes, line
            assert all(text.startswith("sha256:") for text in hashes), line
            parsed = Requirement(requirement)
            packages.setdefault(canonicalize_name(parsed.name), []).append(parsed)
    return packages


def required(*arguments: str) -> list[Requirement]:
    """What extras and groups of pyproject.toml ask for."""
    texts = list(PYPROJECT["project"]["dependencies"])
    extras, groups = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
    for argument in arguments:
        option, _, name = argument.partition("=")
        if option == "--all-extras":
            texts += [text for extra in extras.values() for text in extra]
        else:
            texts += (extras if option == "--extra" else groups)[name]
    included = [text["include-group"] for text in texts if isinstance(text, dict)]
    texts = [text for text in texts if isinstance(text, str)] + [text for group in included for text in groups[group]]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "trinitylake"]


@pytest.mark.parametrize("name", SETS | APART)
def test_lock_files_hold_versions_and_hashes_and_name_no_index(name: str) -> None:
    """A lock file that was made behind a mirror names the mirror, and then nobody else can install from it."""
    assert "://" not in (LOCKS / f"{name}.txt").read_text()
    packages = locked(name)
    assert len(packages) > 2
    for versions in packages.values():
        assert all(str(requirement.specifier).startswith("==") for requirement in versions)


@pytest.mark.parametrize("name", [name for name in SETS | APART if name != "generator"])
def test_lock_files_hold_what_pyproject_asks_for(name: str) -> None:
    packages = locked(name)
    for requirement in required(*(SETS | APART)[name]):
        held = packages[canonicalize_name(requirement.name)]
        for one in held:
            [version] = one.specifier
            assert requirement.specifier.contains(version.version), f"{one} is not {requirement}: make locks"


@pytest.mark.parametrize("name", [name for name in SETS if name != "development"])
def test_lock_files_agree(name: str) -> None:
    """What one command installs is not changed by another that installs into the same environment."""
    whole = {key: {str(one.specifier) for one in held} for key, held in locked("development").items()}
    for key, held in locked(name).items():
        assert {str(one.specifier) for one in held} <= whole[key]


def test_what_make_installs_has_a_lock_file() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\.packages-([\w-]+)", makefile)) | set(re.findall(r"locks/([\w.-]+)\.txt", makefile))
    assert {"build", "demo", "spark", "lint", "test", "generator"} <= named <= set(SETS | APART)
    assert {path.stem for path in LOCKS.glob("*.txt")} == set(SETS | APART)


def test_the_version_stands_in_one_place() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    assert tl.__version__ == workspace["package"]["version"]
    assert "version" not in PYPROJECT["project"]
    for member in workspace["members"]:
        for manifest in ROOT.glob(f"{member}/Cargo.toml"):
            assert tomllib.loads(manifest.read_text())["package"]["version"] == {"workspace": True}, manifest


def test_the_source_distribution_holds_what_its_build_reads(tmp_path: Path) -> None:
    """It lacked proto/, which no crate holds but the core is generated from: whoever built from it failed."""
    maturin = Path(sys.executable).with_name("maturin")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    read_by_builds = {
        posixpath.normpath(posixpath.join(str(script.parent.relative_to(ROOT)), path))
        for script in ROOT.glob("rust/*/build.rs")
        for path in re.findall(r'"(\.\./[^"]+\.\w+)"', script.read_text())
    }
    assert "proto/trinitylake.proto" in read_by_builds <= names
    assert {
        "Cargo.lock",
        "LICENSE",
        "python/trinitylake/__init__.py",
        "python/pyspark_trinitylake/__init__.py",
    } <= names
    assert not [name for name in names if name.endswith(".so")]


def test_a_wheel_is_tried_with_the_interpreters_of_pyenv_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make dist` tried the wheel with one Python alone, since uv sees only the one that pyenv was told to use."""
    python = tmp_path / "versions" / "3.99.0" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons_of_pyenv() == [str(python)]
    assert version_of(str(python)) == sys.version_info[:3] >= OLDEST_PYTHON


def test_a_release_is_refused_unless_tag_version_and_changelog_agree() -> None:
    ready = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n### Added\n"
    assert faults("v0.2.0", "0.2.0", ready) == []
    assert len(faults("v0.2.1", "0.2.0", ready)) == 1
    assert len(faults("v0.2.0", "0.2.0", ready.replace("0.2.0 (", "0.1.0 ("))) == 1
    assert len(faults("v0.2.0", "0.2.0", ready.replace("Unreleased\n", "Unreleased\n\n- left over\n"))) == 1


def test_the_changelog_has_a_place_for_what_comes() -> None:
    assert re.search(r"^## Unreleased$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_workflows_call_make_and_nothing_else() -> None:
    """What runs on a forge is what a developer can run; a step of its own would be tested by nobody."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.stem for path in workflows] == ["release", "test", "wheels"]
    commands = [line for path in workflows for line in re.findall(r"^\s+(?:- )?run: (.*)$", path.read_text(), re.M)]
    assert len(commands) >= 4
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for command in commands:
        assert command.split()[0] == "make"
        assert command.split()[1] in targets


def step(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "step.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "VERBOSE": "", **environment}
    )


def test_a_step_shows_what_it_said_only_if_it_failed() -> None:
    said = "import sys; print('from the step'); sys.exit({})"
    done = step("build", sys.executable, "-c", said.format(0))
    assert (done.returncode, done.stdout) == (0, "")
    assert re.fullmatch(r"✓ build \(\d+ s\)\n", done.stderr)
    failed = step("build", sys.executable, "-c", said.format(3))
    assert failed.returncode == 3
    assert "from the step" in failed.stderr
    assert "✗ build failed" in failed.stderr
    assert "from the step" in step("build", sys.executable, "-c", said.format(0), VERBOSE="1").stdout


def test_the_image_of_the_server_is_built_by_make_from_the_lock() -> None:
    """It installed with pip what was newest on that day, so an image had versions that no test had seen; and it copied
    the environment and the build of the machine that it was built on."""
    commands = re.findall(r"^RUN (?!apt-get)(.*)$", (ROOT / "deploy" / "Containerfile").read_text(), re.M)
    assert commands == ["make server SERVER=/opt/trinitylake"]
    [recipe] = re.findall(r"^server:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert "$(INSTALL) locks/server.txt" in recipe
    assert "--no-deps target/server-wheel/*.whl" in recipe
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "target", "**/*.so"} <= set(left_out)
