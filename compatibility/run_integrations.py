"""Run the pages of docs/integrations whose tools have many dependencies: `make integrations`.

    python compatibility/run_integrations.py WHEEL
    python compatibility/run_integrations.py WHEEL dlt dbt # some pages

Tools with compatible requirements share an environment, which is created from a lock file and the wheel of the package,
and removed afterwards. Each page runs from top to bottom in its own process and folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Pages by the lock file of their environment.
ENVIRONMENTS = {
    "integrations": ("daft", "dagster", "datafusion", "dlt", "ibis", "ray", "sqlmesh"),
    "integrations-airflow": ("airflow",),
    "integrations-dbt": ("dbt",),
}
#: A page that waits for ever has failed.
PATIENCE_SECONDS = 600
_RUN = "import sys; from pathlib import Path; from documentation import run_examples; run_examples(Path(sys.argv[1]))"


def environment(name: str, wheel: str) -> Path:
    """The Python of a new environment."""
    folder = ROOT / "target" / name
    shutil.rmtree(folder, ignore_errors=True)
    uv = [str(Path(sys.executable).with_name("uv")), "--quiet"]
    python = str(folder / "bin" / "python")
    lock = str(ROOT / "target" / "locks" / f"{name}.txt")
    subprocess.run([*uv, "venv", "--python", sys.executable, str(folder)], check=True)
    subprocess.run([*uv, "pip", "install", "--no-deps", "--require-hashes", "-r", lock, "--python", python], check=True)
    subprocess.run([*uv, "pip", "install", "--no-deps", "--python", python, wheel], check=True)
    return Path(python)


def install_extensions(python: Path, home: Path) -> None:
    """Copy DuckDB's extensions from their Python packages to the folder of downloaded extensions."""
    packages = python.parent.parent.glob("lib/*/site-packages")
    extensions = (one for each in packages for one in each.glob("duckdb_extension_*/extensions/*/*.duckdb_extension"))
    asked = [str(python), "-c", "import duckdb; print(duckdb.sql('PRAGMA platform').fetchone()[0])"]
    for extension in extensions:
        platform = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        target = home / ".duckdb" / "extensions" / extension.parent.name / platform
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(extension, target)


def run(python: Path, page: str) -> bool:
    """Run a page. Prints its output if it failed."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        install_extensions(python, Path(folder))
        command = [str(python), "-c", _RUN, str(ROOT / "docs" / "integrations" / f"{page}.md")]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**variables, "HOME": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            print(f"{page}: not done after {PATIENCE_SECONDS} s", flush=True)
            return False
    print(f"{page}: {'as it should be' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stdout[-5000:])
    return done.returncode == 0


def main(arguments: Sequence[str]) -> int:
    wheel, chosen = arguments[0], arguments[1:]
    results = []
    for name, pages in ENVIRONMENTS.items():
        wanted = [page for page in pages if not chosen or page in chosen]
        if wanted:
            python = environment(name, wheel)
            try:
                results += [run(python, page) for page in wanted]
            finally:
                shutil.rmtree(python.parent.parent)
    return int(not results or not all(results))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
