"""Whether a history of transactions could have come about one after the other: a search for cycles.

Transactions read lists and append their own id to lists ("list-append", as Kingsbury and Alvaro describe it for their
checker Elle). What a list holds in the end tells in which order its writers came, and what a transaction read tells
between which of them it stood. From that follow the edges of the direct serialization graph (Adya): T1 came before T2,
because T2

- overwrote what T1 wrote (ww: the next element of a list),
- read what T1 wrote (wr: the last element that it saw),
- wrote what T1 did not see (rw: the next element after the last that T1 saw).

A cycle means that no order explains what happened.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Transaction:
    """A transaction as its client knows it.

    Attributes:
        id: the element that it appends.
        reads: the content of each list that it read.
        appends: the lists to which it appended.
        outcome: True if the commit was acknowledged, False if it was refused, None if the answer was lost.
    """

    id: str
    reads: Mapping[str, Sequence[str]]
    appends: frozenset[str]
    outcome: bool | None


@dataclass
class Findings:
    """Violations in a history, as descriptions. All lists are empty for a serializable history."""

    lost_writes: list[str] = field(default_factory=list)
    partial_commits: list[str] = field(default_factory=list)
    aborted_writes: list[str] = field(default_factory=list)
    impossible_reads: list[str] = field(default_factory=list)
    cycles: list[str] = field(default_factory=list)

    @property
    def is_serializable(self) -> bool:
        return not any(vars(self).values())


def check(history: Iterable[Transaction], final: Mapping[str, Sequence[str]]) -> Findings:
    """Compare a history with the final content of all lists."""
    transactions = {one.id: one for one in history}
    findings = Findings()
    for name, elements in final.items():
        for id in elements:
            if id not in transactions or name not in transactions[id].appends:
                findings.impossible_reads.append(f"{name} holds {id}, which nobody appended to it")
    committed: dict[str, Transaction] = {}
    for one in transactions.values():
        held = {name for name in one.appends if one.id in final[name]}
        if one.outcome is False and held:
            findings.aborted_writes.append(f"{one.id} was refused, and is in {', '.join(sorted(held))}")
        elif one.outcome is True and not held and one.appends:
            findings.lost_writes.append(f"{one.id} was committed, and is in none of {', '.join(sorted(one.appends))}")
        elif held and held != one.appends:
            missing = ", ".join(sorted(one.appends - held))
            findings.partial_commits.append(f"{one.id} is in {', '.join(sorted(held))}, and not in {missing}")
        if held or one.outcome is True:
            committed[one.id] = one
    for one in committed.values():
        for name, seen in one.reads.items():
            if list(seen) != list(final[name][: len(seen)]):
                findings.impossible_reads.append(f"{one.id} read {name} as it never was for long: {list(seen)}")
    edges = _edges(committed, final)
    findings.cycles += [_described(cycle, edges) for cycle in _cycles({one: set(edges[one]) for one in edges})]
    return findings


def _edges(committed: Mapping[str, Transaction], final: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """For each transaction, the transactions that must come later in a serial order, with the reason."""
    edges: dict[str, dict[str, str]] = {one: {} for one in committed}

    def add(before: str, after: str, why: str) -> None:
        if before != after and before in edges and after in edges:
            edges[before].setdefault(after, why)

    for name, elements in final.items():
        for before, after in itertools.pairwise(elements):
            add(before, after, f"ww {name}")
    for one in committed.values():
        for name, seen in one.reads.items():
            elements = final[name]
            if list(seen) != list(elements[: len(seen)]):
                continue  # reported before
            if seen:
                add(seen[-1], one.id, f"wr {name}")
            following = [element for element in elements[len(seen) :] if element != one.id]
            if following:
                add(one.id, following[0], f"rw {name}")
    return edges


def _cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """A shortest cycle through each node that is not in a cycle found before."""
    found: list[list[str]] = []
    covered: set[str] = set()
    for start in graph:
        if start in covered:
            continue
        came_from: dict[str, str] = {}
        pending = deque([start])
        while pending and start not in came_from:
            node = pending.popleft()
            for after in graph[node]:
                if after not in came_from:
                    came_from[after] = node
                    pending.append(after)
        if start in came_from:
            cycle = [start]
            while (before := came_from[cycle[-1]]) != start:
                cycle.append(before)
            found.append([start, *reversed(cycle[1:])])
            covered.update(cycle)
    return found


def _described(cycle: Sequence[str], edges: Mapping[str, Mapping[str, str]]) -> str:
    steps = [f"{one} -[{edges[one][after]}]-> " for one, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    return "".join(steps) + cycle[0]
