"""The picture of the page in the documentation: a lakehouse of flights, served, and looked at in a real browser.

    python scripts/page_screenshot.py

It needs Chromium and its driver (Debian: `apt install chromium chromium-driver`).
"""

from __future__ import annotations

import datetime
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import trinitylake as tl

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from page.driver import browsing  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "page-table.png"
CARRIERS = ["AA", "B6", "DL", "EV", "UA"]


def flights(day: int) -> pa.Table:
    """Some flights of one day."""
    began = datetime.datetime(2026, 5, day + 1, 6, tzinfo=datetime.UTC)
    numbers = range(200)
    return pa.table(
        {
            "flight": [f"{CARRIERS[number % 5]}{1000 + 7 * number}" for number in numbers],
            "departed": pa.array(
                [began + datetime.timedelta(minutes=5 * number) for number in numbers], pa.timestamp("us", tz="UTC")
            ),
            "delay": pa.array([(number * 37) % 90 - 10 for number in numbers], pa.int32()),
            "gate": [None if number % 9 == 0 else f"B{number % 40}" for number in numbers],
        }
    )


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        lake = tl.create(f"{folder}/lake", name="New York flights", durability="none")
        with lake.transaction(message="The first day", author="ana") as txn:
            txn.create_namespace("nyc")
            txn.create_table("nyc.flights", flights(0)).append(flights(0))
            txn.create_table("nyc.airlines", {"carrier": "varchar", "name": "varchar"})
            txn.create_view("nyc.late", "SELECT * FROM nyc.flights WHERE delay > 30", dialect="duckdb")
        for day in range(1, 5):
            with lake.transaction(message=f"Flights of day {day}", author="etl") as txn:
                txn.table("nyc.flights").append(flights(day))
        with tl.rest.serve(lake) as url, browsing() as browser:
            browser.resize(1200, 820)
            browser.emulate(prefers_color_scheme="light")
            browser.go(f"{url}/#/latest/table/nyc/flights?tab=rows")
            browser.wait("return document.querySelector('td') !== null && !document.querySelector('.waiting')")
            PICTURE.parent.mkdir(exist_ok=True)
            browser.screenshot(PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
