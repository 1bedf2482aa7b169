"""Divides the keys of a version into ranges, one for each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from trinitylake import _core, core

#: Start (inclusive) and end (exclusive) of a range of keys; None for no bound.
KeyRange: TypeAlias = tuple[str | None, str | None]


def ranges_of(storage: _core.Storage, version: _core.Version, wanted: int) -> list[KeyRange]:
    """About `wanted` consecutive ranges that together contain all keys; an empty list if there is no object."""
    if next(iter(pa.RecordBatchReader.from_stream(version.scan(columns=["key"]))), None) is None:
        return []
    level = [core.root_path(version.number)]
    keys: list[str] = []
    while level and len(keys) < wanted:
        nodes = [core.read_node(storage.get(path), path) for path in level]
        keys += [key for node in nodes for key in node.table["key"].to_pylist()[1 : node.n_keys + 1]]
        level = [path for node in nodes for path in node.table["pnode"].to_pylist() if path is not None]
    keys.sort(key=str.encode)
    step = max(1, len(keys) // wanted)
    bounds = [None, *keys[::step], None]
    return list(pairwise(bounds))


def frame_of(spark: SparkSession, ranges: list[KeyRange]) -> DataFrame:
    """The ranges, each in a task of its own."""
    return spark.createDataFrame(ranges, "start string, end string").repartition(len(ranges))


def objects_within(storage: _core.Storage, number: int, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keys and locations of the objects of a version within ranges of `frame_of`. Runs on an executor."""
    version = _core.Lakehouse.open(storage).version(number)
    for one in (one for batch in ranges for one in batch.to_pylist()):
        yield from pa.RecordBatchReader.from_stream(version.scan(start=one["start"], end=one["end"]))
