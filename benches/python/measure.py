"""Measuring: samples taken in rounds, ours and the others' in turn, and the figures that come of them.

Every figure is a ratio or a count with the goal beside it. A ratio is formed round by round, since a machine that
is slow for a minute is slow for both sides.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["s", "1/s", "bytes", "bytes/s", "count"]
Action = Callable[[int], object]


@dataclass(frozen=True)
class Goal:
    """What a figure must be: `at most` or `at least` a number."""

    relation: Literal["<=", ">="]
    limit: float

    def met_by(self, value: float) -> bool:
        return value <= self.limit if self.relation == "<=" else value >= self.limit


def at_most(limit: float) -> Goal:
    """The goal of what costs."""
    return Goal("<=", limit)


def at_least(limit: float) -> Goal:
    """The goal of what pays."""
    return Goal(">=", limit)


@dataclass
class Figure:
    """One line of the report.

    `ours` and `theirs` hold one value for each round, in `unit`. With `theirs` the goal is about `ratios`, also one
    for each round; without, about `ours`. `target` numbers the figure to reach; None is for orientation.
    """

    benchmark: str
    target: int | None
    what: str
    unit: Unit
    ours: list[float]
    goal: Goal | None = None
    peer: str = ""
    theirs: list[float] = field(default_factory=list)
    ratio: Literal["ours / theirs", "theirs / ours", ""] = ""
    ratios: list[float] = field(default_factory=list)
    note: str = ""
    #: Of a figure that is a point of a curve: how many objects there were, and of which curve.
    objects: int = 0
    curve: str = ""

    @property
    def value(self) -> float:
        """What the goal is about."""
        return statistics.median(self.ratios or self.ours)

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.goal.met_by(self.value)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "median": statistics.median(self.ours), "value": self.value, "met": self.met}


class Bench:
    """What one run of the benchmarks shares: its folder, its size, its figures.

    Folders of a run stay until its end: file systems are slow where thousands of files were just deleted.
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
        """A number of rounds or of objects: the full one, or the one to try things out with."""
        return quick if self.quick else full

    def folder(self, name: str) -> Path:
        """A path for one use, not created, on the disk that is measured."""
        self._folders += 1
        return self.root / f"{self._folders:03d}-{name}"

    def remove(self) -> None:
        """Delete everything, at the end of the run."""
        shutil.rmtree(self.root, ignore_errors=True)

    def figure(
        self,
        target: int | None,
        what: str,
        values: Sequence[float],
        unit: Unit,
        goal: Goal | None = None,
        note: str = "",
    ) -> None:
        """Report a figure that stands for itself."""
        self._add(Figure(self.benchmark, target, what, unit, list(values), goal, note=note))

    def curve(self, what: str, objects: int, values: Sequence[float], unit: Unit) -> None:
        """Report what something costs where there are so many objects: one point of a curve."""
        told = f"{what}, {objects:,} objects"
        self._add(Figure(self.benchmark, None, told, unit, list(values), objects=objects, curve=what))

    def cost(
        self,
        target: int | None,
        what: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        goal: Goal | None = None,
        unit: Unit = "s",
        note: str = "",
    ) -> None:
        """Report ours as a multiple of theirs."""
        ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
        self._add(
            Figure(
                self.benchmark, target, what, unit, list(ours), goal, peer, list(theirs), "ours / theirs", ratios, note
            )
        )

    def speed(
        self,
        target: int | None,
        what: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        goal: Goal | None = None,
        note: str = "",
    ) -> None:
        """Report how many times as fast as the peer we are, from two lists of seconds."""
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        self._add(
            Figure(
                self.benchmark, target, what, "s", list(ours), goal, peer, list(theirs), "theirs / ours", ratios, note
            )
        )

    def _add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self._on_figure(figure)


def seconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def in_turn(rounds: int, repeats: int, **actions: Action) -> dict[str, list[float]]:
    """Median seconds of each action in each round: in a round, every action is called `repeats` times on end.

    Who comes first changes from round to round. An action gets a number that no other call of it gets.
    """
    medians: dict[str, list[float]] = {name: [] for name in actions}
    names = list(actions)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            action = actions[name]
            times = []
            for number in range(turn * repeats, (turn + 1) * repeats):
                start = time.perf_counter()
                action(number)
                times.append(time.perf_counter() - start)
            medians[name].append(statistics.median(times))
    return medians


def as_json(figures: Sequence[Figure], machine: dict[str, object]) -> str:
    """The whole report for programs."""
    return json.dumps({"machine": machine, "figures": [figure.to_json() for figure in figures]}, indent=2)
