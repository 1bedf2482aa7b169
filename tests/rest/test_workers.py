"""Worker processes: limits, and the end of a worker."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trinitylake.errors import CommitConflict, ObjectNotFound
from trinitylake.rest import limits
from trinitylake.rest.errors import RestError
from trinitylake.rest.workers.pool import JobAbandoned, WorkerDied, WorkerPool, worker_environment
from trinitylake.rest.workers.worker import Job
from waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Evaluate(Job):
    """A job that executes a Python statement, with `report` as a name, and returns the value of `result`."""

    kind: ClassVar[str] = "page"

    statement: str

    def run(self, report: Callable[[str], None]) -> Any:
        names: dict[str, Any] = {"report": report}
        exec(self.statement, names)
        return names.get("result")


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()
    assert not pool._workers
    assert not pool.n_at_work


def evaluate(pool: WorkerPool, statement: str, owner: str = "ann", seconds: float = 60, **options: Any) -> Any:
    return pool.run(Evaluate(statement), owner, seconds=seconds, **options)


PROCESS = "import os; result = os.getpid()"


HANG = "import time; time.sleep(600)"


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_runs_one_job_after_the_other_and_ends_with_the_pool(pool: WorkerPool) -> None:
    process = evaluate(pool, PROCESS)
    assert process != os.getpid()
    assert evaluate(pool, PROCESS) == process
    pool.close()
    assert not is_running(process)
    with pytest.raises(RestError, match="shutting down"):
        evaluate(pool, PROCESS)


@pytest.mark.usefixtures("reused_workers")
def test_an_error_of_a_job_is_raised_and_the_worker_continues(pool: WorkerPool) -> None:
    process = evaluate(pool, PROCESS)
    with pytest.raises(ObjectNotFound, match="no such table"):
        evaluate(pool, "from trinitylake.errors import ObjectNotFound; raise ObjectNotFound('no such table')")
    with pytest.raises(CommitConflict) as caught:
        evaluate(
            pool, "from trinitylake.errors import CommitConflict; raise CommitConflict('lost', keys=['table a.b'])"
        )
    assert caught.value.keys == ["table a.b"]
    unpicklable = "class Odd(Exception):\n    pass\nraise Odd('of nobody else')"
    with pytest.raises(RuntimeError, match="Odd: of nobody else"):
        evaluate(pool, unpicklable)
    assert evaluate(pool, PROCESS) == process


@pytest.mark.usefixtures("reused_workers")
def test_a_worker_that_exceeds_a_limit_or_crashes_is_replaced(pool: WorkerPool) -> None:
    for statement, seconds, error in (
        (HANG, 1, TimeoutError),
        ("import os; os.abort()", 60, WorkerDied),
        ("import os; os._exit(0)", 60, WorkerDied),
        (f"result = bytes({limits.MAX_RESULT_SIZE_BYTES} + 1)", 60, WorkerDied),
    ):
        process = evaluate(pool, PROCESS)
        with pytest.raises(error):
            evaluate(pool, statement, seconds=seconds)
        assert not is_running(process), statement
        assert evaluate(pool, PROCESS) != process, statement


def test_memory_above_the_limit_of_a_job_is_refused(pool: WorkerPool) -> None:
    with pytest.raises(MemoryError):
        evaluate(pool, "bytes(1500 << 20)")
    assert evaluate(pool, "result = len(bytes(500 << 20))") == 500 << 20


@pytest.mark.usefixtures("reused_workers")
def test_a_worker_that_has_grown_is_ended(pool: WorkerPool) -> None:
    evaluate(pool, "import builtins; builtins.kept = b'x' * (400 << 20)")
    assert not pool._workers


@pytest.mark.usefixtures("reused_workers")
def test_a_job_whose_client_disconnected_is_killed(pool: WorkerPool) -> None:
    with pytest.raises(JobAbandoned):
        evaluate(pool, HANG, is_wanted=lambda: False)
    assert not pool._workers


@pytest.mark.usefixtures("reused_workers")
def test_progress_restarts_the_time_limit(pool: WorkerPool) -> None:
    evaluate(pool, PROCESS)
    seen: list[str] = []
    statement = "import time\nfor step in 'abcd':\n    time.sleep(1.5)\n    report(step)"
    evaluate(pool, statement, seconds=5, on_progress=seen.append)
    assert seen == list("abcd")
    with pytest.raises(TimeoutError):
        evaluate(pool, statement.replace("1.5", "600"), seconds=1)


@pytest.mark.usefixtures("reused_workers")
def test_jobs_of_one_owner_leave_workers_for_others(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOB_WAIT_SECONDS", 0.05)
    goes_on = threading.Event()
    goes_on.set()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(evaluate, pool, HANG, "ann", 600, is_wanted=goes_on.is_set) for _ in range(2)]
        while pool.n_at_work < 2:
            time.sleep(0.01)
        with pytest.raises(RestError) as caught:
            evaluate(pool, PROCESS, "ann")
        assert caught.value.code == 429
        with pytest.raises(TimeoutError):
            evaluate(pool, PROCESS, "ann", 0.1, wait_seconds=1.0)
        assert evaluate(pool, PROCESS, "bob")
        goes_on.clear()
        for one in waiting:
            with pytest.raises(JobAbandoned):
                one.result()


def test_temporary_files_of_a_worker_are_deleted_with_it(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = evaluate(pool, "import tempfile; result = tempfile.mkstemp()[1]")
    assert Path(path).is_relative_to(tmp_path)
    pool.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("reused_workers")
def test_idle_workers_are_limited_and_end_after_their_time(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(3) as threads:
        sleep = "import time; time.sleep(1)"
        for one in [threads.submit(evaluate, pool, sleep, owner) for owner in ("ann", "bob", "cy")]:
            one.result()
    assert 1 <= len(pool._workers) <= limits.MAX_IDLE_WORKERS
    pool.end_idle()
    assert pool._workers
    monkeypatch.setattr(limits, "IDLE_WORKER_SECONDS", 0.0)
    pool.end_idle()
    assert not pool._workers


@pytest.mark.usefixtures("reused_workers")
def test_a_worker_without_server_ends_at_its_time_limit(pool: WorkerPool) -> None:
    evaluate(pool, PROCESS)
    [worker] = pool._workers
    worker._connection.send_bytes(pickle.dumps((Evaluate(HANG), 0.5, 1 << 30)))
    assert worker.process.wait(PATIENCE_SECONDS) == -signal.SIGALRM


#: Allocates memory of the core in pieces of fifty kilobytes and keeps them, under a limit of 64 MiB.
PROGRAM = """
import sys
import pyarrow as pa
from trinitylake import _core
from trinitylake.rest.workers.worker import limit_memory

paths = pa.array(["x" * 1000] * 50)
limit_memory(64 << 20)
kept = [_core.optimize_paths(paths) for _ in range(int(sys.argv[1]))]
"""


def test_memory_of_the_core_counts_towards_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address space that the core's allocator reserves when it is loaded does not count as used memory; otherwise
    the core could use a gigabyte beyond the limit. If the memory is exhausted the process ends, also with
    `RUST_BACKTRACE=1`."""
    monkeypatch.setenv("RUST_BACKTRACE", "1")
    environment = worker_environment(str(tmp_path))

    def ends_with(pieces: int) -> int:
        program = [sys.executable, "-c", PROGRAM, str(pieces)]
        return subprocess.run(program, env=environment, check=False).returncode

    assert (ends_with(100), ends_with(5000)) == (0, -signal.SIGABRT)
