"""Samples, taken in rounds and alternately with the peer, and the figures computed from them.

A ratio is computed for each round, because a machine that is slow for a minute is slow for both sides.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["s", "1/s", "bytes", "count"]
Action = Callable[[int], object]


@dataclass(frozen=True)
class Limit:
    """Upper or lower limit of a figure."""

    relation: Literal["<=", ">="]
    value: float

    def is_met(self, value: float) -> bool:
        return value <= self.value if self.relation == "<=" else value >= self.value


def at_most(value: float) -> Limit:
    return Limit("<=", value)


def at_least(value: float) -> Limit:
    return Limit(">=", value)


@dataclass
class Figure:
    """One line of the report; `ours`, `theirs` and `ratios` contain one value for each round.

    The limit applies to the median of `ratios` if there is a peer, otherwise to the median of `ours`.
    """

    benchmark: str
    what: str
    unit: Unit
    ours: list[float]
    limit: Limit | None = None
    peer: str = ""
    theirs: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        return None if self.limit is None else self.limit.is_met(statistics.median(self.ratios or self.ours))


class Bench:
    """Folder, size and figures of one run.

    Folders are kept until the end of the run: file systems are slow where thousands of files were just deleted.
    """

    def __init__(self, folder: Path, *, quick: bool = False, on_figure: Callable[[Figure], None] = lambda _: None):
        self.root = folder
        self.quick = quick
        self.figures: list[Figure] = []
        self.benchmark = ""
        #: URIs by number of tables, for `lakes.shared`.
        self.shared_lakes: dict[int, str] = {}
        self._on_figure = on_figure
        self._folders = 0

    def size(self, full: int, quick: int) -> int:
        """`full`, or `quick` in a quick run."""
        return quick if self.quick else full

    def folder(self, name: str) -> Path:
        """A new path, not created, on the measured disk."""
        self._folders += 1
        return self.root / f"{self._folders:03d}-{name}"

    def remove(self) -> None:
        """Delete all folders of the run."""
        shutil.rmtree(self.root, ignore_errors=True)

    def figure(
        self, what: str, values: Sequence[float], unit: Unit, limit: Limit | None = None, note: str = ""
    ) -> None:
        """Report a figure without a peer."""
        self._add(Figure(self.benchmark, what, unit, list(values), limit, note=note))

    def cost(
        self,
        what: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        limit: Limit | None = None,
        unit: Unit = "s",
        note: str = "",
    ) -> None:
        """Report our values divided by the peer's."""
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
        self._add(Figure(self.benchmark, what, unit, list(ours), limit, peer, list(theirs), ratios, note))

    def speed(
        self,
        what: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        limit: Limit | None = None,
        note: str = "",
    ) -> None:
        """Report how many times faster than the peer TrinityLake is; both lists are in seconds."""
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        self._add(Figure(self.benchmark, what, "s", list(ours), limit, peer, list(theirs), ratios, note))

    def _add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self._on_figure(figure)


def seconds(action: Callable[[], object]) -> float:
    """Duration of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turn(rounds: int, repeats: int, **actions: Action) -> dict[str, list[float]]:
    """Median seconds of each action in each round, in which every action is called `repeats` times in a row.

    The order of the actions changes with each round. Each call of an action gets another number.
    """
    medians: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            numbers = range(turn * repeats, (turn + 1) * repeats)
            medians[name].append(statistics.median(seconds(lambda i=i, name=name: actions[name](i)) for i in numbers))  # type: ignore[misc]
    return medians


def most_memory_bytes() -> int:
    """Peak resident memory of this process. `getrusage` would include the peak of the parent process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
