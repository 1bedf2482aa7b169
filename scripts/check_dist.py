"""Check the results of `make dist` as their users get them.

    python scripts/check_dist.py dist [PYTHON ...]

The wheel must run on old systems, its metadata must render, and the source distribution must build. The wheel must
work, installed alone, with the oldest and the newest of the given or found Python interpreters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
OLDEST_PYTHON = (3, 11)
#: glibc of 2018: RHEL 8, Debian 10 and later systems.
NEWEST_C_LIBRARY = (2, 28)


def run(*command: str | Path, **options: object) -> str:
    print(f"+ {' '.join(map(str, command))}", flush=True)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nfailed: {' '.join(map(str, command))}")
    return str(done.stdout)


def pythons_of_uv() -> list[str]:
    """Interpreters that uv finds on this machine."""
    command = (BIN / "uv", "python", "list", "--only-installed", "--output-format", "json")
    # uv warns about each shim of pyenv whose version is not selected.
    listed = json.loads(run(*command, stderr=subprocess.DEVNULL))
    return [one["path"] for one in listed if one["implementation"] == "cpython" and one["variant"] == "default"]


def pythons_of_pyenv() -> list[str]:
    """All interpreters of pyenv; uv finds only the selected one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [str(path) for path in pyenv.glob("versions/3.*/bin/python")]


def version_of(python: str) -> tuple[int, ...]:
    version = run(python, "-c", "import sys; print(*sys.version_info[:3])")
    return tuple(map(int, version.split()))


def check_platform(wheel: Path) -> None:
    """Check that the wheel needs no newer glibc than its name says, and that this version is not too new."""
    if sys.platform != "linux":
        return
    report = run(BIN / "auditwheel", "show", wheel)
    print(report.strip())
    tag = next(part for part in wheel.stem.split(".") if "manylinux_" in part)
    _, major, minor, *_ = tag[tag.index("manylinux_") :].split("_")
    if (int(major), int(minor)) > NEWEST_C_LIBRARY:
        raise SystemExit(f"{wheel.name} is for systems newer than {NEWEST_C_LIBRARY}")
    if f"manylinux_{major}_{minor}_" not in report:
        raise SystemExit(f"{wheel.name} is not for the systems in its name")


def smoke(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel alone, and use it."""
    run(BIN / "uv", "venv", "--quiet", "--clear", "--python", python, folder)
    run(BIN / "uv", "pip", "install", "--quiet", "--python", folder, wheel)
    print(run(folder / "bin/python", ROOT / "scripts/smoke_test.py", cwd=folder).strip())


def build_from_source(source: Path, folder: Path) -> Path:
    """Build a wheel from the source distribution alone, with the development profile.

    Whether all sources are included does not depend on optimization, and this profile reuses compiled libraries of the
    checkout.
    """
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(ROOT / "target"),
        "MATURIN_PEP517_ARGS": "--profile dev --features development",
    }
    run(BIN / "uv", "build", "--quiet", "--wheel", "--out-dir", folder, source, env=environment)
    [wheel] = folder.glob("*.whl")
    return wheel


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pythons", nargs="*")
    arguments = parser.parse_args()
    [wheel] = arguments.folder.glob("*.whl")
    [source] = arguments.folder.glob("*.tar.gz")

    run(BIN / "twine", "check", "--strict", wheel, source)
    check_platform(wheel)
    by_version = {version_of(python): python for python in arguments.pythons or [*pythons_of_uv(), *pythons_of_pyenv()]}
    by_version = {version: python for version, python in by_version.items() if version >= OLDEST_PYTHON}
    chosen = [by_version[version] for version in sorted({min(by_version), max(by_version)})]
    with tempfile.TemporaryDirectory(prefix="trinitylake-dist-") as name:
        folder = Path(name)
        for number, python in enumerate(chosen):
            smoke(wheel, python, folder / f"python{number}")
        smoke(build_from_source(source, folder / "from-source"), chosen[-1], folder / "source")
    with zipfile.ZipFile(wheel) as archive:
        if "trinitylake/page/built/ui/core.bin" not in archive.namelist():
            raise SystemExit(f"{wheel.name} has no web page")
        unpacked = sum(file.file_size for file in archive.infolist())
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {unpacked / 1e6:.1f} MB when installed")
    print(f"{source.name}: {source.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
