"""Forked processes that write to one lakehouse and are killed at random moments."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

import trinitylake as tl
from slow_s3 import SlowS3, slow_s3

_FORK = multiprocessing.get_context("fork")
#: Longest time without a step of any process, on a machine that is busy with other programs.
PATIENCE_SECONDS = 600


def kills(short: int, deep: int) -> int:
    """The number of kills, in `make test` and under `TRINITYLAKE_DEEP`."""
    return deep if os.environ.get("TRINITYLAKE_DEEP") else int(os.environ.get("TRINITYLAKE_KILLS", short))


class Store(NamedTuple):
    """The storage of the lakehouse of a test."""

    uri: str
    options: dict[str, str]
    s3: SlowS3 | None

    def open(self) -> tl.Lakehouse:
        return tl.open(self.uri, durability="none", storage_options=self.options)

    def create(self, coordination: str) -> tl.Lakehouse:
        properties = {"commit.coordination": coordination}
        return tl.create(self.uri, durability="none", properties=properties, storage_options=self.options)


@contextmanager
def store_on(kind: str, folder: Path) -> Iterator[Store]:
    """A store on a local disk, or a simulated S3 that takes a few milliseconds for a request."""
    with slow_s3(0.006, 0.002) if kind == "s3" else nullcontext() as s3:
        yield Store(str(folder / "lake"), {}, None) if s3 is None else Store(s3.uri("lake"), s3.options, s3)


class Reaper:
    """Kills running processes at random times or, on S3, at random requests.

    Args:
        work: runs in each process, with the arguments of `begin`.
        steps: returns the number of steps of all processes so far.
        max_steps: the greatest number of steps between two kills.
    """

    def __init__(
        self,
        work: Callable[..., None],
        chance: random.Random,
        steps: Callable[[], int],
        store: Store,
        max_steps: int = 25,
    ) -> None:
        self.running: list[Any] = []
        self._max_steps = max_steps
        self._work, self._chance, self._steps, self._s3, self._requests_left = work, chance, steps, store.s3, -1
        if self._s3 is not None:
            self._s3.on_put = self._on_put

    def begin(self, *arguments: Any) -> None:
        child = _FORK.Process(target=partial(self._work, *arguments), name=str(arguments[1]))
        child.start()
        self.running.append(child)

    def kill_one(self) -> None:
        """Kill a process after some more steps, and wait until it has ended."""
        enough, latest = self._steps() + self._chance.randrange(self._max_steps) + 1, -1
        while (steps := self._steps()) < enough and self.alive():
            if steps > latest:
                latest, deadline = steps, time.monotonic() + PATIENCE_SECONDS
            assert time.monotonic() < deadline, "no process writes any more"
            time.sleep(0.01)
        if not self.running:  # a process that lost its producer ends by itself
            return
        if self._s3 is None:
            time.sleep(self._chance.random() * 0.05)
            self._chance.choice(self.running).kill()
        else:
            self._requests_left = self._chance.randrange(1, 10)
        assert wait([child.sentinel for child in self.running], timeout=PATIENCE_SECONDS), (
            "no process sends requests any more"
        )
        self.alive()

    def alive(self) -> list[Any]:
        """The processes that are still running."""
        for child in [child for child in self.running if not child.is_alive()]:
            child.join()
            self.running.remove(child)
        return self.running

    def kill_all(self) -> None:
        for child in self.running:
            child.kill()
            child.join()

    def _on_put(self, key: str) -> str:
        self._requests_left -= 1
        if self._requests_left != 0 or not self.running:
            return ""
        self._chance.choice(self.running).kill()
        return ""  # not a failure: another process may have sent the request
