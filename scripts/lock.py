"""Write the lock files below `locks/`: what each command of `make` installs, with versions and hashes.

    python scripts/lock.py                        # after a change of dependencies; versions stay if they may
    python scripts/lock.py --upgrade              # all to their newest versions
    python scripts/lock.py --upgrade-package NAME

A lock file holds what an installation takes, for each system and Python, so that none has to look for versions that fit
together. It names no index: whoever installs has one. All of them agree with `development.txt`, which is the whole.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
#: What stands in no other lock file: it is resolved first, and the others follow it.
DEVELOPMENT = "development"
#: The extras and groups of pyproject.toml in each lock file.
SETS: dict[str, tuple[str, ...]] = {
    DEVELOPMENT: (
        "--all-extras",
        *(
            f"--group={group}"
            for group in ("build", "lint", "test", "docs", "dist", "compatibility", "spark-connect", "bench")
        ),
    ),
    "build": ("--group=build",),
    "demo": ("--extra=demo",),
    "spark": ("--extra=demo", "--extra=spark"),
    "lint": ("--all-extras", "--group=lint"),
    "test": ("--all-extras", "--group=test"),
    "docs": ("--group=docs",),
    "server": ("--extra=rest", "--extra=s3"),
    "dist": ("--group=build", "--group=dist"),
    "compatibility": ("--group=compatibility",),
    "spark-connect": ("--group=spark-connect",),
    "bench": ("--extra=spark", "--group=bench"),
}
#: The environments of docs/integrations, with the package and what its server and its SQL need.
INTEGRATIONS = ("integrations", "integrations-airflow", "integrations-dbt")
#: What does not fit the others: an older Spark, clients as they are without this package, tools that hold each other to
#: old versions, and the generator of definitions, which holds protobuf below 7.
APART: dict[str, tuple[str, ...]] = {
    "test-spark-3.5": ("--extra=rest", "--extra=spark", "--group=test-spark-3-5"),
    "clients": ("--group=clients",),
    **{name: ("--extra=rest", "--extra=sql", f"--group={name}") for name in INTEGRATIONS},
    "generator": (),
}


def compile_set(name: str, arguments: tuple[str, ...], options: list[str]) -> None:
    """Resolve one set and write its file."""
    source = ["-"] if name == "generator" else ["pyproject.toml"]
    given = "grpcio-tools==1.72.2\n" if name == "generator" else None
    command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version=3.11", "--generate-hashes"]
    command += ["--no-annotate", "--custom-compile-command=make locks", *options, *arguments, *source]
    if name in SETS and name != DEVELOPMENT:
        command += [f"--constraint={LOCKS.relative_to(ROOT) / DEVELOPMENT}.txt"]
    output = LOCKS / f"{name}.txt"
    subprocess.run(
        [*command, f"--output-file={output}"], cwd=ROOT, input=given, text=True, check=True, stdout=subprocess.DEVNULL
    )
    packages = sum(not line.startswith((" ", "#")) for line in output.read_text().splitlines())
    print(f"{output.relative_to(ROOT)}: {packages} packages")


def main(options: list[str]) -> None:
    LOCKS.mkdir(exist_ok=True)
    for name, arguments in (SETS | APART).items():
        compile_set(name, arguments, options)


if __name__ == "__main__":
    main(sys.argv[1:])
