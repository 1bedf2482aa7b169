"""Packaging: lock files, versions, the source distribution, and the steps that `make` prints."""

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

import trinitylake as tl

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_dist import OLDEST_PYTHON, pythons_of_pyenv, version_of  # noqa: E402
from check_release import faults  # noqa: E402

LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
PACKAGES = ("trinitylake", "pyspark_trinitylake")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_lock_file_holds_hashes_and_public_addresses() -> None:
    """The lock file named the package mirror of the machine that generated it, which other users cannot reach."""
    assert len(LOCK["package"]) > 300
    for package in LOCK["package"]:
        if package["name"] == "trinitylake":
            continue
        assert package["source"] == {"registry": "https://pypi.org/simple"}
        for file in [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]:
            assert file["hash"].startswith("sha256:")
            assert file["url"].startswith("https://files.pythonhosted.org/")


def test_the_lock_file_is_of_these_requirements() -> None:
    """If it fails after a change of dependencies, run `make locks`."""
    [own] = [package["metadata"] for package in LOCK["package"] if package["name"] == "trinitylake"]
    extras, groups = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
    wanted = [*PYPROJECT["project"]["dependencies"], *(text for texts in extras.values() for text in texts)]
    for held, texts in [
        (own["requires-dist"], wanted),
        *((own["requires-dev"][name], groups[name]) for name in groups),
    ]:
        locked = {(one["name"], frozenset(one.get("specifier", "").replace(" ", "").split(","))) for one in held}
        for text in texts:
            if isinstance(text, str) and (parsed := Requirement(text)).name != "trinitylake":
                name = re.sub(r"[-_.]+", "-", parsed.name).lower()
                assert (name, frozenset(str(parsed.specifier).split(","))) in locked, text


def test_each_set_that_make_installs_is_of_extras_and_groups() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\.packages-([\w-]+)", makefile)) | set(re.findall(r"locks/([\w.-]+)\.txt", makefile))
    sets = dict(re.findall(r"^SET_([\w.-]+) := (.*)$", makefile, re.M))
    assert {"build", "demo", "spark", "lint", "test", "generator"} <= named <= set(sets)
    for arguments in sets.values():
        assert set(re.findall(r"--extra (\S+)", arguments)) <= set(PYPROJECT["project"]["optional-dependencies"])
        assert set(re.findall(r"group (\S+)", arguments)) <= set(PYPROJECT["dependency-groups"])


def test_the_version_stands_in_one_place() -> None:
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    assert tl.__version__ == workspace["package"]["version"]
    assert "version" not in PYPROJECT["project"]
    for member in workspace["members"]:
        for manifest in ROOT.glob(f"{member}/Cargo.toml"):
            assert tomllib.loads(manifest.read_text())["package"]["version"] == {"workspace": True}, manifest


def test_the_source_distribution_contains_what_its_build_reads(tmp_path: Path) -> None:
    """A build failed because `proto/` was missing: it is outside of all crates, but one of them includes it."""
    maturin = Path(sys.executable).with_name("maturin")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, check=True, capture_output=True)
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    included = {
        posixpath.normpath(posixpath.join(str(source.parent.relative_to(ROOT)), path))
        for source in ROOT.glob("rust/*/src/**/*.rs")
        for path in re.findall(r'include!\("(\.\./[^"]+\.\w+)"', source.read_text())
    }
    assert "proto/trinitylake.rs" in included <= names
    assert {
        "Cargo.lock",
        "LICENSE",
        "python/trinitylake/__init__.py",
        "python/pyspark_trinitylake/__init__.py",
    } <= names
    assert not [name for name in names if name.endswith(".so")]


def test_a_wheel_is_tried_with_the_interpreters_of_pyenv_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv finds only the interpreter that pyenv has selected, so `make dist` tested with only one Python."""
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


def test_changelog_has_an_unreleased_section() -> None:
    assert re.search(r"^## Unreleased$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_workflows_call_make_and_nothing_else() -> None:
    """So that every step of CI runs locally. Windows has no make, so it is exempt."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.stem for path in workflows] == ["release", "test", "wheels"]
    texts = [path.read_text().partition("\n  windows:\n")[0] for path in workflows]
    commands = [line for text in texts for line in re.findall(r"^\s+(?:- )?run: (.*)$", text, re.M)]
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


def test_step_prints_its_output_only_if_it_failed() -> None:
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
    """The image installed the newest versions with pip, which no test had used, and contained the environment and the
    build of the machine that built it.
    """
    commands = re.findall(r"^RUN (?!apt-get)(.*)$", (ROOT / "deploy" / "Containerfile").read_text(), re.M)
    assert commands == ["make server SERVER=/opt/trinitylake"]
    [recipe] = re.findall(r"^server:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert "$(INSTALL) target/locks/server.txt" in recipe
    assert "--no-deps target/server-wheel/*.whl" in recipe
    left_out = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "target", "**/*.so"} <= set(left_out)
