"""`examples/incremental_pipeline.py`: random changes of its inputs, and updates that fail or are killed."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl

EXAMPLE = Path(__file__).parents[2] / "examples" / "incremental_pipeline.py"
KILLED_UPDATE = f"""
import os, signal, sys
sys.path.insert(0, {str(EXAMPLE.parent)!r})
import trinitylake as tl
from incremental_pipeline import update
from pyspark.sql import SparkSession
from trinitylake.spark.runtime import use_this_python

use_this_python()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
update(spark, tl.open(sys.argv[1]), before_commit=lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("incremental_pipeline", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs(
    spark: SparkSession, example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(str(tmp_path / "lake"))
    printed = capsys.readouterr().out
    assert "the update failed" in printed
    assert printed.rstrip().endswith("shop.titled: [(1, 'Black ink', 800), (2, 'Black ink', 200)]")


def change_at_random(rng: random.Random, lake: tl.Lakehouse) -> None:
    orders, items = lake.table("shop.orders"), lake.table("shop.items")
    names = [f"item-{number}" for number in range(6)]
    ids = rng.sample(range(40), rng.randint(1, 12))
    for _ in range(rng.randint(1, 3)):
        match rng.randint(0, 4):
            case 0 | 1:
                some = [rng.choice(names) for _ in ids]
                orders.upsert({"id": ids, "item": some, "amount": [rng.randint(-9, 99) for _ in ids]})
            case 2:
                some = rng.sample(names, 3)
                items.upsert({"item": some, "title": [f"{name} {rng.randint(0, 3)}" for name in some]})
            case 3:
                orders.delete(f"id in ({', '.join(map(str, ids))})")
            case 4:
                items.delete(f"item = '{rng.choice(names)}'")
                orders.maintenance.compact()


def rows(lake: tl.Lakehouse, table: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in lake.table(table).to_arrow().to_pylist())


def check(lake: tl.Lakehouse) -> None:
    """Compute both tables from all rows of the inputs, in Python."""
    orders, titles = rows(lake, "shop.orders"), dict(rows(lake, "shop.items"))
    totals: dict[object, list[int]] = defaultdict(lambda: [0, 0])
    for _, item, amount in orders:
        totals[item][0] += 1
        totals[item][1] += int(str(amount))
    assert rows(lake, "shop.totals") == sorted((item, *total) for item, total in totals.items())
    assert rows(lake, "shop.titled") == [(id, titles[item], amount) for id, item, amount in orders if item in titles]


@pytest.mark.timeout(600)
def test_derived_tables_follow_random_changes_through_failures_and_kills(
    spark: SparkSession, example: ModuleType, tmp_path: Path
) -> None:
    """The derived tables of the example equal a computation from all rows, after random changes, failures and kills. An
    order that is inserted and deleted between two updates leaves no group without orders."""
    rng = random.Random(38)
    lake = example.create(str(tmp_path / "lake"))
    lake.table("shop.orders").append({"id": [1], "item": ["gone"], "amount": [1]})
    lake.table("shop.orders").delete("id = 1")
    for number in range(6):
        change_at_random(rng, lake)
        before = [rows(lake, name) for name in ("shop.totals", "shop.titled")]
        if number == 2:
            environment = {**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1] / "python")}
            killed = subprocess.run([sys.executable, "-c", KILLED_UPDATE, lake.uri], env=environment, timeout=300)
            assert killed.returncode == -signal.SIGKILL
        if number == 4:
            with pytest.raises(ZeroDivisionError):
                example.update(spark, lake, before_commit=lambda: 1 / 0)
        assert before == [rows(lake, name) for name in ("shop.totals", "shop.titled")]
        example.update(spark, lake)
        check(lake)
