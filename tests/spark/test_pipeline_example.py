"""The example pipeline on a part of its data. The example contains assertions; this test checks the resulting
tables.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trinitylake as tl

EXAMPLE = Path(__file__).parents[2] / "examples" / "nycflights_pipeline.py"


def test_the_pipeline_runs_on_a_part_of_the_data(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lake"
    monkeypatch.setenv("TRINITYLAKE_PIPELINE_ROOT", str(root))
    monkeypatch.setenv("TRINITYLAKE_PIPELINE_EVERY", "500")
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "failed: the disk of a worker is full" in printed
    assert "refused: check every_distance_is_positive does not hold" in printed
    lake = tl.open(str(root))
    messages = [entry.message for entry in lake.log(None) if not entry.message.startswith("Spark")]
    assert messages.count("load december") == 1
    assert messages.count("roll back transaction december") == 1
    assert "load december-again" not in messages
    assert messages.count("roll back transaction december-again") == 1
    assert messages[0] == "the note was about another airport"
    silver, feed, gold = (
        lake.table(name).scan().to_arrow() for name in ("silver.flights", "feed.flights", "gold.delays")
    )
    assert silver.num_rows == feed.num_rows == sum(gold["flights"].to_pylist()) > 500
    assert sorted(silver.to_pylist(), key=str) == sorted(feed.to_pylist(), key=str)
    assert lake.table("bronze.flights").scan().to_arrow().num_rows == 674


def test_the_pipeline_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert ended.value.code == 0
    assert "Missing here: Java 17 or 21" in capsys.readouterr().out
