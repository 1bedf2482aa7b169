"""Commits of Icechunk that change one attribute of one group, timed, for whoever asks on standard input.

A program of its own: the newest release of Icechunk may need another Python than ours. It takes a number of commits
from each line, and answers with the seconds of their median.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import icechunk
import zarr


def main(folder: Path) -> None:
    icechunk.set_logs_filter("error")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    zarr.group(store=session.store)
    session.commit("first")
    print(icechunk.__version__, flush=True)
    for line in sys.stdin:
        taken = []
        for number in range(int(line)):
            session = repository.writable_session("main")
            zarr.open_group(store=session.store).attrs["owner"] = f"team {number} of {time.perf_counter_ns()}"
            started = time.perf_counter()
            session.commit("change")
            taken.append(time.perf_counter() - started)
        print(statistics.median(taken), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
