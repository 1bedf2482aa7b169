"""Memory at a million objects, and the duration of an import and of short commands, each in a separate process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import trinitylake as tl
from benches import lakes
from benches.measure import Bench, at_most, in_turn

#: `benches` is importable from this folder.
TOP = Path(__file__).resolve().parent.parent

IMPORTS = """
import sys, time
{before}
start = time.perf_counter()
{timed}
print(time.perf_counter() - start)
"""

MEMORY = """
import random, sys
import pyarrow as pa
import trinitylake as tl
import trinitylake as tl
from benches import lakes
from trinitylake import core

def resident(line="VmRSS"):
    # Not getrusage, whose peak includes that of the parent process.
    with open("/proc/self/status") as file:
        return next(int(text.split()[1]) * 1024 for text in file if text.startswith(line))

uri, tables = sys.argv[1], int(sys.argv[2])
print("imported", resident())
lake = tl.open(uri, durability="none", cache_size_bytes=lakes.WARM_CACHE_SIZE_BYTES)
version = lake._core.latest()
rows = sum(batch.num_rows for batch in version.scan())
assert rows > tables
print("scanned", resident())
chance = random.Random(4)
for _ in range(200_000):
    row = chance.randrange(tables)
    share = lakes.TABLES_PER_NAMESPACE if tables >= 100_000 else tables // 10
    assert version.exists("table", f"namespace_{row // share:05d}", f"table_{row % share:07d}")
print("looked up", resident())
for number in range(200):
    lake.create_namespace(f"new_{number}")
print("committed", resident())
assert version.list("table", "namespace_00001").num_rows
print("peak", resident("VmHWM"))
"""


def _python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=TOP).stdout


def memory(bench: Bench) -> None:
    """Scan, random look-ups and commits at a million objects, with a cache that can contain every node."""
    tables = bench.size(1_000_000, 20_000)
    # A lakehouse of its own: the process commits to it.
    uri = lakes.registered(bench.folder("memory"), tables)
    lines = _python(MEMORY, uri, str(tables)).splitlines()
    sizes = {name: float(size) for name, size in (line.rsplit(" ", 1) for line in lines)}
    bench.figure(
        f"peak resident memory: scan, look-ups and commits at {tables:,} tables",
        [sizes["peak"]],
        "bytes",
        at_most(500e6),
        note=", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items()),
    )


def import_time(bench: Bench) -> None:
    """`import trinitylake` after pyarrow, and pyarrow alone."""
    before = "import pyarrow"
    times: dict[str, list[float]] = {"ours": [], "pyarrow": []}

    def timed(name: str, program: str) -> None:
        times[name].append(float(_python(program)))

    in_turn(
        bench.size(15, 3),
        1,
        ours=lambda _: timed("ours", IMPORTS.format(before=before, timed="import trinitylake")),
        pyarrow=lambda _: timed("pyarrow", IMPORTS.format(before="", timed=before)),
    )
    bench.figure("import trinitylake, in addition to pyarrow", times["ours"], "s", at_most(60e-3))
    bench.figure("import pyarrow", times["pyarrow"], "s")


def startup(bench: Bench) -> None:
    """Processor time of short commands, with compiled bytecode in a cache."""
    folder = bench.folder("startup")
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    root = folder / "lake"
    lake = tl.create(str(root))
    for number in range(20):
        lake.create_namespace(f"n{number}")

    def processor_seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=TOP, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    rounds = range(bench.size(15, 3))
    bench.figure("python -c pass: processor time", [processor_seconds("-c", "pass") for _ in rounds], "s")
    for command in (["--help"], ["ls", "--root", str(root)], ["log", "--root", str(root)]):
        times = [processor_seconds("-m", "trinitylake", *command) for _ in rounds]
        bench.figure(f"trinitylake {command[0]}: processor time", times, "s")


BENCHMARKS = {"memory": memory, "import": import_time, "startup": startup}
