"""Targets 18 and 19: memory at a million objects, and what an import costs, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benches.python import lakes
from benches.python.measure import Bench, at_most, in_turn

#: From here the programs below import `benches`.
TOP = Path(__file__).resolve().parent.parent.parent

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
from benches.python import lakes
from trinitylake import core

def resident(line="VmRSS"):
    # Not getrusage: its peak counts what the parent had before this program was started.
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

QUIET = """
import os
def state():
    sockets = sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}"))
    return len(os.listdir("/proc/self/task")), sockets
import pyarrow
before = state()
import trinitylake
after = state()
print(after[0] - before[0], after[1] - before[1])
"""


def _python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=TOP).stdout


def memory(bench: Bench) -> None:
    """Scan, random look-ups and commits at a million objects, with a cache that holds every node."""
    tables = bench.size(1_000_000, 20_000)
    # A lakehouse of its own: the process commits to it.
    uri = lakes.registered(bench.folder("memory"), tables)
    lines = _python(MEMORY, uri, str(tables)).splitlines()
    sizes = {name: float(size) for name, size in (line.rsplit(" ", 1) for line in lines)}
    bench.figure(
        18,
        f"peak resident memory: scan, look-ups and commits at {tables:,} tables",
        [sizes["peak"]],
        "bytes",
        at_most(500e6),
        note=", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items()),
    )


def import_time(bench: Bench) -> None:
    """`import trinitylake` after pyarrow, beside pyarrow alone."""
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
    threads, sockets = _python(QUIET).split()
    bench.figure(19, "import trinitylake, beyond pyarrow's own", times["ours"], "s", at_most(60e-3))
    bench.figure(None, "import pyarrow", times["pyarrow"], "s")
    bench.figure(19, "threads that the import starts", [float(threads)], "count", at_most(0))
    bench.figure(19, "sockets that the import opens", [float(sockets)], "count", at_most(0))


BENCHMARKS = {"memory": memory, "import": import_time}
