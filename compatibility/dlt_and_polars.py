"""Program of `run_dlt_polars.py`: released dlt and Polars, in an environment without this package.

Usage: `python dlt_and_polars.py URL FOLDER WAREHOUSE TOKEN NAME`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dlt
import polars as pl
from dlt.destinations import filesystem
from pyiceberg.catalog import Catalog, load_catalog


def rows(start: int, end: int, **more: Any) -> list[dict[str, Any]]:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        {"id": id, "city": "ab"[id % 2], "at": moment + timedelta(hours=id), "fare": id * 1.5, **more}
        for id in range(start, end)
    ]


def load_with_dlt(folder: str, name: str) -> None:
    """Append rows, add a column, upsert, and replace a table."""
    pipeline = dlt.pipeline(
        name, destination=filesystem(bucket_url=f"file://{folder}/dlt"), dataset_name=name, pipelines_dir=folder
    )

    def run(table: str, data: list[dict[str, Any]], disposition: Any, **options: Any) -> None:
        def loaded() -> Iterator[list[dict[str, Any]]]:
            yield data

        resource = dlt.resource(loaded, name=table, table_format="iceberg", write_disposition=disposition, **options)
        pipeline.run(resource)

    upsert = {"disposition": "merge", "strategy": "upsert"}
    run("trips", rows(0, 10), "append")
    run("trips", rows(10, 15), "append")
    run("trips", rows(15, 17, tip=1.0), "append")
    run("cities", [{"city": city, "n": 1} for city in "abc"], upsert, primary_key="city")
    run("cities", [{"city": city, "n": 7} for city in "cd"], upsert, primary_key="city")
    run("fresh", [{"v": 1}], "replace")
    run("fresh", [{"v": 2}], "replace")


def check_dlt(catalog: Catalog, name: str) -> None:
    trips = catalog.load_table((name, "trips")).scan().to_arrow()
    assert sorted(trips["id"].to_pylist()) == list(range(17))
    assert trips["tip"].null_count == 15
    cities = catalog.load_table((name, "cities")).scan().to_arrow().to_pylist()
    assert {row["city"]: row["n"] for row in cities} == {"a": 1, "b": 1, "c": 7, "d": 7}
    assert catalog.load_table((name, "fresh")).scan().to_arrow()["v"].to_pylist() == [2]


def use_polars(catalog: Catalog, name: str) -> None:
    """Append, overwrite, write a lazy frame, and scan with both readers of Polars."""
    days = [date(2026, 1, day) for day in range(1, 5)]
    frame = pl.DataFrame(
        {"id": [1, 2, 3, None], "city": list("abab"), "x": [1.5, 2.5, float("nan"), None], "day": days}
    )
    table = catalog.create_table((name, "frame"), schema=frame.to_arrow().schema)

    def scan(**options: Any) -> pl.LazyFrame:
        return pl.scan_iceberg(catalog.load_table((name, "frame")), **options)

    frame.write_iceberg(table, mode="append")
    frame.write_iceberg(catalog.load_table((name, "frame")), mode="append")
    assert scan().collect().height == 8
    assert scan(reader_override="native").filter(pl.col("id") > 1).select("city").collect().height == 4
    assert scan(reader_override="pyiceberg").filter(pl.col("city") == "a").collect().height == 4
    frame.head(1).write_iceberg(catalog.load_table((name, "frame")), mode="overwrite")
    assert scan().collect().rows() == frame.head(1).rows()
    frame.lazy().filter(pl.col("id") > 1).sink_iceberg(catalog.load_table((name, "frame")), mode="append")
    assert sorted(scan().collect()["id"].to_list()) == [1, 2, 3]


def main(url: str, folder: str, warehouse: str, token: str, name: str) -> None:
    configuration = {"type": "rest", "uri": url, "warehouse": warehouse, "token": token}
    os.environ["ICEBERG_CATALOG__ICEBERG_CATALOG_NAME"] = "lake"
    os.environ["ICEBERG_CATALOG__ICEBERG_CATALOG_TYPE"] = "rest"
    os.environ["ICEBERG_CATALOG__ICEBERG_CATALOG_CONFIG"] = json.dumps(configuration)
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    load_with_dlt(folder, name)
    catalog = load_catalog("lake", **configuration)
    check_dlt(catalog, name)
    use_polars(catalog, name)
    print(f"dlt {dlt.__version__} and polars {pl.__version__} in {warehouse.partition('/')[0]}: all as it should be")


if __name__ == "__main__":
    main(*sys.argv[1:])
