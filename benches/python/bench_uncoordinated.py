"""Eight processes that know nothing of each other, each with a table of its own: 10,000 commits.

None may fail, and together they must make at least 0.7 of the versions that one writer makes alone on the same disk.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import trinitylake as tl
from benches.python import peers
from benches.python.measure import Bench, at_least, at_most

PROCESSES = 8
#: How long a process waits for the others to have imported everything.
START_TIMEOUT_SECONDS = 300


class Committed(NamedTuple):
    """What one process did: when it began and ended, by the clock of the machine, and the errors."""

    began: float
    ended: float
    errors: list[str]


def work(uri: str, number: int, commits: int, meeting: Path, processes: int) -> Committed:
    """One process. Each commit gives the process's own table a definition; nothing else is done meanwhile."""
    core = tl.open(uri)._core
    definition = core.latest().read("table", "n", f"t{number}")
    assert definition is not None
    errors = []
    _meet(meeting, number, processes)
    began = time.time()
    for _ in range(commits):
        try:
            transaction = core.begin()
            transaction.replace("table", "n", f"t{number}", definition)
            outcome = transaction.commit()
            assert isinstance(outcome, int), f"others changed a table that is not theirs: {outcome}"
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}"[:300])
    return Committed(began, time.time(), errors)


def _meet(folder: Path, number: int, processes: int) -> None:
    """Wait until all processes are here."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).touch()
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while len(list(folder.iterdir())) < processes:
        if time.monotonic() > deadline:
            raise TimeoutError("the other processes did not start")
        time.sleep(0.01)


def _rate(parts: list[Committed], commits: int) -> float:
    return commits / (max(part.ended for part in parts) - min(part.began for part in parts))


def uncoordinated(bench: Bench) -> None:
    """One writer, then eight, then one again."""
    uri = str(bench.folder("uncoordinated"))
    lake = tl.create(uri)
    with lake.transaction() as txn:
        txn.create_namespace("n")
        for number in range(PROCESSES):
            txn.create_table(f"n.t{number}", peers.SCHEMA)
    each = bench.size(1250, 20)

    def alone() -> float:
        commits = bench.size(1000, 20)
        part = work(uri, 0, commits, bench.folder("meet"), 1)
        assert not part.errors, part.errors
        return _rate([part], commits)

    before, meeting = alone(), bench.folder("meet")
    first = lake.version + 1
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(work, uri, number, each, meeting, PROCESSES) for number in range(PROCESSES)]
        parts = [future.result() for future in futures]
    versions = lake.version + 1 - first
    passed = [
        entry.version - 1 - transaction.began_at_version
        for entry in lake.log(versions)
        for transaction in entry.transactions
    ]
    errors = [error for part in parts for error in part.errors]
    commits = PROCESSES * each
    what = f"{PROCESSES} processes, {commits:,} commits to tables of their own"
    note = "; ".join(sorted(set(errors))[:3])
    bench.figure(None, f"{what}: commits that raised", [float(len(errors))], "count", at_most(0), note=note)
    bench.figure(None, f"{what}: share that landed", [len(passed) / commits], "count", at_least(1))
    bench.cost(
        None,
        f"{what}: versions a second",
        [_rate(parts, versions)],
        "one writer",
        [(before + alone()) / 2],
        at_least(0.7),
        unit="1/s",
        note=f"{sum(number > 0 for number in passed):,} commits were put on a newer root than they began on, past "
        f"{sum(passed) / len(passed):.2f} versions of others on average and {max(passed)} at most",
    )


BENCHMARKS = {"uncoordinated": uncoordinated}
