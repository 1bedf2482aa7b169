"""The worker processes of a server. Each runs one job at a time, and is killed when the job exceeds its limits.

`concurrent.futures` is not used: it cannot kill a single hung worker, and its workers import the main module of the
program again. Each worker is a separate program with a directory for temporary files, which is removed when the worker
ends.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing import Pipe as pipe
from typing import Any

from trinitylake.rest import limits
from trinitylake.rest.errors import RestError, unavailable
from trinitylake.rest.workers.worker import Job

_PROGRAM = "import sys; from trinitylake.rest.workers.worker import worker_main; worker_main(int(sys.argv[1]))"
#: How often a waiting thread checks the deadline and whether its result is still wanted.
_POLL_SECONDS = 0.1
#: How long a worker may take to start, which includes its imports.
_START_SECONDS = 60.0
#: How long a worker that has closed its connection may take to exit.
_EXIT_SECONDS = 5.0


class WorkerDied(Exception):
    """The worker process ended during the job: it exceeded its memory limit, or a library crashed."""


class JobAbandoned(Exception):
    """The job was killed because its result is no longer needed."""


class WorkerPool:
    """The worker processes of one server. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots = {
            kind: limits.SharedLimit(of_kind.at_work, of_kind.of_owner) for kind, of_kind in limits.JOBS.items()
        }
        self._idle: list[_Worker] = []
        self._workers: set[_Worker] = set()
        self._is_closed = False

    @property
    def n_at_work(self) -> int:
        """Number of running jobs."""
        return sum(slots.n_leases for slots in self._slots.values())

    def run(
        self,
        job: Job,
        owner: str,
        *,
        seconds: float,
        wait_seconds: float | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        on_progress: Callable[[str], object] = lambda progress: None,
    ) -> Any:
        """Run a job in a worker and return its result.

        Args:
            job: what to run.
            owner: owner of the job, for the limit on jobs of one owner.
            seconds: time limit, without the start of a worker; each report of progress restarts it.
            wait_seconds: how long to wait for a slot; by default `limits.JOB_WAIT_SECONDS`.
            is_wanted: polled; the job is killed when it returns False.
            on_progress: called with each report of the job.

        Raises:
            RestError: 429 if no slot was free for `wait_seconds`, 503 if the pool is closed.
            TimeoutError: the job, with the wait for a slot, took longer than `seconds`.
            WorkerDied: the job took too much memory, or crashed.
            JobAbandoned: `is_wanted` returned False.
            Exception: errors of the job.
        """
        wait_seconds = limits.JOB_WAIT_SECONDS if wait_seconds is None else wait_seconds
        began = time.monotonic()
        with ExitStack() as slot:
            try:
                slot.enter_context(self._slots[job.kind].lease(owner, wait_seconds=min(seconds, wait_seconds)))
            except RestError:
                if seconds <= wait_seconds:
                    raise TimeoutError("no worker process became free in time") from None
                raise
            worker = self._take_worker()
            try:
                seconds_left = seconds - (time.monotonic() - began)
                result, error, is_reusable = worker.run(job, seconds_left, seconds, is_wanted, on_progress)
            except BaseException:
                self._end(worker)
                raise
            self._give_back(worker, is_reusable)
        if error is not None:
            raise error
        return result

    def end_idle(self) -> None:
        """End workers that have been idle for long."""
        with self._lock:
            since = time.monotonic() - limits.IDLE_WORKER_SECONDS
            ended = [worker for worker in self._idle if worker.idle_since <= since]
            self._idle = [worker for worker in self._idle if worker not in ended]
        for worker in ended:
            self._end(worker)

    def close(self) -> None:
        """Kill all workers and start no others."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for worker in self._workers:
                worker.kill()  # `run` of its job, if any, raises `WorkerDied` and then ends the worker
        for worker in idle:
            self._end(worker)

    def _take_worker(self) -> _Worker:
        with self._lock:
            if self._is_closed:
                raise unavailable("the server is shutting down")
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                self._workers.discard(worker)
                worker.end()
            worker = _Worker()
            self._workers.add(worker)
            return worker

    def _give_back(self, worker: _Worker, is_reusable: bool) -> None:
        worker.idle_since = time.monotonic()
        with self._lock:
            if is_reusable and not self._is_closed and len(self._idle) < limits.MAX_IDLE_WORKERS:
                self._idle.append(worker)
                return
        self._end(worker)

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            self._workers.discard(worker)
        worker.end()


class _Worker:
    """One process, and its directory for temporary files."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._is_ready = False
        self._folder = tempfile.mkdtemp(prefix="trinitylake-worker-")
        self._connection, theirs = pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=worker_environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self._connection.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            theirs.close()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def run(
        self,
        job: Job,
        seconds_left: float,
        seconds: float,
        is_wanted: Callable[[], bool],
        on_progress: Callable[[str], object],
    ) -> tuple[Any, Exception | None, bool]:
        """The result or the error of a job, and whether the worker can run another job. Raises as `WorkerPool.run`."""
        try:
            if not self._is_ready:
                self._receive(time.monotonic() + _START_SECONDS, is_wanted)
                self._is_ready = True
            deadline = time.monotonic() + max(seconds_left, 0.0)
            self._connection.send_bytes(pickle.dumps((job, seconds, limits.JOBS[job.kind].memory_size_bytes)))
            while True:
                outcome, value, is_reusable = self._receive(deadline, is_wanted)
                if outcome != "progress":
                    return (value, None, is_reusable) if outcome == "done" else (None, value, is_reusable)
                on_progress(value)
                deadline = time.monotonic() + seconds
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                if sys.platform != "win32" and self.process.wait(_EXIT_SECONDS) == -signal.SIGALRM:
                    raise TimeoutError("the job took too long") from None
            raise WorkerDied("the worker process ended during the job") from error

    def _receive(self, deadline: float, is_wanted: Callable[[], bool]) -> tuple[str, Any, bool]:
        """Next message of the worker: its kind, its value, and whether the worker can run another job."""
        while not self._connection.poll(_POLL_SECONDS):
            if not is_wanted():
                raise JobAbandoned
            if time.monotonic() > deadline:
                raise TimeoutError("the job took too long")
        message: tuple[str, Any, bool] = pickle.loads(self._connection.recv_bytes(limits.MAX_RESULT_SIZE_BYTES))
        return message

    def kill(self) -> None:
        self.process.kill()

    def end(self) -> None:
        """Kill the worker and remove its temporary files."""
        self.kill()
        self.process.wait()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def worker_environment(folder: str) -> dict[str, str]:
    """Environment variables of a worker. They stop libraries from reserving memory, which would count as used."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TMPDIR": folder,
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MIMALLOC_ARENA_EAGER_COMMIT": "0",  # otherwise the core's allocator reserves a gigabyte
        "RUST_BACKTRACE": "0",  # out of memory, Rust would hang while it makes a backtrace
    }
