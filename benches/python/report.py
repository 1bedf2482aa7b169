"""The report for people: a table, a line for each figure, and what machine it was."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benches.python.measure import Figure, Unit

WORDS = {True: "yes", False: "no", None: ""}
PACKAGES = ("pyarrow", "pyiceberg", "icechunk", "deltalake", "duckdb", "lmdb", "mmh3")


def print_report(figures: Sequence[Figure], machine: dict[str, object], console: Console) -> None:
    """The table."""
    table = Table(title=", ".join(f"{key} {value}" for key, value in machine.items()), title_justify="left")
    for column in ("target", "what", "ours", "compared with", "theirs", "ratio (least to most)", "goal", "met"):
        table.add_column(column, overflow="fold")
    for figure in figures:
        table.add_row(*cells(figure))
    console.print(table)
    for figure in figures:
        if figure.note:
            console.print(f"[dim]{figure.what}: {figure.note}[/dim]", highlight=False)


def as_markdown(figures: Sequence[Figure], machine: dict[str, object]) -> str:
    """The same table for a page of documentation."""
    lines = [
        ", ".join(f"{key} {value}" for key, value in machine.items()),
        "",
        "| target | what | ours | compared with | theirs | ratio (least to most) | goal | met |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join([*cells(figure)[:-1], WORDS[figure.met]]) + " |" for figure in figures]
    lines += ["", *(f"- {figure.what}: {figure.note}" for figure in figures if figure.note)]
    return "\n".join(lines) + "\n"


def cells(figure: Figure) -> tuple[str, ...]:
    """One line of the table."""
    ratio = ""
    if figure.ratios:
        ratio = f"{statistics.median(figure.ratios):.3g} ({min(figure.ratios):.3g} to {max(figure.ratios):.3g})"
    goal = ""
    if figure.goal is not None:
        limit = f"{figure.goal.limit:.3g}" if figure.ratios else amount(figure.goal.limit, figure.unit)
        goal = f"{'at most' if figure.goal.relation == '<=' else 'at least'} {limit}"
    met = WORDS[figure.met]
    color = "green" if figure.met else "red"
    return (
        "" if figure.target is None else str(figure.target),
        figure.what,
        spread(figure.ours, figure.unit),
        figure.peer,
        spread(figure.theirs, figure.unit) if figure.theirs else "",
        ratio,
        goal,
        f"[{color}]{met}[/{color}]" if met else "",
    )


def spread(values: Sequence[float], unit: Unit) -> str:
    """The median, and the least and the greatest value if there are several."""
    text = amount(statistics.median(values), unit)
    if len(values) > 1 and max(values) > min(values):
        text += f" ({amount(min(values), unit)} to {amount(max(values), unit)})"
    return text


def amount(value: float, unit: Unit) -> str:
    """A number with a unit that suits its size."""
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if value * factor >= 1 or name == "µs":
                return f"{value * factor:.3g} {name}"
    prefixes = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    if unit == "count":
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    suffix = {"1/s": "/s", "bytes": "B", "bytes/s": "B/s"}[unit]
    for factor, prefix in prefixes:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{suffix}"
    return f"{value:.3g} {suffix}"


def machine(folder: Path) -> dict[str, object]:
    """Where and when the figures were measured."""
    facts: dict[str, object] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count() or 0,
        "system": platform.platform(),
        "disk": _file_system(folder),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return facts


def _file_system(folder: Path) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name = line.split()[:3]
        if folder.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, name
    return kind
