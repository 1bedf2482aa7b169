"""The figures of a run as a table on the terminal and in `benches/RESULTS.md`."""

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

from benches.measure import Figure, Unit

PACKAGES = ("pyarrow", "pyiceberg", "deltalake", "duckdb", "lmdb", "mmh3", "pyspark")
COLUMNS = ("benchmark", "what", "TrinityLake", "compared with", "peer", "ratio", "limit", "met", "date")
HEAD = f"""# Results

Written by `make bench` and by `python -m benches NAME … --results benches/RESULTS.md`, which replaces the rows of the
benchmarks that it runs. [README](README.md) explains how to measure, [Performance](../docs/performance.md) what the
figures mean. A figure is the median of its rounds, with the least and the greatest value in parentheses.

Machine of the last run: {{machine}}.

| {" | ".join(COLUMNS)} |
|{"---|" * len(COLUMNS)}
"""


def print_report(figures: Sequence[Figure], machine: str, console: Console) -> None:
    """Print the table and the notes of the figures."""
    table = Table(title=machine, title_justify="left")
    for column in COLUMNS[1:-1]:
        table.add_column(column, overflow="fold")
    for figure in figures:
        table.add_row(*cells(figure))
    console.print(table)
    for figure in figures:
        if figure.note:
            console.print(f"[dim]{figure.what}: {figure.note}[/dim]", highlight=False)


def write_results(file: Path, figures: Sequence[Figure], machine: str, order: Sequence[str]) -> None:
    """Replace the rows of the benchmarks in `figures` in a results file; other benchmarks keep their rows.

    `order` contains the names of all benchmarks; rows of other names are removed.
    """
    rows: dict[str, list[str]] = {name: [] for name in order}
    measured = {figure.benchmark for figure in figures}
    for line in file.read_text().splitlines() if file.exists() else ():
        name = line.removeprefix("| `").partition("`")[0]
        if line.startswith("| `") and name in rows and name not in measured:
            rows[name].append(line)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    for figure in figures:
        rows[figure.benchmark].append(f"| `{figure.benchmark}` | {' | '.join([*cells(figure), date])} |")
    file.write_text(HEAD.format(machine=machine) + "".join(f"{row}\n" for name in order for row in rows[name]))


def cells(figure: Figure) -> tuple[str, ...]:
    """The cells of a row between the benchmark and the date."""
    ratio = limit = ""
    if figure.ratios:
        ratio = f"{statistics.median(figure.ratios):.3g}"
        if len(figure.ratios) > 1:
            ratio += f" ({min(figure.ratios):.3g} to {max(figure.ratios):.3g})"
    if figure.limit is not None:
        value = f"{figure.limit.value:.3g}" if figure.ratios else amount(figure.limit.value, figure.unit)
        limit = f"{'at most' if figure.limit.relation == '<=' else 'at least'} {value}"
    return (
        figure.what,
        spread(figure.ours, figure.unit),
        figure.peer,
        spread(figure.theirs, figure.unit) if figure.theirs else "",
        ratio,
        limit,
        {True: "yes", False: "no", None: ""}[figure.is_met],
    )


def spread(values: Sequence[float], unit: Unit) -> str:
    """The median, and the least and the greatest value if they differ."""
    text = amount(statistics.median(values), unit)
    if max(values) > min(values):
        text += f" ({amount(min(values), unit)} to {amount(max(values), unit)})"
    return text


def amount(value: float, unit: Unit) -> str:
    """A number with a unit that suits its size."""
    if unit == "s":
        factor, name = next(
            pair for pair in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if value * pair[0] >= 1 or pair[0] == 1e6
        )
        return f"{value * factor:.3g} {name}"
    if unit == "count":
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    suffix = {"1/s": "/s", "bytes": "B"}[unit]
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{suffix}"
    return f"{value:.3g} {suffix}"


def machine(folder: Path) -> str:
    """Date, hardware and versions of packages."""
    facts = [
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        f"{os.cpu_count()} cores",
        f"load {os.getloadavg()[0]:.1f}",
        platform.platform(),
        _file_system(folder),
        f"Python {platform.python_version()}",
    ]
    for package in PACKAGES:
        try:
            facts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(facts)


def _file_system(folder: Path) -> str:
    mounts = (line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines())
    return max((len(mount), kind) for mount, kind in mounts if folder.is_relative_to(mount))[1]
