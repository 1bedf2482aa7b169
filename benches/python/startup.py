"""How much processor time processes take that do nothing much, and how many modules they load: commands, a program that
opens a table, and what reads rows for a server.

    python -m benches.python.startup [RUNS]

Prints the smallest of several runs, of the whole process, with that of a Python that does nothing beside it. Python
keeps what it has compiled, as it does wherever the package is installed, also where the environment forbids it
(`PYTHONDONTWRITEBYTECODE`): else each run compiles every module anew, which takes as long as all the rest.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

import trinitylake as tl

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 15
SCRIPT = (
    "import sys\nfrom trinitylake.cli import main\nsys.argv = ['trinitylake', *sys.argv[1:]]\n"
    "try:\n    main()\nexcept SystemExit:\n    print(len(sys.modules), file=sys.stderr)"
)

#: Programs that are not commands; the argument is a root.
PROGRAMS = {
    "a table and the plan of a scan": (
        "import trinitylake as tl\n"
        "list(tl.open(sys.argv[1]).table('n0.t').scan(filter='id > 1').iceberg.plan_files())\n"
    ),
    "a process for queries of the page": (
        "from trinitylake.rest.workers.worker import _NoPandas\nsys.meta_path.insert(0, _NoPandas())\n"
        "import duckdb, trinitylake.rest.workers.page_jobs\n"
    ),
}


def processor_millis(command: list[str]) -> tuple[float, str]:
    """The smallest processor time of several runs, and what the last wrote on standard error."""
    smallest, told = float("inf"), ""
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr.strip()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        smallest = min(smallest, took * 1000)
    return smallest, told


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "compiled")
        root = os.path.join(folder, "lake")
        lake = tl.create(root)
        for number in range(20):
            lake.create_namespace(f"n{number}")
        print(f"python, nothing: {processor_millis([sys.executable, '-c', 'pass'])[0]:.0f} ms")
        for arguments in (["--help"], ["ls", "--root", root], ["log", "--root", root]):
            millis, modules = processor_millis([sys.executable, "-c", SCRIPT, *arguments])
            print(f"{arguments[0]}: {millis:.0f} ms, {modules} modules")
        lake.create_table("n0.t", tl.Schema([tl.Column("id", "bigint")])).append({"id": [1, 2, 3]})
        for what, program in PROGRAMS.items():
            script = f"import sys\n{program}print(len(sys.modules), file=sys.stderr)"
            millis, modules = processor_millis([sys.executable, "-c", script, root])
            print(f"{what}: {millis:.0f} ms, {modules} modules")


if __name__ == "__main__":
    main()
