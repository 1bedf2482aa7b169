"""The pictures of the page in the documentation: a lakehouse of flights in a real browser.

    python scripts/page_screenshot.py

It needs Chromium and its driver (Debian: `apt install chromium chromium-driver`).
"""

from __future__ import annotations

import datetime
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

import trinitylake as tl

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from page.driver import browsing  # noqa: E402

FOLDER = ROOT / "docs" / "images"
QUERY = """SELECT date_trunc('hour', departed) AS hour, avg(delay) AS delay, max(delay) AS worst
FROM nyc.flights
GROUP BY ALL"""
#: Name, colour scheme, address, scripts to run, and what is shown then.
PICTURES = (
    ("table", "light", "table/nyc/flights?tab=rows", (), "td"),
    ("overview", "dark", "overview", (), ".sortable td.number"),
    ("compare", "light", "compare/5/6?object=nyc.flights", (), "tr.changed"),
    (
        "sql",
        "light",
        f"sql?q={quote(QUERY)}",
        (
            "document.querySelector('.query button.main').click()",
            "document.querySelector('.switch button:last-child').click()",
        ),
        "canvas",
    ),
)
CARRIERS = ["AA", "B6", "DL", "EV", "UA"]


def flights(day: int) -> pa.Table:
    """Some flights of one day."""
    began = datetime.datetime(2026, 5, day + 1, 6, tzinfo=datetime.UTC)
    numbers = range(200)
    return pa.table(
        {
            "flight": pa.array([f"D{day}-{CARRIERS[number % 5]}{1000 + 7 * number}" for number in numbers]),
            "departed": pa.array(
                [began + datetime.timedelta(minutes=5 * number) for number in numbers], pa.timestamp("us", tz="UTC")
            ),
            "delay": pa.array([(number * 37) % 90 - 10 for number in numbers], pa.int32()),
            "gate": [None if number % 9 == 0 else f"B{number % 40}" for number in numbers],
        }
    )


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        lake = tl.create(f"{folder}/lake", name="New York flights", durability="none")
        with lake.transaction(message="The first day", author="ana") as txn:
            txn.create_namespace("nyc")
            txn.create_table("nyc.flights", flights(0).schema, primary_key=["flight"]).append(flights(0))
            txn.create_table("nyc.airlines", {"carrier": "varchar", "name": "varchar"})
            txn.create_view("nyc.late", "SELECT * FROM nyc.flights WHERE delay > 30", dialect="duckdb")
        for day in range(1, 5):
            with lake.transaction(message=f"Flights of day {day}", author="etl") as txn:
                txn.table("nyc.flights").append(flights(day))
        with lake.transaction(message="Correct three delays, remove test flights", author="ana") as txn:
            table, late = txn.table("nyc.flights"), flights(4).slice(3, 3)
            table.upsert(late.set_column(2, "delay", pa.array([0, 5, 7], pa.int32())))
            table.delete("flight in ('D4-AA1000', 'D4-B61007')")
        with tl.rest.serve(lake) as url, browsing() as browser:
            browser.resize(1200, 820)
            for name, scheme, address, scripts, shown in PICTURES:
                browser.emulate(prefers_color_scheme=scheme)
                browser.go("about:blank")
                browser.go(f"{url}/#/latest/{address}")
                for script in scripts:
                    browser.wait(f"return {script.removesuffix('.click()')} !== null")
                    browser.run(script)
                browser.wait(f"return document.querySelector('{shown}') && !document.querySelector('.waiting')")
                picture = FOLDER / f"page-{name}.png"
                browser.screenshot(picture)
                print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
