"""Counts the instructions of the kernels under valgrind, and fails if one takes more than those that are kept.

    make bench-check                               # both of what this needs is looked for, see benches/README.md
    python scripts/bench_check.py --renew          # keeps the counts of now, after a change that is meant

What is kept is benches/kernels.json. Counts depend on the compiler, on the versions of the libraries and, where the C
library has code for it, on whether the processor knows AVX2; hardly on anything else, and not at all on other work.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benches/kernels.json"
#: Where `cargo install` puts the runner, which has to have the version of the library.
TOOLS = ROOT / "target/tools"
COMMAND = ("cargo", "bench", "--quiet", "-p", "trinitylake-format", "--bench", "kernels", "--", "--output-format=json")
#: A kernel may take this much more before it counts as slower: code moves when its neighbours change.
TOLERANCE = 0.03


def instructions(report: Iterable[str]) -> dict[str, int]:
    """Instructions by kernel and input, from what the benchmark prints, an object of JSON for each."""
    counts = {}
    for line in report:
        told = json.loads(line)
        metrics = told["profiles"][0]["data"]["parts"][0]["metrics"]
        counts[f"{told['function_name']}, {told['id']}"] = int(metrics["Ir"]["values"]["new"])
    return counts


def faults(counts: Mapping[str, int], kept: Mapping[str, int]) -> list[str]:
    """What is worse than what is kept, and what the two do not have in common."""
    found = [
        f"{kernel}: {counts[kernel]:,} instructions, {counts[kernel] / kept[kernel] - 1:+.1%} beside {kept[kernel]:,}"
        for kernel in counts
        if kernel in kept and counts[kernel] > kept[kernel] * (1 + TOLERANCE)
    ]
    found += [f"{kernel}: nothing is kept of it" for kernel in counts if kernel not in kept]
    found += [f"{kernel}: kept, and not counted any more" for kernel in kept if kernel not in counts]
    return found


def runner() -> Path:
    """The program that runs valgrind for the benchmark; installed if it is not there in the version of the library."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    version = next(package["version"] for package in packages if package["name"] == "gungraun")
    program = TOOLS / "bin/gungraun-runner"
    installed = subprocess.run([program, "--version"], capture_output=True, text=True) if program.exists() else None
    if installed is None or version not in installed.stdout.split():
        subprocess.run(
            ["cargo", "install", "--quiet", "--locked", "--root", TOOLS, f"gungraun-runner@{version}"], check=True
        )
    return program


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", action="store_true", help="keep the counts of now")
    options = parser.parse_args(arguments)
    if shutil.which("valgrind") is None:
        print("valgrind is needed (Debian: apt-get install valgrind)", file=sys.stderr)
        return 2
    environment = {**os.environ, "GUNGRAUN_RUNNER": str(runner())}
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    counts = instructions(done.stdout.splitlines())
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for kernel, count in counts.items():
        change = f"{count / kept[kernel] - 1:+8.1%}" if kernel in kept else "     new"
        print(f"{count:12,} {change}  {kernel}")
    if options.renew:
        KEPT.write_text(json.dumps(counts, indent=2) + "\n")
        return 0
    found = faults(counts, kept)
    for fault in found:
        print(fault, file=sys.stderr)
    if found:
        print("if this is meant: python scripts/bench_check.py --renew", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
