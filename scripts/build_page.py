"""Build the web page into the Python package if npm is installed; otherwise print that the page is left out.

    python scripts/build_page.py # `make page`
    python scripts/build_page.py --required # for a release: fails if npm is missing

It uses only the standard library, because it runs before any package is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "page"
BUILT = ROOT / "python" / "trinitylake" / "page" / "built"
TARGET = "wasm32-unknown-unknown"
STEP = (sys.executable, str(ROOT / "scripts" / "step.py"))


def missing() -> str:
    """The programs that are missing for the build, or nothing. Installs Rust's WebAssembly target if possible."""
    for program in ("npm", "node", "cargo"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not has_target() and shutil.which("rustup") is not None:
        subprocess.run([*STEP, f"Rust's target {TARGET}", "rustup", "target", "add", TARGET], cwd=ROOT, check=False)
    return "" if has_target() else f"Rust's target {TARGET} is not installed"


def has_target() -> bool:
    command = ["rustc", "--print", "target-libdir", "--target", TARGET]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return not found.returncode and Path(found.stdout.strip()).is_dir()


def main(arguments: list[str]) -> int:
    is_required = "--required" in arguments
    if lack := missing():
        shutil.rmtree(BUILT, ignore_errors=True)
        print(f"The web page is left out: {lack}.", file=sys.stderr)
        return int(is_required)
    npm = shutil.which("npm") or "npm"  # on Windows a file named npm.cmd
    libraries = [npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    for title, command in (
        ("libraries of the web page", [*libraries, "--prefix", str(PAGE)]),
        ("web page", ["node", str(PAGE / "build.js"), str(BUILT)]),
    ):
        if code := subprocess.run([*STEP, title, *command], cwd=ROOT, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
